// The layout of a cell that is reversed piece by piece, walked call by call on a memory that
// remembers what was written where.
#include "support/long_tests.hpp"
#include "support/random_chain.hpp"

#include <gpipe/checkpoint/optimal.hpp>
#include <gpipe/checkpoint/revolve.hpp>
#include <gpipe/checkpoint/verify_reversal.hpp>
#include <gpipe/memory/reversal_layout.hpp>

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace {

using gpipe::CellUse;
using gpipe::ChainShape;
using gpipe::Keep;
using gpipe::LayerInfo;
using gpipe::Place;
using gpipe::PlacedCall;
using gpipe::Region;
using gpipe::Reversal;
using gpipe::ReversalLayout;
using gpipe::detail::CallKind;

constexpr std::size_t unit = gpipe::slot_alignment;

// What a tensor is, whatever its place: by definition of the layers' functions.
struct What {
    char kind = ' '; // x: input of a layer, s: what it saves, g: gradient of its output
    std::size_t layer = 0;
    friend auto operator<=>(What const&, What const&) = default;
};

// Memory in units of slots, by region; where the temporaries share one with the stack, in one.
class Memory {
  public:
    Memory(ReversalLayout const& layout, bool adjacent) : layout_(layout), adjacent_(adjacent) {}

    std::string write(Place const& place, std::size_t bytes, What const& what) {
        return each(place, bytes, [&](What& held) {
            held = what;
            return true;
        });
    }
    std::string read(Place const& place, std::size_t bytes, What const& what) {
        return each(place, bytes, [&](What const& held) { return held == what; });
    }
    void spoil(Region region) {
        for (auto& [key, held] : memory_)
            if (std::get<0>(key) == key_of(region)) held = {};
    }

  private:
    Region key_of(Region region) const {
        return adjacent_ && region == Region::kept ? Region::temporary : region;
    }
    template <class F> std::string each(Place const& place, std::size_t bytes, F f) {
        bool const outside = place.region >= Region::input;
        std::size_t const room = outside                             ? bytes
                                 : place.region == Region::retained  ? layout_.retained
                                 : place.region == Region::temporary ? layout_.temporary
                                 : adjacent_                         ? layout_.temporary
                                                                     : layout_.kept;
        if (place.offset % unit != 0) return "not aligned";
        if (place.offset + bytes > room) return "outside of the region";
        for (std::size_t u = 0; u < bytes / unit; ++u)
            if (!f(memory_[{key_of(place.region), place.offset / unit + u}]))
                return "something else is there";
        return "";
    }
    ReversalLayout const& layout_;
    bool adjacent_;
    std::map<std::tuple<Region, std::size_t>, What> memory_;
};

struct Cell {
    ChainShape chain;
    std::size_t first, last;
    CellUse use;

    std::size_t count() const { return last - first; }
    LayerInfo const& layer(std::size_t i) const { return chain.layers[first + i]; }
    bool learns(std::size_t i) const { return first + i >= chain.lowest_learner; }
    bool is_last() const { return last == chain.size; }
    std::size_t bytes(gpipe::GroupSizes const& sizes) const { return sizes.slots(use.capacity); }
    std::size_t input_bytes(std::size_t i) const {
        return bytes(i < count() ? layer(i).input : layer(i - 1).output);
    }
};

// Runs one call: reads are what the function must find by its definition; then scratch and writes,
// no two of them at the same place nor where it reads.
std::string run(Cell const& cell, PlacedCall const& call, Memory& memory, bool reads_only = false) {
    struct Tensor {
        Place place;
        std::size_t bytes;
        What what;
    };
    std::vector<Tensor> reads, writes;
    std::size_t const i = call.layer;
    if (call.kind == CallKind::loss) {
        auto const& top = cell.layer(cell.count() - 1);
        reads.push_back({call.y, cell.bytes(top.output), {'x', i}});
        writes.push_back({call.dy, cell.bytes(top.output_gradient), {'g', i - 1}});
        writes.push_back({call.scratch, cell.bytes(cell.chain.loss_scratch), {}});
    } else {
        LayerInfo const& layer = cell.layer(i);
        writes.push_back({call.scratch, cell.bytes(layer.scratch), {}});
        if (call.kind == CallKind::forward) {
            reads.push_back({call.x, cell.input_bytes(i), {'x', i}});
            writes.push_back({call.y, cell.bytes(layer.output), {'x', i + 1}});
            writes.push_back({call.saved, cell.bytes(layer.saved), {'s', i}});
        } else {
            if (layer.reads_input) reads.push_back({call.x, cell.input_bytes(i), {'x', i}});
            if (layer.reads_output)
                reads.push_back({call.y, cell.bytes(layer.output), {'x', i + 1}});
            reads.push_back({call.saved, cell.bytes(layer.saved), {'s', i}});
            reads.push_back({call.dy, cell.bytes(layer.output_gradient), {'g', i}});
            bool const lowest = cell.first + i == cell.chain.lowest_learner;
            if (!lowest && i > 0)
                writes.push_back(
                    {call.dx, cell.bytes(cell.layer(i - 1).output_gradient), {'g', i - 1}});
            else if (!lowest || !layer.accepts_none)
                writes.push_back(
                    {call.dx,
                     lowest && layer.splits && !layer.has_whole && layer.deferred.count == 0
                         ? 0
                         : cell.bytes(layer.input_gradient),
                     {'d', i}});
            if (!layer.has_whole) writes.push_back({call.deferred, cell.bytes(layer.deferred), {}});
        }
    }
    auto const checked_reads = [&] {
        for (Tensor const& t : reads)
            if (auto wrong = memory.read(t.place, t.bytes, t.what); !wrong.empty())
                return wrong + ": reads " + t.what.kind + std::to_string(t.what.layer);
        return std::string{};
    };
    if (auto wrong = checked_reads(); !wrong.empty()) return wrong;
    if (reads_only) return "";
    for (Tensor const& t : writes)
        if (auto wrong = memory.write(t.place, t.bytes, t.what); !wrong.empty())
            return wrong + ": writes " + t.what.kind + std::to_string(t.what.layer);
    for (Tensor const& t : writes) // none over another
        if (auto wrong = memory.read(t.place, t.bytes, t.what);
            !wrong.empty() && t.what.kind != ' ')
            return wrong + ": is written over " + t.what.kind + std::to_string(t.what.layer);
    return checked_reads();
}

std::string walk(Cell const& cell, ReversalLayout const& layout, bool again) {
    Memory memory(layout, cell.use.adjacent);
    auto const wrong = [&](std::size_t i, std::string const& what) {
        return what + " in call " + std::to_string(i) + (again ? ", recomputed" : "");
    };
    static_cast<void>(memory.write({0, Region::input}, cell.input_bytes(0), {'x', 0}));
    if (!cell.is_last())
        static_cast<void>(memory.write({0, Region::output_gradient},
                                       cell.bytes(cell.layer(cell.count() - 1).output_gradient),
                                       {'g', cell.count() - 1}));
    auto const calls = [&](std::size_t begin, std::size_t end) -> std::string {
        for (std::size_t i = begin; i < end; ++i) {
            PlacedCall call = layout.calls[i];
            bool const top = call.layer + 1u == cell.count();
            bool const writes_again = again && begin > 0 && top && !cell.is_last() &&
                                      call.kind == CallKind::forward && cell.use.recomputes;
            if (writes_again) call.y = layout.again;
            if (auto what = run(cell, call, memory); !what.empty()) return wrong(i, what);
            // In the next cell's slot, whatever a recompute writes.
            if (writes_again && cell.layer(call.layer).reads_output) {
                static_cast<void>(memory.write({0, Region::output},
                                               cell.bytes(cell.layer(call.layer).output),
                                               {'x', call.layer + 1u}));
            }
        }
        return "";
    };
    if (auto what = calls(0, layout.backward); !what.empty()) return what;
    if (again) { // others have run in the meantime
        memory.spoil(Region::kept);
        memory.spoil(Region::temporary);
        if (layout.start == layout.backward) return ""; // nothing to do again
        if (auto what = calls(layout.start, layout.recompute_end); !what.empty()) return what;
    }
    // Where the temporaries share no region with the stack, others have used them.
    if (!cell.use.adjacent) memory.spoil(Region::temporary);
    return calls(layout.backward, layout.calls.size());
}

// Every layer that learns is reversed once, in descending order, by the calls behind the forward.
std::string order(Cell const& cell, ReversalLayout const& layout) {
    std::vector<std::size_t> backwards;
    for (std::size_t i = layout.backward; i < layout.calls.size(); ++i)
        if (layout.calls[i].kind == CallKind::backward) backwards.push_back(layout.calls[i].layer);
    std::vector<std::size_t> expected;
    for (std::size_t i = cell.count(); i-- > 0 && cell.learns(i);) expected.push_back(i);
    if (backwards != expected) return "not every backward once";
    std::size_t next = 0;
    for (std::size_t i = 0; i < layout.backward; ++i)
        if (layout.calls[i].layer != next++) return "the forward is out of order";
    return next == cell.count() ? "" : "the forward is not whole";
}

// For random costs, between the least that is possible and everything.
Reversal some_optimum(std::mt19937_64& random, std::size_t count) {
    auto const some = [&](std::size_t least) { return least + random() % 5; };
    gpipe::ReversalCosts costs{gpipe::Array<double>(count),      gpipe::Array<double>(count),
                               gpipe::Array<std::size_t>(count), gpipe::Array<std::size_t>(count),
                               gpipe::Array<std::size_t>(count), gpipe::Array<std::size_t>(count)};
    for (std::size_t i = 0; i < count; ++i) {
        costs.forward[i] = static_cast<double>(some(1));
        costs.input[i] = some(1);
        costs.all[i] = some(1);
        costs.forward_temporary[i] = some(0);
        costs.backward_temporary[i] = some(0);
    }
    std::size_t const in_flight = 1 + random() % 3;
    std::size_t const least = gpipe::optimal(costs, in_flight, 0, 1).least_bytes;
    return gpipe::optimal(costs, in_flight, least + random() % (8 * count * in_flight + 1), 64)
        .reversal;
}

Reversal random_reversal(std::mt19937_64& random, std::size_t count) {
    auto const below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    switch (below(6)) {
    case 0:
        return gpipe::keep_everything(count);
    case 1: {
        gpipe::Array<bool> dear(count);
        for (bool& each : dear) each = below(2) == 0;
        return gpipe::selective(dear);
    }
    case 2:
        return gpipe::equal_segments(count, 1 + below(count));
    case 3:
        return gpipe::every_segment(count, 1 + below(count));
    case 4:
        return gpipe::revolve(count, below(count));
    default:
        return some_optimum(random, count);
    }
}

TEST_CASE("every call of a reversal finds what it reads, and overwrites nothing") {
    std::mt19937_64 random{7};
    std::size_t walks = 0;
    double worst = 0, sum = 0;
    for (std::size_t n = 0; n < 4000 / toy::one_of(1); ++n) {
        auto const chain = toy::random_chain(random, 1 + random() % 9, {});
        ChainShape const shape = chain.shape();
        std::size_t const first = random() % shape.size;
        std::size_t const last = first + 1 + random() % (shape.size - first);
        Cell cell{shape, first, last, {}};
        cell.use.capacity = 1 + random() % 3;
        cell.use.adjacent = random() % 2;
        cell.use.recomputes = random() % 2;
        cell.use.rewrites_output = false;
        Reversal const reversal = random_reversal(random, cell.count());
        REQUIRE(gpipe::valid(reversal));
        ReversalLayout const layout =
            gpipe::lay_out_reversal(shape, first, last, cell.use, reversal);
        CAPTURE(n);
        REQUIRE(order(cell, layout) == "");
        REQUIRE(walk(cell, layout, false) == "");
        REQUIRE(walk(cell, layout, true) == "");
        ++walks;
        // The one piece that a cell is by default has a layout of its own.
        CellUse use = cell.use;
        auto const old = gpipe::lay_out_cell(shape, first, last, use);
        auto const same = gpipe::lay_out_reversal(shape, first, last, use,
                                                  gpipe::equal_segments(cell.count(), 1));
        if (old.bytes(1) > 0) {
            double const ratio =
                static_cast<double>(use.adjacent ? same.temporary : same.kept + same.temporary) /
                static_cast<double>(old.bytes(1));
            worst = std::max(worst, ratio);
            sum += ratio;
        }
    }
    CHECK(worst <= 1);
    MESSAGE(walks << " walks; one piece takes " << sum / static_cast<double>(walks)
                  << " of what the layout by layers does");
}

// Every sound reversal of a cell of so many layers: all that forwards can keep, and behind that all
// steps that verify() lets pass.
void each_reversal(std::size_t count, auto&& f) {
    std::vector<gpipe::ReversalStep> candidates;
    for (std::uint32_t l = 0; l < count; ++l) {
        candidates.push_back({true, Keep::nothing, l});
        for (Keep const keep : {Keep::nothing, Keep::input, Keep::all})
            candidates.push_back({false, keep, l});
    }
    auto const with = [](gpipe::Array<Keep> const& forward,
                         std::vector<gpipe::ReversalStep> const& steps) {
        Reversal result{forward, gpipe::Array<gpipe::ReversalStep>(steps.size())};
        std::copy(steps.begin(), steps.end(), result.steps.begin());
        return result;
    };
    std::size_t ways = 1;
    for (std::size_t l = 0; l < count; ++l) ways *= 3;
    for (std::size_t way = 0; way < ways; ++way) {
        gpipe::Array<Keep> forward(count);
        for (std::size_t l = 0, rest = way; l < count; ++l, rest /= 3)
            forward[l] = static_cast<Keep>(rest % 3);
        std::vector<std::vector<gpipe::ReversalStep>> open{{}};
        while (!open.empty()) {
            auto const steps = open.back();
            open.pop_back();
            auto const verdict = gpipe::verify(with(forward, steps));
            if (verdict) f(with(forward, steps));
            if (verdict.problem != gpipe::ReversalProblem::missing) continue;
            for (auto const& step : candidates) {
                auto longer = steps;
                longer.push_back(step);
                open.push_back(longer);
            }
        }
    }
}

TEST_CASE("every sound reversal there is of up to three layers is laid out rightly") {
    std::mt19937_64 random{11};
    std::size_t walks = 0;
    std::size_t point = 0;
    for (std::size_t count = 1; count <= 3; ++count)
        each_reversal(count, [&](Reversal const& reversal) {
            if (point++ % toy::one_of(1) != 0) return;
            auto const chain = toy::random_chain(random, count + random() % 3, {});
            ChainShape const shape = chain.shape();
            std::size_t const first = random() % (shape.size - count + 1);
            Cell cell{shape, first, first + count, {}};
            cell.use.capacity = 1;
            cell.use.adjacent = random() % 2;
            cell.use.recomputes = random() % 2;
            ReversalLayout const layout =
                gpipe::lay_out_reversal(shape, first, first + count, cell.use, reversal);
            REQUIRE(order(cell, layout) == "");
            REQUIRE(walk(cell, layout, false) == "");
            REQUIRE(walk(cell, layout, true) == "");
            ++walks;
        });
    MESSAGE(walks << " reversals");
}

} // namespace
