#pragma once

#include <gpipe/call/step_optionals.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/micro_batches.hpp>
#include <gpipe/runtime/model.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
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
    /// `arenas`: by device. Samples are staged where the plan has room for them. `keeps`: side
    /// inputs that are not are copied by take(), for they may be read when the caller's arrays are
    /// others already.
    [[gnu::cold]] MiniBatch(Model const& model, MemoryPlan const& plan,
                            Array<std::byte*> const& arenas, Ranks const& ranks, bool keeps)
        : micro_batches_(plan.lowered.programs.micro_batches()),
          samples_(plan.capacity * micro_batches_),
          inputs_(micro_batches_, model.input_tensors, plan.lowered.programs.device_of(0),
                  plan.staged_inputs),
          others_(micro_batches_, model.target_tensors,
                  plan.lowered.programs.device_of(plan.lowered.programs.cells() - 1),
                  plan.staged_targets),
          sides_(model.sides.size() > 0 ? arenas.size() : 0) {
        find_optionals(model);
        for (std::size_t d = 0; d < sides_.size(); ++d)
            if (ranks.own(d)) {
                sides_[d] = {micro_batches_, model.sides.size(), d, plan.staged_sides[d]};
                sides_[d].reads = read_sides(model, plan, d);
            }
        if (!has_staging(plan)) {
            for (SideInfo const& side : model.sides)
                kept_bytes_ += keeps ? slot_bytes(samples_ * side.bytes) : 0;
            kept_ = Array<std::byte>(kept_bytes_);
            kept_sides_ = Array<TensorPointer>(model.sides.size());
            return;
        }
        std::size_t copies = 0;
        auto const stage = [&](Side& side, std::size_t at) {
            if (!ranks.own(side.device)) return;
            side.staged = arenas[side.device] + at;
            side.pinned_at = staged_bytes_;
            staged_bytes_ += side.bytes;
            for (std::size_t t = 0; t < side.tensors; ++t) copies += side.has(t);
        };
        stage(inputs_, plan.inputs_at);
        for (std::size_t d = 0; d < sides_.size(); ++d)
            if (plan.staged_sides[d] > 0) stage(sides_[d], plan.sides_at[d]);
        stage(others_, plan.targets_at);
        copies_ = Array<Copy>(copies);
    }

    /// Takes samples [first, first + count) of the caller's arrays, in the room of `slot` where
    /// they are staged: those of `inputs` that the first cell takes, then the side inputs. `others`
    /// are targets or, if not measured, outputs.
    void take(Pointers inputs, Pointers others, std::size_t first, std::size_t count, bool measures,
              std::size_t slot) {
        copy_count_ = 0;
        absent_ = 0;
        for (std::size_t i = 0; i < optionals_.size(); ++i) {
            std::size_t const at = optionals_[i];
            bool const absent = at < inputs.size() ? inputs[at].absent
                                                   : measures && others[at - inputs.size()].absent;
            absent_ |= std::uint64_t{absent} << i;
        }
        point(inputs_, inputs.first(inputs_.tensors), first, count, inputs_.staged, slot);
        if (!sides_.empty()) take_sides(inputs.subspan(inputs_.tensors), first, count, slot);
        point(others_, others, first, count, others_.staged && measures, slot);
    }

    /// The arrays of one micro-batch's tensors.
    GroupAddress inputs(std::size_t micro_batch) const { return inputs_.of(micro_batch); }
    /// Targets or outputs.
    GroupAddress others(std::size_t micro_batch) const { return others_.of(micro_batch); }
    /// Side inputs where a device finds them: [micro-batch][side]; null where there are none.
    std::byte* const* sides(std::size_t device) const {
        return sides_.empty() ? nullptr : sides_[device].table.data();
    }
    /// Which tensors are absent.
    StepOptionals optionals() const { return {tags_.data(), absent_}; }
    /// Of the inputs, then of side inputs, then of targets or outputs.
    std::span<Copy const> copies() const { return {copies_.data(), copy_count_}; }
    /// Bytes of room for a mini-batch outside the device.
    std::size_t staged_bytes() const { return staged_bytes_; }
    /// The device that reads the inputs.
    std::size_t reader() const { return inputs_.device; }
    /// The device of each copy that there can be.
    Array<std::size_t> copy_devices() const {
        Array<std::size_t> devices(copies_.size());
        std::size_t n = 0;
        auto const add = [&](Side const& side) {
            for (std::size_t t = 0; t < side.tensors && side.staged; ++t)
                if (side.has(t)) devices[n++] = side.device;
        };
        add(inputs_);
        for (Side const& side : sides_) add(side);
        add(others_);
        return devices;
    }

  private:
    struct Side {
        std::size_t tensors = 0;
        std::size_t device = 0;
        std::size_t bytes = 0; // of one mini-batch in its room
        std::byte* staged = nullptr;
        std::size_t pinned_at = 0; // in the room outside
        Array<std::byte*> table;   // [micro-batch][tensor]
        Array<bool> reads;         // by tensor; empty: all

        Side() = default;
        Side(std::size_t micro_batches, std::size_t count, std::size_t on, std::size_t staged_bytes)
            : tensors(count), device(on), bytes(staged_bytes), table(micro_batches * count) {}
        GroupAddress of(std::size_t micro_batch) const {
            return GroupAddress::of_arrays(table.data() + micro_batch * tensors, tensors);
        }
        bool has(std::size_t tensor) const { return reads.empty() || reads[tensor]; }
    };

    // Which tensors may be absent.
    void find_optionals(Model const& model) {
        GroupSizes const& inputs = model.infos[0].input;
        auto const each = [&](auto f) {
            std::size_t at = 0;
            for (std::size_t t = 0; t < inputs.count; ++t) f(inputs.elements[t].optional, at++);
            for (SideInfo const& side : model.sides) f(side.optional, at++);
            for (std::size_t t = 0; t < model.targets.count; ++t)
                f(model.targets.elements[t].optional, at++);
        };
        std::size_t count = 0;
        each([&](void const* tag, std::size_t) { count += tag != nullptr; });
        if (count > 64)
            detail::throw_error<std::invalid_argument>(
                "gpipe: %zu tensors of a mini-batch may be absent, and at most 64 can be told",
                count);
        optionals_ = Array<std::size_t>(count);
        tags_ = Array<void const*>(count);
        count = 0;
        each([&](void const* tag, std::size_t at) {
            if (!tag) return;
            tags_[count] = tag;
            optionals_[count++] = at;
        });
    }
    // Which side inputs the layers of a device read.
    static Array<bool> read_sides(Model const& model, MemoryPlan const& plan, std::size_t device) {
        Array<bool> reads(model.sides.size());
        Programs const& programs = plan.lowered.programs;
        for (std::size_t c = 0; c < programs.cells(); ++c)
            for (std::size_t i = plan.first[c];
                 i < plan.first[c + 1] && programs.device_of(c) == device; ++i)
                for (std::size_t s = 0; s < reads.size(); ++s)
                    reads[s] = reads[s] || model.infos[i].sides.has(model.sides[s].tag);
        return reads;
    }
    void take_sides(Pointers from, std::size_t first, std::size_t count, std::size_t slot) {
        std::byte* to = kept_.data();
        for (std::size_t s = 0; s < from.size() && kept_bytes_ > 0; ++s) {
            std::size_t const bytes = from[s].sample_bytes;
            if (count > 0 && !from[s].absent)
                std::memcpy(to, from[s].data + first * bytes, count * bytes);
            kept_sides_[s] = {to, bytes, false};
            to += slot_bytes(samples_ * bytes);
        }
        for (Side& side : sides_)
            if (kept_bytes_ > 0)
                point(side, {kept_sides_.data(), kept_sides_.size()}, 0, count, false, slot);
            else
                point(side, from, first, count, side.staged, slot);
    }
    void point(Side& side, Pointers from, std::size_t first, std::size_t count, bool stages,
               std::size_t slot) {
        std::byte* staged = side.staged + (stages ? slot * side.bytes : 0);
        std::size_t pinned = side.pinned_at;
        Split const split(count, micro_batches_);
        for (std::size_t t = 0; t < from.size() && t < side.tensors; ++t) {
            if (!side.has(t)) continue;
            std::size_t const bytes = from[t].sample_bytes;
            // Of one that is absent nothing is read; its copy keeps its place among the others.
            std::byte* data = from[t].absent ? nullptr : from[t].data + first * bytes;
            if (stages) {
                copies_[copy_count_++] = {side.device, staged, data, data ? count * bytes : 0,
                                          pinned};
                data = staged;
                staged += slot_bytes(samples_ * bytes);
                pinned += slot_bytes(samples_ * bytes);
            }
            for (std::size_t m = 0; m < micro_batches_; ++m)
                side.table[m * side.tensors + t] = data ? data + split[m].first * bytes : nullptr;
        }
    }

    std::size_t micro_batches_ = 0;
    std::size_t samples_ = 0; // that there is room for
    Side inputs_;
    Side others_;
    Array<Side> sides_; // by device; none where there are no side inputs
    Array<Copy> copies_;
    std::size_t copy_count_ = 0;
    Array<void const*> tags_;      // of tensors that may be absent
    Array<std::size_t> optionals_; // which these are: inputs, side inputs, targets
    std::uint64_t absent_ = 0;     // a bit for each
    std::size_t staged_bytes_ = 0;
    std::size_t kept_bytes_ = 0;
    Array<std::byte> kept_;
    Array<TensorPointer> kept_sides_;
};

} // namespace gpipe
GPIPE_RUNS_ONCE_END
