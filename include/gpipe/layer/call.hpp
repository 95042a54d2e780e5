#pragma once

#include <gpipe/layer/step_state.hpp>
#include <gpipe/layer/view.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

class HandleSet;

/// What a layer function is called for: a halved backward's functions and, in the place of the
/// first, whole backwards, know by it that the halves run apart.
enum class Phase : std::uint8_t {
    evaluate,
    forward,
    recompute,
    backward,
    input_gradient,
    weight_gradient
};

/// What all actions of a step on one device share.
struct StepFrame {
    std::size_t capacity = 0; ///< samples that every slot has room for
    std::uint64_t seed = 0;
    std::uint64_t step = 0;
    void const* stream = nullptr;       ///< the device's stream, as the type that the engine knows
    StepState const* state = nullptr;   ///< in memory that work on the stream can read
    HandleSet const* handles = nullptr; ///< those of the device
};

/// One action on one micro-batch, as its layers see it: the same for all layers of a cell.
struct Frame {
    StepFrame const* shared = nullptr;
    std::size_t first_sample = 0; ///< position of the first sample in the mini-batch
    std::size_t samples = 0;      ///< in this micro-batch; never 0 when a layer is called
    std::byte* base[4] = {};      ///< address of each Region
    Phase phase = Phase::evaluate;
    bool saving = false; ///< whether a backward will read what this call saves
};

/// How long what lies there lives. Where backwards are whole, nothing is held or deferred.
enum class Region : std::uint8_t {
    kept,      ///< from forward to backward, or to its first half
    temporary, ///< within an action
    held,      ///< from forward to the weight gradient
    deferred,  ///< from the input gradient to the weight gradient
};

/// Where a tensor lies, relative to a Frame.
struct Place {
    std::size_t offset = 0;
    Region region = Region::kept;

    std::byte* in(Frame const& frame) const {
        return frame.base[static_cast<std::size_t>(region)] + offset;
    }
};

struct LayerRow;
using ForwardFunction = void (*)(LayerRow const&, Frame const&, GroupAddress x, std::byte* y);
using BackwardFunction = void (*)(LayerRow const&, Frame const&, GroupAddress x, std::byte* y,
                                  std::byte* dy, std::byte* dx);

/// One layer of a chain as the engine walks it: its functions, its data and its places. Filled
/// once, before the run; the type of the layer is known to the functions only.
struct LayerRow {
    ForwardFunction forward = nullptr;
    BackwardFunction backward = nullptr; ///< null below the lowest layer that learns
    /// The two halves; of a layer that has no halves, its whole backward and null. The first is
    /// null, too, where nobody wants anything of it. The second writes no `dx`.
    BackwardFunction input_gradient = nullptr;
    BackwardFunction weight_gradient = nullptr;
    void const* layer = nullptr;
    std::byte* parameters = nullptr;
    std::byte* gradients = nullptr;
    Place output;          ///< unless it crosses to the next cell
    Place output_gradient; ///< likewise
    Place saved;
    Place deferred;
    Place forward_scratch;
    Place backward_scratch;
    Place weight_scratch;
    std::uint32_t index = 0; ///< in the chain
};

} // namespace gpipe
