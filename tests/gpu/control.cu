// What a user may do between steps on device::Cuda: check gradients, take them without an update,
// change layers, and rates by layer. It is what it is on the host, in every bit, in steps that are
// kept as graphs, too.
#include "support/on_gpu.hpp"

#include <gpipe/check_gradients.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

using Optimizer = gpipe::Grouped<gpipe::RMSProp>;
template <class T> using Train = toy::CudaTrain<T, Optimizer>;
template <class T>
using HostTrain =
    toy::Training<toy::PlainNet<T, true>, toy::MeanSquare<T, 3>, Optimizer, gpipe::device::Host>;
template <class T> using Result = toy::PlainResult<T, true, Optimizer>;

template <class Options> Options options(std::size_t cells) {
    Options result;
    result.samples = 8;
    result.seed = 7;
    result.cells = cells;
    result.micro_batches = 2;
    result.schedule = gpipe::schedule::OneForwardOneBackward{};
    return result;
}
template <class T>
std::unique_ptr<Train<T>> made(toy::Watch& watch, Optimizer const& optimizer, std::size_t graphs) {
    auto o = options<typename Train<T>::Options>(3);
    o.device.gpus = {0, 0, 0};
    o.device.graphs = graphs;
    toy::LossOnGpu<toy::kernel::MeanSquare<T, 3>> loss;
    loss.watch = &watch;
    return std::make_unique<Train<T>>(watched(toy::KernelNet<T, true>{}, watch), loss, optimizer,
                                      o);
}
template <class T>
std::unique_ptr<HostTrain<T>> made_on_host(toy::Watch& watch, Optimizer const& optimizer) {
    return std::make_unique<HostTrain<T>>(watched(toy::PlainNet<T, true>{}, watch),
                                          toy::MeanSquare<T, 3>{}, optimizer,
                                          options<typename HostTrain<T>::Options>(1));
}

Optimizer const optimizer{
    {.learning_rate = 1e-2f, .momentum = 0.5f, .epsilon = 1e-6f, .weight_decay = 1e-2f}};

} // namespace

TEST_CASE_TEMPLATE("gradients of kernels are right, and a check changes nothing", T, float,
                   double) {
    for (std::size_t graphs : {0, 1}) {
        toy::Session const session(graphs);
        toy::Watch watch, other_watch;
        auto const train = made<T>(watch, optimizer, graphs);
        auto const other = made<T>(other_watch, optimizer, graphs);
        for (std::uint32_t step = 0; step < 4; ++step) {
            toy::Data<T> const data(8, step);
            CHECK(train->step(data.inputs, data.targets).loss ==
                  other->step(data.inputs, data.targets).loss);
            if (step % 3 != 1) continue;
            auto const report =
                gpipe::check_gradients(*train, data.inputs, data.targets, {.entries = 4});
            INFO(report);
            CHECK(report.passed());
            CHECK(report.rows.size() == 17);
            for (gpipe::GradientRow const& row : report.rows) CHECK(row.checked > row.left_out);
            CHECK(Result<T>::state_of(*train) == Result<T>::state_of(*other));
        }
    }
}

TEST_CASE_TEMPLATE("groups, layers and gradients alone between steps are what they are on the host",
                   T, float, double) {
    for (std::size_t graphs : {0, 1, 2}) {
        toy::Session const session(graphs);
        toy::Watch watch, host_watch;
        auto const train = made<T>(watch, optimizer, graphs);
        auto const host = made_on_host<T>(host_watch, optimizer);
        std::vector<typename Train<T>::Pending> pending;
        std::vector<double> losses;
        for (std::uint32_t i = 0; i < 12; ++i) {
            toy::Data<T> const data(i % 3 == 2 ? 5 : 8, i);
            auto const both = [&](auto change) {
                change(*train);
                change(*host);
            };
            both([&](auto& either) {
                auto& groups = either.optimizer().groups;
                groups[0].last_layer = 4; // apart: nvcc mixes up designated initializers here
                groups[0].rate = i % 4 == 1 ? 0.0f : 0.5f;
                groups[1].first_layer = 9;
                groups[1].tensor = 1;
                groups[1].decay = 3;
                if (i == 5 || i == 6)
                    either.template change_layer<8>([](auto& scale) { scale.factor *= 0.75f; });
                if (i == 8)
                    either.template change_layer<7>([](auto& dropout) { dropout.rate = 0.5f; });
            });
            if (i == 3 || i == 9) {
                CHECK(train->compute_gradients(data.inputs, data.targets).loss ==
                      host->compute_gradients(data.inputs, data.targets).loss);
                CHECK(Result<T>::state_of(*train) == Result<T>::state_of(*host));
                CHECK(train->steps() == host->steps());
            }
            pending.push_back(train->start(data.inputs, data.targets));
            losses.push_back(host->step(data.inputs, data.targets));
        }
        for (std::size_t i = 0; i < losses.size(); ++i)
            CHECK(pending[i].result().loss == losses[i]);
        CHECK(Result<T>::state_of(*train) == Result<T>::state_of(*host));
        CHECK(train->steps() == host->steps());
    }
}
