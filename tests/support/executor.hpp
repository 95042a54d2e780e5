#pragma once

#include <gpipe/schedule/programs.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

// What programs do, found out by running them in every order that is possible: shares no code with
// verify, walk or HappensBefore, and is exponential where they are linear.
namespace toy {

/// A violation or deadlock in some execution, or none in any.
struct Outcome {
    bool sound = true;
    std::size_t states = 0; ///< that executions can pass through
};

/// Runs programs of forwards, recomputes and backwards in every possible order of the devices. A
/// forward waits for the cell before, a backward for the cell behind. What must not happen: an
/// action on a device that does not own its cell, or of nothing that exists; a second forward or
/// backward of the same; a backward or recompute without its own forward or after its backward; an
/// end at which something is left undone; a wait for ever.
class Executor {
  public:
    explicit Executor(gpipe::Programs const& programs) : programs_(programs) {}

    Outcome run() {
        Outcome outcome;
        std::set<std::vector<std::size_t>> seen;
        std::vector<std::vector<std::size_t>> open{
            std::vector<std::size_t>(programs_.devices(), 0)};
        while (!open.empty()) {
            auto const state = open.back();
            open.pop_back();
            if (!seen.insert(state).second) continue;
            ++outcome.states;
            std::set<Done> const done = done_in(state);
            bool ended = true;
            bool moved = false;
            for (std::size_t d = 0; d < state.size(); ++d) {
                auto const program = programs_.program(d);
                if (state[d] == program.size()) continue;
                ended = false;
                gpipe::Action const& action = program[state[d]];
                if (!allowed(action, d)) return {false, outcome.states};
                if (waits(action, done)) continue;
                if (!fits(action, done)) return {false, outcome.states};
                moved = true;
                auto after = state;
                ++after[d];
                open.push_back(std::move(after));
            }
            if (!ended && !moved) return {false, outcome.states};
            if (ended && done.size() != 2 * programs_.cells() * programs_.micro_batches())
                return {false, outcome.states};
        }
        return outcome;
    }

  private:
    using Done = std::pair<bool, std::pair<std::size_t, std::size_t>>; // backward?, cell, m

    std::set<Done> done_in(std::vector<std::size_t> const& state) const {
        std::set<Done> done;
        for (std::size_t d = 0; d < state.size(); ++d)
            for (std::size_t i = 0; i < state[d]; ++i) {
                gpipe::Action const& a = programs_.program(d)[i];
                if (a.kind != gpipe::Kind::recompute)
                    done.insert({a.kind == gpipe::Kind::backward, {a.cell, a.micro_batch}});
            }
        return done;
    }
    bool allowed(gpipe::Action const& a, std::size_t device) const {
        return a.cell < programs_.cells() && a.micro_batch < programs_.micro_batches() &&
               programs_.device_of(a.cell) == device &&
               (a.kind == gpipe::Kind::forward || a.kind == gpipe::Kind::backward ||
                a.kind == gpipe::Kind::recompute);
    }
    bool waits(gpipe::Action const& a, std::set<Done> const& done) const {
        if (a.kind == gpipe::Kind::forward)
            return a.cell > 0 && !done.count({false, {a.cell - 1, a.micro_batch}});
        if (a.kind == gpipe::Kind::backward)
            return a.cell + 1 < programs_.cells() &&
                   !done.count({true, {a.cell + 1, a.micro_batch}});
        return false;
    }
    bool fits(gpipe::Action const& a, std::set<Done> const& done) const {
        bool const forward = done.count({false, {a.cell, a.micro_batch}}) != 0;
        bool const backward = done.count({true, {a.cell, a.micro_batch}}) != 0;
        if (a.kind == gpipe::Kind::forward) return !forward;
        return forward && !backward;
    }

    gpipe::Programs const& programs_;
};

/// The same programs from another list of actions per device.
inline gpipe::Programs with_actions(gpipe::Programs const& like,
                                    std::vector<std::vector<gpipe::Action>> const& actions) {
    std::size_t size = 0;
    for (auto const& program : actions) size += program.size();
    gpipe::Programs result(like.devices(), like.cells(), like.micro_batches(), size);
    for (std::size_t c = 0; c < like.cells(); ++c) result.place(c, like.device_of(c));
    for (auto const& program : actions) {
        for (gpipe::Action const& a : program) result.add(a);
        result.next_device();
    }
    return result;
}

inline std::vector<std::vector<gpipe::Action>> actions_of(gpipe::Programs const& programs) {
    std::vector<std::vector<gpipe::Action>> result;
    for (std::size_t d = 0; d < programs.devices(); ++d)
        result.emplace_back(programs.program(d).begin(), programs.program(d).end());
    return result;
}

/// Calls visit(positions, device) for every state that executions of sound programs can pass
/// through and every device that can take its next step in it: positions[d] actions of device d
/// have run.
template <class Visit> void each_step(gpipe::Programs const& programs, Visit visit) {
    std::set<std::vector<std::size_t>> seen;
    std::vector<std::vector<std::size_t>> open{std::vector<std::size_t>(programs.devices(), 0)};
    while (!open.empty()) {
        auto const state = open.back();
        open.pop_back();
        if (!seen.insert(state).second) continue;
        auto const has_run = [&](bool backward, std::size_t cell, std::size_t m) {
            for (std::size_t d = 0; d < state.size(); ++d)
                for (std::size_t i = 0; i < state[d]; ++i) {
                    gpipe::Action const& a = programs.program(d)[i];
                    if (a.kind == (backward ? gpipe::Kind::backward : gpipe::Kind::forward) &&
                        a.cell == cell && a.micro_batch == m)
                        return true;
                }
            return false;
        };
        for (std::size_t d = 0; d < state.size(); ++d) {
            auto const program = programs.program(d);
            if (state[d] == program.size()) continue;
            gpipe::Action const& a = program[state[d]];
            bool const waits = (a.kind == gpipe::Kind::forward && a.cell > 0 &&
                                !has_run(false, a.cell - 1u, a.micro_batch)) ||
                               (a.kind == gpipe::Kind::backward && a.cell + 1 < programs.cells() &&
                                !has_run(true, a.cell + 1u, a.micro_batch));
            if (waits) continue;
            visit(state, d);
            auto after = state;
            ++after[d];
            open.push_back(std::move(after));
        }
    }
}

} // namespace toy
