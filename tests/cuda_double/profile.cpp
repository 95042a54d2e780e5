// Layers whose work is enqueued are timed until it is done; by these times a schedule is chosen.
#include "support/enqueued.hpp"

#include <gpipe/device/cuda.hpp>
#include <gpipe/profile.hpp>
#include <gpipe/schedule_for.hpp>

#include <cstddef>
#include <ctime>
#include <doctest/doctest.h>

namespace {

/// Enqueues a work of so many units of two milliseconds.
template <int units> struct Enqueuer {
    using Input = gpipe::Tensor<float, 1>;
    using Output = gpipe::Tensor<float, 1>;

    static void work(auto& ctx) {
        timespec const time{0, units * 2'000'000L};
        cuda_double::launch(ctx.stream(), [time] { nanosleep(&time, nullptr); }, {}, {});
    }
    void forward(auto& ctx, auto, auto) const { work(ctx); }
    void backward(auto& ctx, auto, auto, auto) const { work(ctx); }
};

struct Nothing {
    using Target = gpipe::Tensors<>;
    void operator()(auto& ctx, auto, auto, auto) const { Enqueuer<0>::work(ctx); }
};

} // namespace

TEST_CASE("L2 layers that enqueue 1 to 6 units are cut into 4 and 2 by time") {
    cuda_double::Session const session;
    {
        using Net = gpipe::Pipeline<Enqueuer<1>, Enqueuer<2>, Enqueuer<3>, Enqueuer<4>, Enqueuer<5>,
                                    Enqueuer<6>>;
        gpipe::Profile const profile =
            gpipe::profile<Net, gpipe::device::Cuda>({}, {.samples = 1, .rounds = 3});
        INFO(profile);
        auto const balance = gpipe::balance::by_time(profile, 2);
        CHECK(balance[0] == 4);
        CHECK(balance[1] == 2);
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("a schedule is chosen for GPUs, within their bytes, by the times of a profile") {
    cuda_double::Session const session({.devices = 2});
    using Net = gpipe::Pipeline<Enqueuer<1>, Enqueuer<1>, Enqueuer<1>, Enqueuer<1>>;
    using Train = gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<8>,
                                  gpipe::Loss<Nothing>, gpipe::schedule::Dynamic,
                                  gpipe::checkpoint::Dynamic, gpipe::device::Cuda>;
    {
        gpipe::LayerTimes times{{4, 2.0}, {4, 4.0}};
        Train::Options options{.samples = 8, .cells = 2, .device = {.gpus = {0, 1}}};
        std::size_t const calls = cuda_double::works();
        auto const found = gpipe::best_schedule_for<Train>(options, {.times = &times});
        CHECK(cuda_double::works() == calls); // no layer's
        REQUIRE(found);
        CHECK(found.best().schedule.cells_per_device() == 2);
        found.best().apply(options);
        Train const train({}, {}, {}, options);
        CHECK(gpipe::simulate<double>(train.programs(), train.costs_of(times)).makespan ==
              found.best().makespan);
        CHECK(train.used_bytes() == train.planned_bytes());
    }
    CHECK(cuda_double::complaints() == "");
}
