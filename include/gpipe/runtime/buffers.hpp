#pragma once

#include <gpipe/runtime/device_work.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/step.hpp>
#include <gpipe/runtime/tables.hpp>

#include <cstddef>
#include <exception>
#include <utility>

namespace gpipe::detail {

// Of several replicas: see runtime/replica_exchange.hpp.
template <class End> class ReplicaExchange;

// What a step does with the buffers of layers, see LayerTraits::Buffers: its forwards add to the
// statistics of the mini-batch, one action behind them changes a copy of the buffers by these, and
// the update keeps that if the step counts. So layers may throw, and a step that fails, or is
// skipped, leaves them as they were.
template <class Device> class BufferMoves {
    using Work = StepWork<Device>;

  public:
    BufferMoves(Device& device, Tables const& tables) : device_(device), tables_(tables) {}

    // Before a step's first action.
    void clear_statistics(std::size_t d, std::size_t stream) {
        DeviceBuffers const& own = tables_.buffers.devices[d];
        if (own.statistics_bytes > 0) device_.fill(stream, own.statistics, own.statistics_bytes);
    }
    // What they become: where there are replicas by the statistics of all, and so the same
    // everywhere. End: a StepEnd.
    template <class End> void find_next(End& end, Run& run, Step const& step) {
        DeviceBuffers const& own = tables_.buffers.devices[step.device];
        if constexpr (joins_ranks<Device>)
            if (tables_.replicas.any())
                ReplicaExchange<End>(end, tables_, run, step).all_gather(own);
        if (run.failed()) return; // statistics may be missing
        device_.copy(step.stream, own.next, own.buffers, own.bytes);
        for (std::size_t i = own.first; i < own.last; ++i) {
            auto const find = [self = *this, &run, i, step] {
                BufferRow const& row = self.tables_.buffers.rows[i];
                Work::attempt(
                    [&] { self.find_next(row, step); },
                    [&](std::exception_ptr error) { self.tell(run, row.layer, std::move(error)); });
            };
            device_.launch(step.stream, [find]() noexcept(Work::catches) { find(); });
        }
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
    // Of one layer. Where there are replicas, their statistics are merged in their order.
    void find_next(BufferRow const& row, Step const& step) const {
        void const* const stream = &device_.stream(step.stream);
        BufferMemory memory = tables_.layers[row.layer].buffers;
        std::size_t const replicas = row.merge ? tables_.ranks.replicas : 1;
        std::size_t const stride = tables_.buffers.devices[step.device].statistics_bytes;
        if (row.merge) memory.statistics -= tables_.ranks.replica * stride;
        for (std::size_t r = 1; r < replicas; ++r) {
            memory.part = memory.statistics + r * stride;
            row.merge(row.object, memory, stream, row.layer);
        }
        row.update(row.object, memory, stream, row.layer);
    }
    void tell(Run& run, std::size_t layer, std::exception_ptr error) const {
        run.failure.tell(FirstFailure::behind_actions(tables_.updates.size() + layer),
                         {layer, tables_.layer_names[layer], tables_.cell_of(layer), Failure::all,
                          Kind::next_buffers, std::move(error)});
    }

    Device& device_;
    Tables const& tables_;
};

} // namespace gpipe::detail
