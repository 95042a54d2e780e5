// Promise P2: random numbers depend on (seed, step, layer, sample in the mini-batch) only.

#include "support/net.hpp"

#include <gpipe/inference.hpp>

#include <doctest/doctest.h>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace {

using gpipe::device::Host;
using toy::Remote;

using Real = float;
constexpr std::size_t width = 8;

// Every mask that was drawn: by (step, layer, sample), of every call.
struct Masks {
    using Key = std::tuple<std::uint64_t, std::size_t, std::size_t>;
    std::mutex mutex;
    std::map<Key, std::vector<bool>> drawn;
    std::size_t calls = 0;
    std::size_t contradictions = 0;

    void note(Key key, std::vector<bool> mask) {
        std::lock_guard lock(mutex);
        ++calls;
        auto const [at, is_new] = drawn.emplace(key, mask);
        if (!is_new && at->second != mask) ++contradictions;
    }
};

struct Recorder : toy::Dropout<Real, width> {
    Masks* masks = nullptr;

    void note(auto& ctx) const {
        for (std::size_t s = 0; masks && s < ctx.samples(); ++s) {
            std::vector<bool> mask;
            for (std::size_t i = 0; i < width; ++i) mask.push_back(keep(ctx, s, i) != 0);
            masks->note({ctx.step(), ctx.layer(), ctx.first_sample() + s}, mask);
        }
    }
    void forward(auto& ctx, auto x, auto y) const {
        if (ctx.training()) note(ctx);
        toy::Dropout<Real, width>::forward(ctx, x, y);
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        note(ctx);
        toy::Dropout<Real, width>::backward(ctx, dy, dx);
    }
};

using Net = gpipe::Pipeline<toy::Linear<Real, 5, width>, Recorder, toy::Linear<Real, width, width>,
                            Recorder, Recorder, toy::Linear<Real, width, 3>>;
Net make_net(Masks& masks) {
    Recorder const recorder{{}, &masks};
    return Net({}, recorder, {}, recorder, recorder, {});
}
template <class Device>
using Train = toy::Training<Net, toy::MeanSquare<Real, 3>, gpipe::SGD, Device>;

template <class Device>
void draw(Masks& masks, std::size_t cells, std::size_t micro_batches, std::uint64_t seed,
          std::size_t samples, gpipe::schedule::Dynamic schedule,
          gpipe::checkpoint::Dynamic checkpointing, typename Device::Options device) {
    typename Train<Device>::Options o;
    o.samples = samples;
    o.seed = seed;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.schedule = schedule;
    o.checkpointing = checkpointing;
    o.device = device;
    Train<Device> train(make_net(masks), {}, {}, o);
    toy::Data<Real> const data(samples);
    for (int step = 0; step < 3; ++step) train.step(data.inputs, data.targets);
}

} // namespace

TEST_CASE_TEMPLATE("P2 the masks of dropout are the same for any K, M, schedule, timing, and in "
                   "recomputation",
                   Device, Host, Remote) {
    Masks expected;
    draw<Host>(expected, 1, 1, 4, 10, {}, gpipe::checkpoint::Never{}, {1});
    CHECK(expected.drawn.size() == 3 * 3 * 10); // steps, layers, samples
    auto const runs = toy::runs<Device>();
    std::size_t n = 0;
    std::size_t point = 0;
    for (toy::NamedSchedule const& schedule : toy::schedules)
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
            for (std::size_t cells : {1, 2, 4, 6})
                for (std::size_t micro_batches : {1, 2, 3, 7, 10, 12}) {
                    if (point++ % toy::one_of(13) != 0) continue;
                    Masks masks;
                    draw<Device>(masks, cells, micro_batches, 4, 10, schedule.policy,
                                 checkpointing.policy, runs[n++ % runs.size()]);
                    INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells,
                         ", M = ", micro_batches);
                    CHECK(masks.contradictions == 0);
                    CHECK((masks.drawn == expected.drawn));
                    CHECK(masks.calls >= 2 * expected.drawn.size()); // forward and backward
                }
}

TEST_CASE("P2 the masks of a sample do not depend on how many others there are") {
    Masks many, few;
    draw<Host>(many, 2, 4, 4, 10, {}, {}, {1});
    draw<Host>(few, 3, 2, 4, 3, {}, {}, {1});
    for (auto const& [key, mask] : few.drawn) CHECK((many.drawn.at(key) == mask));
}

namespace {

// Adds noise, in evaluation as well.
struct Noise {
    using Input = gpipe::Tensor<Real, 2>;
    using Output = Input;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;

    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 2; ++i)
                y(s, i) = x(s, i) + static_cast<Real>(ctx.random().uniform(s, i)) +
                          static_cast<Real>(ctx.first_sample() + s);
    }
    void backward(auto&, auto dy, auto dx) const {
        for (std::size_t i = 0; i < dx.size(); ++i) dx.data()[i] = dy.data()[i];
    }
};

} // namespace

TEST_CASE_TEMPLATE(
    "P2 what is drawn for a sample that is evaluated does not depend on the parts in "
    "which that is done",
    Device, Host, Remote) {
    using Noisy = gpipe::Pipeline<Noise, Noise>;
    using T = toy::Training<Noisy, toy::MeanSquare<Real, 2>, gpipe::SGD, Device>;
    std::vector<Real> const inputs(2 * 23, 1), targets(2 * 23);
    std::vector<Real> expected;
    double loss = 0;
    for (std::size_t const samples : {23, 64, 12, 4, 1})
        for (std::size_t const k : {1, 2}) {
            CAPTURE(samples);
            typename T::Options o;
            o.samples = samples;
            o.seed = 4;
            o.cells = k;
            o.micro_batches = 3;
            T train(Noisy{}, {}, {}, o);
            std::vector<Real> outputs(2 * 23), inferred(2 * 23);
            train.predict(inputs, outputs);
            if (expected.empty()) {
                expected = outputs;
                loss = train.evaluate(inputs, targets).loss;
            }
            CHECK(outputs == expected);
            CHECK(train.evaluate(inputs, targets).loss == doctest::Approx(loss));
            using Infers = gpipe::Inference<Noisy, gpipe::Cells<gpipe::dynamic>,
                                            gpipe::MicroBatches<2>, Device>;
            Infers infers(Noisy{}, {.samples = samples, .seed = 4, .cells = k});
            infers.predict(inputs, inferred);
            CHECK(inferred == expected);
        }
    CHECK(std::set<Real>(expected.begin(), expected.end()).size() == expected.size());
}

TEST_CASE("P2 another seed, step, layer or sample is another mask") {
    Masks masks, others;
    draw<Host>(masks, 2, 4, 4, 40, {}, {}, {1});
    draw<Host>(others, 2, 4, 5, 40, {}, {}, {1});
    auto const share_equal = [&](auto other) {
        std::size_t equal = 0;
        for (auto const& [key, mask] : masks.drawn) equal += mask == other(key);
        return double(equal) / double(masks.drawn.size());
    };
    // Two masks of eight elements, each kept with probability 3/4, are equal with probability
    // (9/16 + 1/16)^8 = 0.023.
    CHECK(share_equal([&](Masks::Key key) { return others.drawn.at(key); }) < 0.1);
    CHECK(share_equal([&](Masks::Key key) {
              std::get<0>(key) = (std::get<0>(key) + 1) % 3;
              return masks.drawn.at(key);
          }) < 0.1);
    CHECK(share_equal([&](Masks::Key key) {
              auto& layer = std::get<1>(key);
              layer = layer == 1 ? 3 : layer == 3 ? 4 : 1;
              return masks.drawn.at(key);
          }) < 0.1);
    CHECK(share_equal([&](Masks::Key key) {
              std::get<2>(key) = (std::get<2>(key) + 1) % 40;
              return masks.drawn.at(key);
          }) < 0.1);
    std::size_t kept = 0;
    for (auto const& [key, mask] : masks.drawn)
        for (bool const k : mask) kept += k;
    CHECK(double(kept) / double(width * masks.drawn.size()) == doctest::Approx(0.75).epsilon(0.05));
}

TEST_CASE("P2 parameters begin the same for any K and M, and with another seed otherwise") {
    auto const begin = [](std::size_t cells, std::size_t micro_batches, std::uint64_t seed) {
        Masks masks;
        Train<Host>::Options o;
        o.samples = 4;
        o.seed = seed;
        o.cells = cells;
        o.micro_batches = micro_batches;
        Train<Host> train(make_net(masks), {}, {}, o);
        std::vector<Real> values;
        for (std::size_t layer = 0; layer < Net::size; ++layer)
            for (std::size_t t = 0; t < train.tensors(layer); ++t) {
                auto const tensor = train.parameter<Real>(layer, t);
                values.insert(values.end(), tensor.begin(), tensor.end());
            }
        return values;
    };
    auto const expected = begin(1, 1, 1);
    for (std::size_t cells = 1; cells <= Net::size; ++cells)
        for (std::size_t micro_batches : {1, 3}) CHECK(begin(cells, micro_batches, 1) == expected);
    CHECK(begin(1, 1, 2) != expected);
}
