#pragma once

#include <gpipe/core/split.hpp>
#include <gpipe/memory/cell_use.hpp>
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
        return gpipe::Split(samples_, programs_.micro_batches())[m].count;
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

    // What a cell does on a micro-batch: at the end its backward, whole or as two actions.
    struct Way {
        std::vector<std::size_t> forwards; // and recomputes
        std::size_t backward = 0;
        std::size_t weights = 0; // the second half; the same where there is none
    };
    Way way_of(std::size_t cell, std::size_t m) const {
        Way way;
        way.forwards = actions_of(cell, m);
        way.weights = way.backward = way.forwards.back();
        way.forwards.pop_back();
        if (programs_[way.weights].kind == gpipe::Kind::weight_gradient) {
            way.backward = way.forwards.back();
            way.forwards.pop_back();
        }
        return way;
    }
    // Whether layer i's backward runs in two actions.
    bool splits(std::size_t i, Way const& way) const {
        return way.weights != way.backward && learns(i) && layer(i).splits;
    }
    // The layers of a cell from which on there is a backward.
    std::size_t learner_of(std::size_t c) const {
        return std::clamp(chain_.lowest_learner, first_[c], first_[c + 1]);
    }
    // When a backward calls layer i, or the loss, which comes first: layers from the last to the
    // lowest that learns.
    Span backward_of(std::size_t c, Way const& way, std::size_t i) const {
        std::size_t const loss = c + 1 == programs_.cells() ? 1 : 0;
        std::size_t const calls = loss + first_[c + 1] - learner_of(c);
        return part(way.backward, i == chain_.size ? 0 : loss + first_[c + 1] - 1 - i, calls);
    }
    // When the last of its calls for layer i runs: the second half has only layers with halves.
    Span last_of(std::size_t c, Way const& way, std::size_t i) const {
        if (!splits(i, way)) return backward_of(c, way, i);
        std::size_t before = 0;
        std::size_t calls = 0;
        for (std::size_t j = learner_of(c); j < first_[c + 1]; ++j) {
            calls += layer(j).splits;
            before += layer(j).splits && j > i;
        }
        return part(way.weights, before, calls);
    }

    void add_micro_batch(std::size_t c, std::size_t m) {
        std::size_t const begin = first_[c];
        std::size_t const end = first_[c + 1];
        std::size_t const size = end - begin;
        bool const last_cell = c + 1 == programs_.cells();
        Way const way = way_of(c, m);
        std::size_t const learner = learner_of(c);
        // The end of the last backward call that reads layer i's output; 0 if none does.
        auto const output_needed_until = [&](std::size_t i) {
            double until = 0;
            if (learns(i) && layer(i).reads_output) until = last_of(c, way, i).end;
            if (i + 1 < end && learns(i + 1) && layer(i + 1).reads_input)
                until = std::max(until, last_of(c, way, i + 1).end);
            if (i + 1 == chain_.size) until = std::max(until, backward_of(c, way, i + 1).end);
            return until;
        };

        for (std::size_t const a : way.forwards) {
            bool const again = programs_[a].kind == gpipe::Kind::recompute;
            if (again && !last_cell && learner == end) continue; // nobody would read anything
            bool const keeps = a == way.forwards.back();
            // A recompute leaves out a last layer that only the next cell needed.
            std::size_t const runs =
                again && !last_cell && layer(end - 1).saved.count == 0 ? size - 1 : size;
            for (std::size_t n = 0; n < runs; ++n) {
                std::size_t const i = begin + n;
                Span const call = part(a, n, runs);
                live(c, layer(i).scratch, m, call.begin, call.end);
                live(c, layer(i).saved, m, call.begin,
                     keeps && learns(i) ? last_of(c, way, i).end : call.end);
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
        if (c > 0) add_boundary(c, m, way);

        if (!last_cell && learner == end) return;
        if (last_cell) {
            Span const loss = backward_of(c, way, chain_.size);
            live(c, chain_.loss_scratch, m, loss.begin, loss.end);
            double const until = learner < end ? last_of(c, way, end - 1).end : loss.end;
            live(c, layer(end - 1).output_gradient, m, loss.begin, until);
        }
        for (std::size_t i = end; i-- > learner;) {
            Span const call = backward_of(c, way, i);
            Span const last = last_of(c, way, i);
            bool const apart = splits(i, way);
            bool const halves = layer(i).splits && (apart || !layer(i).has_whole);
            live(c, layer(i).scratch, m, call.begin, call.end);
            if (apart) live(c, layer(i).scratch, m, last.begin, last.end);
            if (halves) live(c, layer(i).deferred, m, call.begin, last.end);
            if (i > learner)
                live(c, layer(i).input_gradient, m, call.begin, last_of(c, way, i - 1).end);
            else if (i == chain_.lowest_learner && !layer(i).accepts_none &&
                     (!halves || layer(i).deferred.count > 0))
                live(c, layer(i).input_gradient, m, call.begin, call.end);
        }
    }

    // A cell's input and its gradient, which lie on the cell's device.
    void add_boundary(std::size_t c, std::size_t m, Way const& way) {
        std::size_t const begin = first_[c];
        std::size_t const size = first_[c + 1] - begin;
        Way const below = way_of(c - 1, m);
        std::size_t const layers_below = begin - first_[c - 1];
        double const written = part(below.forwards.front(), layers_below - 1, layers_below).begin;
        double until = part(way.forwards.back(), 0, size).end;
        if (learns(begin) && layer(begin).reads_input) until = last_of(c, way, begin).end;
        bool const crosses = chain_.lowest_learner < begin;
        if (crosses && layer(begin - 1).reads_output)
            until = std::max(until, last_of(c - 1, below, begin - 1).end);
        live(c, layer(begin).input, m, written, until);
        if (crosses)
            live(c, layer(begin).input_gradient, m, backward_of(c, way, begin).begin,
                 last_of(c - 1, below, begin - 1).end);
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
