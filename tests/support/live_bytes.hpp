#pragma once

// The least memory that programs can run in, found without the planner: every tensor's life as an
// interval of simulated time, call by call within the actions, and the largest sum of the bytes
// that live at one time.

#include "random_chain.hpp"

#include <gpipe/chain/info.hpp>
#include <gpipe/memory/cell_use.hpp>
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

    gpipe::ChainShape shape() const {
        return {layers.data(), layers.size(), gpipe::lowest_learner(layers.data(), layers.size()),
                loss_scratch};
    }
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
/// in whole slots, as everywhere. Each call of a function takes a moment; a tensor lives from the
/// begin of the call that writes it to the end of the last that reads it before it is written
/// again.
inline std::vector<LiveBytes> live_bytes(gpipe::Programs const& programs, LiveBytesOf const& of,
                                         std::size_t slow, std::int64_t factor) {
    using detail::Time;
    std::size_t const cells = programs.cells();
    std::size_t const size = of.layers.size();
    gpipe::ChainShape const chain = of.shape();
    auto const pace = [&](gpipe::Action const& a) {
        return programs.device_of(a.cell) == slow ? factor : Time{1};
    };
    auto const calls_of_kind = [&](std::size_t cell, gpipe::Kind kind) {
        return calls_of(chain, of.first[cell], of.first[cell + 1], kind);
    };
    constexpr auto kinds = static_cast<std::size_t>(gpipe::Kind::weight_gradient) + 1;
    std::vector<std::vector<LayerCall>> calls; // by cell and kind
    for (std::size_t c = 0; c < cells; ++c)
        for (std::size_t k = 0; k < kinds; ++k)
            calls.push_back(calls_of_kind(c, static_cast<gpipe::Kind>(k)));
    auto const calls_in = [&](gpipe::Action const& a) -> std::vector<LayerCall> const& {
        return calls[a.cell * kinds + static_cast<std::size_t>(a.kind)];
    };
    auto const times = gpipe::simulate<Time>(programs, [&](gpipe::Action const& a) {
        return pace(a) * static_cast<Time>(calls_in(a).size());
    });

    struct Lives {
        detail::Lives total, boundary, inside;
    };
    std::vector<Lives> lives(programs.devices());
    for (std::size_t c = 0; c < cells; ++c)
        for (std::size_t i = of.first[c]; i < of.first[c + 1]; ++i)
            lives[programs.device_of(c)].total.add(
                (2 + of.states) * of.layers[i].parameters.slots(1), 0, times.makespan + 1);

    // When each tensor is used.
    struct Use {
        Time begin, end;
        bool writes;
    };
    constexpr auto whats = static_cast<std::size_t>(TensorName::loss_scratch) + 1;
    std::vector<std::vector<Use>> uses(programs.micro_batches() * size * whats);
    auto const uses_of = [&](std::size_t m, TensorName const& name) -> std::vector<Use>& {
        return uses[(m * size + name.layer) * whats + static_cast<std::size_t>(name.what)];
    };
    for (std::size_t i = 0; i < programs.size(); ++i) {
        Time at = times.start[i];
        for (LayerCall const& call : calls_in(programs[i])) {
            Time const end = at + pace(programs[i]);
            for (TensorName const& name : call.reads)
                uses_of(programs[i].micro_batch, name).push_back({at, end, false});
            for (TensorName const& name : call.writes)
                uses_of(programs[i].micro_batch, name).push_back({at, end, true});
            at = end;
        }
    }
    std::vector<std::size_t> cell_of(size + 1);
    for (std::size_t c = 0; c < cells; ++c)
        for (std::size_t i = of.first[c]; i < of.first[c + 1]; ++i) cell_of[i] = c;
    for (std::size_t u = 0; u < uses.size(); ++u) {
        std::vector<Use>& list = uses[u];
        TensorName const name{static_cast<TensorName::What>(u % whats), u / whats % size};
        std::size_t const c = cell_of[name.layer];
        // What crosses lies on the device of the next cell.
        bool const crosses =
            (name.what == TensorName::output || name.what == TensorName::gradient) &&
            name.layer + 1 == of.first[c + 1] && c + 1 < cells;
        Lives& of_device = lives[programs.device_of(c + crosses)];
        std::sort(list.begin(), list.end(),
                  [](Use const& a, Use const& b) { return a.begin < b.begin; });
        for (std::size_t i = 0; i < list.size();) {
            Time const from = list[i].begin;
            Time to = list[i].end;
            while (++i < list.size() && !list[i].writes) to = std::max(to, list[i].end);
            std::size_t const bytes = bytes_of(chain, name, of.samples);
            of_device.total.add(bytes, from, to);
            (crosses ? of_device.boundary : of_device.inside).add(bytes, from, to);
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
