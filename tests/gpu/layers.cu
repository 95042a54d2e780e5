// Layers of the library that have kernels of their own, within trainings, against the same on the
// host: what flows through a tap in every bit, a norm as near as its sums are.
#include "support/gpu_memory.hpp"
#include "support/on_gpu.hpp"

#include <gpipe/cuda/norm_work.cuh>
#include <gpipe/cuda/tap_work.cuh>
#include <gpipe/layers/gradient_tap.hpp>
#include <gpipe/layers/sync_batch_norm.hpp>
#include <gpipe/replicas.hpp>
#include <gpipe/transport/local_gpus.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace layers_on_gpu {

using gpipe::device::Cuda;
using gpipe::device::Host;
using Real = float;
namespace kernel = toy::kernel;

using Tap = gpipe::GradientTap<gpipe::Tensor<Real, 5>>;
using Tapped = gpipe::Pipeline<Tap, kernel::Linear<Real, 5, 6>, kernel::Softsign<Real, 6>,
                               kernel::Linear<Real, 6, 3>>;
template <class Norm>
using Normed = gpipe::Pipeline<kernel::Linear<Real, 5, 6>, Norm, kernel::Softsign<Real, 6>,
                               kernel::Linear<Real, 6, 3>>;
using Sync = gpipe::SyncBatchNorm<gpipe::Tensor<Real, 6>>;
template <class Net, class Device, class... Policies>
using Train =
    gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<3>,
                    gpipe::Loss<kernel::MeanSquare<Real, 3>>, gpipe::Optimizer<gpipe::RMSProp>,
                    gpipe::schedule::OneForwardOneBackward, Device, Policies...>;
// Its update has one right result in every bit.
constexpr gpipe::RMSProp optimizer{1e-2f, 0.9f, 0.5f, 1e-6f, 1e-2f};

template <class T> typename T::Options options() {
    typename T::Options o;
    o.samples = 8;
    o.seed = 7;
    return o;
}
// On the GPUs that there are.
template <class T> typename T::Options on_gpus(std::size_t devices, std::size_t graphs) {
    auto o = options<T>();
    for (std::size_t d = 0; d < devices; ++d)
        o.device.gpus.push_back(static_cast<int>(d) % gpipe::cuda::device_count());
    o.device.graphs = graphs;
    return o;
}
constexpr std::size_t replicas = 2;

struct Trained {
    std::vector<double> losses;
    std::vector<double> running; // statistics
};
template <class Net, class T> Trained trained(T& train) {
    Trained result;
    for (std::size_t const samples : std::vector<std::size_t>{16, 16, 13, 16, 16}) {
        toy::Data<Real> const data(samples, static_cast<std::uint32_t>(samples));
        result.losses.push_back(train.step(data.inputs, data.targets).loss);
    }
    auto const buffers = Net::layers()[1].buffers;
    for (std::size_t t = 0; t < 2; ++t) { // mean and variance
        std::vector<double> values(buffers.bytes[t] / sizeof(double));
        train.read_buffer(1, t, std::span(values));
        result.running.insert(result.running.end(), values.begin(), values.end());
    }
    return result;
}
inline bool near(std::vector<double> const& one, std::vector<double> const& other) {
    bool result = one.size() == other.size();
    for (std::size_t i = 0; i < one.size() && result; ++i)
        result = one[i] == doctest::Approx(other[i]).epsilon(1e-4);
    return result;
}

} // namespace layers_on_gpu

TEST_CASE("the gradient of the inputs is what it is on the host, in every bit") {
    using namespace layers_on_gpu;
    using OnHost = Train<Tapped, Host>;
    using OnGpu = Train<Tapped, Cuda>;
    std::vector<Real> expected(8 * 5);
    for (std::size_t const graphs : {0, 2}) {
        toy::Session const session(graphs);
        auto const scaled = [&](auto o) {
            o.loss_scale = gpipe::LossScale::dynamic(64, 2, 0.5, 2);
            return o;
        };
        OnHost host(Tapped{}, {}, optimizer, scaled(options<OnHost>()));
        host.template change_layer<0>([&](Tap& tap) { tap.to = expected.data(); });
        OnGpu train(Tapped{}, {}, optimizer, scaled(on_gpus<OnGpu>(2, graphs)));
        gpipe::cuda::Buffer const there(0, expected.size() * sizeof(Real));
        train.template change_layer<0>(
            [&](Tap& tap) { tap.to = static_cast<Real*>(static_cast<void*>(there.data())); });
        for (std::uint32_t step = 0; step < 6; ++step) {
            toy::Data<Real> const data(8, step);
            CHECK(train.step(data.inputs, data.targets).loss ==
                  host.step(data.inputs, data.targets).loss);
            CHECK((toy::read<Real>(there, expected.size()) == expected));
        }
        CHECK((expected != std::vector<Real>(expected.size())));
        CHECK(train.used_bytes() == train.planned_bytes());
    }
}

TEST_CASE("replicas with SyncBatchNorm give nearly what they give on the host") {
    using namespace layers_on_gpu;
    using OnHost = Train<Normed<Sync>, Host, gpipe::Replicas<replicas>>;
    using OnGpus = Train<Normed<Sync>, Cuda, gpipe::Replicas<replicas>>;
    using Plain =
        Train<Normed<gpipe::BatchNorm<gpipe::Tensor<Real, 6>>>, Host, gpipe::Replicas<replicas>>;
    toy::Session const session;
    OnHost host({}, {}, optimizer, options<OnHost>());
    auto const expected = trained<Normed<Sync>>(host);
    OnGpus train({}, {}, optimizer, on_gpus<OnGpus>(2 * replicas, 0));
    auto const found = trained<Normed<Sync>>(train);
    CHECK(near(found.losses, expected.losses));
    CHECK(near(found.running, expected.running));
    CHECK(train.used_bytes() == train.planned_bytes());
    // It is seen whether they tell each other.
    Plain plain({}, {}, optimizer, options<Plain>());
    CHECK(!near(trained<Normed<gpipe::BatchNorm<gpipe::Tensor<Real, 6>>>>(plain).losses,
                expected.losses));
}
