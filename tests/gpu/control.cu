// What a user may do between steps on device::Cuda: check gradients, take them without an update,
// change layers, and rates by layer, give a mini-batch in parts, listen to actions; and choose the
// optimizer, and what is frozen, at construction. It is what it is on the host, in every bit, in
// steps that are kept as graphs, too.
#include "support/on_gpu.hpp"

#include <gpipe/check_gradients.hpp>
#include <gpipe/optimizer/one_of.hpp>
#include <gpipe/profile.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace {

using Optimizer = gpipe::Grouped<gpipe::RMSProp>;
template <class T, class O = Optimizer> using Train = toy::CudaTrain<T, O>;
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
template <class T, class O>
std::unique_ptr<Train<T, O>> made(toy::Watch& watch, O const& optimizer, std::size_t graphs) {
    auto o = options<typename Train<T, O>::Options>(3);
    o.device.gpus = {0, 0, 0};
    o.device.graphs = graphs;
    toy::LossOnGpu<toy::kernel::MeanSquare<T, 3>> loss;
    loss.watch = &watch;
    return std::make_unique<Train<T, O>>(watched(toy::KernelNet<T, true>{}, watch), loss, optimizer,
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

TEST_CASE_TEMPLATE(
    "L5 gradients of kernels are right, and neither a check nor a profile changes anything", T,
    float, double) {
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
            auto const profile = gpipe::profile<toy::KernelNet<T, true>, gpipe::device::Cuda>(
                watched(toy::KernelNet<T, true>{}, other_watch), {.samples = 4, .rounds = 2});
            CHECK(profile.layers.size() == toy::KernelNet<T, true>::size);
            CHECK(profile.layers[0].backward >= 0);
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

namespace {

// What steps give, every second one behind a part of its mini-batch; and how many actions some of
// them are heard to begin and to end.
template <class T> std::vector<double> partly_trained(T& train) {
    std::vector<double> result;
    std::vector<typename T::Pending> pending;
    std::atomic<std::size_t> begun = 0, ended = 0;
    for (std::uint32_t i = 0; i < 10; ++i) {
        toy::Data<float> const part(1 + i % 8, i + 50), data(i % 3 == 2 ? 5 : 8, i);
        if (i == 4 || i == 7)
            train.on_action([&](gpipe::ActionEvent const& event) {
                if (computes(event.action.kind)) ++(event.begins ? begun : ended);
            });
        if (i == 5 || i == 9) train.on_action(nullptr);
        if (i % 2 == 1) train.accumulate(part.inputs, part.targets);
        pending.push_back(train.start(data.inputs, data.targets));
    }
    for (auto& step : pending) result.push_back(step.result().loss);
    result.push_back(static_cast<double>(begun));
    result.push_back(static_cast<double>(ended));
    toy::add_state<toy::PlainNet<float, true>>(train, result);
    return result;
}

} // namespace

TEST_CASE("P1 what is frozen, parts of a mini-batch and hooks of actions are what they are on the "
          "host") {
    struct Frozen {
        std::vector<std::size_t> layers;
        std::vector<gpipe::FrozenParameter> tensors;
    };
    std::vector<std::vector<double>> all;
    for (Frozen const& frozen :
         std::vector<Frozen>{{{}, {}}, {{0, 4}, {{9, 1}}}, {{9}, {{0, 0}, {4, 0}}}, {{0}, {}}}) {
        auto const chosen = [&](auto o) {
            o.frozen = frozen.layers;
            o.frozen_parameters = frozen.tensors;
            return o;
        };
        toy::Watch host_watch;
        HostTrain<float> host(watched(toy::PlainNet<float, true>{}, host_watch), {}, optimizer,
                              chosen(options<HostTrain<float>::Options>(3)));
        auto const expected = partly_trained(host);
        for (std::size_t graphs : {0, 1, 2}) {
            toy::Session const session(graphs);
            toy::Watch watch;
            auto o = chosen(options<Train<float>::Options>(3));
            o.device.gpus = {0, 0, 0};
            o.device.graphs = graphs;
            toy::LossOnGpu<toy::kernel::MeanSquare<float, 3>> loss;
            loss.watch = &watch;
            Train<float> train(watched(toy::KernelNet<float, true>{}, watch), loss, optimizer, o);
            CAPTURE(graphs);
            CAPTURE(all.size());
            CHECK((partly_trained(train) == expected));
            CHECK(train.used_bytes() == train.planned_bytes());
        }
        for (auto const& other : all) CHECK((other != expected)); // each freezes something
        all.push_back(expected);
    }
}

namespace {

// What is left of steps of several sizes, the last of them at another rate.
template <class O> std::vector<double> trained(O const& by, std::size_t graphs) {
    toy::Session const session(graphs);
    toy::Watch watch;
    auto const train = made<float>(watch, by, graphs);
    std::vector<double> result;
    for (std::uint32_t i = 0; i < 6; ++i) {
        auto const slow = [&](auto& chosen) { chosen.learning_rate /= i == 4 ? 2 : 1; };
        if constexpr (std::is_same_v<O, gpipe::optimizer::Dynamic>)
            train->optimizer().visit(slow);
        else
            slow(train->optimizer());
        toy::Data<float> const data(i % 3 == 2 ? 5 : 8, i);
        result.push_back(train->step(data.inputs, data.targets).loss);
    }
    auto const state = Result<float>::state_of(*train);
    result.insert(result.end(), state.begin(), state.end());
    return result;
}

} // namespace

TEST_CASE("an optimizer that is chosen trains bit by bit as the same one in the type") {
    auto const check = [](auto const& one) {
        for (std::size_t graphs : {0, 1})
            CHECK(trained(gpipe::optimizer::Dynamic(one), graphs) == trained(one, graphs));
    };
    check(gpipe::SGD{1e-2f, 0.9f, 1e-2f});
    check(gpipe::RMSProp{1e-2f, 0.9f, 0.5f, 1e-6f, 1e-2f});
    check(gpipe::Adam{.weight_decay = 1e-2f});
    check(gpipe::AdamW{});
}

namespace control {

// Changes nothing; and what a user would write without hooks, as the rule of an optimizer.
struct Leaves {
    template <class T> struct Rule {
        GPIPE_HOST_DEVICE T operator()(T gradient) const { return gradient; }
    };
    template <class T> GPIPE_HOST_DEVICE Rule<T> rule(gpipe::UpdateContext) const { return {}; }
};
template <class T, class Inner> struct ClippedRule {
    Inner inner;
    T limit;
    template <class... States>
    GPIPE_HOST_DEVICE void operator()(T& parameter, T gradient, States&... states) const {
        if (gradient > limit) gradient = limit;
        if (gradient < -limit) gradient = -limit;
        inner(parameter, gradient, states...);
    }
};
template <class O> struct ClipsItself : O {
    template <class T> GPIPE_HOST_DEVICE auto rule(gpipe::UpdateContext context) const {
        auto inner = O::template rule<T>(context);
        return ClippedRule<T, decltype(inner)>{inner, T(0.02)};
    }
    template <class T>
    void operator()(gpipe::UpdateContext context,
                    gpipe::UpdateTensor<T, O::states> tensor) const noexcept {
        gpipe::apply_to_all(*this, context, tensor);
    }
};

} // namespace control

TEST_CASE(
    "a hook of gradients within the kernel of the update changes no bit if it changes nothing, and "
    "clips as a rule that does so itself") {
    auto const check = [](auto const& one) {
        using O = std::remove_cvref_t<decltype(one)>;
        for (std::size_t graphs : {0, 1}) {
            auto const plain = trained(one, graphs);
            CHECK(trained(gpipe::Hooked<O, control::Leaves>{one, {}}, graphs) == plain);
            auto const clipped =
                trained(gpipe::Hooked<O, gpipe::ClipByValue>{one, {0.02f}}, graphs);
            CHECK(clipped == trained(control::ClipsItself<O>{one}, graphs));
            CHECK(clipped != plain);
        }
    };
    check(gpipe::SGD{1e-2f, 0.9f, 1e-2f});
    check(gpipe::AdamW{});
}
