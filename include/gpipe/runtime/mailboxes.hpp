#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/core/exact_sum.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/runtime/tables.hpp>
#include <gpipe/runtime/work.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace gpipe {

/// What the host tells the steps that may be under way, and is told by them, each in a slot of
/// memory that the device copies from and to, if it has its own: the optimizer, the step's state,
/// the loss's totals, the sums of the gradients' squares, and whether layers have thrown; and,
/// where the mini-batch has to be brought to the device, room for that.
template <DeviceMemory Device> class Mailboxes {
  public:
    /// Of each slot.
    struct Sizes {
        std::size_t totals = 2;    ///< numbers
        std::size_t squares = 0;   ///< numbers
        std::size_t optimizer = 0; ///< bytes of it; 0: the caller's is read
        std::size_t constants = 0; ///< bytes of them
        std::size_t batch = 0;     ///< bytes of a mini-batch in slots
    };

    /// `tables`, where the devices' side is, must outlive it.
    Mailboxes(Device& device, Tables const& tables, Sizes sizes)
        : tables_(&tables),
          squares_at_(slot_bytes(sizeof(StepState)) + slot_bytes(sizes.totals * sizeof(double))),
          sign_at_(squares_at_ + slot_bytes(sizes.squares * sizeof(double))),
          optimizer_at_(sign_at_ + slot_bytes(sizeof(std::uint64_t))),
          constants_at_(optimizer_at_ + slot_bytes(sizes.optimizer)),
          batch_at_(constants_at_ + slot_bytes(sizes.constants)), optimizer_bytes_(sizes.optimizer),
          constants_bytes_(sizes.constants), stride_(batch_at_ + sizes.batch),
          memory_(device.allocate_host(Device::depth * stride_)) {
        for (std::size_t slot = 0; slot < Device::depth; ++slot) {
            new (at(slot)) StepState;
            sign(slot) = no_failure;
        }
    }

    /// As the host has it, of a slot.
    ///@{
    StepState& state(std::size_t slot) const {
        return *std::launder(reinterpret_cast<StepState*>(at(slot)));
    }
    double* totals(std::size_t slot) const {
        return reinterpret_cast<double*>(at(slot) + slot_bytes(sizeof(StepState)));
    }
    /// Of each gradient, in the order of the updates.
    double* squares(std::size_t slot) const {
        return reinterpret_cast<double*>(at(slot) + squares_at_);
    }
    /// The sign of this rank.
    std::uint64_t& sign(std::size_t slot) const {
        return *reinterpret_cast<std::uint64_t*>(at(slot) + sign_at_);
    }
    /// Room for a mini-batch.
    std::byte* batch(std::size_t slot) const { return at(slot) + batch_at_; }
    ///@}
    /// The optimizer as the step is to find it: where there is room for it, a copy.
    void const* keep_optimizer(std::size_t slot, void const* optimizer) const {
        if (!optimizer || optimizer_bytes_ == 0) return optimizer;
        return std::memcpy(at(slot) + optimizer_at_, optimizer, optimizer_bytes_);
    }
    /// The step's constants as the caller has set them by now.
    void keep_constants(std::size_t slot) const {
        if (constants_bytes_ > 0)
            std::memcpy(at(slot) + constants_at_, tables_->model->constants.values,
                        constants_bytes_);
    }

    /// What a device shares with the host, of a slot.
    ///@{
    Mailbox<std::byte const> constants(std::size_t slot, std::size_t device) const {
        std::byte const* const here = at(slot) + constants_at_;
        return {here, apart() ? tables_->devices[device].constants : here, constants_bytes_};
    }
    /// If anybody there reads them.
    void put_constants(Device& device, std::size_t stream, std::size_t slot, std::size_t d) const {
        if (auto const all = constants(slot, d); all.there) all.put(device, stream);
    }
    Mailbox<StepState> state(std::size_t slot, std::size_t device) const {
        StepState* const here = &state(slot);
        return {here, apart() ? tables_->devices[device].state : here};
    }
    /// What a commit makes of that while layers read it, where updates are immediate.
    Mailbox<StepState> decided(std::size_t slot, std::size_t device) const {
        Mailbox<StepState> const own = state(slot, device);
        auto* const there = reinterpret_cast<std::byte*>(own.there) + decided_at;
        return {own.here, apart() ? reinterpret_cast<StepState*>(there) : own.here};
    }
    /// Of those the one that a commit changes, as the state is by then.
    Mailbox<StepState> begin_commit(Device& device, std::size_t stream, std::size_t slot,
                                    std::size_t d, bool immediate) const {
        Mailbox<StepState> const from = state(slot, d), to = immediate ? decided(slot, d) : from;
        if (to.there != from.there)
            device.copy(stream, reinterpret_cast<std::byte*>(to.there),
                        reinterpret_cast<std::byte const*>(from.there), sizeof(StepState));
        return to;
    }
    Mailbox<std::byte const> optimizer(void const* here, std::size_t device) const {
        auto const* const bytes = static_cast<std::byte const*>(here);
        return {bytes, apart() ? tables_->devices[device].optimizer : bytes,
                tables_->model->optimizer_bytes};
    }
    /// The sums of the squares of its gradients.
    Mailbox<double> squares(std::size_t slot, std::size_t device) const {
        std::size_t const first = tables_->updates_at[device];
        double* const here = squares(slot) + first;
        return {here,
                apart() ? reinterpret_cast<double*>(workspace(device) + squares_workspace) : here,
                tables_->updates_at[device + 1] - first};
    }
    /// Where devices have memory of their own, which ranks tell each other from: the sign of this
    /// rank as the n-th behind the state.
    Mailbox<std::uint64_t> sign(std::size_t slot, std::size_t device, std::size_t n) const {
        std::byte* const there =
            reinterpret_cast<std::byte*>(tables_->devices[device].state) + sign_of(n);
        return {&sign(slot), reinterpret_cast<std::uint64_t*>(there)};
    }
    /// Of several replicas, where work of the device has the words of exact_value() of all of them.
    std::uint64_t* exact_squares(std::size_t slot, std::size_t device) const {
        Mailbox<double> const own = squares(slot, device);
        return reinterpret_cast<std::uint64_t*>(
            apart() ? own.there + own.count : squares(slot) + tables_->exact_squares_at(device));
    }
    ///@}
    /// The same of the last device: of all gradients, behind which is room for those of other
    /// replicas, the tensors in the order of the chain, and what the loss comes to, with the norm
    /// of the gradients behind it if that is wanted.
    ///@{
    Mailbox<double> all_squares(std::size_t slot) const {
        double* const here = squares(slot);
        return {here, apart() ? tables_->all_squares : here, tables_->updates.size()};
    }
    Mailbox<std::uint32_t const> order() const {
        std::uint32_t const* const here = tables_->order.data();
        return {here, apart() ? tables_->order_there : here, tables_->order.size()};
    }
    Mailbox<double> totals(std::size_t slot, bool norm) const {
        double* const here = totals(slot);
        return {here, apart() ? behind_losses() : here, tables_->sums + norm};
    }
    /// Behind these: what the loss comes to in runs that are accumulated.
    double* carried() const { return behind_losses() + tables_->sums + 1; }
    ///@}
    /// Memory of a device for sums of squares; null where there is no need.
    std::byte* workspace(std::size_t device) const {
        return apart() ? tables_->devices[device].squares : nullptr;
    }

  private:
    double* behind_losses() const {
        return tables_->loss_sums +
               tables_->ranks.replicas * tables_->micro_batches * tables_->loss_row;
    }
    // Whether the devices' side is elsewhere.
    static constexpr bool apart() {
        return Device::staged([] { return true; });
    }
    std::byte* at(std::size_t slot) const { return memory_.data() + slot * stride_; }

    Tables const* tables_ = nullptr;
    std::size_t squares_at_ = 0;
    std::size_t sign_at_ = 0;
    std::size_t optimizer_at_ = 0;
    std::size_t constants_at_ = 0;
    std::size_t batch_at_ = 0;
    std::size_t optimizer_bytes_ = 0;
    std::size_t constants_bytes_ = 0;
    std::size_t stride_ = 0;
    decltype(std::declval<Device&>().allocate_host(0)) memory_;
};

} // namespace gpipe
