#pragma once

#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/gathering.hpp>
#include <gpipe/runtime/machine_timeline.hpp>
#include <gpipe/runtime/rank_words.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace gpipe::detail {

// Of the last run, by action, what the ranks of this one's replica have noted, in seconds since the
// first of them began; a lane is one of all that they have.
template <class Device>
RunTimes times_of_ranks(Machine<Device> const& machine, Gathering<Device>& gathering) {
    struct Noted {
        std::size_t action;
        ActionTime time;
    };
    Ranks const& ranks = machine.ranks();
    Run const& own = machine.engine().last_run();
    double const origin = own.origin - clock_ahead(gathering);
    std::vector<ActionTime> actions(own.times.size());
    RunTimes all;
    Array<bool> timed(ranks.all()); // by rank
    double first = origin;
    std::size_t lanes = 0; // of the ranks before
    for (std::size_t n = 0; n < ranks.all(); ++n) {
        RankWords words;
        if (n == ranks.number()) {
            words.put(origin);
            words.put(own.preemptions.load(std::memory_order_relaxed));
            words.put(machine.engine().lanes());
            words.put(own.origin > 0 ? own.times.size() : 0);
            for (std::size_t i = 0; i < own.times.size(); ++i)
                if (own.times[i].ran) words.put(Noted{i, own.times[i]});
        }
        tell_all(machine.device(), gathering, machine.engine().tables(), n, words);
        auto const began = words.get<double>();
        auto const lost_cores = words.get<std::uint64_t>();
        auto const lanes_there = words.get<std::size_t>();
        auto const count = words.get<std::size_t>();
        timed[n] = count > 0;
        if (n / ranks.count != ranks.replica) continue;
        all.preemptions += lost_cores;
        actions.resize(std::max(actions.size(), count));
        while (words.at < words.bytes.size()) {
            auto [i, time] = words.get<Noted>();
            time.lane += lanes;
            time.start += began;
            time.end += began;
            actions[i] = time;
            if (time.ran) first = std::min(first, began);
        }
        lanes += lanes_there;
    }
    for (std::size_t n = 0; n < ranks.all(); ++n)
        if (timed[n] != timed[0])
            throw_error<std::logic_error>(
                "gpipe: rank %zu has called time_actions() before the step that timeline() is for, "
                "and rank %zu has not: all ranks call it",
                timed[n] ? n : 0, timed[n] ? 0 : n);
    all.actions = Array<ActionTime>(actions.size());
    for (std::size_t i = 0; i < actions.size(); ++i) {
        all.actions[i] = actions[i];
        all.actions[i].start -= first;
        all.actions[i].end -= first;
    }
    return all;
}
// All ranks call it.
template <class Device, class F> void with_times_of_ranks(Machine<Device> const& machine, F f) {
    static_cast<void>(machine.engine().last_run()); // not while steps are under way
    if constexpr (joins_processes<Device> && !calls_enqueue<Device>)
        machine.device().agree_on(machine.engine().tables(), RankCall::shows);
    gathered(machine.device(), "timeline()",
             [&](auto& gathering) { f(times_of_ranks(machine, gathering)); });
}

} // namespace gpipe::detail
