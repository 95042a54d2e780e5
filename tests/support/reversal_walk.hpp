#pragma once

#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

// Runs a reversal on a stack of things that are stored, each with its bytes, and believes nothing.
namespace toy {

struct Stored {
    bool all; // else an input
    std::size_t layer;
    std::size_t bytes;
    bool retained; // by the cell's forward
};

struct Walked {
    std::string fault; // empty if it is sound
    std::size_t retained = 0;
    std::size_t working = 0;
    std::size_t forwards = 0;
    double time = 0;
    std::size_t inputs = 0;        // the most that steps have stored at once and called inputs
    std::size_t wholes = 0;        // the most layers that steps have kept whole at once
    std::vector<std::size_t> runs; // by layer, its forwards in the steps

    bool sound() const { return fault.empty(); }
};

class ReversalWalker {
  public:
    explicit ReversalWalker(gpipe::ReversalCosts const& costs) : costs_(costs) {}

    Walked walk(gpipe::Reversal const& reversal) {
        Walked w;
        std::size_t const n = reversal.forward.size();
        w.runs.assign(n, 0);
        if (n == 0) w.fault = "empty";
        for (std::size_t l = 0; l < n; ++l) keep(l, reversal.forward[l], true);
        w.retained = bytes(true);
        std::vector<std::size_t> next; // layers whose backward is to come
        for (std::size_t l = 0; l < n; ++l) next.push_back(l);
        long held = -1; // whose input is the current activation
        for (gpipe::ReversalStep const& step : reversal.steps) {
            if (!w.sound()) break;
            std::size_t const l = step.layer;
            if (l >= n) {
                w.fault = "no such layer";
            } else if (step.backward) {
                if (next.empty() || next.back() != l)
                    w.fault = "not the next backward";
                else if (!has(true, l))
                    w.fault = "not kept whole";
                else if (!input_there(l))
                    w.fault = "no input for the backward";
                else if (held >= 0 && held != static_cast<long>(l) + 1)
                    w.fault = "in vain";
                if (!w.sound()) break;
                w.working = std::max(w.working, bytes(false) + costs_.backward_temporary[l]);
                next.pop_back();
                held = -1;
                while (!stack_.empty() && stack_.back().layer == l) stack_.pop_back();
                if (has(true, l) || has(false, l)) w.fault = "not on top of the stack";
            } else {
                if (std::find(next.begin(), next.end(), l) == next.end())
                    w.fault = "too late";
                else if (held != static_cast<long>(l) && !input_there(l))
                    w.fault = "no input";
                else if (step.keep == gpipe::Keep::all && has(true, l))
                    w.fault = "twice";
                else if (held >= 0 && held != static_cast<long>(l))
                    w.fault = "in vain";
                if (!w.sound()) break;
                keep(l, step.keep, false);
                w.working = std::max(w.working, bytes(false) + costs_.forward_temporary[l]);
                std::size_t inputs = 0;
                std::size_t wholes = 0;
                for (std::size_t i = 0; i < stack_.size(); ++i) {
                    if (stack_[i].retained) continue;
                    wholes += stack_[i].all;
                    bool const part = i + 1 < stack_.size() && stack_[i + 1].all &&
                                      stack_[i + 1].layer == stack_[i].layer;
                    inputs += !stack_[i].all && !part; // that of a whole layer is part of it
                }
                w.inputs = std::max(w.inputs, inputs);
                w.wholes = std::max(w.wholes, wholes);
                ++w.forwards;
                ++w.runs[l];
                w.time += costs_.forward[l];
                held = static_cast<long>(l) + 1;
            }
        }
        if (w.sound() && !next.empty()) w.fault = "missing";
        return w;
    }

  private:
    bool has(bool all, std::size_t layer) const {
        return std::any_of(stack_.begin(), stack_.end(),
                           [&](Stored const& s) { return s.all == all && s.layer == layer; });
    }
    bool input_there(std::size_t layer) const {
        return layer == 0 || has(false, layer) || has(true, layer - 1);
    }
    void keep(std::size_t layer, gpipe::Keep keep, bool retained) {
        if (keep == gpipe::Keep::nothing) return;
        if (!input_there(layer)) stack_.push_back({false, layer, costs_.input[layer], retained});
        if (keep == gpipe::Keep::all) stack_.push_back({true, layer, costs_.all[layer], retained});
    }
    std::size_t bytes(bool retained) const {
        std::size_t sum = 0;
        for (Stored const& s : stack_)
            if (s.retained == retained) sum += s.bytes;
        return sum;
    }

    gpipe::ReversalCosts const& costs_;
    std::vector<Stored> stack_;
};

inline Walked walk(gpipe::Reversal const& reversal, gpipe::ReversalCosts const& costs) {
    return ReversalWalker(costs).walk(reversal);
}

} // namespace toy
