#pragma once

#include <gpipe/runtime/device_work.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/step.hpp>
#include <gpipe/runtime/tables.hpp>
#include <gpipe/transport/local.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

namespace gpipe::detail {

// Of several replicas: see runtime/replica_exchange.hpp.
template <class End> class ReplicaExchange;

// What a step does with the buffers of layers, see LayerTraits::Buffers: its forwards leave
// statistics, one action behind them merges these and changes a copy of the buffers by them, and
// the update keeps that if the step counts. So layers may throw, and a step that fails, or is
// skipped, leaves them as they were.
template <class Device> class BufferMoves {
    using Work = StepWork<Device>;

  public:
    BufferMoves(Device& device, Tables const& tables) : device_(device), tables_(tables) {}

    // What they become: where there are replicas by the statistics of all, and so the same
    // everywhere. End: a StepEnd.
    template <class End> void find_next(End& end, Run& run, Step const& step) {
        DeviceBuffers const& own = tables_.buffers.devices[step.device];
        if (own.statistics_bytes > 0) {
            if (run.arguments.before == 0)
                device_.fill(step.stream, own.statistics, own.statistics_bytes);
            each_layer(run, step,
                       [batches = run.filled()](LayerParts const& layer, std::size_t i,
                                                BufferMemory const& memory, void const* stream) {
                           merge(layer, i, memory, memory.part, 0, batches, stream);
                       });
            if constexpr (joins_ranks<Device>)
                if (tables_.replicas.any() && run.arguments.last)
                    ReplicaExchange<End>(end, tables_, run, step.device, step.stream)
                        .all_gather(own.statistics - tables_.ranks.replica * own.statistics_bytes,
                                    own.statistics_bytes);
        }
        if (!run.arguments.last) return;
        device_.copy(step.stream, own.next, own.buffers, own.bytes);
        each_layer(run, step,
                   [ranks = tables_.ranks](LayerParts const& layer, std::size_t i,
                                           BufferMemory memory, void const* stream) {
                       memory.statistics -= ranks.replica * memory.stride;
                       merge(layer, i, memory, memory.statistics, 1, ranks.replicas, stream);
                       layer.functions.update_buffers(layer.object, memory, stream, i);
                   });
    }
    // If the step is committed.
    void keep(Run& run, std::size_t d, std::size_t stream, StepState const* state) {
        DeviceBuffers const& own = tables_.buffers.devices[d];
        if (own.bytes == 0 || !run.arguments.updates) return;
        KeepCall const call{own.buffers, own.next, own.bytes, state, &device_.stream(stream)};
        device_.launch(stream, [&run, call]() noexcept(noexcept(Work::keep(call))) {
            if (Work::keep(call)) run.updated.store(true, std::memory_order_relaxed);
        });
    }

  private:
    // Adds those of the parts, which lie behind each other, to the statistics.
    static void merge(LayerParts const& layer, std::size_t i, BufferMemory memory, std::byte* parts,
                      std::size_t first, std::size_t last, void const* stream) {
        for (std::size_t n = first; n < last && layer.functions.merge_statistics; ++n) {
            memory.part = parts + n * memory.stride;
            layer.functions.merge_statistics(layer.object, memory, stream, i);
        }
    }
    // f(layer, its number, memory, stream) for each layer of the device; not where layers have
    // failed, or this before: statistics may be missing.
    template <class F> void each_layer(Run& run, Step const& step, F f) {
        DeviceBuffers const& own = tables_.buffers.devices[step.device];
        for (std::size_t n = own.first; n < own.last; ++n) {
            auto const work = [&run, &tables = tables_, i = tables_.buffers.layers[n], f,
                               on = &device_.stream(step.stream)] {
                if (run.failure.place() <= place_of(tables, i)) return;
                Work::attempt(
                    [&] { f(tables.model->layers[i], i, tables.layers[i].buffers, on); },
                    [&](std::exception_ptr error) { tell(run, tables, i, std::move(error)); });
            };
            device_.launch(step.stream, [work]() noexcept(Work::catches) { work(); });
        }
    }
    static std::uint32_t place_of(Tables const& tables, std::size_t layer) {
        return FirstFailure::behind_actions(tables.updates.size() + layer);
    }
    [[gnu::cold]] static void tell(Run& run, Tables const& tables, std::size_t layer,
                                   std::exception_ptr error) {
        run.failure.tell(place_of(tables, layer),
                         {layer, tables.name_of(layer), tables.cell_of(layer), Failure::all,
                          Kind::next_buffers, std::move(error)});
    }

    Device& device_;
    Tables const& tables_;
};

} // namespace gpipe::detail
