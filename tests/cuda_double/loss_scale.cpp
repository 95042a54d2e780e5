// A loss scale on streams, over the double of the CUDA runtime: what is skipped, and how the scale
// moves, is found by the device, while the next step may be under way.
#include "support/cuda_ways.hpp"
#include "support/enqueued.hpp"
#include "support/net.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Cuda;
using gpipe::device::Host;

using Real = float;

template <template <class> class W>
using NetOf =
    gpipe::Pipeline<W<toy::Linear<Real, 5, 6>>, W<toy::Tanh<Real, 6>>, W<toy::Limited<Real, 6>>,
                    W<toy::Dropout<Real, 6>>, W<toy::Linear<Real, 6, 3>>>;
template <class L> using Itself = L;
using HostNet = NetOf<Itself>;
using Net = NetOf<toy::Enqueued>;
using Loss = toy::MeanSquare<Real, 3>;
using Train = toy::Training<Net, toy::EnqueuedLoss<Loss>, Adam, Cuda>;
using OnHost = toy::Training<HostNet, Loss, Adam, Host>;
constexpr std::size_t micro_batches = 4;

template <class T>
typename T::Options options(std::size_t cells, gpipe::schedule::Dynamic schedule) {
    typename T::Options o;
    o.samples = 8;
    o.seed = 7;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.schedule = schedule;
    o.loss_scale = gpipe::LossScale::dynamic(512, 4, 0.25, 2);
    return o;
}
// Losses, which of them were skipped, scales, parameters; two steps at a time are under way.
template <class T> std::vector<double> run(T& train) {
    std::vector<double> result;
    std::vector<typename T::Pending> pending;
    for (std::size_t step = 0; step < 14; ++step) {
        toy::Data<Real> const data(step % 5 == 4 ? 3 : 8, static_cast<std::uint32_t>(step % 5));
        if (step % 7 == 3) train.accumulate(data.inputs, data.targets);
        pending.push_back(train.start(data.inputs, data.targets));
        if (step == 6) {
            result.push_back(train.compute_gradients(data.inputs, data.targets).skipped());
            result.push_back(train.loss_scale());
        }
    }
    for (auto& step : pending) {
        auto const r = step.result();
        result.push_back(r.loss);
        result.push_back(r.skipped());
    }
    result.push_back(train.loss_scale());
    result.push_back(static_cast<double>(train.steps()));
    result.push_back(train.skipped() ? static_cast<double>(train.skipped()->layer) : -1);
    std::vector<Real> weights(36);
    train.template read_parameter<Real>(0, 0, std::span(weights).first(30));
    result.insert(result.end(), weights.begin(), weights.end());
    return result;
}

} // namespace

TEST_CASE("P1 steps that are skipped, and the scale, are on streams what they are on the host") {
    OnHost host(HostNet{}, {}, Adam{1e-2f}, options<OnHost>(1, gpipe::schedule::GPipe{}));
    OnHost up(HostNet{}, {}, Adam{1e-2f}, options<OnHost>(1, gpipe::schedule::GPipeAscending{}));
    auto const descending = run(host), ascending = run(up);
    CHECK(host.steps() > 4);
    CHECK(host.steps() < 11);
    toy::each_way_on_streams(3, Net::size, micro_batches, 43, {gpipe::Link::shared},
                             [&](toy::CudaWay const& way) {
                                 auto o = options<Train>(way.cells, way.schedule);
                                 way.choose(o);
                                 Train train(Net{}, {}, Adam{1e-2f}, o);
                                 CHECK(run(train) == (way.descends() ? descending : ascending));
                                 CHECK(train.used_bytes() == train.planned_bytes());
                             });
}

TEST_CASE("P6 a part whose loss is not finite is heard of late, and all parts are forgotten") {
    for (std::size_t const graphs : {0, 8})
        for (std::uint64_t seed = 0; seed < 4; ++seed) {
            cuda_double::Session session({.devices = 1, .seed = seed});
            auto o = options<Train>(2, gpipe::schedule::OneForwardOneBackward{});
            o.device.gpus = {0, 0};
            o.device.graphs = graphs;
            o.loss_scale = {};
            Train train(Net{}, {}, Adam{1e-2f}, o);
            toy::Reference<HostNet, Loss, Adam> plain(HostNet{}, {}, Adam{1e-2f}, 7, micro_batches,
                                                      toy::Backward::ascending);
            toy::Data<Real> const data(8);
            toy::Data<Real> broken = data;
            broken.targets[4] = std::numeric_limits<Real>::quiet_NaN();
            for (std::uint64_t step = 0; step < 4; ++step) {
                train.accumulate(broken.inputs, broken.targets);
                CHECK_THROWS_AS(train.evaluate(data.inputs, data.targets), std::domain_error);
                CHECK(train.accumulated() == 0);
                auto const late = [&] {
                    train.accumulate(broken.inputs, broken.targets);
                    (void)train.start(data.inputs, data.targets).result();
                };
                CHECK_THROWS_AS(late(), std::domain_error);
                REQUIRE(train.failure().has_value());
                CHECK(train.failure()->micro_batch == 0);
                CHECK(train.steps() == step);
                train.accumulate(data.inputs, data.targets);
                plain.accumulate(data.inputs, data.targets);
                CHECK(train.step(data.inputs, data.targets).loss ==
                      plain.step(data.inputs, data.targets));
                CHECK(toy::difference(train, plain) == "");
            }
        }
}
