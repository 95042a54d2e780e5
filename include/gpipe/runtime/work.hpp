#pragma once

#include <gpipe/core/checked.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/host_device.hpp>
#include <gpipe/core/ordered_sum.hpp>
#include <gpipe/layer/step_state.hpp>
#include <gpipe/memory/plan.hpp>

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Bytes that the sum over a tensor of any size needs on a device whose calls enqueue.
inline constexpr std::size_t squares_workspace = slot_bytes(most_sum_blocks * sizeof(double));

/// What a device that cannot read the host's memory holds of a step: a mini-batch of at most
/// `samples` samples for each of `steps` steps, `sums` numbers of the loss per micro-batch and in
/// all, the state, the optimizer, and what it takes to find the norm of all gradients if that
/// `clips` them.
GPIPE_INLINE constexpr Staging step_staging(GroupSizes inputs, GroupSizes targets,
                                            std::size_t samples, std::size_t micro_batches,
                                            std::size_t sums, std::size_t optimizer_bytes,
                                            std::size_t steps, bool clips = false) {
    return {inputs,
            targets,
            samples,
            checked_product(checked_sum(checked_product(micro_batches + 1, sums), clips),
                            sizeof(double)),
            sizeof(StepState),
            optimizer_bytes,
            clips ? squares_workspace : 0,
            steps};
}

/// The numbers that a loss left, to be summed up.
struct CommitCall {
    double const* sums = nullptr; ///< [micro-batch][count]; of these [0] is the sum, [1] the weight
    std::size_t micro_batches = 0; ///< that had samples
    std::size_t count = 0;
    double* totals = nullptr;     ///< [count], and the gradients' norm where that clips them
    StepState* state = nullptr;   ///< null: nothing is to be committed
    void const* stream = nullptr; ///< the device's
    /// The gradients' sums of squares, by tensor; null where nothing is clipped.
    double const* squares = nullptr;
    std::uint32_t const* order = nullptr; ///< the tensors in the order of the chain
    std::size_t tensors = 0;
};

/// The sum of the squares of a gradient's elements.
struct SquaresCall {
    double* result = nullptr;
    std::byte* workspace = nullptr; ///< squares_workspace bytes, of the device
    void const* stream = nullptr;   ///< the device's
};

/// The update of a parameter tensor.
struct UpdateCall {
    void const* optimizer = nullptr;
    StepState const* state = nullptr;
    void const* stream = nullptr; ///< the device's
};

/// What the library itself does in a step on a device whose calls enqueue: commit(CommitCall),
/// squares<T>(SquaresCall, UpdateRow) and update<T, Optimizer>(UpdateCall, UpdateRow), which put
/// that on the call's stream. To be
/// specialised for such a device; others do it in host functions.
template <class Device> struct StepWork;

namespace detail {

/// Adds in ascending order of micro-batches, whatever order they ran in, and commits the step if
/// the weight is positive, and the gradients' norm finite where it is asked for: then it counts.
GPIPE_HOST_DEVICE inline void commit(CommitCall const& call) noexcept {
    for (std::size_t i = 0; i < call.count; ++i) {
        call.totals[i] = 0;
        for (std::size_t m = 0; m < call.micro_batches; ++m)
            call.totals[i] += call.sums[m * call.count + i];
    }
    if (!call.state) return;
    double const weight = call.totals[1];
    bool sound = weight > 0 && weight <= DBL_MAX;
    double scale = sound ? 1 / weight : 0;
    if (call.squares) {
        double sum = 0;
        for (std::size_t t = 0; t < call.tensors; ++t) sum += call.squares[call.order[t]];
        double const norm = std::sqrt(sum) * scale;
        call.totals[call.count] = norm;
        sound = sound && norm <= DBL_MAX;
        if (norm > call.state->clip) scale *= call.state->clip / norm;
    }
    call.state->scale = scale;
    call.state->committed = sound;
    call.state->step += sound;
}

} // namespace detail
} // namespace gpipe
