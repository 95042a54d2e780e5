// Tensors that a mini-batch may come without, on streams, over the double of the CUDA runtime: what
// a step is captured as depends on which are absent.
#include "support/cuda_ways.hpp"
#include "support/enqueued.hpp"
#include "support/optional_layers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using cuda_double::count;
using gpipe::Adam;
using gpipe::device::Cuda;
using gpipe::device::Host;
using Real = float;

using HostNet = toy::HintedNet<Real, toy::Maybe<Real>>;
using HostTrain = toy::Training<HostNet, toy::MeanSquare<Real, 3>, Adam, Host>;
using Net = toy::HintedNetOf<Real, toy::Maybe<Real>, toy::Enqueued>;
using T = toy::Training<Net, toy::EnqueuedLoss<toy::MeanSquare<Real, 3>>, Adam, Cuda>;
using Data = toy::HintedData<Real>;
constexpr std::size_t micro_batches = 6;

// Steps that are begun before those before are done, parts of steps and evaluations between. The
// arrays are others as soon as a step has begun.
template <class Train> std::vector<double> run(Train& train) {
    std::vector<double> result;
    std::vector<typename Train::Pending> pending;
    std::uint32_t number = 0;
    for (std::size_t const samples : std::vector<std::size_t>{8, 5, 8, 8, 1, 8, 8, 8, 5}) {
        bool const with = ++number % 3 != 0;
        Data data(samples, number);
        if (samples == 5) train.accumulate(data.template batch<Train>(!with), data.targets);
        pending.push_back(train.start(data.template batch<Train>(with), data.targets));
        std::fill(data.hints.begin(), data.hints.end(), Real(99));
        std::fill(data.marks.begin(), data.marks.end(), 99);
        if (samples == 8) continue;
        Data const more(19, number);
        for (bool const there : {false, true}) {
            auto const batch = more.template batch<Train>(there);
            result.push_back(train.evaluate(batch, more.targets).loss);
            std::vector<Real> outputs(19 * 3);
            train.predict(batch, outputs);
            result.insert(result.end(), outputs.begin(), outputs.end());
        }
    }
    for (auto& step : pending) result.push_back(step.result().loss);
    toy::add_state<HostNet>(train, result);
    return result;
}
template <class T> typename T::Options options(std::size_t cells) {
    return {.samples = 8, .seed = 7, .cells = cells, .micro_batches = micro_batches};
}
std::vector<double> on_host(gpipe::schedule::Dynamic schedule) {
    auto o = options<HostTrain>(1);
    o.schedule = schedule;
    HostTrain train(HostNet{}, {}, Adam{1e-2f}, o);
    return run(train);
}

} // namespace

TEST_CASE("P1 optional tensors on streams are as on the host, and nothing races") {
    auto const descending = on_host(gpipe::schedule::GPipe{});
    auto const ascending = on_host(gpipe::schedule::GPipeAscending{});
    toy::each_way_on_streams(4, Net::size, micro_batches, 37,
                             {gpipe::Link::shared, gpipe::Link::staged},
                             [&](toy::CudaWay const& way) {
                                 auto o = options<T>(way.cells);
                                 way.choose(o);
                                 T train(Net{}, {}, Adam{1e-2f}, o);
                                 CHECK((run(train) == (way.descends() ? descending : ascending)));
                                 CHECK(train.used_bytes() == train.planned_bytes());
                             });
}

TEST_CASE("a step is captured once for each set of tensors that are absent") {
    cuda_double::Session const session({.devices = 2});
    auto o = options<T>(2);
    o.schedule = gpipe::schedule::OneForwardOneBackward{};
    o.device.gpus = {0, 1};
    o.device.graphs = 2;
    T train(Net{}, {}, Adam{1e-2f}, o);
    HostTrain plain(HostNet{}, {}, Adam{1e-2f}, [] {
        auto own = options<HostTrain>(1);
        own.schedule = gpipe::schedule::GPipeAscending{};
        return own;
    }());
    for (std::uint32_t i = 0; i < 12; ++i) {
        Data const data(8, i);
        CHECK(train.step(data.batch<T>(i % 2 == 0), data.targets).loss ==
              plain.step(data.batch<HostTrain>(i % 2 == 0), data.targets).loss);
    }
    CHECK(count("cudaStreamEndCapture") == 2);
    CHECK(count("cudaGraphLaunch") == 10); // all but the first of each set
}

TEST_CASE("so it is for targets") {
    using Lines = gpipe::Pipeline<toy::Enqueued<toy::Linear<Real, 5, 6>>,
                                  toy::Enqueued<toy::Linear<Real, 6, 3>>>;
    using HostLines = gpipe::Pipeline<toy::Linear<Real, 5, 6>, toy::Linear<Real, 6, 3>>;
    using C = toy::Training<Lines, toy::EnqueuedLoss<toy::Weighted<Real>>, Adam, Cuda>;
    using H = toy::Training<HostLines, toy::Weighted<Real>, Adam, Host>;
    cuda_double::Session const session({.devices = 1});
    auto o = options<C>(2);
    o.schedule = gpipe::schedule::OneForwardOneBackward{};
    o.device.gpus = {0, 0};
    o.device.graphs = 2;
    C train(Lines{}, {}, Adam{1e-2f}, o);
    auto own = options<H>(1);
    own.schedule = gpipe::schedule::GPipeAscending{};
    H plain(HostLines{}, {}, Adam{1e-2f}, own);
    auto const weights = toy::numbers<Real>(8, 5);
    std::vector<Real> positive(8);
    for (std::size_t s = 0; s < 8; ++s) positive[s] = 2 + weights[s];
    for (std::uint32_t i = 0; i < 8; ++i) {
        toy::Data<Real> const data(8, i);
        auto const targets = [&]<class Train>(Train*) -> gpipe::Batch<typename Train::Target> {
            using Batch = gpipe::Batch<typename Train::Target>;
            return i % 2 ? Batch{data.targets, positive} : Batch{data.targets, gpipe::none};
        };
        CHECK(train.step(data.inputs, targets(&train)).loss ==
              plain.step(data.inputs, targets(&plain)).loss);
    }
    CHECK(count("cudaStreamEndCapture") == 2);
}
