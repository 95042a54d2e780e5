#pragma once

#include <gpipe/call/handle_set.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/exact_sum.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/runtime/buffer_rows.hpp>
#include <gpipe/runtime/calls.hpp>
#include <gpipe/runtime/debug_calls.hpp>
#include <gpipe/runtime/mini_batch.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/runtime/replica_parts.hpp>
#include <gpipe/runtime/update.hpp>
#include <gpipe/runtime/work.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace gpipe {

/// What the engine knows of a training beside the order of its actions: functions, addresses and
/// sizes, none of which changes after construction.
struct Tables {
    /// What a device has beside tensors of layers.
    struct OnDevice {
        std::span<std::byte> gradients{}; ///< all of them
        /// Where it cannot read the host's memory, what is copied there, or found.
        ///@{
        StepState* state = nullptr;
        std::byte* optimizer = nullptr;
        std::byte* constants = nullptr; ///< null: nobody reads them
        std::byte* squares = nullptr;   ///< sums of the squares of its gradients
        ///@}
    };

    /// Parameter tensors that are one.
    struct Tie {
        std::size_t first = 0; ///< of its ends, in `tied`
        std::size_t last = 0;  ///< one past them
        std::size_t bytes = 0; ///< of the tensor, without padding
    };
    static constexpr std::uint32_t no_row = static_cast<std::uint32_t>(-1); ///< in `tied`

    Model const* model = nullptr;  ///< whose tables they are; outlives them
    Calls calls;                   ///< by cell and CallList
    Array<DebugCall> debug;        ///< that these stand for, if they do
    Array<LayerMemory> layers;     ///< by layer
    Array<std::byte*> tensors;     ///< that those point to
    Array<CellRow> cells;          ///< by cell
    Array<EdgeRow> edges;          ///< by edge
    Array<UpdateRow> updates;      ///< device by device
    Array<std::size_t> updates_at; ///< by device, and the end
    Array<OnDevice> devices;       ///< by device
    BufferRows buffers;            ///< of layers that have any
    Array<std::uint32_t> order;    ///< of `updates`, in which the chain has them; tied ones once
    Array<std::uint32_t> tied; ///< of `updates`, as Model::ties has the ends; no_row of frozen ones
    Array<std::uint32_t> holders; ///< likewise: of the end that has the parameter and its state
    Array<std::byte*> brought;    ///< likewise: where its gradient comes; null: it is read
    Array<Tie> ties;              ///< whose ends they are
    /// Where the sums of the squares of all gradients are found on the last device, where it cannot
    /// read the host's memory; and `order`, likewise.
    double* all_squares = nullptr;
    std::uint32_t* order_there = nullptr; ///< see above
    HandleSet const* handles = nullptr;   ///< by device
    /// [replica][micro-batch][loss_row], the others' where it is decided; then two rows for their
    /// totals, with room for the norm of all gradients behind the first.
    double* loss_sums = nullptr;
    std::size_t sums = 2;          ///< numbers that the loss leaves per micro-batch
    std::size_t loss_row = 2;      ///< with what nobody may write behind, in debug mode
    std::size_t micro_batches = 0; ///< M
    std::size_t capacity = 0;      ///< samples that a micro-batch has room for
    std::size_t last_device = 0;   ///< of the last cell
    Ranks ranks;                   ///< who has the devices
    ReplicaParts replicas;         ///< what they exchange
    /// Between ranks, see detail::make_channels(): by end of a tie to the rank of the first, then
    /// by rank of any replica to that which decides; the next one goes back.
    Array<std::uint32_t> channels;

    /// Of an end of a tie, and of a rank of any replica; no_channel where both ends are one rank's.
    ///@{
    std::uint32_t channel_of_end(std::size_t end) const { return channels[end]; }
    std::uint32_t channel_of_rank(std::size_t rank) const { return channels[tied.size() + rank]; }
    /// Of that channel, where updates are immediate: the one that brings commits, and the one that
    /// takes the losses of a replica.
    static std::uint32_t commits(std::uint32_t channel) { return channel + 2; }
    static std::uint32_t losses(std::uint32_t channel) { return channel + 3; } ///< see above
    ///@}
    /// Who decides: of the first replica the one of the last cell.
    std::size_t decider() const { return ranks.of(last_device); }
    /// f(rank of any replica, its channel) for all but that one.
    template <class F> void each_channel_of_rank(F f) const {
        for (std::size_t r = 0; r < ranks.all(); ++r)
            if (r != decider()) f(r, channel_of_rank(r));
    }
    /// Of a layer, or, behind the last, of the loss.
    std::string_view name_of(std::size_t layer) const {
        return layer < model->infos.size() ? model->infos[layer].name : model->loss.name;
    }
    /// Of a layer.
    std::size_t cell_of(std::size_t layer) const {
        std::size_t cell = cells.size() - 1;
        while (cells[cell].first > layer) --cell;
        return cell;
    }
    /// Whether a device has this one of `updates`.
    bool has_row(std::size_t device, std::size_t row) const {
        return updates_at[device] <= row && row < updates_at[device + 1];
    }
    /// Which one has the row of an end of a tie, of parameters that are trained.
    std::size_t device_of_end(std::size_t end) const {
        std::size_t device = 0;
        while (!has_row(device, tied[end])) ++device;
        return device;
    }
    /// Whether a tie is of parameters that are trained.
    bool learns(Tie const& tie) const { return tied[tie.first] != no_row; }
    /// How many numbers a replica has for the norm of all gradients: by row the sum of its squares,
    /// or of its part's, and of several replicas behind these, by device with parameters, the words
    /// of exact_value() of all of them; and where those of a device begin.
    ///@{
    std::size_t squares() const { return exact_squares_at(devices.size()); }
    std::size_t exact_squares_at(std::size_t device) const {
        return updates.size() + (replicas.any() ? learners(device) * exact_words : 0);
    }
    ///@}
    /// How many devices before this one have parameters.
    std::size_t learners(std::size_t device) const {
        std::size_t count = 0;
        for (std::size_t d = 0; d < device; ++d) count += has_updates(d);
        return count;
    }
    /// Whether a device has parameters.
    bool has_updates(std::size_t device) const {
        return updates_at[device] < updates_at[device + 1];
    }
};

} // namespace gpipe
