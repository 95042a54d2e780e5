// Taps on streams, over the double of the CUDA runtime.
#include "support/cuda_ways.hpp"
#include "support/enqueued_tap.hpp"
#include "support/net.hpp"

#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Cuda;
using gpipe::device::Host;
using Real = float;

using Tap = gpipe::GradientTap<gpipe::Tensor<Real, 5>>;
template <template <class> class W>
using NetOf = gpipe::Pipeline<W<Tap>, W<toy::Linear<Real, 5, 6>>, W<toy::Tanh<Real, 6>>,
                              W<toy::Dropout<Real, 6>>, W<toy::Linear<Real, 6, 3>>>;
template <class L> using Itself = L;
using Loss = toy::MeanSquare<Real, 3>;
using OnHost = toy::Training<NetOf<Itself>, Loss, Adam, Host>;
using Train = toy::Training<NetOf<toy::Enqueued>, toy::EnqueuedLoss<Loss>, Adam, Cuda>;

template <class T> typename T::Options options(std::size_t cells) {
    return {.samples = 8, .seed = 7, .cells = cells, .micro_batches = 4};
}
// The gradient of the inputs after each of some steps; read(): what is there.
template <class T> std::vector<std::vector<Real>> flown(T& train, auto read) {
    std::vector<std::vector<Real>> all;
    for (std::size_t step = 0; step < 5; ++step) {
        toy::Data<Real> const data(8, static_cast<std::uint32_t>(step));
        (void)train.step(data.inputs, data.targets);
        all.push_back(read());
    }
    return all;
}
std::vector<std::vector<Real>> flown_on_host(gpipe::schedule::Dynamic schedule) {
    auto o = options<OnHost>(2);
    o.schedule = schedule;
    OnHost host({}, {}, Adam{1e-2f}, o);
    std::vector<Real> gradient(8 * 5);
    host.change_layer<0>([&](auto& tap) { tap.to = gradient.data(); });
    return flown(host, [&] { return gradient; });
}

} // namespace

TEST_CASE("P1 the gradient of the inputs is on streams what it is on the host, under every "
          "schedule, checkpointing, number of devices and link, in graphs, too") {
    auto const descending = flown_on_host(gpipe::schedule::GPipe{});
    auto const ascending = flown_on_host(gpipe::schedule::GPipeAscending{});
    CHECK(descending != ascending); // after a step
    std::size_t trained = 0;
    toy::each_way_on_streams(
        4, OnHost::layer_count, 4, 43, {gpipe::Link::shared, gpipe::Link::staged},
        [&](toy::CudaWay const& way) {
            auto o = options<Train>(way.cells);
            way.choose(o);
            if (trained++ % 2) o.loss_scale = gpipe::LossScale::fixed(1024);
            Train train({}, {}, Adam{1e-2f}, o);
            gpipe::cuda::Buffer const there(0, 8 * 5 * sizeof(Real));
            train.change_layer<0>(
                [&](auto& tap) { tap.to = static_cast<Real*>(static_cast<void*>(there.data())); });
            auto const read = [&] {
                std::vector<Real> values(8 * 5);
                cuda_double::peek(values.data(), there.data(), values.size() * sizeof(Real));
                return values;
            };
            CHECK(flown(train, read) == (way.descends() ? descending : ascending));
            CHECK(train.used_bytes() == train.planned_bytes());
        });
}
