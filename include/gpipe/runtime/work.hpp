#pragma once

#include <gpipe/call/loss_scale.hpp>
#include <gpipe/call/step_state.hpp>
#include <gpipe/core/checked.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/exact_sum.hpp>
#include <gpipe/core/finite.hpp>
#include <gpipe/core/host_device.hpp>
#include <gpipe/core/ordered_sum.hpp>
#include <gpipe/memory/plan.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace gpipe {

/// The sign of a rank for which nothing has thrown.
inline constexpr std::uint64_t no_failure = 0xFFFFFFFF;

/// Where in the slot of a StepState lies what a commit makes of it while layers read it: bytes.
/// What is found in debug mode lies between.
inline constexpr std::size_t decided_at = slot_alignment / 2;
static_assert(decided_at + sizeof(StepState) <= slot_bytes(sizeof(StepState)));

/// Where the sign of a rank lies behind a StepState: bytes.
GPIPE_INLINE constexpr std::size_t sign_of(std::size_t rank) {
    return slot_bytes(sizeof(StepState)) + rank * sizeof(std::uint64_t);
}

/// How many tensors a device updates, or sums up, at once, at most.
inline constexpr std::size_t most_rows_at_once = 32;
/// Bytes that the sums over so many, of any size, need on a device with memory of its own.
inline constexpr std::size_t squares_workspace =
    slot_bytes(most_rows_at_once * most_sum_blocks * sizeof(double));

/// What becomes of a step whose loss or gradients are not finite.
enum class NotFinite : std::uint8_t {
    fail, ///< it throws, before the update, and nothing has changed
    /// Its loss is returned as it is. The parameters are updated, unless the norm of the gradients
    /// is known, and not finite: then the step does not count.
    go_on,
};

/// What is looked at before a step is committed.
struct StepChecks {
    double clip = 0;                        ///< the largest norm of the mean gradients, or 0
    bool finite_gradients = false;          ///< see Options::finite_gradients
    NotFinite not_finite = NotFinite::fail; ///< see Options::not_finite
    LossScale scale{};                      ///< see Options::loss_scale

    /// Whether it takes the squares of all gradients.
    constexpr bool squares() const { return clip > 0 || finite_gradients || scale.scales(); }
};

/// Bytes of the numbers that losses leave: a row for each micro-batch of each replica, two for
/// their totals, and the norm of all gradients.
GPIPE_INLINE constexpr std::size_t loss_bytes(std::size_t micro_batches, std::size_t replicas,
                                              std::size_t row) {
    std::size_t const rows = checked_sum(checked_product(micro_batches, replicas), 2);
    return checked_product(checked_sum(checked_product(rows, row), 1), sizeof(double));
}

/// What a device that cannot read the host's memory holds of a step: a mini-batch of at most
/// `samples` samples for each of `steps` steps, `sums` numbers of the loss per micro-batch and in
/// all, those of as many replicas, the state, with the signs of so many joined ranks behind it, the
/// optimizer, and if `squares` what it takes to find the norm of all gradients.
GPIPE_INLINE constexpr Staging step_staging(GroupSizes inputs, GroupSizes targets,
                                            std::size_t samples, std::size_t micro_batches,
                                            std::size_t sums, std::size_t optimizer_bytes,
                                            std::size_t steps, bool squares = false,
                                            std::size_t ranks = 0, std::size_t replicas = 1) {
    return {inputs,
            targets,
            samples,
            loss_bytes(micro_batches, replicas, sums),
            sign_of(ranks),
            optimizer_bytes,
            squares ? squares_workspace : 0,
            steps,
            true};
}

/// The numbers that a loss left, to be summed up.
struct CommitCall {
    double const* sums = nullptr;  ///< [micro-batch][row]; of these [0] is the sum, [1] the weight
    std::size_t micro_batches = 0; ///< that had samples
    std::size_t row = 0;           ///< from a micro-batch's to the next's
    std::size_t count = 0;         ///< numbers of a micro-batch
    double* totals = nullptr;      ///< [count], and the gradients' norm if there are `squares`
    StepState* state = nullptr;    ///< null: nothing is to be committed
    void const* stream = nullptr;  ///< the device's
    double* carried = nullptr;     ///< [count]: totals of a mini-batch of which more will come
    bool continues = false;        ///< whether there are some
    bool last = true;              ///< whether nothing more comes
    LossScale scale{};             ///< see Options::loss_scale
    /// The gradients' sums of squares: [replica][tensor], each of a part; null where nobody asks.
    double const* squares = nullptr;
    std::size_t replicas = 1; ///< how many have told theirs
    std::size_t rows = 0;     ///< of each, with the words of `exact`
    /// Where these are parts: [replica][device with parameters], see exact_value(), in `rows`.
    std::uint64_t const* exact = nullptr;
    std::size_t devices = 0;              ///< of these
    std::uint32_t const* order = nullptr; ///< the tensors in the order of the chain
    std::size_t tensors = 0;              ///< how many
    bool fails = true; ///< whether what is not finite keeps the step from being committed
    /// By rank: the place of what has thrown there, see FirstFailure; null where nobody asks.
    std::uint64_t const* signs = nullptr;
    std::size_t ranks = 0; ///< how many
};

/// Squares of gradients that a commit did not know, for updates are immediate: one that is not
/// finite takes it back.
struct RevokeCall {
    double const* squares = nullptr;      ///< of each tensor's gradient, in memory of the device
    std::uint32_t const* order = nullptr; ///< of the tensors in the chain; null: as they are
    std::size_t tensors = 0;              ///< how many
    StepState* state = nullptr;           ///< of the device
    void const* stream = nullptr;         ///< the device's
    bool counts = false;                  ///< whether the state is the one that counts steps
};

/// A gradient of a loss, to be multiplied by StepState::loss_scale.
struct ScaleCall {
    std::byte* gradient = nullptr;    ///< its elements
    std::size_t elements = 0;         ///< how many
    StepState const* state = nullptr; ///< in memory that the work can read
    void const* stream = nullptr;     ///< the device's
};

/// The sums of the squares of gradients' elements.
struct SquaresCall {
    double* result = nullptr;       ///< a number for each, of the device
    std::byte* workspace = nullptr; ///< squares_workspace bytes, of the device
    void const* stream = nullptr;   ///< the device's
    /// Of parts of gradients: words to which they are added, too, see exact_value().
    std::uint64_t* exact = nullptr;
};

/// The sum of a gradient and another.
struct AddCall {
    std::byte const* other = nullptr; ///< as many elements
    void const* stream = nullptr;     ///< the device's
};

/// The update of a parameter tensor.
struct UpdateCall {
    void const* optimizer = nullptr;  ///< the functor, in memory that the work can read
    StepState const* state = nullptr; ///< likewise
    void const* stream = nullptr;     ///< the device's
    bool updates = true;              ///< else only the gradient becomes a mean
};

/// Keeps what the buffers of a device's layers have become, if the step is committed.
struct KeepCall {
    std::byte* to = nullptr;          ///< the buffers, in slots
    std::byte const* from = nullptr;  ///< as many bytes
    std::size_t bytes = 0;            ///< of all slots
    StepState const* state = nullptr; ///< in memory that the work can read
    void const* stream = nullptr;     ///< the device's
};

namespace detail {

GPIPE_INLINE bool keep(KeepCall const& call) noexcept {
    if (call.state->committed) std::memcpy(call.to, call.from, call.bytes);
    return call.state->committed;
}

/// Gradients are not finite: whether the next ones may be, see LossScale.
GPIPE_HOST_DEVICE inline bool shrink(StepState& state, LossScale const& by) noexcept {
    if (state.loss_scale * by.backoff < by.least) return false;
    state.loss_scale *= by.backoff;
    return true;
}
/// They are finite.
GPIPE_HOST_DEVICE inline void grow(StepState& state, LossScale const& by) noexcept {
    if (by.interval == 0 || ++state.good_steps < by.interval) return;
    state.good_steps = 0;
    if (state.loss_scale * by.growth <= by.most) state.loss_scale *= by.growth;
}

/// Adds in ascending order of micro-batches, whatever order they ran in, and commits the step if
/// the weight is positive, see least_weight, and what is asked for finite: then it counts.
GPIPE_HOST_DEVICE inline void commit(CommitCall const& call) noexcept {
    for (std::size_t i = 0; i < call.count; ++i) {
        call.totals[i] = call.continues ? call.carried[i] : 0;
        for (std::size_t m = 0; m < call.micro_batches; ++m)
            call.totals[i] += call.sums[m * call.row + i];
        if (!call.last) call.carried[i] = call.totals[i];
    }
    if (!call.state) return;
    StepState& state = *call.state;
    double const weight = call.totals[1];
    // What is wrong with a part of a mini-batch is wrong with all of it.
    bool const spoilt = call.continues && state.fault != StepFault::nothing;
    bool sound = !spoilt && is_finite(weight) && weight >= least_weight;
    double scale = sound ? 1 / weight : 0;
    state.unscale = 1 / state.loss_scale; // which may grow before it is used
    if (!spoilt) state.fault = StepFault::nothing;
    state.skipped = 0;
    // Where a rank has thrown, its gradients say nothing of the scale.
    std::uint64_t first = no_failure;
    for (std::size_t r = 0; r < call.ranks; ++r) {
        if (call.signs[r] >= first) continue;
        first = call.signs[r];
        state.fault = StepFault::thrown;
        state.fault_at = static_cast<std::uint32_t>(r);
        sound = false;
    }
    // The first to be blamed; not where the weight is to blame.
    auto const blame = [&](StepFault fault, std::size_t at, double value) {
        if (!sound || !(call.fails || (call.scale.scales() && fault != StepFault::loss))) return;
        state.fault = fault;
        state.fault_at = static_cast<std::uint32_t>(at);
        state.fault_value = value;
        sound = false;
    };
    if (!is_finite(call.totals[0])) {
        std::size_t m = 0;
        while (m < call.micro_batches && is_finite(call.sums[m * call.row])) ++m;
        bool const one = m < call.micro_batches;
        blame(StepFault::loss, one ? m : no_micro_batch,
              one ? call.sums[m * call.row] : call.totals[0]);
    }
    if (call.squares) {
        auto const squares = [&](std::size_t t) {
            double sum = call.squares[call.order[t]];
            for (std::size_t r = 1; r < call.replicas; ++r)
                sum += call.squares[r * call.rows + call.order[t]];
            return sum;
        };
        double sum = 0;
        for (std::size_t t = 0; t < call.tensors; ++t) sum += squares(t);
        if (call.exact)
            if (double const exact =
                    exact_value(call.exact, call.replicas, call.rows, call.devices);
                is_finite(exact) || is_finite(sum))
                sum = exact;
        double const norm = std::sqrt(sum) * state.unscale * scale;
        call.totals[call.count] = norm;
        if (!is_finite(norm)) {
            std::size_t t = 0;
            while (t < call.tensors && is_finite(squares(t))) ++t;
            bool const one = t < call.tensors;
            bool const overflows = sound && call.scale.scales();
            blame(one ? StepFault::gradient : StepFault::norm, t, one ? squares(t) : norm);
            // What is wrong with the loss itself no scale mends.
            bool const mends = is_finite(call.totals[0]) && overflows && shrink(state, call.scale);
            state.skipped = mends || (overflows && !call.fails);
            if (state.skipped) state.good_steps = 0; // of a step that fails nothing is changed
            sound = false;
        }
        if (state.clip > 0 && norm > state.clip) scale *= state.clip / norm;
    }
    sound = sound && call.last;
    if (sound) grow(state, call.scale);
    state.scale = scale;
    state.committed = sound;
    state.step += sound;
}

GPIPE_HOST_DEVICE inline void revoke(RevokeCall const& call) noexcept {
    StepState& state = *call.state;
    // A device that has taken it back by its own gradients looks once more, at those of all.
    if (!state.committed && state.fault != StepFault::gradient) return;
    for (std::size_t t = 0; t < call.tensors; ++t) {
        double const value = call.squares[call.order ? call.order[t] : t];
        if (is_finite(value)) continue;
        state.committed = 0;
        state.step -= call.counts;
        state.fault = StepFault::gradient;
        state.fault_at = static_cast<std::uint32_t>(t);
        state.fault_value = value;
        return;
    }
}

} // namespace detail
} // namespace gpipe
