#pragma once

// The least memory that programs can run in, found without the planner: every tensor's life as an
// interval of simulated time, layer by layer within the actions, and the largest sum of the bytes
// that live at one time.

#include <gpipe/layer/info.hpp>
#include <gpipe/memory/cell_layout.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace toy {

struct LiveBytesOf {
    std::vector<gpipe::LayerInfo> layers;
    std::vector<std::size_t> first; ///< layer of each cell, then L
    gpipe::GroupSizes loss_scratch;
    std::size_t states = 0;
    std::size_t samples = 0; ///< in a micro-batch
};

namespace detail {

using Time = std::int64_t;

// What lives when, on one device.
class Lives {
  public:
    void add(std::size_t bytes, Time from, Time to) {
        if (bytes == 0 || from >= to) return;
        changes_[from] += static_cast<std::int64_t>(bytes);
        changes_[to] -= static_cast<std::int64_t>(bytes);
    }
    std::size_t most() const {
        std::int64_t now = 0, most = 0;
        for (auto const& [time, change] : changes_) most = std::max(most, now += change);
        return static_cast<std::size_t>(most);
    }

  private:
    std::map<Time, std::int64_t> changes_;
};

} // namespace detail

/// The largest sums of live bytes on a device: of all, of the tensors that cross boundaries alone,
/// of what is inside the cells alone (these need not be largest at the same time).
struct LiveBytes {
    std::size_t total = 0, boundary = 0, inside = 0;
};

/// The same on each device, when device `slow` takes `factor` times as long as the others. Tensors
/// in whole slots, as everywhere.
inline std::vector<LiveBytes> live_bytes(gpipe::Programs const& programs, LiveBytesOf const& of,
                                         std::size_t slow, std::int64_t factor) {
    using detail::Time;
    using gpipe::Kind;
    std::size_t const cells = programs.cells();
    std::size_t const micro_batches = programs.micro_batches();
    std::size_t const size = of.layers.size();
    std::size_t learner = size; // the lowest layer that has a backward
    for (std::size_t i = size; i-- > 0 && of.layers[i].output_carries_gradient;)
        if (of.layers[i].parameters.count > 0) learner = i;

    auto const pace = [&](std::size_t cell) {
        return programs.device_of(cell) == slow ? factor : Time{1};
    };
    auto const count = [&](std::size_t c) { return Time(of.first[c + 1] - of.first[c]); };
    // An action takes a moment per layer; the backward of the last cell one more, for the loss.
    auto const cost = [&](gpipe::Action const& a) {
        bool const loss = a.kind == Kind::backward && a.cell + 1 == cells;
        return pace(a.cell) * (count(a.cell) + loss);
    };
    auto const times = gpipe::simulate<Time>(programs, cost);

    // Begin of the moment of layer i in an action; in a backward the last layer comes first.
    auto const moment = [&](std::size_t action, std::size_t layer) {
        auto const& a = programs[action];
        auto const place = Time(layer - of.first[a.cell]);
        bool const loss = a.kind == Kind::backward && a.cell + 1 == cells;
        Time const n = a.kind == Kind::backward ? count(a.cell) - 1 - place + loss : place;
        return times.start[action] + n * pace(a.cell);
    };
    auto const after = [&](std::size_t action, std::size_t layer) {
        return moment(action, layer) + pace(programs[action].cell);
    };

    struct Lives {
        detail::Lives total, boundary, inside;
    };
    std::vector<Lives> lives(programs.devices());
    auto const bytes = [&](gpipe::GroupSizes const& sizes) { return sizes.slots(of.samples); };
    Time const end = times.makespan + 1;
    for (std::size_t c = 0; c < cells; ++c)
        for (std::size_t i = of.first[c]; i < of.first[c + 1]; ++i)
            lives[programs.device_of(c)].total.add(
                (2 + of.states) * of.layers[i].parameters.slots(1), 0, end);

    // The actions of each (cell, micro-batch), in order.
    std::vector<std::vector<std::size_t>> acts(cells * micro_batches);
    for (std::size_t i = 0; i < programs.size(); ++i)
        acts[programs[i].cell * micro_batches + programs[i].micro_batch].push_back(i);
    for (auto& list : acts)
        std::sort(list.begin(), list.end(),
                  [&](std::size_t a, std::size_t b) { return times.start[a] < times.start[b]; });

    for (std::size_t c = 0; c < cells; ++c)
        for (std::size_t m = 0; m < micro_batches; ++m) {
            Lives& of_device = lives[programs.device_of(c)];
            auto const live = [&](std::size_t size_in_bytes, Time from, Time to) {
                of_device.total.add(size_in_bytes, from, to);
                of_device.inside.add(size_in_bytes, from, to);
            };
            auto const crosses = [&](std::size_t size_in_bytes, Time from, Time to) {
                of_device.total.add(size_in_bytes, from, to);
                of_device.boundary.add(size_in_bytes, from, to);
            };
            auto const& list = acts[c * micro_batches + m];
            std::size_t const back = list.back();
            std::size_t const holder = list[list.size() - 2]; // what leaves the activations
            std::size_t const bottom = of.first[c];
            std::size_t const top = of.first[c + 1] - 1;
            bool const last_cell = c + 1 == cells;

            // The boundary before the cell.
            if (c > 0) {
                auto const& before = acts[(c - 1) * micro_batches + m];
                Time from = end;
                for (std::size_t a : before)
                    if (programs[a].kind == Kind::forward) from = moment(a, bottom - 1);
                Time to = after(holder, bottom);
                if (learner <= bottom && of.layers[bottom].reads_input)
                    to = std::max(to, after(back, bottom));
                if (learner < bottom && of.layers[bottom - 1].reads_output)
                    to = std::max(to, after(before.back(), bottom - 1));
                crosses(bytes(of.layers[bottom].input), from, to);
                if (learner < bottom)
                    crosses(bytes(of.layers[bottom].input_gradient), moment(back, bottom),
                            after(before.back(), bottom - 1));
            }
            // Forwards and recomputes.
            for (std::size_t a : list) {
                if (programs[a].kind == Kind::backward) continue;
                bool const again = programs[a].kind == Kind::recompute;
                if (again && learner > top && !last_cell) continue; // nobody would read it
                for (std::size_t i = bottom; i <= top; ++i) {
                    auto const& layer = of.layers[i];
                    if (again && i == top && !last_cell && layer.saved.count == 0) continue;
                    live(bytes(layer.scratch), moment(a, i), after(a, i));
                    if (i == top && !last_cell) { // the next cell's input, unless run again
                        if (again) live(bytes(layer.output), moment(a, i), after(a, i));
                        continue;
                    }
                    Time to = after(a, std::min(i + 1, top));
                    if (a == holder) {
                        if (i == top) to = std::max(to, times.start[back] + pace(c)); // the loss
                        if (learner <= i + 1 && i < top && of.layers[i + 1].reads_input)
                            to = std::max(to, after(back, i + 1));
                        if (learner <= i && layer.reads_output) to = std::max(to, after(back, i));
                    }
                    live(bytes(layer.output), moment(a, i), to);
                }
                for (std::size_t i = bottom; i <= top; ++i) {
                    std::size_t const saved = bytes(of.layers[i].saved);
                    if (i < learner) // like scratch
                        live(saved, moment(a, i), after(a, i));
                    else if (a == holder)
                        live(saved, moment(a, i), after(back, i));
                }
            }
            // The backward.
            if (last_cell)
                live(of.loss_scratch.slots(of.samples), times.start[back],
                     times.start[back] + pace(c));
            for (std::size_t i = std::max(bottom, learner); i <= top; ++i) {
                auto const& layer = of.layers[i];
                live(bytes(layer.scratch), moment(back, i), after(back, i));
                if (i < top || last_cell) // else it is the next cell's input gradient
                    live(bytes(layer.output_gradient), moment(back, i) - pace(c), after(back, i));
                if (i == learner && !layer.accepts_none)
                    live(bytes(layer.input_gradient), moment(back, i), after(back, i));
            }
        }
    std::vector<LiveBytes> result;
    for (Lives const& live : lives)
        result.push_back({live.total.most(), live.boundary.most(), live.inside.most()});
    return result;
}

/// The same over several timings: a plan has to serve them all.
inline std::vector<LiveBytes> live_bytes(gpipe::Programs const& programs, LiveBytesOf const& of) {
    std::vector<LiveBytes> most(programs.devices());
    for (std::size_t slow = 0; slow <= programs.devices(); ++slow)
        for (std::int64_t factor : {3, 1000}) {
            auto const these = live_bytes(programs, of, slow, factor);
            for (std::size_t d = 0; d < most.size(); ++d) {
                most[d].total = std::max(most[d].total, these[d].total);
                most[d].boundary = std::max(most[d].boundary, these[d].boundary);
                most[d].inside = std::max(most[d].inside, these[d].inside);
            }
        }
    return most;
}

} // namespace toy
