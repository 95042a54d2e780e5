// Layers with buffers on streams, over the double of the CUDA runtime.
#include "support/buffer_layers.hpp"
#include "support/cuda_ways.hpp"
#include "support/enqueued.hpp"
#include "support/enqueued_norm.hpp"
#include "support/net.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Cuda;
using gpipe::device::Host;

using Real = float;
using HostNet = toy::BufferNet<Real>;
using Net = toy::BufferNetOf<Real, toy::Enqueued>;
using Loss = toy::MeanSquare<Real, 3>;
template <class... Policies>
using TrainOf =
    gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<toy::EnqueuedLoss<Loss>>, gpipe::Optimizer<Adam>,
                    gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic, Cuda, Policies...>;
constexpr std::size_t micro_batches = 6;

// Losses, evaluations between, and the buffers: of steps that are begun before those before are
// done, one of which is skipped, for its loss is not finite.
template <class T> std::vector<double> run(T& train) {
    std::vector<double> result;
    std::vector<typename T::Pending> pending;
    for (std::size_t const samples : std::vector<std::size_t>{8, 5, 8, 1, 8}) {
        toy::Data<Real> const data(samples, static_cast<std::uint32_t>(samples));
        // Of sizes that steps have, too: as graphs these are others.
        toy::Data<Real> const part(5, 50);
        for (std::size_t p = 0; p < 2 && samples == 8; ++p)
            train.accumulate(part.inputs, part.targets);
        pending.push_back(train.start(data.inputs, data.targets));
        if (samples == 8) continue;
        result.push_back(train.evaluate(data.inputs, data.targets).loss);
        toy::Data<Real> broken(8);
        broken.inputs[7] = std::numeric_limits<Real>::infinity();
        CHECK_THROWS_AS(train.step(broken.inputs, broken.targets), std::domain_error);
    }
    for (auto& step : pending) result.push_back(step.result().loss);
    toy::add_state<HostNet>(train, result);
    return result;
}
// What is frozen.
struct Frozen {
    std::vector<std::size_t> layers{};
    std::vector<gpipe::FrozenParameter> tensors{};
};
template <class T>
typename T::Options options(std::size_t cells, gpipe::schedule::Dynamic schedule, Frozen frozen) {
    typename T::Options o;
    o.samples = 8;
    o.seed = 7;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.schedule = schedule;
    o.frozen = std::move(frozen.layers);
    o.frozen_parameters = std::move(frozen.tensors);
    return o;
}
std::vector<double> expected_of(gpipe::schedule::Dynamic schedule, Frozen frozen) {
    using T = toy::Training<HostNet, Loss, Adam, Host>;
    T train(HostNet{}, {}, Adam{1e-2f}, options<T>(1, schedule, std::move(frozen)));
    return run(train);
}

template <class T> void check(Frozen const& frozen, std::size_t one_of) {
    auto const descending = expected_of(gpipe::schedule::GPipe{}, frozen);
    auto const ascending = expected_of(gpipe::schedule::GPipeAscending{}, frozen);
    REQUIRE(descending != ascending);
    toy::each_way_on_streams(4, Net::size, micro_batches, one_of, {gpipe::Link::shared},
                             [&](toy::CudaWay const& way) {
                                 auto o = options<T>(way.cells, way.schedule, frozen);
                                 way.choose(o);
                                 T train(Net{}, {}, Adam{1e-2f}, o);
                                 CHECK(run(train) == (way.descends() ? descending : ascending));
                                 CHECK(train.used_bytes() == train.planned_bytes());
                             });
}

} // namespace

TEST_CASE("P1 buffers move on streams as on the host, and nothing races") {
    check<TrainOf<>>({}, 43);
}

TEST_CASE("P1 frozen layers and parameters on streams are as on the host") {
    check<TrainOf<>>({{1, 4}}, 127);
    check<TrainOf<>>({{4}, {{0, 1}, {1, 0}, {8, 0}}}, 127);
}
