// Reversals are constants.
#include <gpipe/checkpoint/optimal.hpp>
#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>
#include <gpipe/checkpoint/revolve.hpp>
#include <gpipe/checkpoint/rotor.hpp>
#include <gpipe/checkpoint/verify_reversal.hpp>

#include <cstddef>

namespace {

using gpipe::Array;
using gpipe::Keep;
using gpipe::Reversal;
using gpipe::ReversalCosts;
using gpipe::ReversalStep;

// 'F', 'f' and 'i': a forward that keeps all, nothing and the input; 'B': a backward.
constexpr bool steps_are(Array<ReversalStep> const& steps, char const* calls) {
    for (ReversalStep const& step : steps) {
        char const call = step.backward              ? 'B'
                          : step.keep == Keep::all   ? 'F'
                          : step.keep == Keep::input ? 'i'
                                                     : 'f';
        if (calls[0] != call || calls[1] != static_cast<char>('0' + step.layer)) return false;
        calls += calls[2] == ' ' ? 3 : 2;
    }
    return *calls == '\0';
}
constexpr bool keeps(Reversal const& reversal, char const* by_layer) {
    for (Keep const keep : reversal.forward)
        if (*by_layer++ != (keep == Keep::all ? 'F' : keep == Keep::input ? 'i' : 'f'))
            return false;
    return *by_layer == '\0';
}
constexpr bool is(Reversal const& reversal, char const* forward, char const* steps) {
    return gpipe::verify(reversal) && keeps(reversal, forward) && steps_are(reversal.steps, steps);
}

static_assert(is(gpipe::keep_everything(3), "FFF", "B2 B1 B0"));
static_assert(is(gpipe::equal_segments(3, 1), "fff", "F0 F1 F2 B2 B1 B0"));
static_assert(is(gpipe::equal_segments(5, 2), "ffiff", "F2 F3 F4 B4 B3 B2 F0 F1 B1 B0"));
static_assert(is(gpipe::every_segment(5, 3), "fffif", "F3 F4 B4 B3 F0 F1 F2 B2 B1 B0"));
static_assert(is(gpipe::revolve(4, 0), "ffff", "f0 f1 f2 F3 B3 f0 f1 F2 B2 f0 F1 B1 F0 B0"));
static_assert(is(gpipe::revolve(4, 1), "ffff", "f0 i1 f2 F3 B3 f1 F2 B2 F1 B1 F0 B0"));
static_assert(is(gpipe::revolve(3, 2), "fff", "f0 i1 F2 B2 F1 B1 F0 B0"));
static_assert(gpipe::revolve_forwards(4, 0) == 10 && gpipe::revolve_forwards(4, 1) == 8);
static_assert(gpipe::revolve_forwards(64, 3) == gpipe::extra_forwards(gpipe::revolve(64, 3)));

static_assert([] {
    Array<bool> expensive(5);
    expensive[1] = expensive[2] = true;
    return is(gpipe::selective(expensive), "fFFff", "F3 F4 B4 B3 B2 B1 F0 B0");
}());

static_assert(gpipe::is_whole(gpipe::keep_everything(3)));
static_assert(gpipe::is_whole(gpipe::equal_segments(3, 1)) &&
              gpipe::is_whole(gpipe::revolve(1, 0)));
static_assert(!gpipe::is_whole(gpipe::equal_segments(3, 2)) &&
              !gpipe::is_whole(gpipe::revolve(3, 2)));
static_assert([] {
    Reversal reversal = gpipe::equal_segments(3, 1);
    reversal.forward[1] = Keep::input; // in vain, but kept
    return !gpipe::is_whole(reversal);
}());
static_assert(gpipe::begins_again(gpipe::equal_segments(3, 2)));
static_assert(!gpipe::begins_again(gpipe::keep_everything(3)));

static_assert(gpipe::verify(Reversal{Array<Keep>(2), {}}).problem ==
              gpipe::ReversalProblem::missing);

constexpr ReversalCosts equal_costs(std::size_t layers, std::size_t input, std::size_t all,
                                    std::size_t temporary) {
    ReversalCosts costs;
    costs.forward = Array<double>(layers, 1.0);
    costs.backward = Array<double>(layers, 2.0);
    costs.input = Array<std::size_t>(layers, input);
    costs.all = Array<std::size_t>(layers, all);
    costs.forward_temporary = Array<std::size_t>(layers, temporary);
    costs.backward_temporary = Array<std::size_t>(layers, temporary);
    return costs;
}

static_assert(is(gpipe::square_root(equal_costs(4, 1, 4, 0), 4), "ffif",
                 "F2 F3 B3 B2 F0 F1 B1 B0"));
static_assert(gpipe::reversal_bytes(gpipe::equal_segments(4, 2), equal_costs(4, 1, 4, 2))
                  .total(3) == 3 * 1 + 2 * 4 + 2);
static_assert(gpipe::extra_time(gpipe::revolve(4, 1), equal_costs(4, 1, 4, 2)) == 8.0);

// Twelve layers in sixteen slots.
constexpr std::size_t layers = 12;
constexpr ReversalCosts twelve() {
    ReversalCosts costs = equal_costs(layers, 64, 200, 100);
    for (std::size_t l = 0; l < layers; ++l) {
        costs.forward[l] = static_cast<double>(1 + l % 3);
        costs.all[l] += 40 * (l % 4);
    }
    return costs;
}
constexpr double times = 24; // of all layers once
static_assert([] {
    gpipe::PieceReversal const found = gpipe::rotor(twelve(), 0, layers, 1600, 16);
    Reversal const reversal{Array<Keep>(layers), found.steps};
    return found.possible && gpipe::verify(reversal) && found.time > times &&
           found.time < 3 * times && gpipe::reversal_bytes(reversal, twelve()).working <= 1600;
}());
static_assert(gpipe::rotor(twelve(), 0, layers, 483, 16).least_bytes == 484); // a layer of 320
static_assert(!gpipe::rotor(twelve(), 0, layers, 483, 16).possible);
static_assert(gpipe::rotor(twelve(), 0, layers, 484, 16).possible);
static_assert([] {
    gpipe::OptimalReversal const found = gpipe::optimal(twelve(), 4, 4000, 16);
    return found.possible && gpipe::verify(found.reversal) && found.time > 0 &&
           found.time <= times && found.bytes.total(4) <= 4000;
}());
static_assert(gpipe::optimal(twelve(), 4, 4 * 3120 + 100, 16).time == 0); // everything fits
static_assert(gpipe::optimal(twelve(), 4, 100, 16).least_bytes == 484);

} // namespace
