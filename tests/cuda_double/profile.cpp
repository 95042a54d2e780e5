// Layers whose work is enqueued are timed until it is done.
#include "support/cuda_double/cuda_double.hpp"

#include <gpipe/device/cuda.hpp>
#include <gpipe/profile.hpp>

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
