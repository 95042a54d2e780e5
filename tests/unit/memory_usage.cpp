// The bytes in use over time: at every instant those of an arena on which everything that is alive
// is marked where the plan has it.
#include <support/long_tests.hpp>
#include <support/random_plan.hpp>

#include <gpipe/memory/usage.hpp>
#include <gpipe/plan/simulate_lowered.hpp>

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
using gpipe::Holds;
using gpipe::Kind;
using gpipe::Link;
using gpipe::MemoryCurve;
using gpipe::MemoryPlan;
using gpipe::Programs;
using Times = gpipe::SimulatedTimes<std::int64_t>;

constexpr std::size_t unit = gpipe::slot_alignment;

// Bytes of an arena that are in use for a time.
struct Life {
    std::size_t at, bytes;
    double begin, end;
};

// What lives on a device: values at their places, from who writes them to the last who uses them,
// and as much as the slot has room for.
std::vector<Life> lives_of(MemoryPlan const& plan, Times const& times, std::size_t device) {
    gpipe::Located const located(plan);
    std::vector<Life> lives;
    for (std::size_t v = 0; v < plan.operands.values.size(); ++v) {
        gpipe::Value const& value = plan.operands.values[v];
        gpipe::Span const& at = located[v];
        if (at.space != device || at.begin == at.end) continue;
        bool const inside =
            value.holds == Holds::part || (is_placed(value.holds) && plan.has_room(device));
        std::size_t const bytes =
            inside ? at.end - at.begin : plan.pools.pool_of(value, plan.lowered.edges).bytes;
        Life life{at.begin, bytes, 0, 0};
        for (std::size_t i = 0; i < plan.lowered.programs.size(); ++i)
            for (gpipe::Operand const& operand : plan.operands[i]) {
                if (operand.value != v) continue;
                // Of a part only some slices of the action.
                gpipe::Action const& a = plan.lowered.programs[i];
                double const length = double(times.end[i] - times.start[i]);
                std::size_t const slices =
                    inside ? plan.parts.of(a.cell, plan.parts.way(a.cell, a.micro_batch))
                                 .parts.slices[std::size_t(gpipe::stage_of(a.kind))]
                           : 1;
                auto const at_slice = [&](std::size_t slice) {
                    if (slice >= slices) return double(slice == 0 ? times.start[i] : times.end[i]);
                    return double(times.start[i]) + length * double(slice) / double(slices);
                };
                if (operand.use == gpipe::Use::write)
                    life.begin = at_slice(inside ? operand.from : 0);
                life.end = std::max(life.end, at_slice(operand.to + 1u));
            }
        lives.push_back(life);
    }
    return lives;
}

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
std::size_t check_usage(MemoryPlan const& plan, Times const& times) {
    Array<MemoryCurve> const curves = gpipe::memory_usage(plan, times);
    REQUIRE(curves.size() == plan.devices.size());
    std::size_t full = 0;
    for (std::size_t d = 0; d < curves.size(); ++d) {
        gpipe::DeviceBytes const& bytes = plan.devices[d];
        check_curve(curves[d], bytes.total(), double(times.makespan));
        REQUIRE(curves[d].fixed == bytes.state() + bytes.staging + bytes.handles);
        std::vector<Life> const lives = lives_of(plan, times, d);
        std::set<double> instants{0};
        for (Life const& life : lives) instants.insert({life.begin, life.end});
        std::vector<bool> marked(bytes.total() / unit);
        for (double const now : instants) {
            std::fill(marked.begin(), marked.end(), false);
            std::size_t sum = 0;
            for (Life const& life : lives)
                for (std::size_t u = 0; u < life.bytes / unit; ++u)
                    if (life.begin <= now && now < life.end) {
                        REQUIRE(!marked[life.at / unit + u]); // of one tensor or block only
                        marked[life.at / unit + u] = true;
                        ++sum;
                    }
            REQUIRE(curves[d].at(now) == curves[d].fixed + sum * unit);
        }
        full += curves[d].peak() == bytes.total();
    }
    return full;
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
                for (int n = 0; n < 10; n += toy::sanitized ? 4 : 1) {
                    MemoryPlan const plan =
                        toy::some_plan(plain, n % 2, random, n / 2 % 2 * 40).plan;
                    CAPTURE(schedule.name());
                    CAPTURE(k);
                    CAPTURE(m);
                    // With all copies, if there are any.
                    Times const times =
                        n < 5 ? gpipe::simulate<std::int64_t>(plan.lowered, odd_cost(random() % 4))
                              : gpipe::simulate<std::int64_t>(plan.lowered, gpipe::unit_cost);
                    full += check_usage(plan, times);
                    devices += k;
                    ++plans;
                }
            });
    CHECK(plans > toy::cases(500));
    MESSAGE(full << " of " << devices << " devices in " << plans
                 << " runs take all that is planned at once");
    CHECK(full > devices / 3);
}

TEST_CASE("where a device holds every micro-batch at once, its peak is nearly always all that "
          "is planned") {
    std::mt19937_64 random{23};
    std::size_t full = 0, devices = 0;
    for (std::size_t n = 0; n < 200; ++n) {
        std::size_t const k = 1 + random() % 4;
        auto chain = toy::random_chain(random, k + random() % 6,
                                       {.percent_integers = 0, .percent_splits = 0});
        for (auto& layer : chain.layers) layer.reads_input = true, layer.reads_output = false;
        chain.layers[0].parameters = chain.group({8});
        auto const first = toy::some_cut(random, k, chain.layers.size());
        Programs const programs = gpipe::schedule::GPipe::programs(k, 1 + random() % 6);
        MemoryPlan const plan = gpipe::plan_memory({chain.shape(), first, 1, 2}, programs);
        Times const times = gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost);
        full += check_usage(plan, times);
        devices += k;
    }
    CHECK(20 * full > 17 * devices);
}

TEST_CASE("with transfers of which there are no times the peak is within the plan") {
    std::mt19937_64 random{29};
    std::size_t with_outbox = 0;
    for (std::size_t n = 0; n < 200; ++n) {
        std::size_t const cells = 1 + random() % 4;
        std::size_t const m = 1 + random() % 4;
        auto const chain = toy::random_chain(random, cells + random() % 5, {});
        auto const first = toy::some_cut(random, cells, chain.layers.size());
        toy::each_lowering(cells, m, [&](Programs const& programs) {
            if (random() % 4) return;
            MemoryPlan const plan = gpipe::plan_memory(
                {chain.shape(), first, 1, 2, {}, toy::mixed_links(programs, random)}, programs);
            Times const times = gpipe::simulate<std::int64_t>(programs, odd_cost(n));
            auto const curves = gpipe::memory_usage(plan, times);
            for (std::size_t d = 0; d < curves.size(); ++d)
                check_curve(curves[d], plan.devices[d].total(), double(times.makespan));
            // Nor where they have times of their own.
            Array<std::uint32_t> const& order = plan.lowered.order;
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
                    gpipe::Pool const& outbox = plan.pools.pool(Holds::output, c);
                    if (programs.device_of(c) != d || outbox.slots == 0) continue;
                    ++with_outbox;
                    // While the output is on its way, it is there.
                    Programs const& all = plan.lowered.programs;
                    std::size_t sent = 0;
                    while (all[sent].kind != Kind::send_output || all[sent].cell != c) ++sent;
                    CHECK(others[d].at(double(slow.start[sent])) >= others[d].fixed + outbox.bytes);
                }
            }
        });
    }
    CHECK(with_outbox > 200);
}

TEST_CASE(
    "an offload of which there is no time is hidden behind the action that comes next, and the "
    "peak is within the plan") {
    std::mt19937_64 random{37};
    std::size_t offloads = 0;
    for (std::size_t const m : {2u, 4u, 5u, 7u})
        toy::each_of_catalogue(
            3, 6, m, [&](gpipe::schedule::Dynamic const& schedule, std::size_t k) {
                auto const made = toy::some_plan(schedule.programs(k, m), true, random);
                Programs const& programs = made.programs;
                MemoryPlan const& plan = made.plan;
                Times const times = gpipe::simulate<std::int64_t>(programs, odd_cost(m));
                auto const curves = gpipe::memory_usage(plan, times);
                for (std::size_t d = 0; d < curves.size(); ++d) {
                    CAPTURE(schedule.name());
                    check_curve(curves[d], plan.devices[d].total(), double(times.makespan));
                    for (std::size_t i = programs.begin(d); i + 1 < programs.end(d); ++i) {
                        Action const& a = programs[i];
                        if (a.kind != Kind::forward ||
                            !plan.lowered.offloads.moved(a.cell, a.micro_batch))
                            continue;
                        std::size_t const kept = plan.pools.pool(Holds::retained, a.cell).bytes;
                        CHECK(curves[d].at(double(times.start[i + 1])) >= curves[d].fixed + kept);
                        offloads += kept > 0;
                    }
                }
            });
    CHECK(offloads > 50);
}

TEST_CASE("actions of micro-batches without samples, which take no time, use nothing") {
    std::mt19937_64 random{31};
    auto chain = toy::random_chain(random, 4, {.percent_integers = 0});
    chain.layers[0].parameters = chain.group({8});
    for (auto& layer : chain.layers) layer.reads_input = true;
    Array<std::size_t> first(3);
    for (std::size_t c = 0; c < 3; ++c) first[c] = 2 * c;
    Programs const programs = gpipe::schedule::GPipe::programs(2, 4);
    MemoryPlan const plan = gpipe::plan_memory({chain.shape(), first, 0, 2}, programs);
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
