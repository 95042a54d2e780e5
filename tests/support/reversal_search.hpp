#pragma once

#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

// The shortest way through every state that the reversal of a short chain can be in (Dijkstra).
namespace toy {

enum class Sequences {
    persistent, // what is kept of a layer stays until its backward
    any,        // anything may be dropped at any time, but for the inputs of layers kept whole
};

/// The least time of the forwards that reverse a chain within so many bytes beyond what its forward
/// has kept; infinite if it cannot be done.
class ReversalSearch {
  public:
    ReversalSearch(gpipe::ReversalCosts const& costs, std::size_t bytes, Sequences sequences,
                   std::vector<gpipe::Keep> const& forward = {})
        : costs_(costs), layers_(costs.layers()), bytes_(bytes), sequences_(sequences) {
        State begin{layers_, layers_, 0, 0};
        for (std::size_t l = 0; l < forward.size(); ++l) {
            if (forward[l] != gpipe::Keep::nothing && !input_there(begin, l))
                begin.inputs |= bit(l);
            if (forward[l] == gpipe::Keep::all) begin.wholes |= bit(l);
        }
        free_inputs_ = begin.inputs;
        free_wholes_ = begin.wholes;
        times_.assign((layers_ + 1) * (layers_ + 1) << 2 * layers_, impossible);
        reach(begin, 0);
        while (!queue_.empty()) {
            auto const [minus_time, number] = queue_.top();
            queue_.pop();
            if (-minus_time > times_[number]) continue;
            State const state = state_of(number);
            if (state.left == 0) {
                time_ = -minus_time;
                break;
            }
            expand(state, -minus_time);
        }
    }

    static constexpr double impossible = std::numeric_limits<double>::infinity();
    double time() const { return time_; }

  private:
    struct State {
        std::size_t hand;           // whose input is the current activation; layers_: nobody's
        std::size_t left;           // layers whose backward is to come
        std::size_t inputs, wholes; // sets
    };
    static std::size_t bit(std::size_t layer) { return std::size_t{1} << layer; }
    std::size_t number_of(State const& s) const {
        return ((s.hand * (layers_ + 1) + s.left) << 2 * layers_) | s.inputs << layers_ | s.wholes;
    }
    State state_of(std::size_t number) const {
        std::size_t const set = bit(layers_) - 1;
        std::size_t const rest = number >> 2 * layers_;
        return {rest / (layers_ + 1), rest % (layers_ + 1), number >> layers_ & set, number & set};
    }
    static bool input_there(State const& s, std::size_t l) {
        return l == 0 || (s.inputs & bit(l)) || (s.wholes & bit(l - 1));
    }
    std::size_t held(State const& s) const {
        std::size_t sum = 0;
        for (std::size_t l = 0; l < layers_; ++l) {
            if (s.inputs & ~free_inputs_ & bit(l)) sum += costs_.input[l];
            if (s.wholes & ~free_wholes_ & bit(l)) sum += costs_.all[l];
        }
        return sum;
    }
    void reach(State const& s, double time) {
        std::size_t const number = number_of(s);
        if (time >= times_[number]) return;
        times_[number] = time;
        queue_.push({-time, number});
    }
    void expand(State const& s, double time) {
        std::size_t const last = s.left - 1;
        if ((s.wholes & bit(last)) && input_there(s, last) &&
            held(s) + costs_.backward_temporary[last] <= bytes_)
            reach({layers_, last, s.inputs & ~bit(last), s.wholes & ~bit(last)}, time);
        for (std::size_t l = 0; l < s.left; ++l) {
            if (sequences_ == Sequences::any) {
                drop({s.hand, s.left, s.inputs & ~bit(l), s.wholes}, time);
                drop({s.hand, s.left, s.inputs, s.wholes & ~bit(l)}, time);
            }
            if (s.hand != l && !input_there(s, l)) continue;
            forward(s, l, s.inputs, s.wholes, time);
            if (l > 0) forward(s, l, s.inputs | bit(l), s.wholes, time);
            if (!(s.wholes & bit(l)))
                forward(s, l, input_there(s, l) ? s.inputs : s.inputs | bit(l), s.wholes | bit(l),
                        time);
        }
    }
    // A layer that is kept whole has its input as long.
    void drop(State const& s, double time) {
        for (std::size_t l = 0; l < s.left; ++l)
            if ((s.wholes & bit(l)) && !input_there(s, l)) return;
        reach(s, time);
    }
    void forward(State const& s, std::size_t l, std::size_t inputs, std::size_t wholes,
                 double time) {
        State const next{std::min(l + 1, layers_), s.left, inputs, wholes};
        if (held(next) + costs_.forward_temporary[l] <= bytes_)
            reach(next, time + costs_.forward[l]);
    }

    gpipe::ReversalCosts const& costs_;
    std::size_t layers_;
    std::size_t bytes_;
    Sequences sequences_;
    std::size_t free_inputs_ = 0; // what the forward has kept
    std::size_t free_wholes_ = 0;
    std::vector<double> times_;
    std::priority_queue<std::pair<double, std::size_t>> queue_;
    double time_ = impossible;
};

} // namespace toy
