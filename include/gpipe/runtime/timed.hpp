#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/runtime/machine.hpp>
#include <gpipe/runtime/machine_timeline.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/trace/timeline.hpp>

#include <string_view>

namespace gpipe {

/// When the actions of a Training's runs have run, and would run: of several replicas, those of the
/// first in this process.
template <class Training> class Timed {
  public:
    /// From the next run on, notes when every action runs, or is enqueued: see times(). Steps are
    /// then not kept as graphs.
    void time_actions() { machine().engine().time_actions(); }
    /// When each action of the last run ran that this process has, by its index among all actions;
    /// only after time_actions().
    Array<ActionTime> const& times() const { return machine().engine().last_run().times; }
    /// The same as a timeline in seconds, to be drawn; without those whose micro-batch was empty.
    /// After a training step with the bytes that were in use. Says how often a lane lost its core.
    /// With several ranks all call it, and time_actions() before, and have the same: of those of
    /// other hosts as far as their clocks could be compared. Throws std::logic_error if there is no
    /// timed run.
    Timeline timeline(std::string_view title = {}) const {
        return detail::timeline_of(machine(), title);
    }

    /// The timeline of a step in which actions take cost(action) and every device runs by itself,
    /// by simulation, with the bytes in use; copies, and the waits for their room, take no time.
    template <class Cost>
    Timeline predicted_timeline(Cost const& cost, std::string_view title = {}) const {
        return detail::predicted_timeline(machine(), cost, title);
    }
    /// The idle share of the lanes' time that a step would have if cost(action) were what each
    /// action takes: the programs of neighbouring devices merged for each walker, with needs and
    /// nothing else to wait for.
    template <class Cost> double predicted_bubble(Cost cost) const {
        return detail::idle_share(machine().merged(cost));
    }

  private:
    auto& machine() { return detail::MachineAccess::of(static_cast<Training&>(*this)); }
    auto const& machine() const {
        return detail::MachineAccess::of(static_cast<Training const&>(*this));
    }
};

} // namespace gpipe
