#pragma once

#include <gpipe/schedule/programs.hpp>

#include <cstddef>
#include <string>
#include <unordered_set>
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

/// Runs programs in every possible order of the devices: a forward waits for the cell before, a
/// backward or input gradient for the cell behind.
///
/// What must not happen: an action on a device that does not own its cell, or of nothing that
/// exists, or twice; one without what it reads; a recompute after its backward; a wait for ever; an
/// end at which something is left undone.
class Executor {
  public:
    explicit Executor(gpipe::Programs const& programs)
        : programs_(programs), cells_(programs.cells()) {}

    Outcome run() {
        Outcome outcome;
        std::unordered_set<std::u16string> seen;
        std::vector<State> open(1);
        open[0].at.assign(programs_.devices(), 0);
        open[0].ran.assign(cells_ * programs_.micro_batches(), 0);
        while (!open.empty()) {
            State const state = std::move(open.back());
            open.pop_back();
            if (!seen.insert(state.at).second) continue;
            ++outcome.states;
            if (!steps(state, open)) return {false, outcome.states};
        }
        return outcome;
    }

  private:
    using Action = gpipe::Action;
    using Kind = gpipe::Kind;

    // How far each device is, and from that what has run of each pair, as bits.
    struct State {
        std::u16string at;
        std::u16string ran;
    };
    enum Bit { forward = 1, input = 2, weight = 4, again = 8 };

    template <class S> auto& ran(S& state, std::size_t cell, std::size_t m) const {
        return state.ran[cell * programs_.micro_batches() + m];
    }
    bool steps(State const& state, std::vector<State>& open) const {
        bool ended = true;
        bool moved = false;
        for (std::size_t d = 0; d < programs_.devices(); ++d) {
            auto const program = programs_.program(d);
            if (state.at[d] == program.size()) continue;
            Action const& a = program[state.at[d]];
            ended = false;
            if (a.cell >= cells_ || a.micro_batch >= programs_.micro_batches() ||
                programs_.device_of(a.cell) != d)
                return false;
            if (neighbour_missing(state, a)) continue;
            State after = state;
            ++after.at[d];
            if (!compute(after, a)) return false;
            open.push_back(std::move(after));
            moved = true;
        }
        return ended ? all_done(state) : moved;
    }
    bool neighbour_missing(State const& state, Action const& a) const {
        if (a.kind == Kind::forward)
            return a.cell > 0 && !(ran(state, a.cell - 1u, a.micro_batch) & forward);
        return (a.kind == Kind::backward || a.kind == Kind::input_gradient) &&
               a.cell + 1u < cells_ && !(ran(state, a.cell + 1u, a.micro_batch) & input);
    }
    bool compute(State& state, Action const& a) const {
        if (a.kind > Kind::weight_gradient) return false;
        auto& has = ran(state, a.cell, a.micro_batch);
        int const adds = a.kind == Kind::forward          ? forward
                         : a.kind == Kind::recompute      ? again
                         : a.kind == Kind::backward       ? input | weight
                         : a.kind == Kind::input_gradient ? input
                                                          : weight;
        if (has & adds) return false;
        if (a.kind != Kind::forward && !(has & forward)) return false;
        if (a.kind == Kind::recompute && (has & input)) return false;
        if (a.kind == Kind::weight_gradient && !(has & input)) return false;
        has = char16_t(has | adds);
        return true;
    }
    bool all_done(State const& state) const {
        for (char16_t const has : state.ran)
            if ((has & 7) != (forward | input | weight)) return false;
        return true;
    }

    gpipe::Programs const& programs_;
    std::size_t cells_;
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

} // namespace toy
