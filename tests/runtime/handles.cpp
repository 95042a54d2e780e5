// Handles under a whole training: one of each type per device whose layers or loss ask for it, made
// before the first step, gone with the training; nothing else writes into their workspaces.
#include <support/net.hpp>

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <vector>

namespace {

std::atomic<int> made = 0;
std::atomic<int> live = 0;
std::atomic<int> uses = 0;
std::atomic<int> spoilt = 0;
std::array<std::atomic<void const*>, 5> used_by{}; // layer

struct Library {
    static constexpr std::size_t workspace = 1000;

    Library(auto const&, std::byte* memory) : at(memory) {
        ++made, ++live;
        std::memset(at, mark, workspace);
    }
    Library(Library const&) = delete;
    ~Library() { --live; }
    void use() {
        ++uses;
        for (std::size_t i = 0; i < workspace; ++i) spoilt += at[i] != std::byte{mark};
    }

    static constexpr unsigned char mark = 0x5A;
    std::byte* at;
};
using Without = toy::Linear<float, 3, 3>;
struct With : Without {
    using Handles = gpipe::Handles<Library>;
    void forward(auto& ctx, auto x, auto y) const {
        gpipe::handle<Library>(ctx).use();
        used_by[ctx.layer()] = &gpipe::handle<Library>(ctx);
        Without::forward(ctx, x, y);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        gpipe::handle<Library>(ctx).use();
        Without::backward(ctx, x, dy, dx);
    }
};
struct Loss : toy::MeanSquare<float, 3> {
    using Handles = Library;
    auto operator()(auto& ctx, auto... views) const {
        gpipe::handle<Library>(ctx).use();
        return toy::MeanSquare<float, 3>::operator()(ctx, views...);
    }
};
using Net = gpipe::Pipeline<With, With, Without, With, Without>;

} // namespace

TEST_CASE_TEMPLATE("each device that needs it has one handle, for as long as the training lives",
                   Device, gpipe::device::Host, toy::Remote) {
    int const expected[] = {1, 2, 3, 3, 4}; // cut evenly; the last cell has the loss's
    for (std::size_t cells = 1; cells <= 5; ++cells) {
        CAPTURE(cells);
        made = 0;
        uses = 0;
        {
            using Train = toy::Training<Net, Loss, gpipe::SGD, Device>;
            typename Train::Options o;
            o.samples = 6;
            o.cells = cells;
            o.micro_batches = 3;
            Train train(Net{}, {}, {.learning_rate = 0.01f}, o);
            CHECK(made == expected[cells - 1]);
            std::vector<float> const x(18, 1), target(18, 2);
            for (int step = 0; step < 3; ++step) train.step(x, target);
            train.evaluate(x, target);
            CHECK(made == expected[cells - 1]);
            CHECK(live == made);
            CHECK(uses > 3 * 3 * 7); // steps, micro-batches, calls at least
            auto const device_of = [&](std::size_t layer) {
                std::size_t cell = 0;
                while (train.plan().first[cell + 1] <= layer) ++cell;
                return train.programs().device_of(cell);
            };
            for (std::size_t i : {0, 1, 3})
                for (std::size_t j : {0, 1, 3})
                    CHECK((used_by[i] == used_by[j]) == (device_of(i) == device_of(j)));
        }
        CHECK(live == 0);
        CHECK(spoilt == 0);
    }
}
