#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/version.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpipe {

/// What a device can be told to do.
enum class Kind : std::uint8_t {
    forward,
    recompute,        ///< a forward again, to bring back the activations of its micro-batch
    backward,         ///< both gradients
    input_gradient,   ///< backward's first half, what the cell before waits for
    weight_gradient,  ///< backward's second half
    send_output,      ///< of the cell, to the device of the next
    receive_input,    ///< what the cell before has sent
    send_gradient,    ///< of the cell's input, to the device of the cell before
    receive_gradient, ///< what the next cell has sent
    offload,          ///< what waits for its reversal, to slower memory
    fetch,            ///< and back
    bring_gradient,   ///< of a tied parameter, to where such are added up
    reduce,           ///< adds the gradients of tied parameters up, see Tie
    all_reduce,       ///< adds a cell's gradients up over all replicas
    reduce_scatter,   ///< the same, and of the sum each has a part
    next_buffers,     ///< what a device's layers' buffers become, see LayerTraits::Buffers
    sum_squares,      ///< of a device's gradients
    commit,           ///< sums the losses up, and decides whether the step counts
    send_commit,      ///< what was decided, to a rank that updates by itself, which commits so
    revoke,           ///< where updates came first: decides once more, by all gradients
    take_state,       ///< what was decided, to a device that cannot read it elsewhere
    update,           ///< of a device's parameters
    all_gather,       ///< over replicas: gives all the parts of a device that each has updated
};

/// How many there are.
inline constexpr std::size_t kind_count = static_cast<std::size_t>(Kind::all_gather) + 1;

/// In words; "unknown" where a number is none of these.
GPIPE_INLINE constexpr std::string_view name(Kind kind) {
    constexpr std::string_view names[] = {"forward",
                                          "recompute",
                                          "backward",
                                          "input gradient",
                                          "weight gradient",
                                          "send output",
                                          "receive input",
                                          "send gradient",
                                          "receive gradient",
                                          "offload",
                                          "fetch",
                                          "tied gradient",
                                          "reduce",
                                          "all-reduce",
                                          "reduce-scatter",
                                          "update of buffers",
                                          "sum of squares",
                                          "commit",
                                          "send commit",
                                          "revoke",
                                          "state",
                                          "update",
                                          "all-gather"};
    auto const number = static_cast<std::size_t>(kind);
    return number < kind_count ? names[number] : "unknown";
}
/// Whether it calls layers.
GPIPE_INLINE constexpr bool computes(Kind kind) { return kind < Kind::send_output; }
/// Whether it is of the end of a step, see with_ending().
GPIPE_INLINE constexpr bool ends_step(Kind kind) { return kind >= Kind::bring_gradient; }
/// Whether ranks agree there on whether the step counts.
GPIPE_INLINE constexpr bool commits(Kind kind) {
    return kind == Kind::commit || kind == Kind::send_commit;
}
/// Whether it adds up what replicas have found: as soon as that is whole, whatever layers still do.
GPIPE_INLINE constexpr bool adds_replicas(Kind kind) {
    return kind == Kind::all_reduce || kind == Kind::reduce_scatter;
}
/// Whether it gives the gradient that the cell before waits for.
GPIPE_INLINE constexpr bool gives_gradient(Kind kind) {
    return kind == Kind::backward || kind == Kind::input_gradient;
}
/// Whether it is the last to read what its micro-batch has kept.
GPIPE_INLINE constexpr bool ends_backward(Kind kind) {
    return kind == Kind::backward || kind == Kind::weight_gradient;
}
/// Whether it only moves a boundary's tensors.
GPIPE_INLINE constexpr bool is_transfer(Kind kind) {
    return kind >= Kind::send_output && kind <= Kind::receive_gradient;
}

/// Whether it moves what waits for its reversal.
GPIPE_INLINE constexpr bool is_offload(Kind kind) {
    return kind == Kind::offload || kind == Kind::fetch;
}
/// Whether it only moves tensors.
GPIPE_INLINE constexpr bool is_copy(Kind kind) { return is_transfer(kind) || is_offload(kind); }

/// One thing that a device does. A program is an array of these.
struct Action {
    Kind kind = Kind::forward;     ///< what is done
    std::uint32_t cell = 0;        ///< with which cell
    std::uint32_t micro_batch = 0; ///< for which micro-batch
    std::uint32_t edge = 0; ///< of a transfer: whose tensors move; of a reduce which tie, of what
                            ///< is brought to it which end, and to which rank a commit is sent

    /// Member by member.
    friend constexpr bool operator==(Action const&, Action const&) = default;
};

/// "No action" among indices of actions.
inline constexpr std::size_t no_action = static_cast<std::size_t>(-1);

/// An action of that kind: for programs that are written by hand.
///@{
GPIPE_INLINE constexpr Action forward(std::size_t cell, std::size_t micro_batch) {
    return {Kind::forward, static_cast<std::uint32_t>(cell),
            static_cast<std::uint32_t>(micro_batch)};
}
GPIPE_INLINE constexpr Action recompute(std::size_t cell, std::size_t micro_batch) {
    return {Kind::recompute, static_cast<std::uint32_t>(cell),
            static_cast<std::uint32_t>(micro_batch)};
}
GPIPE_INLINE constexpr Action backward(std::size_t cell, std::size_t micro_batch) {
    return {Kind::backward, static_cast<std::uint32_t>(cell),
            static_cast<std::uint32_t>(micro_batch)};
}
GPIPE_INLINE constexpr Action input_gradient(std::size_t cell, std::size_t micro_batch) {
    return {Kind::input_gradient, static_cast<std::uint32_t>(cell),
            static_cast<std::uint32_t>(micro_batch)};
}
GPIPE_INLINE constexpr Action weight_gradient(std::size_t cell, std::size_t micro_batch) {
    return {Kind::weight_gradient, static_cast<std::uint32_t>(cell),
            static_cast<std::uint32_t>(micro_batch)};
}
///@}

} // namespace gpipe
