// What the benchmarks say rests on these: quantiles, lists of options, the count of live bytes, and
// the numbers of a plan.
#include "../../benchmarks/support/live_bytes.hpp"
#include "../../benchmarks/support/plan_numbers.hpp"
#include "../../benchmarks/support/statistics.hpp"
#include "../../benchmarks/support/turns.hpp"

#include <gpipe/chain/info.hpp>
#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/schedule/one_forward_one_backward.hpp>
#include <gpipe/schedule/zero_bubble_v.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <iostream>
#include <numeric>
#include <random>
#include <sstream>
#include <vector>

namespace {

TEST_CASE("quantiles of 0, 1, ..., n are q n, in any order") {
    std::mt19937 random(1);
    for (std::size_t n : {1u, 2u, 5u, 14u}) {
        std::vector<double> values(n + 1);
        std::iota(values.begin(), values.end(), 0.0);
        std::shuffle(values.begin(), values.end(), random);
        for (double q : {0.0, 0.25, 0.5, 0.75, 1.0})
            CHECK(benchmark::quantile(values, q) == doctest::Approx(q * double(n)));
    }
    CHECK(std::isnan(benchmark::median({})));
}

TEST_CASE("a round is taken for each line that is told") {
    std::istringstream lines("\n\n\n");
    auto* const before = std::cin.rdbuf(lines.rdbuf());
    std::vector<bool> rest; // whether there was more to read, by round
    benchmark::take_turns([&] { rest.push_back(lines.rdbuf()->in_avail() > 0); });
    std::cin.rdbuf(before);
    std::cin.clear();
    CHECK(rest == std::vector{true, true, false});
}

TEST_CASE("ratios are taken round by round") {
    std::vector<double> const r = benchmark::ratios({2, 9, 4}, {1, 3, 8});
    CHECK(r == std::vector<double>{2, 3, 0.5});
}

TEST_CASE("growth of c x^p is p") {
    std::vector<double> const x{16, 64, 256, 1024};
    for (double p : {0.5, 1.0, 2.0}) {
        std::vector<double> y;
        for (double v : x) y.push_back(3 * std::pow(v, p));
        CHECK(benchmark::growth(x, y) == doctest::Approx(p));
    }
}

// Layers of 4 bytes out, 16 saved, 64 of scratch and 256 of parameters per sample, so that every
// sum tells its summands.
struct Chain {
    static constexpr std::size_t small[] = {4};
    static constexpr std::size_t saved[] = {16};
    static constexpr std::size_t scratch[] = {64};
    static constexpr std::size_t parameters[] = {256};
    std::vector<gpipe::LayerInfo> layers;

    explicit Chain(std::size_t count) : layers(count) {
        for (gpipe::LayerInfo& layer : layers) {
            layer.input = layer.output = {small, 1};
            layer.input_gradient = layer.output_gradient = {small, 1};
            layer.saved = {saved, 1};
            layer.scratch = {scratch, 1};
            layer.parameters = {parameters, 1};
            layer.reads_input = true;
            layer.output_carries_gradient = true;
            layer.accepts_none = true;
        }
    }
    gpipe::ChainShape shape() const { return {layers.data(), layers.size(), 0, {}}; }
};

gpipe::Array<std::size_t> cut(std::vector<std::size_t> const& first) {
    gpipe::Array<std::size_t> result(first.size());
    std::copy(first.begin(), first.end(), result.begin());
    return result;
}

TEST_CASE("one layer: parameters, gradients and states, then what its widest moment needs") {
    Chain const chain(1);
    auto const first = cut({0, 1});
    auto const programs = gpipe::schedule::GPipe::programs(1, 1);
    for (std::size_t states : {0u, 1u, 2u}) {
        benchmark::LiveBytes const live(chain.shape(), first, programs, states, 1);
        // In backward: what it saved, its scratch, and the gradient of its output. That output
        // itself nobody reads after the loss.
        CHECK(live.peak(0) == (2 + states) * 256 + 16 + 64 + 4);
    }
}

TEST_CASE("without checkpointing each micro-batch in flight keeps a set, with it one alone does") {
    Chain const chain(3);
    auto const first = cut({0, 3});
    std::size_t const always = 3 * 2 * 256;
    for (std::size_t micro_batches : {1u, 2u, 7u}) {
        auto const programs = gpipe::schedule::GPipe::programs(1, micro_batches);
        benchmark::LiveBytes const kept(chain.shape(), first, programs, 0, micro_batches);
        // All have gone forward (outputs and saved tensors of 3 layers each); then the last layer
        // of one goes backward: its own output is dead, two gradients and a scratch are new.
        CHECK(kept.peak(0) == always + micro_batches * 3 * (4 + 16) - 4 + 2 * 4 + 64);

        auto const lowered = gpipe::checkpoint::Always::lower(programs);
        benchmark::LiveBytes const one(chain.shape(), first, lowered, 0, micro_batches);
        CHECK(one.peak(0) == always + 3 * (4 + 16) - 4 + 2 * 4 + 64);
    }
}

TEST_CASE("a boundary holds the inputs in flight and one gradient") {
    Chain const chain(2);
    auto const first = cut({0, 1, 2});
    for (std::size_t micro_batches : {2u, 5u}) {
        auto const lowered =
            gpipe::checkpoint::Always::lower(gpipe::schedule::GPipe::programs(2, micro_batches));
        benchmark::LiveBytes const live(chain.shape(), first, lowered, 0, micro_batches);
        // Device 1 in its first backward: all inputs, the gradient of one, its output's gradient.
        CHECK(live.peak(1) == 2 * 256 + micro_batches * 4 + 4 + 4 + 16 + 64);
        // Device 0 holds no boundary: its inputs are the caller's. At the widest it runs a layer,
        // in a recompute with an output that goes nowhere.
        CHECK(live.peak(0) == 2 * 256 + 16 + 64 + 4);
    }
}

TEST_CASE("more samples in a micro-batch need more of everything but parameters") {
    Chain const chain(4);
    auto const first = cut({0, 2, 4});
    auto const programs = gpipe::schedule::GPipe::programs(2, 3);
    std::size_t const always = 2 * 2 * 256;
    benchmark::LiveBytes const one(chain.shape(), first, programs, 0, 3);
    benchmark::LiveBytes const five(chain.shape(), first, programs, 0, 15);
    for (std::size_t d : {0u, 1u}) CHECK(five.peak(d) - always == 5 * (one.peak(d) - always));
}

// GPipe on two devices with three micro-batches, by hand. A forward takes one unit, a backward two;
// six tensors cross. With copies the outbox of device 0 has two slots: the third output waits until
// the first is sent, the last gradient until the one before it is read. In the host's memory there
// are two slots each way, and so two waits more. Every tensor has one slot. Device 0: parameters,
// gradients and a state, what three micro-batches save, a scratch, and the outbox. Device 1: as
// many without an outbox, three inputs and a gradient, three outputs (the loss comes with the
// backward) and the gradient of one, behind which its scratch lies where the output was.
TEST_CASE("what a plan's numbers count") {
    Chain const chain(2);
    benchmark::PlannedNet net{{}, {}, {}, 1};
    net.layers = gpipe::Array<gpipe::LayerInfo>(2);
    std::copy(chain.layers.begin(), chain.layers.end(), net.layers.begin());
    net.costs = gpipe::Array<double>(2, 1.0);
    std::size_t const slot = gpipe::slot_bytes(1);
    struct {
        char const* links;
        std::size_t actions, data, room, slots, host;
        double makespan, slow, slow_without_room;
    } const expected[] = {{"shared", 12, 6, 0, 21, 0, 12, 21, 21},
                          {"copied", 18, 12, 2, 23, 0, 12.5, 36, 33},
                          {"staged", 24, 18, 4, 23, 4, 13, 44, 41}};
    for (auto const& each : expected) {
        CAPTURE(each.links);
        benchmark::FinishedPlan const plan = benchmark::finish_plan(
            net, {gpipe::schedule::GPipe{}, gpipe::checkpoint::Never{}, each.links, 2, 3, 3});
        auto const numbers =
            benchmark::plan_numbers(plan, 2, [](benchmark::Work const& work, std::size_t draw) {
                if (draw == 0) return work.units;
                bool const third = work.cell == 0 && work.micro_batch == 2 && work.units == 1;
                return work.copies ? 4 : third ? 10 : work.units;
            });
        CHECK(numbers.actions == each.actions);
        CHECK(numbers.needs == each.data + each.room);
        CHECK(numbers.needs_left == each.data + each.room);
        CHECK(numbers.needs_added == each.room);
        CHECK(numbers.waits == each.data + each.room);
        CHECK(numbers.host == each.host * slot);
        CHECK(numbers.largest == 14 * slot);
        CHECK(numbers.all == each.slots * slot);
        // In the second draw copies take 4, and so the third forward, of 10, begins 3 later.
        CHECK(numbers.makespan == std::vector<double>{each.makespan, each.slow});
        CHECK(numbers.makespan_without_room ==
              std::vector<double>{each.makespan, each.slow_without_room});
    }
    // As ranks: device 1 takes the second input before the first backward, since it is there by
    // then; in the second draw it comes 9 units later, and so does that backward.
    benchmark::FinishedPlan const sent =
        benchmark::finish_plan(net, {gpipe::schedule::OneForwardOneBackward{},
                                     gpipe::checkpoint::Never{}, "sent", 2, 3, 3});
    auto const of_ranks =
        benchmark::plan_numbers(sent, 2, [](benchmark::Work const& work, std::size_t draw) {
            bool const second = work.cell == 0 && work.micro_batch == 1 && work.units == 1;
            return draw == 1 && second ? 10 : work.units;
        });
    CHECK(of_ranks.actions == 24);
    CHECK(of_ranks.makespan == std::vector<double>{12, 21});
    CHECK(of_ranks.makespan_without_room == std::vector<double>{12, 19});
    // Two cells on one device: each need is an action before it in the same program.
    benchmark::FinishedPlan const alone = benchmark::finish_plan(
        net, {gpipe::schedule::ZeroBubbleV{}, gpipe::checkpoint::Never{}, "shared", 1, 2, 2});
    auto const numbers = benchmark::plan_numbers(alone, 0, [](auto&&...) { return 0.0; });
    CHECK(numbers.needs == 0);
    CHECK(numbers.waits == 0);
}

} // namespace
