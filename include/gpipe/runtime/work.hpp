#pragma once

#include <gpipe/core/host_device.hpp>
#include <gpipe/layer/step_state.hpp>
#include <gpipe/memory/plan.hpp>

#include <cfloat>
#include <cstddef>

namespace gpipe {

/// What a device that cannot read the host's memory holds of a step: a mini-batch of at most
/// `samples` samples for each of `steps` steps, `sums` numbers of the loss per micro-batch and in
/// all, the state and the optimizer.
constexpr Staging step_staging(GroupSizes inputs, GroupSizes targets, std::size_t samples,
                               std::size_t micro_batches, std::size_t sums,
                               std::size_t optimizer_bytes, std::size_t steps) {
    return {inputs,
            targets,
            samples,
            (micro_batches + 1) * sums * sizeof(double),
            sizeof(StepState),
            optimizer_bytes,
            steps};
}

/// The numbers that a loss left, to be summed up.
struct CommitCall {
    double const* sums = nullptr; ///< [micro-batch][count]; of these [0] is the sum, [1] the weight
    std::size_t micro_batches = 0; ///< that had samples
    std::size_t count = 0;
    double* totals = nullptr;     ///< [count]
    StepState* state = nullptr;   ///< null: nothing is to be committed
    void const* stream = nullptr; ///< the device's
};

/// The update of a parameter tensor.
struct UpdateCall {
    void const* optimizer = nullptr;
    StepState const* state = nullptr;
    void const* stream = nullptr; ///< the device's
};

/// What the library itself does in a step on a device whose calls enqueue: commit(CommitCall) and
/// update<T, Optimizer>(UpdateCall, UpdateRow), which put that on the call's stream. To be
/// specialised for such a device; others do it in host functions.
template <class Device> struct StepWork;

namespace detail {

/// Adds in ascending order of micro-batches, whatever order they ran in, and commits the step if
/// the weight is positive: then it counts.
GPIPE_HOST_DEVICE inline void commit(CommitCall const& call) {
    for (std::size_t i = 0; i < call.count; ++i) {
        call.totals[i] = 0;
        for (std::size_t m = 0; m < call.micro_batches; ++m)
            call.totals[i] += call.sums[m * call.count + i];
    }
    if (!call.state) return;
    double const weight = call.totals[1];
    bool const sound = weight > 0 && weight <= DBL_MAX;
    call.state->scale = sound ? 1 / weight : 0;
    call.state->committed = sound;
    call.state->step += sound;
}

} // namespace detail
} // namespace gpipe
