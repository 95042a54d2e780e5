#pragma once

#include <gpipe/memory/cell_layout.hpp>
#include <gpipe/runtime/micro_batches.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace benchmark {

/// The least memory that each device of a training can do with, worked out from what lives when,
/// and from nothing that the library's planner says: no slots, no regions, no padding. Time is that
/// of a run at unit costs, an action's layers sharing its time equally; a tensor lives from the
/// start of the layer call that writes it to the end of the last one that reads it. Parameters,
/// gradients and optimizer state live always.
class LiveBytes {
  public:
    LiveBytes(gpipe::ChainShape const& chain, gpipe::Array<std::size_t> const& first,
              gpipe::Programs const& programs, std::size_t states, std::size_t samples)
        : chain_(chain), first_(first), programs_(programs),
          times_(gpipe::simulate<double>(
              programs, [](gpipe::Action const& a) { return double(gpipe::unit_cost(a)); })),
          changes_(programs.devices()), always_(programs.devices()), samples_(samples) {
        for (std::size_t c = 0; c < programs_.cells(); ++c) {
            for (std::size_t i = first_[c]; i < first_[c + 1]; ++i)
                always_[programs_.device_of(c)] += (2 + states) * bytes(layer(i).parameters, 1);
            for (std::size_t m = 0; m < programs_.micro_batches(); ++m)
                if (count(m) > 0) add_micro_batch(c, m);
        }
    }

    /// The largest sum of live bytes on a device.
    std::size_t peak(std::size_t device) const {
        std::vector<Change> changes = changes_[device];
        // What ends at an instant makes room for what begins.
        std::sort(changes.begin(), changes.end(), [](Change const& a, Change const& b) {
            return a.time != b.time ? a.time < b.time : a.bytes < b.bytes;
        });
        std::ptrdiff_t live = static_cast<std::ptrdiff_t>(always_[device]);
        std::ptrdiff_t most = live;
        for (Change const& change : changes) {
            live += change.bytes;
            most = std::max(most, live);
        }
        return static_cast<std::size_t>(most);
    }

  private:
    struct Change {
        double time;
        std::ptrdiff_t bytes;
    };
    struct Span {
        double begin, end;
    };

    gpipe::LayerInfo const& layer(std::size_t i) const { return chain_.layers[i]; }
    bool learns(std::size_t i) const { return i < chain_.size && i >= chain_.lowest_learner; }
    std::size_t count(std::size_t m) const {
        return gpipe::micro_batch_range(samples_, programs_.micro_batches(), m).count;
    }
    static std::size_t bytes(gpipe::GroupSizes const& group, std::size_t samples) {
        std::size_t total = 0;
        for (std::size_t t = 0; t < group.count; ++t) total += group.bytes[t] * samples;
        return total;
    }
    void live(std::size_t cell, gpipe::GroupSizes const& group, std::size_t m, double begin,
              double end) {
        auto const size = static_cast<std::ptrdiff_t>(bytes(group, count(m)));
        changes_[programs_.device_of(cell)].push_back({begin, size});
        changes_[programs_.device_of(cell)].push_back({end, -size});
    }

    // The actions of one cell on one micro-batch, in order.
    std::vector<std::size_t> actions_of(std::size_t cell, std::size_t m) const {
        std::vector<std::size_t> found;
        std::size_t const d = programs_.device_of(cell);
        for (std::size_t i = programs_.begin(d); i < programs_.end(d); ++i)
            if (programs_[i].cell == cell && programs_[i].micro_batch == m) found.push_back(i);
        return found;
    }
    // When an action calls its `n`-th layer, of `of`.
    Span part(std::size_t action, std::size_t n, std::size_t of) const {
        double const start = times_.start[action];
        double const length = (times_.end[action] - start) / static_cast<double>(of);
        return {start + length * static_cast<double>(n),
                n + 1 == of ? times_.end[action] : start + length * static_cast<double>(n + 1)};
    }

    void add_micro_batch(std::size_t c, std::size_t m) {
        std::size_t const begin = first_[c];
        std::size_t const end = first_[c + 1];
        std::size_t const size = end - begin;
        bool const last_cell = c + 1 == programs_.cells();
        std::vector<std::size_t> const actions = actions_of(c, m);
        std::size_t const backward = actions.back();
        std::size_t const learner = std::clamp(chain_.lowest_learner, begin, end);
        // The backward's calls: the loss if it is here, then layers from the last to the lowest
        // that learns.
        std::size_t const calls = (last_cell ? 1 : 0) + (end - learner);
        auto const backward_of = [&](std::size_t i) {
            return part(backward, (last_cell ? 1 : 0) + (end - 1 - i), calls);
        };
        // The end of the last backward call that reads layer i's output; 0 if none does.
        auto const output_needed_until = [&](std::size_t i) {
            if (learns(i) && layer(i).reads_output) return backward_of(i).end;
            if (i + 1 < end && learns(i + 1) && layer(i + 1).reads_input)
                return backward_of(i + 1).end;
            if (i + 1 == chain_.size) return part(backward, 0, calls).end; // the loss
            return 0.0;
        };

        for (std::size_t const a : actions) {
            if (a == backward) break;
            bool const again = programs_[a].kind == gpipe::Kind::recompute;
            bool const keeps = a == actions[actions.size() - 2];
            // A recompute leaves out a last layer that only the next cell needed.
            std::size_t const runs =
                again && !last_cell && layer(end - 1).saved.count == 0 ? size - 1 : size;
            for (std::size_t n = 0; n < runs; ++n) {
                std::size_t const i = begin + n;
                Span const call = part(a, n, runs);
                live(c, layer(i).scratch, m, call.begin, call.end);
                live(c, layer(i).saved, m, call.begin,
                     keeps && learns(i) ? backward_of(i).end : call.end);
                if (i + 1 == end && !last_cell) {
                    // Goes to the next cell; a recompute's goes nowhere.
                    if (again) live(c, layer(i).output, m, call.begin, call.end);
                    continue;
                }
                double until = n + 1 < runs ? part(a, n + 1, runs).end : call.end;
                if (keeps) until = std::max(until, output_needed_until(i));
                live(c, layer(i).output, m, call.begin, until);
            }
        }
        if (c > 0) add_boundary(c, m, actions);

        if (calls == 0) return;
        if (last_cell) {
            Span const loss = part(backward, 0, calls);
            live(c, chain_.loss_scratch, m, loss.begin, loss.end);
            double const until = learner < end ? backward_of(end - 1).end : loss.end;
            live(c, layer(end - 1).output_gradient, m, loss.begin, until);
        }
        for (std::size_t i = end; i-- > learner;) {
            Span const call = backward_of(i);
            live(c, layer(i).scratch, m, call.begin, call.end);
            if (i > learner)
                live(c, layer(i).input_gradient, m, call.begin, backward_of(i - 1).end);
            else if (i == chain_.lowest_learner && !layer(i).accepts_none)
                live(c, layer(i).input_gradient, m, call.begin, call.end);
        }
    }

    // A cell's input and its gradient, which lie on the cell's device.
    void add_boundary(std::size_t c, std::size_t m, std::vector<std::size_t> const& actions) {
        std::size_t const begin = first_[c];
        std::size_t const size = first_[c + 1] - begin;
        std::vector<std::size_t> const below = actions_of(c - 1, m);
        std::size_t const layers_below = begin - first_[c - 1];
        double const written = part(below.front(), layers_below - 1, layers_below).begin;
        std::size_t const backward = actions.back();
        double until = part(actions[actions.size() - 2], 0, size).end;
        if (learns(begin) && layer(begin).reads_input) until = times_.end[backward];
        std::size_t const calls_below =
            std::min(begin - std::min(chain_.lowest_learner, begin), layers_below);
        if (calls_below > 0 && layer(begin - 1).reads_output)
            until = std::max(until, part(below.back(), 0, calls_below).end);
        live(c, layer(begin).input, m, written, until);
        if (calls_below == 0) return;
        std::size_t const calls = size + (c + 1 == programs_.cells() ? 1 : 0);
        live(c, layer(begin).input_gradient, m, part(backward, calls - 1, calls).begin,
             part(below.back(), 0, calls_below).end);
    }

    gpipe::ChainShape chain_;
    gpipe::Array<std::size_t> const& first_;
    gpipe::Programs const& programs_;
    gpipe::SimulatedTimes<double> times_;
    std::vector<std::vector<Change>> changes_; // by device
    std::vector<std::size_t> always_;          // likewise
    std::size_t samples_;
};

} // namespace benchmark
