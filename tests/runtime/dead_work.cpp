// Promise P9, and what layers are told: which calls a step makes, and which it does not.

#include "support/net.hpp"

#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Phase;
using toy::Remote;

using Real = double;
constexpr std::size_t L = toy::layers<Real>;
// Linear, Square and StrictLinear.
constexpr bool has_halves[L] = {true, false, false, false, false, false, true, false, false, true};

template <class Device> using Train = toy::Train<Real, Device>;

template <class T>
typename T::Options options(std::size_t samples, std::size_t cells, std::size_t micro_batches,
                            gpipe::schedule::Dynamic schedule = {},
                            gpipe::checkpoint::Dynamic checkpointing = {}) {
    typename T::Options o;
    o.samples = samples;
    o.seed = 9;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.schedule = schedule;
    o.checkpointing = checkpointing;
    return o;
}

// Layers 0 to 2 have nothing to learn, layer 3 learns and takes no gpipe::none.
using LateNet =
    gpipe::Pipeline<toy::Watched<toy::Scale<Real, 4>>, toy::Watched<toy::Saver<Real, 4>>,
                    toy::Watched<toy::Tanh<Real, 4>>, toy::Watched<toy::StrictLinear<Real, 4, 5>>,
                    toy::Watched<toy::Tanh<Real, 5>>, toy::Watched<toy::Linear<Real, 5, 3>>>;
template <class Device>
using LateTrain = toy::Training<LateNet, toy::MeanSquare<Real, 3>, Adam, Device>;

LateNet make_late(toy::Watch& watch) {
    return LateNet(
        toy::Watched<toy::Scale<Real, 4>>(watch, {2.0}), toy::Watched<toy::Saver<Real, 4>>(watch),
        toy::Watched<toy::Tanh<Real, 4>>(watch), toy::Watched<toy::StrictLinear<Real, 4, 5>>(watch),
        toy::Watched<toy::Tanh<Real, 5>>(watch), toy::Watched<toy::Linear<Real, 5, 3>>(watch));
}

template <class T> std::size_t cell_of(T const& train, std::size_t layer) {
    std::size_t cell = 0;
    while (train.plan().first[cell + 1] <= layer) ++cell;
    return cell;
}

// How often a layer is called again in a step: by the one rule of promise P9, applied to the
// schedule's own order for its cell.
std::size_t recomputes(gpipe::Programs const& schedule, std::size_t cell,
                       std::string const& policy) {
    std::size_t count = 0;
    std::size_t holder = schedule.micro_batches();
    for (auto const& action : schedule.program(cell)) {
        if (action.kind == gpipe::Kind::weight_gradient) continue;
        if (gpipe::gives_gradient(action.kind) && policy != "never" &&
            (policy == "always" || action.micro_batch != holder))
            ++count;
        holder = action.micro_batch;
    }
    return count;
}

} // namespace

TEST_CASE_TEMPLATE("P9 every layer is called as often as the schedule and the one rule of "
                   "checkpointing say, and no more",
                   Device, Host, Remote) {
    constexpr std::size_t M = 4;
    for (toy::NamedSchedule const& schedule : toy::schedules)
        for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
            for (std::size_t cells : {std::size_t{1}, std::size_t{2}, std::size_t{3}, L}) {
                toy::Watch watch;
                Train<Device> train(
                    toy::make_net<Real>(watch), {&watch}, Adam{},
                    options<Train<Device>>(9, cells, M, schedule.policy, checkpointing.policy));
                toy::Data<Real> const data(9);
                train.step(data.inputs, data.targets);
                gpipe::Programs const programs = schedule.policy.programs(cells, M);
                for (std::size_t layer = 0; layer < L; ++layer) {
                    std::size_t const cell = cell_of(train, layer);
                    bool const last_cell = cell + 1 == cells;
                    bool const last_layer = train.plan().first[cell + 1] == layer + 1;
                    std::size_t again = recomputes(programs, cell, checkpointing.name);
                    // In the last cell "except last" puts the forward off instead of running it
                    // twice; the output of a cell's last layer is in the next cell already, unless
                    // the layer saves something (layer 2 does).
                    if (last_cell && checkpointing.name == "except last") again = 0;
                    if (!last_cell && last_layer && layer != 2) again = 0;
                    INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells, ", layer ",
                         layer);
                    CHECK(watch.count(layer, Phase::forward) == M);
                    CHECK(watch.count(layer, Phase::recompute) == again);
                    // Halves run apart in cells where a layer has them. Nobody wants the input
                    // gradient of layer 0, which leaves nothing for its other half.
                    bool apart = false;
                    for (std::size_t i = train.plan().first[cell]; i < train.plan().first[cell + 1];
                         ++i)
                        apart = apart || has_halves[i];
                    apart = apart && schedule.name == "zero bubble";
                    CHECK(watch.count(layer, Phase::backward) == (apart ? 0 : M));
                    CHECK(watch.count(layer, Phase::input_gradient) ==
                          (apart && layer > 0 ? M : 0));
                    CHECK(watch.count(layer, Phase::weight_gradient) ==
                          (apart && has_halves[layer] ? M : 0));
                    CHECK(watch.count(layer, Phase::evaluate) == 0);
                }
                CHECK(watch.loss_calls() == M);
                // Evaluation: forward only, once; prediction without the loss.
                watch.reset();
                train.evaluate(data.inputs, data.targets);
                std::vector<Real> outputs(9 * 3);
                train.predict(data.inputs, outputs);
                for (std::size_t layer = 0; layer < L; ++layer) {
                    CHECK(watch.count(layer, Phase::evaluate) == 2 * M);
                    CHECK(watch.count(layer, Phase::forward) == 0);
                    CHECK(watch.count(layer, Phase::recompute) == 0);
                    CHECK(watch.count(layer, Phase::backward) == 0);
                }
                CHECK(watch.loss_calls() == M);
            }
}

TEST_CASE("P9 under 1F1B except-last recomputes nothing in the last cell and everything before") {
    toy::Watch watch;
    using T = Train<Host>;
    T train(toy::make_net<Real>(watch), {}, Adam{},
            options<T>(12, 2, 6, toy::OneForwardOneBackward{}, gpipe::checkpoint::ExceptLast{}));
    toy::Data<Real> const data(12);
    train.step(data.inputs, data.targets);
    for (std::size_t layer = 0; layer < L; ++layer) {
        bool const first_cell = layer < train.plan().first[1];
        bool const crosses = layer + 1 == train.plan().first[1];
        CHECK(watch.count(layer, Phase::recompute) == (first_cell && !crosses ? 6 : 0));
    }
}

TEST_CASE("P9 no layer computes the gradient of the mini-batch, and every other layer computes its "
          "input's") {
    toy::Watch watch;
    watch.logs = true;
    using T = Train<Host>;
    T train(toy::make_net<Real>(watch), {}, Adam{}, options<T>(9, 3, 4));
    toy::Data<Real> const data(9);
    train.step(data.inputs, data.targets);
    std::size_t calls = 0;
    for (toy::Call const& call : watch.log())
        if (call.phase == Phase::backward) {
            CHECK(call.wants_input_gradient == (call.layer > 0));
            ++calls;
        }
    CHECK(calls == 4 * L);
    // That the integers of a boundary have no gradient is a static_assert in toy::Tag, toy::Carry
    // and toy::Embedding.
}

TEST_CASE_TEMPLATE("P9 C5 layers below the lowest with parameters run forward only, and only where "
                   "somebody reads it",
                   Device, Host, Remote) {
    for (toy::NamedSchedule const& schedule : toy::schedules)
        for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
            for (std::size_t cells = 1; cells <= LateNet::size; ++cells) {
                toy::Watch watch;
                watch.logs = true;
                using T = LateTrain<Device>;
                T train(make_late(watch), {}, Adam{1e-2f},
                        options<T>(7, cells, 3, schedule.policy, checkpointing.policy));
                toy::Watch other;
                toy::Reference<LateNet, toy::MeanSquare<Real, 3>, Adam> plain(
                    make_late(other), {}, Adam{1e-2f}, 9, 3, schedule.order);
                auto const inputs = toy::numbers<Real>(7 * 4, 1);
                auto const targets = toy::numbers<Real>(7 * 3, 2);
                INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells);
                for (int step = 0; step < 2; ++step) {
                    CHECK(train.step(inputs, targets).loss == plain.step(inputs, targets));
                    CHECK(toy::difference(train, plain) == "");
                }
                for (toy::Call const& call : watch.log())
                    if (call.phase == Phase::backward) {
                        CHECK(call.layer >= 3);
                        // Layer 3 takes no gpipe::none: it writes to scratch instead.
                        CHECK(call.wants_input_gradient);
                    }
                for (std::size_t layer = 0; layer < 3; ++layer) {
                    CHECK(watch.count(layer, Phase::forward) == 6);
                    // Nobody reads again what a cell computes that has no backward at all.
                    if (train.plan().first[cell_of(train, layer) + 1] <= 3)
                        CHECK(watch.count(layer, Phase::recompute) == 0);
                }
            }
}

TEST_CASE("P9 integers at the start of the chain have no gradient") {
    using Words =
        gpipe::Pipeline<toy::Embedding<Real, 11, 6>, toy::Tanh<Real, 6>, toy::Linear<Real, 6, 4>>;
    using T = toy::Training<Words, toy::CrossEntropy<Real, 4>, gpipe::SGD, Host>;
    std::vector<std::int32_t> words, classes;
    for (int i = 0; i < 10; ++i) {
        words.push_back(i * 7 % 11);
        classes.push_back(i % 5 - 1); // one in five is ignored
    }
    for (std::size_t cells = 1; cells <= 3; ++cells) {
        T train(Words{}, {}, gpipe::SGD{0.1f}, options<T>(10, cells, 4));
        toy::Reference<Words, toy::CrossEntropy<Real, 4>, gpipe::SGD> plain(
            Words{}, {}, gpipe::SGD{0.1f}, 9, 4, toy::Backward::descending);
        double first = 0, last = 0;
        for (int step = 0; step < 50; ++step) {
            last = train.step(words, classes).loss;
            CHECK(last == plain.step(words, classes));
            if (step == 0) first = last;
        }
        CHECK(toy::difference(train, plain) == "");
        CHECK(train.evaluate(words, classes).loss == plain.evaluate(words, classes));
        CHECK(last < 0.7 * first);
    }
}

TEST_CASE_TEMPLATE("D5 a layer is told whether it runs for the first time or again, and whether a "
                   "backward will read what it saves",
                   Device, Host, Remote) {
    constexpr std::size_t M = 3;
    for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings) {
        toy::Watch watch;
        watch.logs = true;
        using T = Train<Device>;
        T train(toy::make_net<Real>(watch), {}, Adam{},
                options<T>(6, 2, M, gpipe::schedule::GPipe{}, checkpointing.policy));
        toy::Data<Real> const data(6);
        train.step(data.inputs, data.targets);
        train.evaluate(data.inputs, data.targets);
        INFO(checkpointing.name);
        for (std::size_t layer = 0; layer < L; ++layer)
            for (std::size_t m = 0; m < M; ++m) {
                std::vector<toy::Call> calls;
                for (toy::Call const& call : watch.log())
                    if (call.layer == layer && call.first_sample == 2 * m &&
                        call.phase != Phase::backward)
                        calls.push_back(call);
                bool const last_cell = layer >= train.plan().first[1];
                bool const keeps =
                    checkpointing.name == "never" ||
                    (checkpointing.name == "except last" && (last_cell || m + 1 == M));
                bool const crosses = layer + 1 == train.plan().first[1];
                CHECK(calls.size() == (keeps || crosses ? 2 : 3));
                CHECK(calls.front().phase == Phase::forward);
                CHECK(calls.front().saving == keeps);
                CHECK(calls.front().training);
                if (!keeps && !crosses) {
                    CHECK(calls[1].phase == Phase::recompute);
                    CHECK(calls[1].saving);
                    CHECK(calls[1].training);
                }
                CHECK(calls.back().phase == Phase::evaluate);
                CHECK(!calls.back().saving);
                CHECK(!calls.back().training);
            }
    }
}

TEST_CASE_TEMPLATE("C5 evaluate and predict are the plain chain in every bit, for any number of "
                   "samples, and disturb nothing",
                   Device, Host, Remote) {
    for (std::size_t cells : {std::size_t{1}, std::size_t{3}, L})
        for (std::size_t micro_batches : {1, 4})
            for (auto const& run : toy::runs<Device>()) {
                toy::Watch watch, other;
                using T = Train<Device>;
                auto o = options<T>(9, cells, micro_batches, toy::OneForwardOneBackward{});
                o.device = run;
                T train(toy::make_net<Real>(watch), {&watch}, Adam{1e-2f}, o);
                toy::Plain<Real> plain(toy::make_net<Real>(other), {}, Adam{1e-2f}, 9,
                                       micro_batches, toy::Backward::ascending);
                INFO("K = ", cells, ", M = ", micro_batches, ", ", toy::describe(run));
                toy::Data<Real> const data(9);
                for (std::size_t samples : {1, 3, 8, 9, 10, 18, 31}) {
                    CHECK(train.step(data.inputs, data.targets).loss ==
                          plain.step(data.inputs, data.targets));
                    toy::Data<Real> const held_out(samples, 77);
                    std::vector<Real> outputs(samples * 3, -1.0);
                    train.predict(held_out.inputs, outputs);
                    auto const expected = plain.predict(held_out.inputs);
                    CHECK(std::memcmp(outputs.data(), expected.data(), expected.size()) == 0);

                    auto const result = train.evaluate(held_out.inputs, held_out.targets);
                    CHECK(result.weight == double(samples));
                    double sum = 0;
                    double distance = 0;
                    for (std::size_t i = 0; i < outputs.size(); ++i) {
                        double const d = outputs[i] - held_out.targets[i];
                        sum += d * d;
                        distance += std::abs(d);
                    }
                    CHECK(result.loss == doctest::Approx(sum / double(samples)));
                    CHECK(result.metric[0] == doctest::Approx(distance / double(samples)));
                    if (samples <= 9)
                        CHECK(result.loss == plain.evaluate(held_out.inputs, held_out.targets));
                    CHECK(toy::difference(train, plain) == "");
                }
                // No gradient is wanted from the loss then.
                watch.reset();
                watch.logs = true;
                train.evaluate(data.inputs, data.targets);
                for (toy::Call const& call : watch.log())
                    if (call.layer == toy::Watch::loss) CHECK(!call.wants_input_gradient);
            }
}
