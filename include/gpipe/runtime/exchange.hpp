#pragma once

#include <gpipe/call/step_state.hpp>
#include <gpipe/core/bytes.hpp>

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

namespace gpipe {

/// The host's side of the steps that may be under way, each with a slot of memory that the device
/// copies from and to: what a step was told (the optimizer), what it says (its state, the loss's
/// totals, and the sums of the gradients' squares), and, where the mini-batch has to be brought to
/// the device, room for that.
template <class Memory> class Exchange {
  public:
    /// Of each slot.
    struct Sizes {
        std::size_t totals = 2;    ///< numbers
        std::size_t squares = 0;   ///< numbers
        std::size_t optimizer = 0; ///< bytes of it
        std::size_t batch = 0;     ///< bytes of a mini-batch in slots
    };

    Exchange() = default;
    /// `allocate(bytes)` gives the memory, zeroed.
    template <class Allocate>
    Exchange(Sizes sizes, std::size_t slots, Allocate allocate)
        : squares_at_(slot_bytes(sizeof(StepState)) + slot_bytes(sizes.totals * sizeof(double))),
          optimizer_at_(squares_at_ + slot_bytes(sizes.squares * sizeof(double))),
          batch_at_(optimizer_at_ + slot_bytes(sizes.optimizer)), optimizer_bytes_(sizes.optimizer),
          stride_(batch_at_ + sizes.batch), memory_(allocate(slots * stride_)) {
        for (std::size_t slot = 0; slot < slots; ++slot) new (at(slot)) StepState;
    }

    /// Of a slot.
    ///@{
    StepState& state(std::size_t slot) const {
        return *std::launder(reinterpret_cast<StepState*>(at(slot)));
    }
    double* totals(std::size_t slot) const {
        return reinterpret_cast<double*>(at(slot) + slot_bytes(sizeof(StepState)));
    }
    ///@}
    /// Of each gradient, in the order of the updates.
    double* squares(std::size_t slot) const {
        return reinterpret_cast<double*>(at(slot) + squares_at_);
    }
    /// What the step was told, of a slot.
    std::byte* optimizer(std::size_t slot) const { return at(slot) + optimizer_at_; }
    /// Room for a mini-batch, of a slot.
    std::byte* batch(std::size_t slot) const { return at(slot) + batch_at_; }
    /// Copies it; null leaves what there is.
    void set_optimizer(std::size_t slot, void const* optimizer) const {
        if (optimizer) std::memcpy(this->optimizer(slot), optimizer, optimizer_bytes_);
    }

  private:
    std::byte* at(std::size_t slot) const { return memory_.data() + slot * stride_; }

    std::size_t squares_at_ = 0;
    std::size_t optimizer_at_ = 0;
    std::size_t batch_at_ = 0;
    std::size_t optimizer_bytes_ = 0;
    std::size_t stride_ = 0;
    Memory memory_;
};

} // namespace gpipe
