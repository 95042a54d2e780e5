// Constants of a step on streams, over the double of the CUDA runtime.
#include "support/constant_layers.hpp"
#include "support/cuda_ways.hpp"
#include "support/enqueued.hpp"
#include "support/net.hpp"

#include <doctest/doctest.h>

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
using toy::OfTheLayer;
using toy::OfTheStep;
using toy::Settings;

using Real = float;
using HostNet = toy::HeatedNet<Real, OfTheLayer>;
using Net = toy::HeatedNetOf<Real, OfTheStep, toy::Enqueued>;
using HostLoss = toy::HeatedSquare<Real, 3, OfTheLayer>;
using Loss = toy::EnqueuedLoss<toy::HeatedSquare<Real, 3, OfTheStep>>;
using T = toy::Training<Net, Loss, Adam, Cuda>;
constexpr std::size_t micro_batches = 6;

// Steps that are begun before those before are done, evaluations between, each with others.
template <class Train, class Set> std::vector<double> run(Train& train, Set set) {
    std::vector<double> result;
    std::vector<typename Train::Pending> pending;
    std::size_t number = 0;
    for (std::size_t const samples : std::vector<std::size_t>{8, 5, 8, 1, 8, 8, 8, 5}) {
        toy::Data<Real> const data(samples, static_cast<std::uint32_t>(samples));
        set(train, Settings::of(number++));
        pending.push_back(train.start(data.inputs, data.targets));
        set(train, Settings::of(number++)); // while it is under way
        if (samples == 8) continue;
        result.push_back(train.evaluate(data.inputs, data.targets).loss);
        set(train, Settings::of(number++));
        result.push_back(train.compute_gradients(data.inputs, data.targets).loss);
        set(train, Settings::of(number++));
        std::vector<Real> outputs(samples * 3);
        train.predict(data.inputs, outputs);
        result.insert(result.end(), outputs.begin(), outputs.end());
    }
    for (auto& step : pending) result.push_back(step.result().loss);
    toy::add_state<HostNet>(train, result);
    return result;
}
template <class T> typename T::Options options(std::size_t cells) {
    return {.samples = 8, .seed = 7, .cells = cells, .micro_batches = micro_batches};
}
std::vector<double> expected_of(gpipe::schedule::Dynamic schedule) {
    using HostTrain = toy::Training<HostNet, HostLoss, Adam, Host>;
    auto o = options<HostTrain>(1);
    o.schedule = schedule;
    HostTrain train(HostNet{}, {}, Adam{1e-2f}, o);
    return run(train, [](auto& to, Settings const& all) { toy::set_members(to, all); });
}
auto const set_constants = [](auto& train, Settings const& all) { toy::set(train, all); };

} // namespace

TEST_CASE("P1 constants on streams are as on the host, and nothing races") {
    auto const descending = expected_of(gpipe::schedule::GPipe{});
    auto const ascending = expected_of(gpipe::schedule::GPipeAscending{});
    toy::each_way_on_streams(
        4, Net::size, micro_batches, 43, {gpipe::Link::shared}, [&](toy::CudaWay const& way) {
            auto o = options<T>(way.cells);
            way.choose(o);
            T train(Net{}, {}, Adam{1e-2f}, o);
            CHECK((run(train, set_constants) == (way.descends() ? descending : ascending)));
            CHECK(train.used_bytes() == train.planned_bytes());
        });
}

TEST_CASE("steps that are kept as graphs see new constants, and are not captured anew") {
    auto o = options<T>(2);
    o.schedule = gpipe::schedule::OneForwardOneBackward{};
    o.device.gpus = gpipe::gpus(0, 1);
    std::vector<double> losses[2];
    for (std::size_t const graphs : std::vector<std::size_t>{0, 1}) {
        cuda_double::Session session({.devices = 2});
        o.device.graphs = graphs;
        T train(Net{}, {}, Adam{1e-2f}, o);
        toy::Data<Real> const data(8);
        for (std::size_t i = 0; i < 8; ++i) {
            toy::set(train, Settings::of(i));
            losses[graphs].push_back(train.step(data.inputs, data.targets).loss);
        }
        CHECK(count("cudaStreamBeginCapture") == 2 * graphs); // one for each slot
        CHECK(count("cudaGraphLaunch") == 7 * graphs);
    }
    CHECK(losses[0] == losses[1]);
}
