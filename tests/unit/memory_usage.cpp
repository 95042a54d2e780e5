// The bytes in use over time: at every instant those of an arena on which everything that is alive
// is marked where the plan has it.
#include <support/links.hpp>
#include <support/random_chain.hpp>
#include <support/schedules.hpp>

#include <gpipe/checkpoint/revolve.hpp>
#include <gpipe/memory/usage.hpp>
#include <gpipe/plan/simulate_lowered.hpp>
#include <gpipe/schedule/halves.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <vector>

namespace {

using gpipe::Action;
using gpipe::Array;
using gpipe::Kind;
using gpipe::Link;
using gpipe::MemoryCurve;
using gpipe::MemoryPlan;
using gpipe::Programs;
using gpipe::Reversal;
using Times = gpipe::SimulatedTimes<std::int64_t>;

constexpr std::size_t unit = gpipe::slot_alignment;

// Bytes of an arena that are in use for a time.
struct Life {
    std::size_t at, bytes;
    std::int64_t begin, end;
};

// What lives on a device: from what actions read and write, by the definition of a layer's
// functions, at the plan's addresses. Without transfers.
class Lives {
  public:
    Lives(gpipe::ChainShape const& chain, MemoryPlan const& plan, Programs const& programs,
          Array<Reversal> const& reversals, Times const& times, std::size_t device)
        : chain_(chain), plan_(plan), programs_(programs), reversals_(reversals), times_(times) {
        for (std::size_t c = 0; c < programs.cells(); ++c)
            for (std::size_t m = 0; m < programs.micro_batches(); ++m) {
                if (programs.device_of(c) != device) continue;
                if (c > 0) add_boundary(c, m);
                add_blocks(c, m);
                for (std::size_t const i : actions(c, m)) {
                    std::size_t const stack = plan.layouts[c].adjacent ? plan.layouts[c].kept : 0;
                    live(plan.temporaries_at[c] + stack, plan.layouts[c].temporary - stack, i, i);
                }
            }
    }
    std::vector<Life> all;

  private:
    std::vector<std::size_t> actions(std::size_t c, std::size_t m) const {
        std::vector<std::size_t> found;
        for (std::size_t i = 0; i < programs_.size(); ++i)
            if (programs_[i].cell == c && programs_[i].micro_batch == m) found.push_back(i);
        return found;
    }
    void live(std::size_t at, std::size_t bytes, std::size_t first, std::size_t last) {
        all.push_back({at, bytes, times_.start[first], times_.end[last]});
    }
    std::size_t last_of(std::vector<std::size_t> const& some) const {
        return *std::max_element(some.begin(), some.end(), [&](std::size_t a, std::size_t b) {
            return times_.end[a] < times_.end[b];
        });
    }
    bool learns(std::size_t layer) const { return layer >= chain_.lowest_learner; }
    // Whether a layer's weight gradient runs apart, so that it reads what the first half reads.
    bool apart(std::size_t c, std::size_t layer) const {
        return plan_.blocks.splits[c] && chain_.layers[layer].splits && learns(layer);
    }

    bool runs_again(std::size_t c) const {
        bool begun = false;
        for (std::size_t s = 0; !reversals_.empty() && s < reversals_[c].steps.size(); ++s) {
            auto const& step = reversals_[c].steps[s];
            if (begun && !step.backward && step.layer == 0) return true;
            begun = begun || step.backward;
        }
        return false;
    }
    // A copy among all streams.
    std::size_t find(Kind kind, std::size_t c, std::size_t m) const {
        Programs const& every = plan_.lowered.programs;
        std::size_t i = 0;
        while (every[i].kind != kind || every[i].cell != c || every[i].micro_batch != m) ++i;
        return i;
    }
    void add_boundary(std::size_t c, std::size_t m) {
        std::size_t const layer = plan_.first[c];
        std::size_t const size = plan_.slot_size[c];
        // A cell that runs its first layer again in its backward reads its input there.
        bool const reads = (learns(layer) && chain_.layers[layer].reads_input) ||
                           (learns(plan_.first[c + 1] - 1) && runs_again(c));
        bool const crosses = chain_.lowest_learner < layer;
        auto const& slots = plan_.boundaries[c];
        auto const slot = [&](std::size_t s) { return plan_.slots_at[c] + s * size; };
        std::vector<std::size_t> input, gradient;
        std::size_t written = 0;
        for (std::size_t const i : actions(c, m)) {
            Kind const kind = programs_[i].kind;
            if (kind == Kind::forward || kind == Kind::recompute ||
                (reads && (kind != Kind::weight_gradient || apart(c, layer))))
                input.push_back(i);
            if (kind == Kind::backward || kind == Kind::input_gradient) written = i;
            if (kind == Kind::recompute && slots.discarded_output[m] != gpipe::no_slot)
                live(slot(slots.discarded_output[m]), size, i, i);
        }
        std::size_t first = 0;
        for (std::size_t const i : actions(c - 1, m)) {
            Kind const kind = programs_[i].kind;
            if (kind == Kind::forward) first = i;
            if (kind == Kind::forward || kind == Kind::recompute) continue;
            if (kind == Kind::weight_gradient && !apart(c - 1, layer - 1)) continue;
            gradient.push_back(i);
            if (crosses && chain_.layers[layer - 1].reads_output) input.push_back(i);
        }
        // One that is moved stays until it has left, and has another place when it is back.
        gpipe::Offloaded const& moved = plan_.offloaded[c];
        if (moved.with_input && moved.moved(m)) {
            live(slot(slots.input[m]), size, first, find(Kind::offload, c, m));
            live(moved.inputs_at + moved.inputs.slot[m] * moved.input, moved.input,
                 find(Kind::fetch, c, m), last_of(actions(c, m)));
        } else {
            live(slot(slots.input[m]), size, first, last_of(input));
        }
        if (crosses && slots.gradient[m] != gpipe::no_slot)
            live(slot(slots.gradient[m]), size, written, last_of(gradient));
    }
    void add_blocks(std::size_t c, std::size_t m) {
        auto const& layout = plan_.layouts[c];
        auto const& blocks = plan_.blocks;
        auto const own = actions(c, m);
        auto const block = [&](std::size_t begin, gpipe::BlockUse const& use, std::size_t size,
                               std::size_t first, std::size_t last) {
            live(begin + use.of_action[last] * size, size, first, last);
        };
        // In its order a cell runs, for each micro-batch, forwards and then the backward.
        std::size_t forwards = 0;
        while (programs_[own[forwards]].kind == Kind::forward ||
               programs_[own[forwards]].kind == Kind::recompute)
            ++forwards;
        std::size_t const keeper = own[forwards - 1];
        std::size_t const first_half = own[forwards];
        std::size_t const last = own.back();
        for (std::size_t n = 0; n + 1 < forwards; ++n) {
            block(plan_.blocks_at[c], blocks.kept, layout.kept, own[n], own[n]);
            block(plan_.held_at[c], blocks.held, layout.held, own[n], own[n]);
        }
        // Where layers run again in the backward only, what they keep is there as long as that.
        bool const inside = plan_.reversals[c].calls.size() > 0 && reversals_[c].steps[0].backward;
        block(plan_.blocks_at[c], blocks.kept, layout.kept, inside ? first_half : keeper,
              first_half);
        block(plan_.held_at[c], blocks.held, layout.held, keeper, last);
        gpipe::Offloaded const& moved = plan_.offloaded[c];
        std::size_t const retained = plan_.reversals[c].retained;
        if (moved.moved(m)) {
            auto const at = [&](std::size_t b) { return plan_.retained_at[c] + b * retained; };
            live(at(moved.block[m]), retained, own[0], find(Kind::offload, c, m));
            live(at(moved.returned[m]), retained, find(Kind::fetch, c, m), last);
        } else {
            block(plan_.retained_at[c], blocks.retained, retained, own[0], last);
        }
        block(plan_.deferred_at[c], blocks.deferred, layout.deferred, first_half, last);
    }

    gpipe::ChainShape const& chain_;
    MemoryPlan const& plan_;
    Programs const& programs_;
    Array<Reversal> const& reversals_;
    Times const& times_;
};

void check_curve(MemoryCurve const& curve, std::size_t planned, double makespan) {
    REQUIRE(curve.planned == planned);
    REQUIRE(curve.points.size() > 0);
    REQUIRE(curve.points[0].time == 0);
    REQUIRE(curve.peak() <= planned);
    for (std::size_t i = 0; i < curve.points.size(); ++i) {
        REQUIRE(curve.points[i].bytes >= curve.fixed);
        REQUIRE(curve.points[i].time <= makespan);
        if (i > 0) REQUIRE(curve.points[i - 1].time < curve.points[i].time);
        if (i > 0) REQUIRE(curve.points[i - 1].bytes != curve.points[i].bytes);
        REQUIRE(curve.at(curve.points[i].time) == curve.points[i].bytes);
    }
    REQUIRE(curve.points[curve.points.size() - 1].bytes == curve.fixed);
}

// Checks every instant; returns on how many devices the peak is all that is planned.
std::size_t check_usage(gpipe::ChainShape const& chain, MemoryPlan const& plan,
                        Programs const& programs, Array<Reversal> const& reversals,
                        Times const& times) {
    Array<MemoryCurve> const curves = gpipe::memory_usage(plan, times);
    REQUIRE(curves.size() == programs.devices());
    std::size_t full = 0;
    for (std::size_t d = 0; d < curves.size(); ++d) {
        gpipe::DeviceBytes const& bytes = plan.devices[d];
        check_curve(curves[d], bytes.total(), double(times.makespan));
        REQUIRE(curves[d].fixed == bytes.parameters + bytes.gradients + bytes.optimizer +
                                       bytes.staging + bytes.handles);
        Lives const lives(chain, plan, programs, reversals, times, d);
        std::set<std::int64_t> instants{0};
        for (Life const& life : lives.all) instants.insert({life.begin, life.end});
        std::vector<bool> marked(bytes.total() / unit);
        for (std::int64_t const now : instants) {
            std::fill(marked.begin(), marked.end(), false);
            std::size_t sum = 0;
            for (Life const& life : lives.all)
                for (std::size_t u = 0; u < life.bytes / unit; ++u)
                    if (life.begin <= now && now < life.end) {
                        REQUIRE(!marked[life.at / unit + u]); // of one tensor or block only
                        marked[life.at / unit + u] = true;
                        ++sum;
                    }
            REQUIRE(curves[d].at(double(now)) == curves[d].fixed + sum * unit);
        }
        full += curves[d].peak() == bytes.total();
    }
    return full;
}

Array<std::size_t> some_cut(std::mt19937_64& random, std::size_t layers, std::size_t cells) {
    Array<std::size_t> first(cells + 1, layers);
    std::size_t at = 0;
    for (std::size_t c = 0; c < cells; ++c) {
        first[c] = at;
        at += 1 + random() % (layers - at - (cells - 1 - c));
    }
    return first;
}

Array<Reversal> some_reversals(std::mt19937_64& random, Array<std::size_t> const& first) {
    Array<Reversal> result(first.size() - 1);
    for (std::size_t c = 0; c < result.size(); ++c) {
        std::size_t const layers = first[c + 1] - first[c];
        switch (random() % 5) {
        case 0:
            break;
        case 4: { // some are dear: in the backward only, if the last is
            Array<bool> dear(layers);
            for (bool& d : dear) d = random() % 2 != 0;
            dear[layers - 1] = true;
            result[c] = gpipe::selective(dear);
            break;
        }
        case 1:
            result[c] = gpipe::keep_everything(layers);
            break;
        case 2:
            result[c] = gpipe::equal_segments(layers, 1 + random() % layers);
            break;
        default:
            result[c] = gpipe::revolve(layers, random() % layers);
        }
    }
    return result;
}
Programs lowered(Programs const& schedule, Array<Reversal> const& reversals) {
    Array<bool> again(schedule.cells(), true);
    for (std::size_t c = 0; c < again.size(); ++c)
        if (reversals[c].layers() > 0) again[c] = !reversals[c].steps[0].backward;
    return recompute_if_not_held(schedule, again);
}
// A cost that differs from cell to cell.
auto odd_cost(std::size_t n) {
    return [n](Action const& a) {
        return std::int64_t(1 + (5 * a.cell + std::size_t(a.kind) + n) % 4);
    };
}

} // namespace

TEST_CASE("at every instant the curve is the sum of what is in use, under every schedule") {
    std::mt19937_64 random{17};
    std::size_t plans = 0;
    std::size_t full = 0;
    std::size_t devices = 0;
    for (std::size_t const m : {1u, 2u, 4u, 6u})
        toy::each_of_catalogue(
            3, 6, m, [&](gpipe::schedule::Dynamic const& schedule, std::size_t k) {
                Programs const plain = schedule.programs(k, m);
                auto const chain =
                    toy::random_chain(random, plain.cells() + random() % 6, {.most_bytes = 900});
                auto const first = some_cut(random, chain.layers.size(), plain.cells());
                auto const check = [&](Programs const& programs, Array<Reversal> const& reversals) {
                    MemoryPlan const plan =
                        gpipe::plan_memory(chain.shape(), first, programs, 1, 2, {}, {}, reversals);
                    for (std::size_t const n : {0u, 1u}) {
                        CAPTURE(schedule.name());
                        CAPTURE(k);
                        CAPTURE(m);
                        // With all copies, if there are any.
                        Times const times =
                            n ? gpipe::simulate<std::int64_t>(plan.lowered, odd_cost(random() % 4))
                              : gpipe::simulate<std::int64_t>(plan.lowered, gpipe::unit_cost);
                        full += check_usage(chain.shape(), plan, programs, reversals, times);
                        devices += k;
                        ++plans;
                    }
                };
                check(plain, {});
                check(gpipe::checkpoint::ExceptLast::lower(plain), {});
                check(gpipe::checkpoint::Always::lower(plain), {});
                // Where cells are reversed, backwards are whole.
                auto reversals = some_reversals(random, first);
                Programs const whole = gpipe::join_halves(plain, Array<bool>(plain.cells()));
                check(lowered(whole, reversals), reversals);
                for (Reversal& reversal : reversals)
                    reversal.offload = reversal.layers() > 0 && random() % 4 != 0;
                check(lowered(whole, reversals), reversals);
            });
    CHECK(plans > 500);
    MESSAGE(full << " of " << devices << " devices in " << plans
                 << " runs take all that is planned at once");
    CHECK(full > devices / 2);
}

TEST_CASE("where a device holds every micro-batch at once, its peak is all that is planned") {
    std::mt19937_64 random{23};
    for (std::size_t n = 0; n < 200; ++n) {
        std::size_t const k = 1 + random() % 4;
        auto chain = toy::random_chain(random, k + random() % 6,
                                       {.percent_integers = 0, .percent_splits = 0});
        for (auto& layer : chain.layers) layer.reads_input = true, layer.reads_output = false;
        chain.layers[0].parameters = chain.group({8});
        auto const first = some_cut(random, chain.layers.size(), k);
        Programs const programs = gpipe::schedule::GPipe::programs(k, 1 + random() % 6);
        MemoryPlan const plan = gpipe::plan_memory(chain.shape(), first, programs, 1, 2);
        Times const times = gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost);
        CHECK(check_usage(chain.shape(), plan, programs, {}, times) == k);
    }
}

TEST_CASE("with transfers of which there are no times the peak is within the plan") {
    std::mt19937_64 random{29};
    std::size_t with_outbox = 0;
    for (std::size_t n = 0; n < 200; ++n) {
        std::size_t const cells = 1 + random() % 4;
        std::size_t const m = 1 + random() % 4;
        auto const chain = toy::random_chain(random, cells + random() % 5, {});
        auto const first = some_cut(random, chain.layers.size(), cells);
        toy::each_lowering(cells, m, [&](Programs const& programs) {
            if (random() % 4) return;
            MemoryPlan const plan = gpipe::plan_memory(chain.shape(), first, programs, 1, 2, {},
                                                       toy::mixed_links(programs, random));
            Times const times = gpipe::simulate<std::int64_t>(programs, odd_cost(n));
            auto const curves = gpipe::memory_usage(plan, times);
            for (std::size_t d = 0; d < curves.size(); ++d)
                check_curve(curves[d], plan.devices[d].total(), double(times.makespan));
            // Nor where they have times of their own.
            Array<std::size_t> const order = gpipe::linear_order(plan.lowered);
            Times slow{Array<std::int64_t>(plan.lowered.programs.size()),
                       Array<std::int64_t>(plan.lowered.programs.size())};
            for (std::size_t r = 0; r < order.size(); ++r) {
                slow.start[order[r]] = std::int64_t(2 * r);
                slow.end[order[r]] = std::int64_t(2 * r + 1 + random() % 2);
            }
            auto const others = gpipe::memory_usage(plan, slow);
            for (std::size_t d = 0; d < others.size(); ++d) {
                check_curve(others[d], plan.devices[d].total(), double(2 * order.size()));
                for (std::size_t c = 0; c + 1 < programs.cells(); ++c) {
                    bool const here = programs.device_of(c) == d;
                    auto const& box = plan.transfers[c + 1];
                    with_outbox += here && box.outbox.slots > 0;
                    // While the output is on its way, it is there.
                    if (!here || box.outbox.slots == 0) continue;
                    std::size_t const sent = box.outbox.output_ends[0].last;
                    CHECK(others[d].at(double(slow.start[sent])) >=
                          others[d].fixed + box.slot_size);
                }
            }
        });
    }
    CHECK(with_outbox > 200);
}

TEST_CASE("actions of micro-batches without samples, which take no time, use nothing") {
    std::mt19937_64 random{31};
    auto chain = toy::random_chain(random, 4, {.percent_integers = 0});
    chain.layers[0].parameters = chain.group({8});
    for (auto& layer : chain.layers) layer.reads_input = true;
    Array<std::size_t> first(3);
    for (std::size_t c = 0; c < 3; ++c) first[c] = 2 * c;
    Programs const programs = gpipe::schedule::GPipe::programs(2, 4);
    MemoryPlan const plan = gpipe::plan_memory(chain.shape(), first, programs, 0, 2);
    auto const usage = [&](std::size_t ran) {
        return gpipe::memory_usage(plan,
                                   gpipe::simulate<std::int64_t>(programs, [&](Action const& a) {
                                       return std::int64_t(a.micro_batch < ran);
                                   }));
    };
    for (std::size_t d = 0; d < 2; ++d) {
        CHECK(usage(0)[d].points.size() == 1);
        CHECK(usage(0)[d].peak() == usage(0)[d].fixed);
        CHECK(usage(1)[d].peak() < usage(2)[d].peak());
        CHECK(usage(2)[d].peak() < usage(4)[d].peak());
        CHECK(usage(4)[d].peak() <= plan.devices[d].total());
    }
}
