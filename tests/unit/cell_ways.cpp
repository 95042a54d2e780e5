// What a cell calls, and the parts in which its tensors come and go.
#include <support/live_bytes.hpp>
#include <support/long_tests.hpp>
#include <support/random_plan.hpp>

#include <gpipe/memory/gap_list.hpp>
#include <gpipe/memory/lifetimes.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

using gpipe::CellTensor;
using gpipe::CellUse;
using gpipe::CellWay;
using gpipe::MemoryPlan;
using gpipe::Stage;
using gpipe::TensorPart;
using gpipe::TensorPlace;

namespace {

// A call's slice, counted over all stages.
std::size_t slice_of(CellWay const& way, std::size_t call) {
    auto const s = static_cast<std::size_t>(way.calls.stage_of(call));
    std::size_t before = 0;
    for (std::size_t t = 0; t < s; ++t) before += way.parts.slices[t];
    std::size_t const first = way.calls.begin[s], size = way.calls.begin[s + 1] - first;
    return before + (call - first) * way.parts.slices[s] / size;
}
std::size_t slice_of(CellWay const& way, Stage stage, std::size_t slice) {
    for (std::size_t s = 0; s < static_cast<std::size_t>(stage); ++s) slice += way.parts.slices[s];
    return slice;
}

// Of the cell's input, output and their gradients it is known in which slices they are used.
void check_others(CellWay const& way, Stage stage) {
    auto const s = static_cast<std::size_t>(stage);
    gpipe::Region const regions[] = {gpipe::Region::input, gpipe::Region::output,
                                     gpipe::Region::output_gradient, gpipe::Region::input_gradient};
    std::uint32_t const tensors[] = {gpipe::tensor::input, gpipe::tensor::output,
                                     gpipe::tensor::output_gradient, gpipe::tensor::input_gradient};
    for (std::size_t r = 0; r < std::size(regions); ++r) {
        gpipe::PartUse use;
        bool any = false;
        for (std::size_t c = way.calls.begin[s]; c < way.calls.begin[s + 1]; ++c) {
            gpipe::CellCall const& call = way.calls.calls[c];
            for (std::uint32_t const t : {call.x, call.y, call.dy, call.dx}) {
                if (t != tensors[r]) continue;
                use.to = static_cast<std::uint16_t>(slice_of(way, c) - slice_of(way, stage, 0));
                if (!any) use.from = use.to;
                any = true;
            }
        }
        REQUIRE(way.parts.other(stage, regions[r]).from == use.from);
        REQUIRE(way.parts.other(stage, regions[r]).to == use.to);
    }
}

void check_way(CellWay const& way, bool retains) {
    auto const& tensors = way.calls.tensors;
    auto const& parts = way.parts.parts;
    std::vector<std::size_t> filled(parts.size());
    std::size_t retained = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
        CellTensor const& one = tensors[t];
        TensorPlace const& at = way.places[t];
        REQUIRE(at.offset % gpipe::slot_alignment == 0);
        REQUIRE((at.part == TensorPlace::retained) ==
                (retains && one.begin < way.calls.restart && one.end >= way.calls.begin[1]));
        if (at.part == TensorPlace::retained) {
            REQUIRE(at.offset == retained);
            retained += one.bytes;
            continue;
        }
        TensorPart const& part = parts[at.part];
        REQUIRE(slice_of(way, part.first, part.from) == slice_of(way, one.begin));
        REQUIRE(slice_of(way, part.last, part.to) == slice_of(way, one.end));
        filled[at.part] = std::max(filled[at.part], at.offset + one.bytes);
        for (std::size_t u = 0; u < t; ++u)
            if (way.places[u].part == at.part && tensors[u].begin <= one.end &&
                one.begin <= tensors[u].end)
                REQUIRE((way.places[u].offset + tensors[u].bytes <= at.offset ||
                         at.offset + one.bytes <= way.places[u].offset));
    }
    REQUIRE(retained == way.retained);
    for (std::size_t p = 0; p < parts.size(); ++p) REQUIRE(filled[p] == parts[p].bytes);
    // Each action uses what there is then, in the order of its first slices.
    for (std::size_t s = 0; s < gpipe::stage_count; ++s) {
        auto const uses = way.parts[static_cast<Stage>(s)];
        for (std::size_t u = 0; u < uses.size(); ++u) {
            TensorPart const& part = parts[uses[u].part];
            Stage const stage = static_cast<Stage>(s);
            REQUIRE((part.first <= stage && stage <= part.last));
            REQUIRE((uses[u].from <= uses[u].to && uses[u].to < way.parts.slices[s]));
            if (part.first == stage) REQUIRE(uses[u].from == part.from);
            if (part.last == stage) REQUIRE(uses[u].to == part.to);
            if (u > 0) REQUIRE(uses[u - 1].from <= uses[u].from);
        }
        check_others(way, static_cast<Stage>(s));
    }
}

// What a skip to or from another cell carries is of its edge.
void check_skips(gpipe::CellCalls const& all, gpipe::ChainShape const& chain, std::size_t first,
                 std::size_t last) {
    for (std::size_t c = all.begin[0]; c < all.begin[1]; ++c) {
        gpipe::CellCall const& call = all.calls[c];
        std::size_t const layer = first + call.layer;
        if (call.kind != gpipe::CallKind::forward) continue;
        for (std::uint32_t e = 0; e < chain.layers[layer].skips.count(); ++e) {
            gpipe::SkipPair const& skip = chain.skips[gpipe::skip_of(chain.skips, layer, e)];
            bool const inside = first <= skip.from && skip.to < last;
            REQUIRE((all.skips[call.skips + e].value != gpipe::tensor::none) == inside);
        }
    }
}

} // namespace

TEST_CASE("in every way of every cell tensors that live at once lie apart, and parts are full") {
    std::mt19937_64 random(1);
    std::size_t ways = 0;
    for (int n = 0; n < (toy::long_tests() ? 20000 : 2000); ++n) {
        CAPTURE(n);
        toy::Sizes sizes;
        sizes.percent_skips = n % 2 * 40;
        std::size_t const length = 1 + random() % 9;
        auto const chain = toy::random_chain(random, length, sizes);
        std::size_t const first = random() % length, last = first + 1 + random() % (length - first);
        bool const reversed = n % 3 == 0;
        gpipe::Reversal const reversal = reversed ? toy::some_reversal(random, last - first)
                                                  : gpipe::equal_segments(last - first, 1);
        CellUse const use{1 + random() % 2, random() % 2 == 0, random() % 2 == 0};
        for (std::size_t w = 0; w < gpipe::way_count; ++w) {
            if (reversed && (w & gpipe::way_halves)) continue;
            if ((w & gpipe::way_recomputes) && !begins_again(reversal)) continue;
            for (std::size_t const slices : {std::size_t{1}, std::size_t{3}, std::size_t{0xFFFF}})
                for (bool const retains : {false, true}) {
                    CellWay const way = cell_way(
                        cell_calls(chain.shape(), first, last, use, reversal, w), slices, retains);
                    check_way(way, retains);
                    check_skips(way.calls, chain.shape(), first, last);
                    ++ways;
                }
        }
    }
    CHECK(ways > 30000);
}

// P4: of every micro-batch in flight nothing but its input.
TEST_CASE("P4 what a recompute brings back the forward does not keep") {
    std::mt19937_64 random(2);
    for (int n = 0; n < 500; ++n) {
        std::size_t const length = 1 + random() % 6;
        auto const chain = toy::random_chain(random, length, {.percent_skips = 20});
        for (std::size_t const halves : {std::size_t{0}, std::size_t{gpipe::way_halves}}) {
            CellWay const way =
                cell_way(cell_calls(chain.shape(), 0, length, {1}, gpipe::equal_segments(length, 1),
                                    gpipe::way_recomputes | halves),
                         0xFFFF, false);
            for (TensorPart const& part : way.parts.parts)
                CHECK((part.first > Stage::forward || part.last == Stage::forward));
        }
    }
}

namespace {

// Of plans' devices to what lives at once, sorted.
struct Ratios {
    std::vector<double> all;

    double largest() const { return all.back(); }
    double quantile(double q) const { return all[std::size_t(q * double(all.size() - 1))]; }
    double within(double most) const {
        auto const end = std::upper_bound(all.begin(), all.end(), most);
        return double(end - all.begin()) / double(all.size());
    }
};

struct OverLive {
    Ratios full, waiting;      // where nobody waits for room, and where who writes does
    std::size_t lower[2] = {}; // devices that take less than with the next looser plan
    std::size_t fewer = 0;     // devices that take less where who writes waits
};

gpipe::Programs by_chance(std::mt19937_64& random) {
    std::size_t const cells = 1 + random() % 6, m = 1 + random() % 8;
    return toy::lowerings[random() % 3](toy::mixed_by_chance(cells, m, 40, random));
}
// Of the library's schedules, up to four devices of up to three cells.
gpipe::Programs of_catalogue(std::mt19937_64& random) {
    for (;;) {
        auto const catalogue = gpipe::schedule::catalogue(1 + random() % 3);
        auto const& schedule = catalogue[random() % catalogue.size()];
        std::size_t const devices = 1 + random() % 4, m = 1 + random() % 8;
        if (m >= schedule.least_micro_batches(devices))
            return toy::lowerings[random() % 3](schedule.programs(devices, m));
    }
}

// Plans of random chains under such programs; `even`: cells of equally many layers each.
OverLive plan_all(std::mt19937_64& random, gpipe::Programs some(std::mt19937_64&), bool even,
                  toy::Sizes sizes) {
    OverLive result;
    int const plans = toy::long_tests() ? 3000 : 600 / static_cast<int>(toy::one_of(1));
    for (int n = 0; n < plans; ++n) {
        CAPTURE(n);
        auto const programs = some(random);
        std::size_t const cells = programs.cells();
        std::size_t const length =
            even ? cells * (1 + random() % 3) : cells + random() % (2 * cells + 4);
        sizes.percent_skips = n % 2 * 10;
        auto const chain = toy::random_chain(random, length, sizes);
        auto first = toy::some_cut(random, cells, length);
        for (std::size_t c = 0; even && c < cells; ++c) first[c] = c * (length / cells);
        gpipe::PlanRequest request{chain.shape(), first, 1, 1};
        MemoryPlan plans_of[3];
        for (auto const tightness :
             {gpipe::Tightness::constant, gpipe::Tightness::quick, gpipe::Tightness::full}) {
            request.tightness = tightness;
            plans_of[static_cast<std::size_t>(tightness)] = plan_bytes(request, programs);
        }
        MemoryPlan const& full = plans_of[2];
        for (std::size_t d = 0; d < programs.devices(); ++d)
            for (std::size_t i : {0u, 1u}) {
                MemoryPlan const &one = plans_of[i], &tighter = plans_of[i + 1];
                CHECK(one.devices[d].total() >= tighter.devices[d].total());
                CHECK(one.parts.evaluation_height[d] >= tighter.parts.evaluation_height[d]);
                result.lower[i] += one.devices[d].total() > tighter.devices[d].total();
            }
        if (n % 2 > 0) continue; // the bound knows no skips
        request.slack = 0;
        MemoryPlan const waits = plan_bytes(request, programs);
        auto const live = toy::live_bytes(programs, {chain.layers,
                                                     {request.first.begin(), request.first.end()},
                                                     chain.loss_scratch,
                                                     request.states,
                                                     request.capacity});
        for (std::size_t d = 0; d < programs.devices(); ++d) {
            REQUIRE(full.devices[d].total() >= live[d].total);
            result.fewer += waits.devices[d].total() < full.devices[d].total();
            if (live[d].total == 0) continue;
            auto const bytes = double(live[d].total);
            result.full.all.push_back(double(full.devices[d].total()) / bytes);
            result.waiting.all.push_back(double(waits.devices[d].total()) / bytes);
        }
    }
    for (Ratios* ratios : {&result.full, &result.waiting})
        std::sort(ratios->all.begin(), ratios->all.end());
    return result;
}

void print(std::string const& what, Ratios const& ratios) {
    MESSAGE(ratios.all.size() << " devices over what lives at once, " << what << ": median "
                              << ratios.quantile(0.5) << ", 95 % " << ratios.quantile(0.95)
                              << ", 99 % " << ratios.quantile(0.99) << ", worst "
                              << ratios.largest() << "; within 1.05 " << 100 * ratios.within(1.05)
                              << " %, within 1.2 " << 100 * ratios.within(1.2) << " %");
}
void print(std::string const& what, OverLive const& result) {
    print(what, result.full);
    print(what + ", who writes waits for room", result.waiting);
}

} // namespace

TEST_CASE("the tighter a plan, the fewer bytes, and no fewer than live at once") {
    std::mt19937_64 random(3);
    auto const result = plan_all(random, by_chance, false, {});
    print("programs by chance, tensors of up to 4,000 bytes", result);
    CHECK(result.lower[0] > 0);
    CHECK(result.lower[1] > 0);
    CHECK(result.fewer > 0);
    CHECK(result.full.quantile(0.5) == 1);
    CHECK(result.full.quantile(0.99) <= 1.07);
    for (Ratios const* ratios : {&result.full, &result.waiting}) CHECK(ratios->largest() <= 1.2);
    if (toy::sanitized) return; // few
    CHECK(result.full.within(1.05) >= 0.98);
    CHECK(result.waiting.within(1.05) >= 0.99);
}

// Where neither slots of 256 bytes nor what neighbours do by chance, nor cells of unequal length
// can take bytes.
TEST_CASE("bytes over those that live at once, of large tensors under the library's schedules") {
    std::mt19937_64 random(4);
    auto const result = plan_all(random, of_catalogue, true, {.most_bytes = 4'000'000});
    print("the library's schedules, tensors of up to 4 MB", result);
    CHECK(result.full.quantile(0.5) == 1);
    // What is there in turns does not always tile: one in 3,600 is above 1.2.
    for (Ratios const* ratios : {&result.full, &result.waiting}) CHECK(ratios->largest() <= 1.26);
    if (toy::sanitized) return; // few
    CHECK(result.full.quantile(0.99) <= 1.07);
    CHECK(result.full.within(1.05) >= 0.98);
    CHECK(result.waiting.within(1.05) >= 0.99);
}

namespace {

// Call by call, of tensors that take a slot each.
void count_slots(gpipe::CellCalls const& all, Stage stage, std::size_t& live, std::size_t& most) {
    auto const s = static_cast<std::size_t>(stage);
    for (std::size_t c = all.begin[s]; c < all.begin[s + 1]; ++c) {
        for (CellTensor const& one : all.tensors) live += one.begin == c;
        most = std::max(most, live);
        for (CellTensor const& one : all.tensors) live -= one.end == c;
    }
}

// That live at once on a device, in a step and in an evaluation of one of its cells.
struct Slots {
    std::size_t step = 0, evaluation = 0;
};
std::vector<Slots> live_slots(gpipe::Programs const& programs, gpipe::PlacedParts const& parts) {
    std::vector<Slots> most(programs.devices());
    for (std::size_t d = 0; d < most.size(); ++d) {
        std::size_t live = 0;
        for (std::size_t i = programs.begin(d); i < programs.end(d); ++i) {
            gpipe::Action const& a = programs[i];
            count_slots(parts.of(a.cell, parts.way(a.cell, a.micro_batch)).calls,
                        gpipe::stage_of(a.kind), live, most[d].step);
        }
        CHECK(live == 0);
    }
    for (std::size_t c = 0; c < programs.cells(); ++c) {
        std::size_t live = 0;
        count_slots(parts.of(c, gpipe::way_evaluates).calls, Stage::forward, live,
                    most[programs.device_of(c)].evaluation);
    }
    return most;
}

} // namespace

TEST_CASE(
    "tensors of one size, each by itself, lie without a gap: no more bytes than live at once") {
    std::mt19937_64 random(9);
    std::size_t several = 0;
    for (std::size_t n = 0; n < (toy::long_tests() ? 3000 : 600 / toy::one_of(1)); ++n) {
        CAPTURE(n);
        std::size_t const cells = 1 + random() % 6, m = 1 + random() % 8;
        auto const programs =
            toy::lowerings[random() % 3](toy::mixed_by_chance(cells, m, 40, random));
        std::size_t const length = cells + random() % (2 * cells + 4);
        // No two that a call begins live equally long, and so are one part.
        auto chain = toy::random_chain(random, length,
                                       {.most_bytes = 1,
                                        .most_tensors = 1,
                                        .percent_saved = 0,
                                        .percent_scratch = 0,
                                        .percent_whole = 100});
        chain.loss_scratch = {};
        gpipe::PlanRequest request{chain.shape(), toy::some_cut(random, cells, length), 1, 1};
        request.tightness = gpipe::Tightness::quick;
        gpipe::PlacedParts const parts = plan_bytes(request, programs).parts;
        std::vector<Slots> const most = live_slots(programs, parts);
        for (std::size_t d = 0; d < programs.devices(); ++d) {
            REQUIRE(parts.height[d] == most[d].step * gpipe::slot_alignment);
            REQUIRE(parts.evaluation_height[d] == most[d].evaluation * gpipe::slot_alignment);
        }
        several += programs.cells() > programs.devices();
    }
    CHECK(several > 0); // under sanitizers few
}

TEST_CASE("calls that share a slice take turns in it") {
    std::mt19937_64 random(10);
    for (std::size_t n = 0; n < (toy::long_tests() ? 3000 : 600 / toy::one_of(1)); ++n) {
        CAPTURE(n);
        std::size_t const length = 1 + random() % 9;
        auto const chain = toy::random_chain(
            random, length,
            {.most_bytes = 1, .most_tensors = 1, .percent_skips = static_cast<int>(n % 2) * 20});
        CellWay const way =
            cell_way(cell_calls(chain.shape(), 0, length, {1}, gpipe::equal_segments(length, 1),
                                gpipe::way_evaluates),
                     1, false);
        std::size_t live = 0, most = 0, bytes = 0;
        count_slots(way.calls, Stage::forward, live, most);
        for (TensorPart const& part : way.parts.parts) bytes += part.bytes;
        CHECK(bytes == most * gpipe::slot_alignment);
    }
}

TEST_CASE(
    "the lowest learner is the first with parameters above the last layer without gradients") {
    std::mt19937_64 random(3);
    for (int round = 0; round < 2000; ++round) {
        std::size_t const length = 1 + random() % 6;
        auto const chain =
            toy::random_chain(random, length, {.percent_integers = 30, .percent_parameters = 40});
        std::size_t barrier = 0; // one past the last layer whose output carries none
        for (std::size_t i = 0; i < length; ++i)
            if (!chain.layers[i].output_carries_gradient) barrier = i + 1;
        std::size_t expected = length;
        for (std::size_t i = length; i-- > barrier;)
            if (chain.layers[i].parameters.count > 0) expected = i;
        CHECK(gpipe::lowest_learner(chain.layers.data(), length) == expected);
    }
}

TEST_CASE("bytes are taken as low as enough of them are free, and none is forgotten") {
    std::mt19937 random(5);
    for (std::size_t n = 0; n < toy::cases(200); ++n) {
        gpipe::detail::GapList list;
        std::vector<bool> taken(400); // by byte
        std::vector<std::pair<std::size_t, std::size_t>> all;
        std::size_t height = 0;
        for (std::size_t act = 0; act < 100; ++act) {
            if (!all.empty() && random() % 2 == 0) {
                std::swap(all[random() % all.size()], all.back());
                auto const [at, bytes] = all.back();
                all.pop_back();
                list.give_back(at, bytes);
                std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(at), bytes, false);
                continue;
            }
            std::size_t const bytes = 1 + random() % 4;
            auto const lowest =
                std::search_n(taken.begin(), taken.end(), static_cast<int>(bytes), false);
            std::size_t const at = list.take(bytes);
            REQUIRE(at == static_cast<std::size_t>(lowest - taken.begin()));
            std::fill_n(lowest, bytes, true);
            all.emplace_back(at, bytes);
            height = std::max(height, at + bytes);
            REQUIRE(list.height() == height);
        }
    }
}

namespace {

using gpipe::detail::Lifetime;

// Some, of which two in ten that live at once may still lie in the same bytes.
struct Lifetimes {
    std::uint32_t slices;
    gpipe::Array<Lifetime> all;
    std::vector<bool> shares; // by pair

    Lifetimes(std::mt19937& random, std::size_t most)
        : slices(1 + static_cast<std::uint32_t>(random() % 6)), all(random() % most),
          shares(all.size() * all.size()) {
        for (Lifetime& one : all) {
            one.begin = static_cast<std::uint32_t>(random() % slices);
            one.end = one.begin + static_cast<std::uint32_t>(random() % (slices - one.begin));
            one.bytes = gpipe::slot_alignment * (1 + random() % 9);
        }
        for (std::size_t a = 0; a < all.size(); ++a)
            for (std::size_t b = 0; b < a; ++b)
                shares[a * all.size() + b] = shares[b * all.size() + a] = random() % 5 == 0;
    }
    static bool share(void const* of, std::uint32_t a, std::uint32_t b) {
        auto const& self = *static_cast<Lifetimes const*>(of);
        return self.shares[a * self.all.size() + b];
    }
    bool meet(std::size_t a, std::size_t b) const {
        return all[a].begin <= all[b].end && all[b].begin <= all[a].end &&
               !shares[a * all.size() + b];
    }
    std::size_t most_at_once() const {
        std::size_t most = 0;
        for (std::uint32_t t = 0; t < slices; ++t) {
            std::size_t bytes = 0;
            for (Lifetime const& one : all)
                if (one.begin <= t && t <= one.end) bytes += one.bytes;
            most = std::max(most, bytes);
        }
        return most;
    }
    // In the best of all orders, each as low as those before let it.
    std::size_t lowest() const {
        std::vector<std::size_t> order(all.size()), at(all.size());
        for (std::size_t v = 0; v < order.size(); ++v) order[v] = v;
        std::size_t best = gpipe::detail::ValuePlacer::too_high;
        do {
            std::size_t height = 0;
            for (std::size_t k = 0; k < order.size(); ++k) {
                std::size_t const v = order[k];
                at[v] = 0;
                for (std::size_t n = 0; n < k; ++n)
                    if (std::size_t const o = order[n]; meet(v, o) &&
                                                        at[v] < at[o] + all[o].bytes &&
                                                        at[o] < at[v] + all[v].bytes) {
                        at[v] = at[o] + all[o].bytes;
                        n = static_cast<std::size_t>(-1); // from the first again
                    }
                height = std::max(height, at[v] + all[v].bytes);
            }
            best = std::min(best, height);
        } while (std::next_permutation(order.begin(), order.end()));
        return best;
    }
};

} // namespace

TEST_CASE("the search finds the lowest placement of a few, and no bound is above that") {
    std::mt19937 random(6);
    std::size_t lower_than_at_once = 0;
    for (std::size_t n = 0; n < toy::cases(500); ++n) {
        CAPTURE(n);
        Lifetimes const some(random, 7);
        auto const& all = some.all;
        REQUIRE(gpipe::detail::live_bytes(all, some.slices) == some.most_at_once());
        gpipe::Array<std::uint32_t> order(all.size()); // by bytes
        for (std::uint32_t v = 0; v < all.size(); ++v) order[v] = v;
        std::sort(order.begin(), order.end(),
                  [&](std::uint32_t a, std::uint32_t b) { return all[a].bytes > all[b].bytes; });
        gpipe::detail::MayShare const may_share{Lifetimes::share, &some};
        std::size_t const lowest = some.lowest();
        gpipe::detail::LifetimePlacer const placer(all, some.slices, may_share);
        REQUIRE(placer.clique_bytes(order) <= lowest);
        gpipe::detail::LifetimePlacer const of_slices(all, some.slices, {});
        REQUIRE(of_slices.clique_bytes(order) == some.most_at_once());
        gpipe::Array<std::size_t> at(all.size());
        std::size_t const height =
            gpipe::detail::lower(all, some.slices, 0, at, gpipe::detail::ValuePlacer::too_high,
                                 std::size_t{1} << 14, may_share);
        REQUIRE(height == (all.empty() ? gpipe::detail::ValuePlacer::too_high : lowest));
        for (std::size_t a = 0; a < all.size(); ++a) {
            REQUIRE(at[a] + all[a].bytes <= height);
            for (std::size_t b = 0; b < a; ++b)
                REQUIRE((!some.meet(a, b) || at[a] + all[a].bytes <= at[b] ||
                         at[b] + all[b].bytes <= at[a]));
        }
        lower_than_at_once += lowest < some.most_at_once();
    }
    CHECK(lower_than_at_once > (toy::sanitized ? 5u : 50u));
}
