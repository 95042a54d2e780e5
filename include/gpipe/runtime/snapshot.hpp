#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/model.hpp>

#include <cstddef>

namespace gpipe::detail {

// Bytes of a copy of the whole state: parameters, their optimizer state, and buffers; ties once.
[[gnu::cold]] GPIPE_INLINE std::size_t snapshot_bytes(Model const& model) {
    std::size_t bytes = 0;
    auto const kept = [&](std::size_t layer, std::size_t tensor) {
        return model.infos[layer].learns(tensor) ? 1 + model.states : 1;
    };
    for (std::size_t i = 0; i < model.infos.size(); ++i) {
        LayerInfo const& layer = model.infos[i];
        for (std::size_t t = 0; t < layer.parameters.count; ++t)
            bytes += kept(i, t) * layer.parameters.bytes[t];
        for (std::size_t t = 0; t < layer.buffers.count; ++t) bytes += layer.buffers.bytes[t];
    }
    for (TiedTensor const& end : model.ties)
        if (!end.is_first) bytes -= kept(end.layer, end.tensor) * end.bytes;
    return bytes;
}

// Of what one of several ranks saves of it, at most: with what its arenas have between tensors.
[[gnu::cold]] GPIPE_INLINE std::size_t snapshot_bytes(MemoryPlan const& plan, Ranks const& ranks) {
    std::size_t bytes = 0;
    bool const first = ranks.replica == 0;
    for (std::size_t d = ranks.begin(); d < ranks.end(); ++d) {
        DeviceOffsets const& begin = plan.begin[d];
        if (first)
            bytes += plan.devices[d].parameters + (begin.unwanted - begin.frozen) +
                     (begin.next - begin.buffers);
        if (first || plan.replication.shards) bytes += plan.devices[d].optimizer;
    }
    return bytes;
}

} // namespace gpipe::detail
