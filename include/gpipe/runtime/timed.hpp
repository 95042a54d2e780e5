#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/thread.hpp>
#include <gpipe/memory/usage.hpp>
#include <gpipe/runtime/action_hook.hpp>
#include <gpipe/runtime/machine.hpp>
#include <gpipe/runtime/machine_timeline.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/trace/timeline.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpipe {

/// When the actions of a Training's runs have run, and would run: of several replicas, those of the
/// first in this process.
template <class Training> class Timed {
  public:
    /// From the next run on, notes when every action runs, or is enqueued: see times(). Runs are
    /// then not kept as graphs. Waits for those under way.
    void time_actions() {
        machine().finish();
        machine().engine().time_actions();
    }
    /// When each action of the last run ran that this process has, by its index among all actions
    /// of cells; only after time_actions(). Throws std::logic_error while steps are under way.
    std::span<ActionTime const> times() const {
        Run const& run = machine().engine().last_run();
        return {run.times.data(), run.times.size() - run.ends};
    }
    /// The same as a timeline in seconds, to be drawn; without those whose micro-batch was empty.
    /// After a training step with what ended it, sums over replicas and updates among that, and the
    /// bytes that were in use. Says how often a lane lost its core.
    /// With several ranks all call it, and time_actions() before, and have the same: of those of
    /// other hosts as far as their clocks could be compared. Throws std::logic_error if there is no
    /// timed run, and while steps are under way.
    Timeline timeline(std::string_view title = {}) const {
        std::optional<Timeline> result;
        detail::with_run_times(machine(), [&](detail::RunTimes const& times) {
            result = detail::timeline_of(machine().plan(), machine().programs(), times, title);
        });
        return *std::move(result);
    }

    /// From the next run on, calls f(ActionEvent), or f(ActionEvent, the device's stream), when an
    /// action of a cell and a micro-batch begins and when it has ended: forwards, backwards, their
    /// halves, recomputes, and copies, of steps, gradients alone, evaluations and predictions; not
    /// what ends a step, nor where a micro-batch has no samples. On a device that enqueues that is
    /// when its work is put on the stream, to which f may add; runs are then not kept as graphs.
    ///
    /// It is called by all threads that walk lanes, for several devices at once, but for one device
    /// never twice at a time, and in the order of its program. What it throws fails the run as if a
    /// layer had thrown it there (so does a call of this object: std::logic_error), and an action
    /// that is failed has no end. Each replica in this process has a copy of it. Without one
    /// nothing is asked: runs are walked by other code. Waits for steps under way, and throws what
    /// was wrong with one that nobody listens to.
    template <class F> void on_action(F f) {
        using Stream = typename std::remove_cvref_t<decltype(machine().device())>::Stream;
        constexpr bool may_be_none = requires { // a pointer, or a std::function
            F(nullptr);
            { f == nullptr } -> std::convertible_to<bool>;
        };
        if constexpr (may_be_none)
            if (f == nullptr) return on_action(nullptr);
        if constexpr (CheckActionHook<F, Stream>::ok())
            set_hook([&] { return detail::action_hook<Stream>(f); });
    }
    /// No more.
    void on_action(std::nullptr_t) {
        set_hook([] { return detail::ActionHook{}; });
    }

    /// The timeline of a step in which actions take cost(action) and every device runs by itself,
    /// by simulation, with the bytes in use; copies, and the waits for their room, take no time.
    template <class Cost>
    Timeline predicted_timeline(Cost const& cost, std::string_view title = {}) const {
        auto const times = simulate<double>(machine().programs(), cost);
        Timeline result = gpipe::timeline(machine().programs(), times, title);
        result.memory(memory_usage(machine().plan(), times));
        return result;
    }
    /// The idle share of the lanes' time that a step would have if cost(action) were what each
    /// action takes: the programs of neighbouring devices merged for each walker, with needs and
    /// nothing else to wait for.
    template <class Cost> double predicted_bubble(Cost cost) const {
        Lanes const lanes = machine().merged(cost);
        double const available = lanes.makespan * static_cast<double>(lanes.lanes());
        return available > 0 ? 1 - lanes.busy / available : 0;
    }

  private:
    // make(): of each replica its own, which is the caller's work. None is set where one cannot be
    // made.
    template <class Make> void set_hook(Make make) {
        detail::Mutex mutex; // replicas of one process do this at once
        std::vector<std::pair<void const*, detail::ActionHook>> hooks;
        detail::MachineAccess::together(static_cast<Training&>(*this), [&](auto& of, bool) {
            of.finish();
            detail::Mutex::Lock const lock(mutex);
            hooks.emplace_back(&of, detail::ActionHook{});
        });
        for (auto& [whose, hook] : hooks) hook = make();
        detail::MachineAccess::together(static_cast<Training&>(*this), [&](auto& of, bool) {
            for (auto const& [whose, hook] : hooks)
                if (whose == &of) of.engine().runs().on_action(hook);
        });
    }
    auto& machine() { return detail::MachineAccess::machine(static_cast<Training&>(*this)); }
    auto const& machine() const {
        return detail::MachineAccess::of(static_cast<Training const&>(*this));
    }
};

} // namespace gpipe
