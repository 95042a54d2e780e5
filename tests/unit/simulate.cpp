// simulate(): the closed forms of the schedules' papers, exactly; and another simulator, which
// looks at the clock tick by tick.
#include <support/executor.hpp>
#include <support/schedules.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/schedule/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using gpipe::Action;
using gpipe::CellCosts;
using gpipe::ChainCosts;
using gpipe::Kind;
using gpipe::Programs;
using gpipe::simulate;
using namespace gpipe::schedule;

namespace {

using Int = std::int64_t;

std::size_t size(Int n) { return static_cast<std::size_t>(n); }
Int time_of(Programs const& programs) { return simulate<Int>(programs, gpipe::unit_cost).makespan; }
// How long a device is idle between the start of its first action and the end of its last: what
// would be left of its bubble if mini-batches followed each other without a barrier.
Int span_idle(Programs const& programs, gpipe::SimulatedTimes<Int> const& times,
              std::size_t device) {
    Int idle = 0;
    for (std::size_t i = programs.begin(device) + 1; i < programs.end(device); ++i)
        idle += times.start[i] - times.end[i - 1];
    return idle;
}
// Equal cells.
template <class Time> CellCosts<Time> costs(Time f, Time i, Time w) {
    return {.forward = f, .recompute = f, .input_gradient = i, .weight_gradient = w};
}

// The closed forms, at unit costs and for M >= least(K): v cells per device, device d.
struct Form {
    Dynamic schedule;
    Int (*least)(Int k);
    Int (*makespan)(Int k, Int m, Int v);
    Int (*peak)(Int k, Int m, Int v, Int d);      // in cells
    Int (*span_idle)(Int k, Int m, Int v, Int d); // null: none is known
};

Int any(Int) { return 1; }
Int full(Int k) { return k; }
Int there_and_back(Int k) { return 2 * k - 1; }

Int fill_drain(Int k, Int m, Int) { return 3 * (m + k - 1); }
Int in_loops(Int k, Int m, Int v) { return m >= k ? 3 * (m * v + k - 1) : 3 * (v * k + m - 1); }
Int h1(Int k, Int m, Int) { return m >= k ? 3 * m + k - 1 : 2 * (k + m) - 1; }
Int h2(Int k, Int m, Int) { return 3 * m + k - 1; }
Int zero_v(Int k, Int m, Int) { return 6 * m + k - 1; }
Int half(Int k, Int m, Int) {
    return 6 * m + (k <= 2 ? 3 * (k - 1) : k % 2 == 1 ? 3 * k - 4 : 3 * k - 5);
}
Int third(Int k, Int m, Int) { return 6 * m + (k == 1 ? 0 : 4 * k - 5); }

Int all(Int, Int m, Int v, Int) { return m * v; }
// Device d starts d after device 0 and ends 2 d before it.
Int whole_backwards(Int k, Int m, Int v, Int d) { return in_loops(k, m, v) - 3 * m * v - 3 * d; }
Int split_backwards(Int k, Int, Int, Int d) { return k - 1 - d; }
Int none(Int, Int, Int, Int) { return 0; }

std::vector<Form> forms() {
    std::vector<Form> result{
        {GPipe{}, any, fill_drain, all, whole_backwards},
        {GPipeAscending{}, any, fill_drain, all, whole_backwards},
        {OneForwardOneBackward{}, any, fill_drain,
         [](Int k, Int m, Int, Int d) { return std::min(m, k - d); }, whole_backwards},
        {EagerOneForwardOneBackward{}, any, fill_drain,
         [](Int k, Int m, Int, Int d) { return std::min(m, 2 * (k - d) - 1); }, whole_backwards},
        {ZeroBubbleH1{}, any, h1, [](Int k, Int m, Int, Int) { return std::min(m, k); }, nullptr},
        {ZeroBubbleH1{}, full, h1, [](Int k, Int, Int, Int) { return k; }, split_backwards},
        {ZeroBubbleH2{}, there_and_back, h2, [](Int k, Int, Int, Int) { return 2 * k - 1; }, none},
        {ZeroBubbleV{}, there_and_back, zero_v, [](Int k, Int, Int, Int) { return 2 * k; }, none},
        {VHalf{}, [](Int k) { return k / 2 + 1; }, half, nullptr, nullptr},
        {VMin{}, full, third, nullptr, nullptr},
        {DualPipeV{}, [](Int k) { return 2 * k; }, zero_v,
         [](Int k, Int, Int, Int) { return 2 * k + 1; }, split_backwards},
    };
    for (std::size_t v = 1; v <= 4; ++v)
        result.push_back({find_schedule("BreadthFirst", v), any, in_loops, all, whole_backwards});
    return result;
}

// Instances at which the forms are looked at: all small ones, some large ones.
template <class F> void each_size(F f) {
    for (Int k = 1; k <= 16; ++k)
        for (Int m = 1; m <= 40; ++m) f(k, m);
    for (Int k : {24, 33, 48, 64})
        for (Int m : {Int(1), k / 2 + 1, k, 2 * k - 1, 2 * k, 3 * k + 5}) f(k, m);
}

} // namespace

TEST_CASE("time, bubble, peaks and idle time in the span are the closed forms of the papers") {
    std::size_t instances = 0;
    std::size_t idle_times = 0;
    for (Form const& form : forms()) {
        std::string const name(form.schedule.name());
        auto const v = static_cast<Int>(form.schedule.cells_per_device());
        CAPTURE(name);
        CAPTURE(v);
        each_size([&](Int k, Int m) {
            if (m < form.least(k)) return;
            CAPTURE(k);
            CAPTURE(m);
            ++instances;
            Programs const programs = form.schedule.programs(size(k), size(m));
            auto const times = simulate<Int>(programs, gpipe::unit_cost);
            Int const makespan = form.makespan(k, m, v);
            CHECK(times.makespan == makespan);
            CHECK(times.busy == 3 * m * v * k);
            CHECK(gpipe::bubble(programs) == gpipe::ratio(makespan - 3 * m * v, makespan));
            std::size_t wrong = 0;
            for (Int d = 0; d < k; ++d) {
                if (form.peak != nullptr)
                    wrong +=
                        gpipe::peak_micro_batches(programs, size(d)) != size(form.peak(k, m, v, d));
                if (form.span_idle != nullptr) {
                    ++idle_times;
                    wrong += span_idle(programs, times, size(d)) != form.span_idle(k, m, v, d);
                }
            }
            CHECK(wrong == 0);
        });
    }
    MESSAGE(instances << " instances, idle time of " << idle_times << " devices");
    CHECK(instances >= 5000);
}

namespace {

template <std::size_t v, std::size_t group> std::size_t check_interleaved() {
    std::size_t instances = 0;
    each_size([&](Int k, Int m) {
        auto const w = static_cast<Int>(v);
        Int const n = group ? static_cast<Int>(group) : k;
        bool const whole_groups = m % n == 0 && n >= k;
        bool const one_group = group == 0 && m <= k;
        if (!whole_groups && !one_group) return;
        ++instances;
        CAPTURE(k);
        CAPTURE(m);
        Programs const programs = Interleaved1F1B<v, group>::programs(size(k), size(m));
        auto const times = simulate<Int>(programs, gpipe::unit_cost);
        CHECK(times.makespan == in_loops(k, m, w));
        std::size_t wrong = 0;
        for (Int d = 0; d < k; ++d) {
            auto const peak = static_cast<Int>(gpipe::peak_micro_batches(programs, size(d)));
            Int const most = std::min(m * w, 2 * (k - 1 - d) + (w - 1) * n + 1);
            // A group that is not full never reaches it, nor where nothing is left for a turn.
            wrong += whole_groups ? peak != most : peak > most;
            wrong += span_idle(programs, times, size(d)) != whole_backwards(k, m, w, d);
        }
        CHECK(wrong == 0);
    });
    return instances;
}

} // namespace

TEST_CASE("interleaved 1F1B in full groups: time, peaks and idle time are the closed forms") {
    std::size_t const instances = check_interleaved<1, 0>() + check_interleaved<2, 0>() +
                                  check_interleaved<3, 0>() + check_interleaved<4, 0>() +
                                  check_interleaved<2, 8>() + check_interleaved<3, 12>();
    MESSAGE(instances << " instances");
    CHECK(instances > 500);
}

namespace {

// Interleaved 1F1B as other systems have it: the last group has fewer micro-batches, and what a
// device begins with is counted in actions that are there.
Programs with_short_group(std::size_t devices, std::size_t v, std::size_t n, std::size_t m) {
    std::vector<std::pair<std::size_t, std::size_t>> order; // loop, micro-batch
    for (std::size_t begin = 0; begin < m; begin += n)
        for (std::size_t c = 0; c < v; ++c)
            for (std::size_t i = begin; i < std::min(m, begin + n); ++i) order.emplace_back(c, i);
    Programs result(devices, v * devices, m, 2 * v * devices * m);
    result.place_in_loops();
    for (std::size_t k = 0; k < devices; ++k) {
        std::size_t const ahead = std::min(m * v, 2 * (devices - 1 - k) + (v - 1) * n);
        for (std::size_t i = 0; i < order.size() + ahead; ++i) {
            if (i < order.size())
                result.add(gpipe::forward(order[i].first * devices + k, order[i].second));
            if (i < ahead) continue;
            auto const [c, b] = order[i - ahead];
            result.add(gpipe::backward((v - 1 - c) * devices + k, b));
        }
        result.next_device();
    }
    return result;
}

} // namespace

TEST_CASE(
    "a last group of fewer micro-batches costs time; elsewhere it deadlocks, here it does not") {
    // The literature's figure, and what is left of it here; 3 (M v + K - 1) would be 87.
    CHECK(time_of(with_short_group(4, 2, 4, 13)) == 98);
    CHECK(time_of(Interleaved1F1B<2, 4>::programs(4, 13)) == 93);
    CHECK(gpipe::verify(with_short_group(5, 2, 5, 7)).problem == gpipe::Problem::deadlock);
    std::size_t deadlocks = 0;
    for (std::size_t k = 1; k <= 8; ++k)
        for (std::size_t m = 1; m <= 24; ++m) {
            CAPTURE(k);
            CAPTURE(m);
            Programs const theirs = with_short_group(k, 3, k, m);
            Programs const ours = Interleaved1F1B<3>::programs(k, m);
            CHECK(gpipe::verify(ours));
            if (!gpipe::verify(theirs))
                ++deadlocks;
            else
                CHECK(time_of(ours) <= time_of(theirs));
            // Never later than with the micro-batches that are missing.
            CHECK(time_of(ours) <= time_of(Interleaved1F1B<3>::programs(k, (m + k - 1) / k * k)));
        }
    MESSAGE(deadlocks << " deadlocks of 192");
    CHECK(deadlocks > 0);
}

TEST_CASE("latency c: GPipe and eager 1F1B pay 2 c (K - 1), 1F1B 2 c ((K - 1) M / K + K - 2)") {
    std::size_t instances = 0;
    auto const four = costs<Int>(4, 4, 4); // c in quarters
    for (Int k = 2; k <= 12; ++k)
        for (Int m = 1; m <= 48; ++m)
            for (Int c : {1, 2, 4, 6}) {
                auto const extra = [&](auto schedule) {
                    return simulate<Int>(schedule.programs(size(k), size(m)), four, c).makespan -
                           12 * (m + k - 1);
                };
                CAPTURE(k);
                CAPTURE(m);
                CAPTURE(c);
                instances += 3;
                CHECK(extra(GPipe{}) == 2 * c * (k - 1));
                CHECK(extra(GPipeAscending{}) == 2 * c * (k - 1));
                CHECK(extra(EagerOneForwardOneBackward{}) == 2 * c * (k - 1));
                if (m % k != 0) continue;
                ++instances;
                CHECK(extra(OneForwardOneBackward{}) == 2 * c * ((k - 1) * m / k + k - 2));
            }
    MESSAGE(instances << " instances");
}

TEST_CASE("time over ideal work at K = 8, M = 32 and latencies of 0 to 1 forward of a cell") {
    struct Row {
        Dynamic schedule;
        double expected[5];
    };
    Row const rows[] = {
        {GPipe{}, {1.219, 1.233, 1.255, 1.292, 1.365}},
        {OneForwardOneBackward{}, {1.219, 1.290, 1.396, 1.573, 1.927}},
        {EagerOneForwardOneBackward{}, {1.219, 1.233, 1.255, 1.292, 1.365}},
        {Interleaved1F1B<2>{}, {1.109, 1.125, 1.148, 1.188, 1.266}},
        {Interleaved1F1B<4>{}, {1.055, 1.071, 1.095, 1.135, 1.216}},
        {BreadthFirst<2>{}, {1.109, 1.117, 1.128, 1.146, 1.182}},
        {ZeroBubbleH1{}, {1.073, 1.102, 1.146, 1.219, 1.573}},
        {ZeroBubbleH2{}, {1.073, 1.080, 1.091, 1.109, 1.146}},
        {ZeroBubbleV{}, {1.036, 1.054, 1.079, 1.122, 1.214}},
        {DualPipeV{}, {1.036, 1.053, 1.086, 1.141, 1.250}},
    };
    auto const twenty = costs<Int>(20, 20, 20);
    Int const latencies[] = {0, 2, 5, 10, 20};
    for (Row const& row : rows) {
        std::string const name(row.schedule.name());
        CAPTURE(name);
        Programs const programs = row.schedule.programs(8, 32);
        auto const ideal = static_cast<double>(60 * 32 * row.schedule.cells_per_device());
        for (std::size_t c = 0; c < 5; ++c) {
            CAPTURE(latencies[c]);
            auto const time = simulate<Int>(programs, twenty, latencies[c]).makespan;
            // Three digits, a half rounded either way.
            CHECK(std::abs(static_cast<double>(time) / ideal - row.expected[c]) < 0.00050001);
        }
    }
}

TEST_CASE("zero-bubble schedules at any cost with W <= F, I: bubbles of (K - 1) (F + I - h W)") {
    std::size_t instances = 0;
    for (Int f = 1; f <= 5; ++f)
        for (Int i = 1; i <= 5; ++i)
            for (Int w = 0; w <= std::min(f, i); ++w)
                for (Int k = 1; k <= 8; ++k)
                    for (Int m : {2 * k, 3 * k + 1, 5 * k}) {
                        CAPTURE(f);
                        CAPTURE(i);
                        CAPTURE(w);
                        CAPTURE(k);
                        CAPTURE(m);
                        instances += 2;
                        auto const h1 = ZeroBubbleH1::programs(size(k), size(m));
                        auto const h2 = ZeroBubbleH2::programs(size(k), size(m));
                        auto const times = simulate<Int>(h1, costs(f, i, w));
                        CHECK(times.makespan == m * (f + i + w) + (k - 1) * (f + i - w));
                        // H2's is what is left in the span of its first device.
                        auto const skewed = simulate<Int>(h2, costs(f, i, w));
                        CHECK(span_idle(h2, skewed, 0) == (k - 1) * (f + i - 2 * w));
                    }
    MESSAGE(instances << " instances");
}

TEST_CASE("at F : I : W = 2 : 3 : 2, K = 4 and M = 16 the bubbles are 3.9, 7.4, 5.1 and 15.8 %") {
    auto const percent = [](auto schedule) {
        auto const times = simulate<double>(schedule.programs(4, 16), costs(2.0, 3.0, 2.0));
        return std::round(1000 * gpipe::bubble(times, 4)) / 10;
    };
    CHECK(percent(ZeroBubbleV{}) == 3.9);
    CHECK(percent(ZeroBubbleH1{}) == 7.4);
    CHECK(percent(ZeroBubbleH2{}) == 5.1);
    CHECK(percent(OneForwardOneBackward{}) == 15.8);
}

TEST_CASE("from K to 2 K - 3 micro-batches H2 is slower than H1, from 2 K - 2 on as fast") {
    for (std::size_t k = 2; k <= 12; ++k)
        for (std::size_t m = k; m <= 3 * k; ++m) {
            CAPTURE(k);
            CAPTURE(m);
            Int const lost =
                time_of(ZeroBubbleH2::programs(k, m)) - time_of(ZeroBubbleH1::programs(k, m));
            CHECK((lost > 0) == (m + 2 < 2 * k));
            CHECK(lost >= 0);
        }
}

TEST_CASE("one forward more in front leaves the time of interleaved 1F1B as it is") {
    for (std::size_t k = 2; k <= 6; ++k)
        for (std::size_t m = k; m <= 3 * k; m += k) {
            Programs const programs = Interleaved1F1B<2>::programs(k, m);
            auto actions = toy::actions_of(programs);
            for (auto& program : actions) { // the forward behind the first backward moves before it
                auto const first = std::find_if(program.begin(), program.end(),
                                                [](Action a) { return a.kind == Kind::backward; });
                for (auto at = first; at + 1 < program.end(); at += 2)
                    if (at[1].kind == Kind::forward) std::swap(at[0], at[1]);
            }
            Programs const ahead = toy::with_actions(programs, actions);
            REQUIRE(gpipe::verify(ahead));
            CHECK(time_of(ahead) == time_of(programs));
        }
}

namespace {

// When every action starts, found out tick by tick: devices, ways between two devices with what
// waits for them, and what has arrived. All durations but those of transfers are at least 1.
template <class Cost>
std::vector<Int> tick_by_tick(Programs const& programs, Cost const& cost, Int latency,
                              Int bandwidth) {
    // Gradient, cell that waits, m; of which skip, counted from 1, or 0 of a boundary.
    using Tensor = std::tuple<bool, std::size_t, std::size_t, std::size_t>;
    struct Way {
        std::deque<std::pair<Tensor, Int>> waiting; // and how long it takes
        Int free_at = 0;
    };
    std::vector<Int> start(programs.size(), -1);
    std::vector<Int> end(programs.size(), -1);
    std::vector<std::size_t> next(programs.devices());
    for (std::size_t d = 0; d < next.size(); ++d) next[d] = programs.begin(d);
    std::map<Tensor, Int> arrival;
    std::map<std::pair<std::size_t, std::size_t>, Way> ways;
    auto const gradient = [](Action const& a) {
        return a.kind == Kind::backward || a.kind == Kind::input_gradient;
    };
    std::size_t left = programs.size();
    for (Int now = 0; left > 0; ++now) {
        REQUIRE(now < 100000);
        for (std::size_t i = 0; i < programs.size(); ++i) {
            if (end[i] != now) continue;
            Action const& a = programs[i];
            if (!gradient(a) && a.kind != Kind::forward) continue;
            if (a.cell == (gradient(a) ? 0 : programs.cells() - 1)) continue;
            std::size_t const from = programs.device_of(a.cell);
            auto const send = [&](std::size_t to, std::size_t number, Int bytes) {
                Tensor const tensor{gradient(a), to, a.micro_batch, number};
                if (programs.device_of(to) == from)
                    arrival[tensor] = now;
                else
                    ways[{from, programs.device_of(to)}].waiting.emplace_back(
                        tensor, bandwidth ? bytes / bandwidth : 0);
            };
            send(gradient(a) ? a.cell - 1 : a.cell + 1, 0, cost.bytes(a));
            for (std::size_t s = 0; s < cost.skips.size(); ++s) {
                auto const& skip = cost.skips[s];
                if (!gradient(a) && skip.from == a.cell) send(skip.to, s + 1, skip.output_bytes);
                if (gradient(a) && skip.to == a.cell) send(skip.from, s + 1, skip.gradient_bytes);
            }
        }
        for (auto& [pair, way] : ways)
            while (!way.waiting.empty() && way.free_at <= now) {
                auto const [tensor, takes] = way.waiting.front();
                way.waiting.pop_front();
                way.free_at = now + takes;
                arrival[tensor] = now + takes + latency;
            }
        for (std::size_t d = 0; d < next.size(); ++d) {
            if (next[d] == programs.end(d)) continue;
            if (next[d] > programs.begin(d) && end[next[d] - 1] > now) continue;
            Action const& a = programs[next[d]];
            auto const missing = [&](std::size_t number) {
                auto const found = arrival.find({gradient(a), a.cell, a.micro_batch, number});
                return found == arrival.end() || found->second > now;
            };
            bool waits = (gradient(a) ? a.cell + 1 < programs.cells()
                                      : a.kind == Kind::forward && a.cell > 0) &&
                         missing(0);
            if (gradient(a) || a.kind == Kind::forward)
                for (std::size_t s = 0; s < cost.skips.size(); ++s)
                    waits =
                        waits || ((gradient(a) ? cost.skips[s].from : cost.skips[s].to) == a.cell &&
                                  missing(s + 1));
            if (waits) continue;
            start[next[d]] = now;
            end[next[d]] = now + cost(a);
            ++next[d];
            --left;
        }
    }
    return start;
}

} // namespace

TEST_CASE("with any costs, latency and bandwidth: what a clock says that is looked at every tick") {
    std::mt19937_64 random(7);
    auto const up_to = [&](std::uint64_t most) { return static_cast<Int>(random() % (most + 1)); };
    std::size_t simulations = 0;
    std::size_t slowed = 0;
    std::size_t by_skips = 0;
    for (std::size_t v = 1; v <= 3; ++v)
        for (Dynamic const& schedule : catalogue(v))
            for (std::size_t k = 1; k <= 5; ++k)
                for (int repeat = 0; repeat < 6; ++repeat) {
                    std::size_t const m = schedule.least_micro_batches(k) + random() % 6;
                    Programs programs = schedule.programs(k, m);
                    if (repeat % 3 == 1) programs = gpipe::checkpoint::Always::lower(programs);
                    if (repeat % 3 == 2) {
                        toy::chance = random();
                        programs = toy::ByChance::programs(k, m);
                    }
                    Int const bandwidth = 1 + up_to(2);
                    ChainCosts<Int> chain{gpipe::Array<CellCosts<Int>>(programs.cells())};
                    for (CellCosts<Int>& cell : chain.cells)
                        cell = {1 + up_to(5),        1 + up_to(5), 1 + up_to(5),
                                1 + up_to(5),        {},           up_to(6) * bandwidth,
                                up_to(6) * bandwidth};
                    if (repeat % 2) chain.cells[0].backward = 1 + up_to(20);
                    if (programs.cells() > 2 && repeat > 2)
                        chain.skips = gpipe::Array<gpipe::SkipCosts<Int>>(1 + random() % 3);
                    for (gpipe::SkipCosts<Int>& skip : chain.skips) {
                        skip.to = 1 + random() % (programs.cells() - 1);
                        skip.from = random() % skip.to;
                        skip.output_bytes = (1 + up_to(6)) * bandwidth;
                        skip.gradient_bytes = (1 + up_to(6)) * bandwidth;
                    }
                    Int const latency = up_to(4);
                    for (Int width : {Int(0), bandwidth}) {
                        auto const times = simulate<Int>(programs, chain, latency,
                                                         width ? width : gpipe::unlimited<Int>);
                        auto const expected = tick_by_tick(programs, chain, latency, width);
                        CHECK(std::equal(expected.begin(), expected.end(), times.start.begin()));
                        Int busy = 0;
                        Int last = 0;
                        for (std::size_t i = 0; i < programs.size(); ++i) {
                            Int const duration = chain(programs[i]);
                            CHECK(times.end[i] == expected[i] + duration);
                            busy += duration;
                            last = std::max(last, expected[i] + duration);
                        }
                        CHECK(times.makespan == last);
                        CHECK(times.busy == busy);
                        ++simulations;
                    }
                    Int const taken = simulate<Int>(programs, chain, latency, bandwidth).makespan;
                    slowed += taken > simulate<Int>(programs, chain, latency).makespan;
                    chain.skips = {};
                    by_skips += taken > simulate<Int>(programs, chain, latency, bandwidth).makespan;
                }
    MESSAGE(simulations << " simulations, " << slowed << " slowed down by their bandwidth, "
                        << by_skips << " by their skips");
    CHECK(slowed > 100);
    CHECK(by_skips > 100);
}

TEST_CASE("a way that is too slow for what goes over it is what decides the time") {
    // M outputs of 12 bytes, one after the other, at 2 bytes per unit of time.
    CellCosts<Int> cell{.forward = 1, .input_gradient = 1, .weight_gradient = 1};
    cell.output_bytes = 12;
    for (Int m = 1; m <= 20; ++m) {
        Programs const programs = GPipeAscending::programs(2, size(m));
        CHECK(simulate<Int>(programs, cell, 0, 2).makespan == 1 + 6 * m + 1 + 2 * m + 2);
        // Latency is paid once on the way there and once on the way back.
        CHECK(simulate<Int>(programs, cell, 5, 2).makespan == 1 + 6 * m + 1 + 2 * m + 2 + 10);
    }
    // Cells of one device hand over at no cost: the turn of a V is on the last device.
    Programs const turn = VHalf::programs(1, 3);
    CHECK(simulate<Int>(turn, cell, 100, 1).makespan == simulate<Int>(turn, cell).makespan);
}

TEST_CASE("costs per cell: a backward is both gradients unless it is said to be less or more") {
    CellCosts<Int> cell{.forward = 2, .recompute = 3, .input_gradient = 5, .weight_gradient = 7};
    CHECK(cell(gpipe::forward(0, 0)) == 2);
    CHECK(cell(gpipe::recompute(0, 0)) == 3);
    CHECK(cell(gpipe::input_gradient(0, 0)) == 5);
    CHECK(cell(gpipe::weight_gradient(0, 0)) == 7);
    CHECK(cell(gpipe::backward(0, 0)) == 12);
    CHECK(cell(Action{Kind::send_output}) == 0);
    cell.backward = 11;
    CHECK(cell(gpipe::backward(0, 0)) == 11);
    CHECK(cell(gpipe::input_gradient(0, 0)) == 5);
    ChainCosts<Int> chain{gpipe::Array<CellCosts<Int>>(2, cell)};
    chain.cells[1].forward = 4;
    chain.cells[1].output_bytes = 8;
    chain.cells[1].gradient_bytes = 9;
    CHECK(chain(gpipe::forward(0, 1)) == 2);
    CHECK(chain(gpipe::forward(1, 1)) == 4);
    CHECK(chain.bytes(gpipe::forward(1, 1)) == 8);
    CHECK(chain.bytes(gpipe::backward(1, 1)) == 9);
    CHECK(chain.bytes(gpipe::input_gradient(1, 1)) == 9);
    CHECK(chain.bytes(gpipe::forward(0, 1)) == 0);
}

TEST_CASE("a bubble is a ratio where time is whole numbers, and a number where it is not") {
    Programs const programs = OneForwardOneBackward::programs(4, 8);
    auto const exact = simulate<Int>(programs, costs<Int>(1, 1, 1));
    auto const real = simulate<double>(programs, costs(0.5, 0.5, 0.5));
    CHECK(gpipe::bubble(exact, 4) == gpipe::ratio(3, 11));
    CHECK(gpipe::bubble(real, 4) == doctest::Approx(3.0 / 11));
}
