#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/micro_batches.hpp>
#include <gpipe/runtime/model.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace gpipe {

/// Whether the plan is of devices with memory of their own, see Staging.
GPIPE_INLINE bool has_staging(MemoryPlan const& plan) { return plan.stages; }

/// Where the samples of a run are: in the caller's arrays, or where those will have been copied to
/// on a device that cannot read them.
class MiniBatch {
  public:
    using Pointers = std::span<TensorPointer const>; ///< arrays of the caller, one per tensor

    /// What has to be copied before the run.
    struct Copy {
        std::size_t device = 0;          ///< whose memory it goes to
        std::byte* to = nullptr;         ///< there
        std::byte const* from = nullptr; ///< in the caller's array
        std::size_t bytes = 0;           ///< how many
        std::size_t pinned = 0;          ///< where it may wait: offset in room for a mini-batch
    };

    MiniBatch() = default;
    /// `arenas`: by device. Samples are staged where the plan has room for them.
    MiniBatch(Model const& model, MemoryPlan const& plan, Array<std::byte*> const& arenas,
              Ranks const& ranks)
        : micro_batches_(plan.lowered.programs.micro_batches()),
          samples_(plan.capacity * micro_batches_), inputs_{model.input_tensors,
                                                            plan.lowered.programs.device_of(0),
                                                            nullptr,
                                                            plan.staged_inputs,
                                                            0,
                                                            Array<std::byte*>(micro_batches_ *
                                                                              model.input_tensors)},
          others_{model.target_tensors,
                  plan.lowered.programs.device_of(plan.lowered.programs.cells() - 1),
                  nullptr,
                  plan.staged_targets,
                  plan.staged_inputs,
                  Array<std::byte*>(micro_batches_ * model.target_tensors)} {
        if (!has_staging(plan)) return;
        for (auto [side, at] : {std::pair{&inputs_, plan.inputs_at}, {&others_, plan.targets_at}})
            if (ranks.own(side->device)) side->staged = arenas[side->device] + at;
        copies_ = Array<Copy>((inputs_.staged ? inputs_.tensors : 0) +
                              (others_.staged ? others_.tensors : 0));
    }

    /// Takes samples [first, first + count) of the caller's arrays, in the room of `slot` where
    /// they are staged. `others` are targets or, if not measured, outputs.
    void take(Pointers inputs, Pointers others, std::size_t first, std::size_t count, bool measures,
              std::size_t slot) {
        copy_count_ = 0;
        point(inputs_, inputs, first, count, inputs_.staged, slot);
        point(others_, others, first, count, others_.staged && measures, slot);
    }

    /// The arrays of one micro-batch's tensors.
    GroupAddress inputs(std::size_t micro_batch) const { return inputs_.of(micro_batch); }
    /// Targets or outputs.
    GroupAddress others(std::size_t micro_batch) const { return others_.of(micro_batch); }
    /// Of the inputs, then of targets or outputs.
    std::span<Copy const> copies() const { return {copies_.data(), copy_count_}; }
    /// Bytes of room for a mini-batch outside the device.
    std::size_t staged_bytes() const { return copies_.size() ? inputs_.bytes + others_.bytes : 0; }
    /// The device that reads the inputs.
    std::size_t reader() const { return inputs_.device; }
    /// The device of each copy that there can be.
    Array<std::size_t> copy_devices() const {
        Array<std::size_t> devices(copies_.size(), others_.device);
        for (std::size_t t = 0; t < inputs_.tensors && inputs_.staged; ++t)
            devices[t] = inputs_.device;
        return devices;
    }

  private:
    struct Side {
        std::size_t tensors = 0;
        std::size_t device = 0;
        std::byte* staged = nullptr;
        std::size_t bytes = 0;     // of one mini-batch in its room
        std::size_t pinned_at = 0; // in the room outside
        Array<std::byte*> table;   // [micro-batch][tensor]

        GroupAddress of(std::size_t micro_batch) const {
            return GroupAddress::of_arrays(table.data() + micro_batch * tensors, tensors);
        }
    };

    void point(Side& side, Pointers from, std::size_t first, std::size_t count, bool stages,
               std::size_t slot) {
        std::byte* staged = side.staged + (stages ? slot * side.bytes : 0);
        std::size_t pinned = side.pinned_at;
        Split const split(count, micro_batches_);
        for (std::size_t t = 0; t < from.size(); ++t) {
            std::size_t const bytes = from[t].sample_bytes;
            std::byte* data = from[t].data + first * bytes;
            if (stages) {
                copies_[copy_count_++] = {side.device, staged, data, count * bytes, pinned};
                data = staged;
                staged += slot_bytes(samples_ * bytes);
                pinned += slot_bytes(samples_ * bytes);
            }
            for (std::size_t m = 0; m < micro_batches_; ++m)
                side.table[m * side.tensors + t] = data + split[m].first * bytes;
        }
    }

    std::size_t micro_batches_ = 0;
    std::size_t samples_ = 0; // that there is room for
    Side inputs_;
    Side others_;
    Array<Copy> copies_;
    std::size_t copy_count_ = 0;
};

} // namespace gpipe
