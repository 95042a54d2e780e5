#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/runtime/calls.hpp>
#include <gpipe/runtime/model.hpp>

#include <algorithm>
#include <cstddef>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// What a device has of layers with buffers, see LayerTraits::Buffers; of another rank's the sizes
/// alone.
struct DeviceBuffers {
    std::byte* buffers = nullptr;     ///< of all of them
    std::byte* next = nullptr;        ///< what they become
    std::size_t bytes = 0;            ///< of each
    std::byte* statistics = nullptr;  ///< of the mini-batch, among those of all replicas
    std::size_t statistics_bytes = 0; ///< of one replica's
    std::size_t exchanged_bytes = 0;  ///< the most that a replica tells others within a step
    std::size_t first = 0;            ///< of its layers, in BufferRows::layers
    std::size_t last = 0;             ///< one past them
};

/// All layers with buffers.
struct BufferRows {
    Array<DeviceBuffers> devices; ///< by device
    Array<std::size_t> layers;    ///< in the chain, device by device
};

namespace detail {

// Tells layers where theirs lie, too.
[[gnu::cold]] GPIPE_INLINE BufferRows buffer_rows(Array<LayerMemory>& layers, Model const& model,
                                                  MemoryPlan const& plan,
                                                  Array<std::byte*> const& arenas,
                                                  Ranks const& ranks) {
    Programs const& programs = plan.lowered.programs;
    std::size_t count = 0;
    for (LayerInfo const& layer : model.infos) count += layer.has_buffers();
    BufferRows result{Array<DeviceBuffers>(plan.devices.size()), Array<std::size_t>(count)};
    std::size_t at = 0;
    for (std::size_t d = 0; d < plan.devices.size(); ++d) {
        DeviceBuffers& own = result.devices[d];
        own.bytes = plan.begin[d].next - plan.begin[d].buffers;
        own.statistics_bytes =
            (plan.begin[d].part - plan.begin[d].statistics) / plan.replication.count;
        own.first = at;
        bool const here = ranks.own(d);
        std::byte* const arena = arenas[d];
        std::size_t const before = ranks.replica * own.statistics_bytes;
        if (here) {
            own.buffers = arena + plan.begin[d].buffers;
            own.next = arena + plan.begin[d].next;
            own.statistics = arena + plan.begin[d].statistics + before;
        }
        for (std::size_t const c : programs.cells_of(d))
            for (std::size_t i = plan.first[c]; i < plan.first[c + 1]; ++i) {
                LayerInfo const& layer = model.infos[i];
                BufferMemory& memory = layers[i].buffers;
                std::size_t const bytes = layer.exchanged.slots(1),
                                  gradient = layer.exchanged_gradient.slots(1);
                own.exchanged_bytes = std::max({own.exchanged_bytes, bytes, gradient});
                if (here && layer.exchanges() && !programs.evaluates())
                    memory.exchange = {arena + plan.exchanged[i],
                                       bytes,
                                       arena + plan.begin[d].exchanged,
                                       gradient,
                                       ranks.replica,
                                       plan.replication.count};
                if (!here || !layer.has_buffers()) continue;
                result.layers[at++] = i;
                memory = {arena + plan.buffers[i],
                          own.next + (plan.buffers[i] - plan.begin[d].buffers),
                          arena + plan.statistics[i] + before,
                          arena + plan.begin[d].part +
                              (plan.statistics[i] - plan.begin[d].statistics),
                          own.statistics_bytes,
                          programs.micro_batches(),
                          memory.exchange};
            }
        own.last = at;
    }
    return result;
}

} // namespace detail
} // namespace gpipe
GPIPE_RUNS_ONCE_END
