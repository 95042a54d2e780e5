#pragma once

#include <gpipe/call/call.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/split.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/model.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Where the samples of a run are: in the caller's arrays, where those will have been copied to on
/// a device that cannot read them, or where they are kept.
class MiniBatch {
  public:
    using Pointers = std::span<TensorPointer const>; ///< arrays of the caller, one per tensor

    /// What has to be copied before the run, or behind it.
    struct Copy {
        std::byte* staged = nullptr; ///< in the memory of a device
        std::byte* given = nullptr;  ///< in the caller's array
        std::size_t bytes = 0;       ///< how many
        std::size_t pinned = 0;      ///< where it may wait: offset in room for a mini-batch
    };

    /// What is copied when it is given, where devices read the caller's arrays.
    enum class Keeps { nothing, sides, all };

    MiniBatch() = default;
    MiniBatch(MiniBatch const&) = delete;
    MiniBatch& operator=(MiniBatch const&) = delete;
    ~MiniBatch() = default;

    /// Once, before the first run. `arenas`: by device. Samples are staged where the plan has room
    /// for them. `keeps`: what is not is copied by take(), for it may be read when the caller's
    /// arrays are others already. Throws std::invalid_argument for more than 64 tensors of which
    /// some may be absent.
    [[gnu::cold]] void prepare(Model const& model, MemoryPlan const& plan,
                               Array<std::byte*> const& arenas, Ranks const& ranks, Keeps keeps) {
        Programs const& programs = plan.lowered.programs;
        micro_batches_ = programs.micro_batches();
        samples_ = plan.capacity * micro_batches_;
        std::size_t const readers = model.sides.size() == 0 ? 0 : plan.stages ? arenas.size() : 1;
        groups_ = Array<Group>(readers + 2);
        std::size_t copies = 0;
        auto const set = [&](Group& group, std::size_t tensors, std::size_t device,
                             std::size_t bytes, std::size_t at) {
            group.tensors = tensors;
            group.device = device;
            group.table = Array<std::byte*>(micro_batches_ * tensors);
            if (!plan.stages || bytes == 0 || !ranks.own(device)) return;
            group.bytes = bytes;
            group.staged = arenas[device] + at;
            group.pinned_at = staged_bytes_;
            staged_bytes_ += bytes;
            for (std::size_t t = 0; t < tensors; ++t) copies += group.has(t);
        };
        set(groups_[0], model.infos[0].input.count, programs.device_of(0), plan.staged_inputs,
            plan.inputs_at);
        for (std::size_t d = 0; d < readers; ++d) {
            if (plan.stages && !ranks.own(d)) continue;
            if (plan.stages) groups_[d + 1].reads = read_sides(model, plan, d);
            set(groups_[d + 1], model.sides.size(), d, plan.begin[d].staged_sides,
                plan.begin[d].sides);
        }
        std::size_t const pinned = staged_bytes_;
        std::size_t const outputs = model.infos[model.infos.size() - 1].output.count;
        set(groups_[readers + 1], std::max(model.targets.count, outputs),
            programs.device_of(programs.cells() - 1), plan.staged_targets, plan.targets_at);
        stages_outputs_ = plan.staged_targets > 0 && plan.lowered.computing().evaluates();
        if (stages_outputs_) staged_bytes_ = pinned;
        copies_ = Array<Copy>(copies);
        if (!plan.stages) make_room(model, ranks, keeps);
        find_optionals(model);
    }

    /// Takes samples [first, first + count) of the caller's arrays, in the room of `slot` where
    /// they are staged: those of `inputs` that the first cell takes, then the side inputs. `others`
    /// are targets or, if not measured, outputs, of which nothing is kept.
    void take(Pointers inputs, Pointers others, std::size_t first, std::size_t count, bool measures,
              std::size_t slot) {
        copy_count_ = 0;
        absent_ = number_ = 0;
        for (Pointers const some : {inputs, others})
            for (std::size_t t = 0; t < some.size() && number_ == 0; ++t) number_ = some[t].number;
        for (std::size_t i = 0; i < tags_.size(); ++i)
            if (bool const given = i < inputs.size(); given || measures)
                absent_ |= std::uint64_t{(given ? inputs[i] : others[i - inputs.size()]).absent}
                           << i;
        SampleRange const samples{first, count};
        Group& others_group = groups_[groups_.size() - 1];
        std::size_t const own = groups_[0].tensors;
        point(groups_[0], inputs.first(own), samples, groups_[0].staged, slot);
        for (std::size_t g = 1; g + 1 < groups_.size(); ++g)
            point(groups_[g], inputs.subspan(own), samples, groups_[g].staged, slot);
        fed_ = copy_count_;
        point(others_group, others, samples, others_group.staged && (measures || stages_outputs_),
              stages_outputs_ ? 0 : slot);
        if (!stages_outputs_) fed_ = copy_count_;
    }

    /// Inputs of the chain; targets or outputs.
    ///@{
    GivenTensors inputs() const { return groups_[0].given(); }
    GivenTensors others() const { return groups_[groups_.size() - 1].given(); }
    ///@}
    /// Side inputs where a device finds them: [micro-batch][side]; null where there are none.
    std::byte* const* sides(std::size_t device) const {
        if (groups_.size() == 2) return nullptr;
        return groups_[groups_.size() > 3 ? device + 1 : 1].table.data();
    }
    /// Which tensors are absent.
    StepOptionals optionals() const { return {tags_.data(), absent_}; }
    /// See TensorPointer: of the first tensor that has one.
    std::uint64_t number() const { return number_; }
    /// Before the run: of the inputs, then of side inputs, then of targets.
    std::span<Copy const> feeds() const { return {copies_.data(), fed_}; }
    /// Behind it: of outputs, where they are staged.
    std::span<Copy const> outputs() const { return {copies_.data() + fed_, copy_count_ - fed_}; }
    /// Whether what a run of any rank does is the same wherever outputs are to be.
    bool stages_outputs() const { return stages_outputs_; }
    /// Bytes of room for a mini-batch outside the device.
    std::size_t staged_bytes() const { return staged_bytes_; }
    /// Whether take() copies all that is read here: the caller's arrays are not.
    bool keeps_all() const { return keeps_all_; }
    /// The device that reads the inputs.
    std::size_t reader() const { return groups_[0].device; }
    /// The device of each copy that there can be before a run.
    Array<std::size_t> feed_devices() const {
        Array<std::size_t> devices(copies_.size());
        std::size_t n = 0;
        for (std::size_t g = 0; g + stages_outputs_ < groups_.size(); ++g)
            for (std::size_t t = 0; t < groups_[g].tensors && groups_[g].bytes > 0; ++t)
                if (groups_[g].has(t)) devices[n++] = groups_[g].device;
        return first_of(devices, n);
    }

  private:
    // Tensors that a device reads or writes in the caller's arrays, or where these are staged or
    // kept.
    struct Group {
        std::size_t tensors = 0;
        std::size_t device = 0;
        std::size_t bytes = 0; // of one mini-batch in its room
        std::byte* staged = nullptr;
        std::size_t pinned_at = 0; // in the room outside
        Array<std::byte*> table;   // [micro-batch][tensor]
        Array<bool> reads;         // by tensor; empty: all
        Array<std::byte> kept;     // room for what is copied when it is given

        GivenTensors given() const {
            return {GroupAddress::of_arrays(table.data(), tensors), tensors};
        }
        bool has(std::size_t tensor) const { return reads.empty() || reads[tensor]; }
        void keep(std::size_t room) {
            kept = Array<std::byte>(room);
            staged = kept.data();
        }
    };

    // Which tensors may be absent, if any.
    void find_optionals(Model const& model) {
        GroupSizes const& inputs = model.infos[0].input;
        GroupSizes const targets = stages_outputs_ ? GroupSizes{} : model.targets;
        Array<void const*> tags(inputs.count + model.sides.size() + targets.count);
        std::size_t at = 0;
        bool any = false;
        auto const add = [&](void const* tag) {
            any = any || tag;
            tags[at++] = tag;
        };
        for (std::size_t t = 0; t < inputs.count; ++t) add(inputs.elements[t].optional);
        for (SideInfo const& side : model.sides) add(side.optional);
        for (std::size_t t = 0; t < targets.count; ++t) add(targets.elements[t].optional);
        if (!any) return;
        if (at > 64)
            detail::throw_error<std::invalid_argument>("gpipe: a mini-batch has %zu tensors, of "
                                                       "which some may be absent: then it may have "
                                                       "at most 64",
                                                       at);
        tags_ = static_cast<Array<void const*>&&>(tags);
    }
    // Which side inputs the layers of a device read.
    static Array<bool> read_sides(Model const& model, MemoryPlan const& plan, std::size_t device) {
        Array<bool> reads(model.sides.size());
        for (std::size_t const c : plan.lowered.programs.cells_of(device))
            for (std::size_t i = plan.first[c]; i < plan.first[c + 1]; ++i)
                for (std::size_t s = 0; s < reads.size(); ++s)
                    reads[s] = reads[s] || has(model.infos[i].sides, model.sides[s].tag);
        return reads;
    }
    void make_room(Model const& model, Ranks const& ranks, Keeps keeps) {
        keeps_all_ = keeps == Keeps::all;
        Group &inputs = groups_[0], &others = groups_[groups_.size() - 1];
        if (keeps_all_ && ranks.own(inputs.device))
            inputs.keep(model.infos[0].input.slots(samples_));
        if (keeps_all_ && ranks.own(others.device)) others.keep(model.targets.slots(samples_));
        std::size_t bytes = 0;
        for (SideInfo const& side : model.sides) bytes += slot_bytes(samples_ * side.bytes);
        if (keeps != Keeps::nothing && bytes > 0) groups_[1].keep(bytes);
    }
    [[gnu::noinline]] void point(Group& group, Pointers from, SampleRange samples, bool stages,
                                 std::size_t slot) {
        std::byte* staged = group.staged + (stages ? slot * group.bytes : 0);
        std::size_t pinned = group.pinned_at;
        Split const split(samples.count, micro_batches_);
        for (std::size_t t = 0; t < from.size() && t < group.tensors; ++t) {
            if (!group.has(t)) continue;
            std::size_t const bytes = from[t].sample_bytes;
            // Of one that is absent nothing is read; its copy keeps its place among the others.
            std::byte* data = from[t].absent ? nullptr : from[t].data + samples.first * bytes;
            if (stages) {
                std::size_t const given = from[t].absent ? 0 : samples.count * bytes;
                if (group.kept.empty())
                    copies_[copy_count_++] = {staged, data, given, pinned};
                else if (given > 0)
                    std::memcpy(staged, data, given);
                data = staged;
                staged += slot_bytes(samples_ * bytes);
                pinned += slot_bytes(samples_ * bytes);
            }
            for (std::size_t m = 0; m < micro_batches_; ++m)
                group.table[m * group.tensors + t] = data ? data + split[m].first * bytes : nullptr;
        }
    }

    std::size_t micro_batches_ = 0;
    std::size_t samples_ = 0; // that there is room for
    // The inputs; side inputs, if there are any: by device where they are staged, else of all; and
    // targets or outputs.
    Array<Group> groups_;
    Array<Copy> copies_;
    std::size_t copy_count_ = 0;
    std::size_t fed_ = 0; // of these
    bool stages_outputs_ = false;
    Array<void const*> tags_;  // by tensor: inputs, side inputs, targets; none if all are there
    std::uint64_t absent_ = 0; // a bit for each
    std::uint64_t number_ = 0;
    std::size_t staged_bytes_ = 0;
    bool keeps_all_ = false;
};

} // namespace gpipe
GPIPE_RUNS_ONCE_END
