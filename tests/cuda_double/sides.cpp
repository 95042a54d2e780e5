// Side inputs on streams, over the double of the CUDA runtime: in the host's memory, pinned or not,
// and in a GPU's, behind the caller's stream.
#include "support/cuda_ways.hpp"
#include "support/enqueued.hpp"
#include "support/net.hpp"
#include "support/side_layers.hpp"

#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

using cuda_double::count;
using gpipe::Adam;
using gpipe::device::Cuda;
using gpipe::device::Host;
using Real = float;

using HostNet = toy::CarriedNet<Real>;
using HostTrain = toy::Training<HostNet, toy::MeanSquare<Real, 3>, Adam, Host>;
using Net =
    toy::MaskedNetOf<Real, toy::BySideOn<toy::Enqueued>::In, toy::Enqueued<toy::Linear<Real, 5, 6>>,
                     toy::Enqueued<toy::Linear<Real, 6, 3>>>;
using Loss = toy::EnqueuedLoss<toy::MeanSquare<Real, 3>>;
using T = toy::Training<Net, Loss, Adam, Cuda>;
using Data = toy::MaskedData<Real>;
constexpr std::size_t micro_batches = 6;
std::vector<std::size_t> const sizes{8, 5, 8, 1, 8, 8, 8, 5};

// Steps that are begun before those before are done, evaluations between. The arrays are others as
// soon as a step has begun.
template <class Train> std::vector<double> run(Train& train) {
    std::vector<double> result;
    std::vector<typename Train::Pending> pending;
    std::uint32_t number = 0;
    for (std::size_t const samples : sizes) {
        Data data(samples, ++number);
        pending.push_back(train.start(data.template batch<Train>(), data.targets));
        std::fill(data.mask.begin(), data.mask.end(), 99);
        std::fill(data.place.begin(), data.place.end(), 99.0f);
        if (samples == 8) continue;
        Data const more(19, number);
        result.push_back(train.evaluate(more.template batch<Train>(), more.targets).loss);
        result.push_back(
            train
                .compute_gradients(Data(8, number).template batch<Train>(), Data(8, number).targets)
                .loss);
        std::vector<Real> outputs(19 * 3);
        train.predict(more.template batch<Train>(), outputs);
        result.insert(result.end(), outputs.begin(), outputs.end());
    }
    for (auto& step : pending) result.push_back(step.result().loss);
    toy::add_state<HostNet>(train, result);
    return result;
}
template <class T> typename T::Options options(std::size_t cells) {
    return {.samples = 8, .seed = 7, .cells = cells, .micro_batches = micro_batches};
}
HostTrain host(gpipe::schedule::Dynamic schedule) {
    auto o = options<HostTrain>(1);
    o.schedule = schedule;
    return {HostNet{}, {}, Adam{1e-2f}, o};
}

} // namespace

TEST_CASE("P1 side inputs on streams are as on the host, and nothing races") {
    HostTrain first = host(gpipe::schedule::GPipe{}),
              second = host(gpipe::schedule::GPipeAscending{});
    auto const descending = run(first);
    auto const ascending = run(second);
    toy::each_way_on_streams(4, Net::size, micro_batches, 43, {gpipe::Link::shared},
                             [&](toy::CudaWay const& way) {
                                 auto o = options<T>(way.cells);
                                 way.choose(o);
                                 T train(Net{}, {}, Adam{1e-2f}, o);
                                 CHECK((run(train) == (way.descends() ? descending : ascending)));
                                 CHECK(train.used_bytes() == train.planned_bytes());
                             });
}

TEST_CASE(
    "side inputs in a GPU's memory are read behind what the caller's stream writes, for every "
    "device that reads them, and captured steps see others") {
    HostTrain plain = host(gpipe::schedule::OneForwardOneBackward{});
    std::vector<double> expected;
    for (std::uint32_t i = 0; i < 5; ++i) {
        Data const data(8, i);
        expected.push_back(plain.step(data.batch<HostTrain>(), data.targets).loss);
    }
    for (std::size_t const graphs : std::vector<std::size_t>{0, 1}) {
        cuda_double::Session session({.devices = 2, .seed = graphs});
        auto o = options<T>(4);
        o.schedule = gpipe::schedule::OneForwardOneBackward{};
        o.device.gpus = {0, 1, 0, 1};
        o.device.graphs = graphs;
        T train(Net{}, {}, Adam{1e-2f}, o);
        std::vector<double> losses;
        {
            gpipe::cuda::Stream const stream(1);
            gpipe::cuda::Buffer const mask(1, 8 * toy::MaskTensor::bytes);
            gpipe::cuda::PinnedBuffer const place(8 * sizeof(float)), inputs(8 * 5 * sizeof(Real)),
                targets(8 * 3 * sizeof(Real));
            std::vector<T::Pending> pending;
            auto* const mask_there = reinterpret_cast<std::int32_t*>(mask.data());
            for (std::uint32_t i = 0; i < 5; ++i) {
                Data const data(8, i);
                stream.synchronize(); // the pinned ones are read
                if (i > 0) losses.push_back(pending.back().result().loss);
                std::copy(data.inputs.begin(), data.inputs.end(),
                          reinterpret_cast<Real*>(inputs.data()));
                std::copy(data.targets.begin(), data.targets.end(),
                          reinterpret_cast<Real*>(targets.data()));
                std::copy(data.place.begin(), data.place.end(),
                          reinterpret_cast<float*>(place.data()));
                gpipe::cuda::DeviceGuard const on(1);
                toy::Ranges ranges;
                ranges.add(mask_there, 48);
                gpipe::cuda::check(
                    "launch", cuda_double::launch(
                                  stream.get(),
                                  [mask_there, values = data.mask] {
                                      std::copy(values.begin(), values.end(), mask_there);
                                  },
                                  std::move(ranges.reads), std::move(ranges.writes), "the mask"));
                pending.push_back(train.start(
                    {std::span(reinterpret_cast<Real const*>(inputs.data()), 40),
                     std::span<std::int32_t const>(mask_there, 48),
                     std::span(reinterpret_cast<float const*>(place.data()), 8)},
                    std::span(reinterpret_cast<Real const*>(targets.data()), 24), stream.get()));
            }
            losses.push_back(pending.back().result().loss);
        }
        CHECK((losses == expected));
        CHECK(cuda_double::races() == std::vector<std::string>{});
        CHECK(count("cudaStreamBeginCapture") == 2 * graphs); // one for each slot
        CHECK(count("cudaGraphLaunch") == 4 * graphs);
    }
}
