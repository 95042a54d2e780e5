#pragma once

#include <gpipe/schedule/messages.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>
#include <set>
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

/// Runs programs in every possible order of the devices, and looks at what every action reads.
///
/// Without messages a forward waits for the cell before, a backward or input gradient for the cell
/// behind. With them nothing waits but messages: a device that is at a send to another and that
/// other, at a receive from it, step at once, and must mean the same. Tensors are then really
/// there or not: a receive puts its tensor into its slot, over what was there; a forward puts the
/// cell's output, a backward or input gradient its gradient, in the one place that the cell has for
/// it, from where a send takes it, and a recompute leaves nothing of worth there. All that computes
/// reads the input of its micro-batch, all of a backward the gradient, too, if they come from
/// another device.
///
/// What must not happen: an action on a device that does not own its cell, or of nothing that
/// exists, or twice; one without what it reads; a recompute after its backward; a wait for ever; an
/// end at which something is left undone.
class Executor {
  public:
    explicit Executor(gpipe::Programs const& programs) : Executor(programs, nullptr, {}) {}
    explicit Executor(gpipe::MessagePrograms const& lowered)
        : Executor(lowered, std::vector<bool>(lowered.programs.cells(), true)) {}
    Executor(gpipe::MessagePrograms const& lowered, std::vector<bool> crosses)
        : Executor(lowered.programs, &lowered, std::move(crosses)) {}

    Outcome run() {
        Outcome outcome;
        std::unordered_set<std::u16string> seen;
        std::vector<State> open(1);
        open[0].at.assign(programs_.devices(), 0);
        open[0].memory.assign(slots_[1].back(), 0);
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

    // How far each device is, and from that what there is in memory.
    struct State {
        std::u16string at;
        std::u16string memory;
    };
    enum Bit { forward = 1, input = 2, weight = 4, again = 8 };

    Executor(gpipe::Programs const& programs, gpipe::MessagePrograms const* lowered,
             std::vector<bool> crosses)
        : programs_(programs), lowered_(lowered), crosses_(std::move(crosses)),
          cells_(programs.cells()), pairs_(cells_ * programs.micro_batches()) {
        std::size_t end = 5 * pairs_ + 2 * cells_;
        for (std::size_t g = 0; g < 2; ++g) {
            for (std::size_t c = 0; c < cells_; ++c) {
                slots_[g].push_back(end);
                if (lowered) end += (g ? lowered->gradient_slots : lowered->input_slots)[c];
            }
            slots_[g].push_back(end);
        }
    }

    // Memory. By pair: what has run, as bits; whether the message of its input, and of its input's
    // gradient, has been sent; 1 + the slot of its input, and of its output's gradient. By cell: 1
    // + the micro-batch whose output, and whose input's gradient, is in the place to send from. By
    // slot: 1 + the micro-batch whose tensor is there.
    static constexpr std::size_t messages = 1, slot_of = 3, made = 5;
    std::size_t pair(std::size_t cell, std::size_t m) const {
        return cell * programs_.micro_batches() + m;
    }
    template <class S> auto& ran(S& state, std::size_t cell, std::size_t m) const {
        return state.memory[pair(cell, m)];
    }
    template <class S>
    auto& at_pair(S& state, std::size_t what, bool g, std::size_t cell, std::size_t m) const {
        return state.memory[(what + g) * pairs_ + pair(cell, m)];
    }
    template <class S> auto& to_send(S& state, bool g, std::size_t cell) const {
        return state.memory[made * pairs_ + g * cells_ + cell];
    }

    bool steps(State const& state, std::vector<State>& open) const {
        bool ended = true;
        bool moved = false;
        for (std::size_t d = 0; d < programs_.devices(); ++d) {
            Action const* const a = at(state, d);
            if (!a) continue;
            ended = false;
            if (a->cell >= cells_ || a->micro_batch >= programs_.micro_batches() ||
                programs_.device_of(a->cell) != d)
                return false;
            State after = state;
            ++after.at[d];
            if (!is_message(*a)) {
                if (!lowered_ && neighbour_missing(state, *a)) continue;
                if (!compute(after, *a)) return false;
            } else {
                if (!lowered_ || !exists(*a)) return false;
                if (is_receive(*a)) continue; // steps with its send
                if (to_send(state, is_gradient(*a), a->cell) != a->micro_batch + 1) return false;
                std::size_t const peer = programs_.device_of(far_end(*a));
                Action const* const b = at(state, peer);
                if (!b || !is_message(*b) || !is_receive(*b) || !exists(*b) ||
                    programs_.device_of(far_end(*b)) != d)
                    continue;
                if (!meet(after, *a, *b, programs_.begin(peer) + state.at[peer])) return false;
                ++after.at[peer];
            }
            open.push_back(std::move(after));
            moved = true;
        }
        return ended ? all_done(state) : moved;
    }
    Action const* at(State const& state, std::size_t device) const {
        auto const program = programs_.program(device);
        return state.at[device] < program.size() ? &program[state.at[device]] : nullptr;
    }

    // Messages.
    static bool is_message(Action const& a) {
        return a.kind == Kind::send_output || a.kind == Kind::send_gradient || is_receive(a);
    }
    static bool is_receive(Action const& a) {
        return a.kind == Kind::receive_input || a.kind == Kind::receive_gradient;
    }
    static bool is_gradient(Action const& a) {
        return a.kind == Kind::send_gradient || a.kind == Kind::receive_gradient;
    }
    // The cell behind the boundary that it crosses, and the cell at its other end.
    static std::size_t boundary(Action const& a) {
        bool const behind = a.kind == Kind::receive_input || a.kind == Kind::send_gradient;
        return behind ? a.cell : a.cell + 1u;
    }
    static std::size_t far_end(Action const& a) {
        return boundary(a) == a.cell ? a.cell - 1u : a.cell + 1u;
    }
    bool between_devices(std::size_t boundary) const {
        return boundary > 0 && boundary < cells_ &&
               programs_.device_of(boundary - 1) != programs_.device_of(boundary);
    }
    bool exists(Action const& a) const {
        return between_devices(boundary(a)) && (!is_gradient(a) || crosses_[boundary(a)]);
    }
    bool meet(State& state, Action const& send, Action const& receive, std::size_t index) const {
        bool const g = is_gradient(send);
        std::size_t const m = send.micro_batch;
        if (boundary(send) != boundary(receive) || g != is_gradient(receive) ||
            receive.micro_batch != m)
            return false;
        auto& sent = at_pair(state, messages, g, boundary(send), m);
        if (sent) return false;
        sent = 1;
        std::size_t const slot = lowered_->slot[index];
        if (slot >= slots_[g][receive.cell + 1u] - slots_[g][receive.cell]) return false;
        state.memory[slots_[g][receive.cell] + slot] = char16_t(m + 1);
        at_pair(state, slot_of, g, receive.cell, m) = char16_t(slot + 1);
        return true;
    }

    // What computes.
    static bool makes_gradient(Action const& a) {
        return a.kind == Kind::backward || a.kind == Kind::input_gradient;
    }
    bool neighbour_missing(State const& state, Action const& a) const {
        if (a.kind == Kind::forward)
            return a.cell > 0 && !(ran(state, a.cell - 1u, a.micro_batch) & forward);
        return makes_gradient(a) && a.cell + 1u < cells_ &&
               !(ran(state, a.cell + 1u, a.micro_batch) & input);
    }
    // Whether the tensor from another device, if there is one, is in its slot.
    bool holds(State const& state, Action const& a, bool g) const {
        std::size_t const boundary = g ? a.cell + 1u : a.cell;
        if (!between_devices(boundary) || (g && !crosses_[boundary])) return true;
        std::size_t const slot = at_pair(state, slot_of, g, a.cell, a.micro_batch);
        return slot > 0 && state.memory[slots_[g][a.cell] + slot - 1] == a.micro_batch + 1;
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
        return !lowered_ || compute_with_messages(state, a);
    }
    bool compute_with_messages(State& state, Action const& a) const {
        bool const backward = makes_gradient(a) || a.kind == Kind::weight_gradient;
        std::size_t const from = a.kind == Kind::forward ? a.cell : a.cell + 1u;
        if (!between_devices(from) && neighbour_missing(state, a)) return false;
        if (!holds(state, a, false) || (backward && !holds(state, a, true))) return false;
        auto& place = to_send(state, makes_gradient(a), a.cell);
        if (a.kind == Kind::forward || makes_gradient(a)) place = char16_t(a.micro_batch + 1);
        if (a.kind == Kind::recompute && place != a.micro_batch + 1) place = 0;
        return true;
    }

    bool all_done(State const& state) const {
        for (std::size_t c = 0; c < cells_; ++c)
            for (std::size_t m = 0; m < programs_.micro_batches(); ++m) {
                if ((ran(state, c, m) & 7) != (forward | input | weight)) return false;
                if (!lowered_ || !between_devices(c)) continue;
                if (!at_pair(state, messages, false, c, m)) return false;
                if (crosses_[c] && !at_pair(state, messages, true, c, m)) return false;
            }
        return true;
    }

    gpipe::Programs const& programs_;
    gpipe::MessagePrograms const* lowered_;
    std::vector<bool> crosses_;
    std::size_t cells_;
    std::size_t pairs_;
    std::vector<std::size_t> slots_[2]; // by cell: the first slot of inputs, of gradients
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
        auto const is_backward = [](gpipe::Action const& a) {
            return a.kind == gpipe::Kind::backward || a.kind == gpipe::Kind::input_gradient;
        };
        auto const has_run = [&](bool backward, std::size_t cell, std::size_t m) {
            for (std::size_t d = 0; d < state.size(); ++d)
                for (std::size_t i = 0; i < state[d]; ++i) {
                    gpipe::Action const& a = programs.program(d)[i];
                    if ((backward ? is_backward(a) : a.kind == gpipe::Kind::forward) &&
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
                               (is_backward(a) && a.cell + 1 < programs.cells() &&
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
