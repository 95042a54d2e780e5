// schedule/ and checkpoint/: bubbles, proofs and peaks are constants.
#include <support/lowered.hpp>
#include <support/schedules.hpp>

#include <gpipe/checkpoint/dynamic_policy.hpp>
#include <gpipe/schedule/check_schedule.hpp>
#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/schedule/verify.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace {

using gpipe::Programs;
using gpipe::ratio;
using gpipe::verify;
using gpipe::checkpoint::Always;
using gpipe::checkpoint::ExceptLast;
using gpipe::checkpoint::Never;
using gpipe::schedule::GPipe;
using gpipe::schedule::GPipeAscending;
using toy::OneForwardOneBackward;

// Each K is an evaluation of its own, so that a compiler's limit on steps does not bound the sweep.
template <std::size_t K> constexpr bool sweep(bool (*holds)(std::size_t, std::size_t)) {
    for (std::size_t m : {1u, 2u, 3u, 5u, 8u, 12u})
        if (!holds(K, m)) return false;
    return true;
}

template <class Schedule> struct Laws {
    static constexpr bool bubble(std::size_t k, std::size_t m) {
        auto const numerator = static_cast<std::int64_t>(k - 1);
        auto const denominator = static_cast<std::int64_t>(m + k - 1);
        return gpipe::bubble(Schedule::programs(k, m)) == ratio(numerator, denominator);
    }
    static constexpr bool sound(std::size_t k, std::size_t m) {
        return static_cast<bool>(verify(Schedule::programs(k, m)));
    }
    static constexpr bool sound_except_last(std::size_t k, std::size_t m) {
        return static_cast<bool>(verify(ExceptLast::lower(Schedule::programs(k, m))));
    }
    static constexpr bool sound_always(std::size_t k, std::size_t m) {
        return static_cast<bool>(verify(Always::lower(Schedule::programs(k, m))));
    }
    template <std::size_t K> static constexpr bool hold() {
        static_assert(sweep<K>(&bubble));
        static_assert(sweep<K>(&sound));
        static_assert(sweep<K>(&sound_except_last));
        static_assert(sweep<K>(&sound_always));
        return true;
    }
};
template <class Schedule, std::size_t... K> constexpr bool all_hold() {
    bool const each[] = {Laws<Schedule>::template hold<K>()...};
    for (bool holds : each)
        if (!holds) return false;
    return true;
}
static_assert(all_hold<GPipe, 1, 2, 3, 4, 5, 6, 7, 8>());
static_assert(all_hold<GPipeAscending, 1, 2, 3, 4, 5, 6, 7, 8>());
static_assert(all_hold<OneForwardOneBackward, 1, 2, 3, 4, 5, 6, 7, 8>());

// The largest that is promised within the default limits of every compiler.
static_assert(verify(GPipe::programs(32, 128)));
static_assert(verify(OneForwardOneBackward::programs(32, 128)));
static_assert(verify(ExceptLast::lower(GPipe::programs(16, 64))));
static_assert(gpipe::bubble(GPipe::programs(32, 128)) == ratio(31, 159));

// Peaks.
static_assert(gpipe::peak_micro_batches(GPipe::programs(4, 8), 0) == 8);
static_assert(gpipe::peak_micro_batches(GPipe::programs(4, 8), 3) == 8);
static_assert(gpipe::peak_micro_batches(OneForwardOneBackward::programs(4, 8), 0) == 4);
static_assert(gpipe::peak_micro_batches(OneForwardOneBackward::programs(4, 8), 3) == 1);

// A proof that fails names the first place.
constexpr Programs with_deadlock() {
    Programs programs(2, 2, 1, 4);
    programs.add(gpipe::forward(0, 0));
    programs.add(gpipe::backward(0, 0));
    programs.next_device();
    programs.next_device();
    return programs;
}
constexpr gpipe::Verdict missing = verify(with_deadlock());
static_assert(!missing && missing.problem == gpipe::Problem::missing);
static_assert(missing.device == 1 && missing.position == 0);
static_assert(missing.action == gpipe::forward(1, 0));

// Orders and times.
static_assert(gpipe::linear_order(GPipe::programs(3, 4)).size() == 24);
static_assert(gpipe::simulate<double>(GPipe::programs(3, 4), [](gpipe::Action const& action) {
                  return action.kind == gpipe::Kind::forward ? 1.0 : 2.0;
              }).makespan == 18.0);
static_assert(gpipe::simulate<std::int64_t>(Always::lower(GPipe::programs(3, 4)), gpipe::unit_cost)
                  .makespan == 4 * 4 + 3 * 2);
constexpr bool happens() {
    Programs const programs = GPipe::programs(2, 2); // F00 F01 B01 B00, F10 F11 B11 B10
    auto const before = toy::happens_before(toy::lower(programs));
    return before(0, 4) && before(4, 2) && !before(1, 4) && !before(4, 1) && !before(0, 0);
}
static_assert(happens());

// Transfers: over a boundary that is copied a send on either way, over one that is staged a receive
// behind each; what a device does keeps its place.
constexpr gpipe::Lowered lowered(std::size_t k, std::size_t m, gpipe::Link link, bool crosses) {
    Programs const programs = OneForwardOneBackward::programs(k, m);
    gpipe::Edges edges = toy::neighbours(k);
    for (std::size_t e = 0; e < edges.size(); ++e)
        edges[e].link = link, edges[e].gradient = crosses;
    return toy::lower(programs, edges);
}
static_assert(lowered(3, 4, gpipe::Link::shared, true).programs.size() == 2 * 3 * 4);
static_assert(lowered(3, 4, gpipe::Link::copied, true).programs.size() == (2 * 3 + 2 * 2) * 4);
static_assert(lowered(3, 4, gpipe::Link::staged, true).programs.size() == (2 * 3 + 4 * 2) * 4);
static_assert(lowered(3, 4, gpipe::Link::staged, false).programs.size() == (2 * 3 + 2 * 2) * 4);
static_assert(lowered(3, 4, gpipe::Link::shared, true).streams() == 3);
static_assert(lowered(3, 4, gpipe::Link::copied, true).streams() == 3 + 2 * 2);
static_assert(lowered(3, 4, gpipe::Link::staged, true).streams() == 3 + 4 * 2);
static_assert(lowered(3, 4, gpipe::Link::copied, true).device[3] == 0);
constexpr bool waits_for_its_copy() {
    gpipe::Lowered const all = lowered(2, 1, gpipe::Link::copied, true); // F0 B0, F1 B1, S0, G1
    return all.programs[4].kind == gpipe::Kind::send_output && all.needs[4][0] == 0 &&
           all.needs[2][0] == 4 && all.needs[1][0] == 5 && all.needs[5][0] == 3 &&
           all.needs.count() == 4;
}
static_assert(waits_for_its_copy());
constexpr bool knows_what_copies_imply() {
    gpipe::Lowered const all = lowered(2, 2, gpipe::Link::staged, true);
    auto const before = toy::happens_before(all); // F10 needs its input's way, and so F00
    return all.needs[4].size() == 1 && before(0, 4) && !before(4, 0);
}
static_assert(knows_what_copies_imply());

// Concepts.
static_assert(gpipe::ScheduleFunction<GPipe> && gpipe::ScheduleFunction<OneForwardOneBackward>);
static_assert(!gpipe::ScheduleFunction<int> && !gpipe::ScheduleFunction<ExceptLast>);
static_assert(!gpipe::ScheduleFunction<gpipe::schedule::Dynamic>);
struct ReturnsNothing {
    static constexpr void programs(std::size_t, std::size_t) {}
};
struct NeedsAnObject {
    constexpr Programs programs(std::size_t k, std::size_t m) const {
        return GPipe::programs(k, m);
    }
};
static_assert(!gpipe::ScheduleFunction<ReturnsNothing> && !gpipe::ScheduleFunction<NeedsAnObject>);
static_assert(gpipe::CheckpointingPass<Never> && gpipe::CheckpointingPass<ExceptLast>);
static_assert(!gpipe::CheckpointingPass<GPipe> && !gpipe::CheckpointingPass<int>);
static_assert(std::is_constructible_v<gpipe::schedule::Dynamic, GPipe>);
static_assert(!std::is_constructible_v<gpipe::schedule::Dynamic, ReturnsNothing>);
static_assert(!std::is_constructible_v<gpipe::checkpoint::Dynamic, GPipe>);

} // namespace

// Programs have room for more than they were made for, in constants, too.
static_assert([] {
    gpipe::Programs programs(1, 1, 2, 1);
    for (std::size_t const m : {0u, 1u}) programs.add(gpipe::forward(0, m));
    gpipe::Action* const next = programs.append(2);
    for (std::size_t const m : {0u, 1u}) next[m] = gpipe::backward(0, m);
    programs.next_device();
    return programs.size() == 4 && static_cast<bool>(gpipe::verify(programs));
}());
