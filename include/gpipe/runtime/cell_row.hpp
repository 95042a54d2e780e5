#pragma once

#include <gpipe/layer/call.hpp>
#include <gpipe/layer/handles.hpp>
#include <gpipe/layer/info.hpp>
#include <gpipe/runtime/lanes.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpipe {

using LossFunction = void (*)(void const* loss, Frame const&, std::byte* y, GroupAddress target,
                              std::byte* dy, std::byte* scratch, double* sums);

/// The loss as the engine calls it, and where it leaves its sums.
struct LossRow {
    LossFunction train = nullptr;    ///< writes the gradient of the chain's output
    LossFunction evaluate = nullptr; ///< no gradient is wanted
    void const* loss = nullptr;
    std::string_view name;
    Place scratch;
    HandleSpecs handles;
};

/// The bytes of a group of tensors in slots, from the first one's begin to the last one's end.
struct Extent {
    std::size_t before_last = 0;
    std::size_t last = 0; ///< for one sample

    constexpr std::size_t operator()(std::size_t samples) const {
        return before_last + last * samples;
    }
};
constexpr Extent extent(GroupSizes const& sizes, std::size_t capacity) {
    Extent result;
    for (std::size_t t = 0; t < sizes.count; ++t) {
        if (t > 0) result.before_last += slot_bytes(sizes.bytes[t - 1] * capacity);
        result.last = sizes.bytes[t];
    }
    return result;
}

/// One cell as the engine walks it.
struct CellRow {
    LayerRow const* first = nullptr;
    LayerRow const* last = nullptr;    ///< one past
    LayerRow const* learner = nullptr; ///< the first that has a backward; `last` if none
    bool is_first = false;
    bool is_last = false;
    /// One past the last layer that a recompute runs: `last`; one less where only the next cell
    /// would read the result; `first` where nobody would read anything.
    LayerRow const* recompute_last = nullptr;
    bool discards = false; ///< whether `learner`'s input gradient goes nowhere
    Place discarded;
    Extent input; ///< of the cell's input, where transfers bring it
    Extent input_gradient;
};

/// One action with every address that it needs: a row of a lane's program.
struct Step {
    Kind kind = Kind::forward;
    Phase phase = Phase::evaluate;
    bool saving = false;
    bool waits = false;       ///< whether there is any wait below
    bool more = false;        ///< whether there is anything to do behind it: any of the next four
    bool publishes = false;   ///< its position
    bool delivers = false;    ///< an evaluation's output
    bool commits = false;     ///< where updates are immediate: the last that calls the loss
    bool ends_device = false; ///< likewise: the last of its device
    std::uint32_t cell = 0;
    std::uint32_t micro_batch = 0;
    std::uint32_t stream = 0;
    std::uint32_t position = 0;
    std::uint32_t wait_stream[2] = {};
    std::uint32_t wait_position[2] = {};
    std::uint32_t rank = 0; ///< in the linear order of all actions
    std::uint32_t action = 0;
    std::uint32_t device = 0;
    /// What it waits for where the step before may be under way: a position in that.
    Wait last_step;
    std::byte* base[4] = {}; ///< where the micro-batch's block of each Region is
    /// Of the cell; null for the first. For a transfer: where from, and `output` where to.
    std::byte* input = nullptr;
    std::byte* output = nullptr;          ///< in a slot; null where it has its place in the cell
    std::byte* output_gradient = nullptr; ///< likewise
    std::byte* input_gradient = nullptr;  ///< in this cell's slot; null where none crosses
};

} // namespace gpipe
