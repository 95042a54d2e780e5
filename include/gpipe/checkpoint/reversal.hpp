#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

namespace gpipe {

/// What a forward of one layer leaves behind for later.
enum class Keep : std::uint8_t {
    nothing,
    input, ///< the layer's input, unless it is there anyway
    all,   ///< everything that its backward reads, its input included, and its output
};

/// One call of a layer in a reversal.
struct ReversalStep {
    bool backward = false;     ///< whether it is a backward; else a layer runs again
    Keep keep = Keep::nothing; ///< of a forward
    std::uint32_t layer = 0;   ///< in the cell
    /// Member by member.
    friend constexpr bool operator==(ReversalStep const&, ReversalStep const&) = default;
};

/// When the gradients of a layer's parameters are computed, where a schedule runs the halves of
/// backwards apart (Zero Bubble, Qi et al. 2024) and the layer offers them.
enum class WeightHalf : std::uint8_t {
    at_once, ///< in the first half, behind the gradient of the layer's input
    later,   ///< in the second half; what the layer keeps, and its output's gradient, wait for it
    again,   ///< in the second half, but of those only the gradient waits: the layer runs again
};

/// Its name, as policies are found by it.
GPIPE_INLINE constexpr std::string_view name(WeightHalf half) {
    return half == WeightHalf::at_once ? "at-once" : half == WeightHalf::later ? "later" : "again";
}

/// How the layers of a cell are reversed: what its forward keeps of every micro-batch in flight,
/// and what runs later, for one micro-batch: layers again and backwards, down to the backward of
/// layer 0. The input of layer 0 is always there, for it is the boundary's: to keep it means
/// nothing. Nor does it mean anything to keep the input of a layer behind one that is kept whole.
/// What is kept of a layer is there until its backward has run.
struct Reversal {
    Array<Keep> forward;       ///< by layer
    Array<ReversalStep> steps; ///< in their order
    /// Whether what the forward keeps, and the cell's input, wait in slower memory: see Offloads.
    bool offload = false;
    /// By layer, where it has halves. None: at once for what runs again, but for what does so last,
    /// and later for that and for what the forward keeps whole. So nothing that was made again has
    /// to make room for more, and a cell that keeps everything, or makes it again as a whole, has
    /// its halves apart.
    Array<WeightHalf> weights{};

    /// Of the cell.
    constexpr std::size_t layers() const { return forward.size(); }
};

/// Whether a sound reversal begins with layers that run again: a recompute runs those.
GPIPE_INLINE constexpr bool begins_again(Reversal const& reversal) {
    return !reversal.steps.empty() && !reversal.steps[0].backward;
}

/// Whether a sound reversal has nothing to do inside of the cell: its forward keeps every layer
/// whole, or a recompute does and nothing runs again later. It is then laid out as a cell without
/// one, unless what waits is offloaded.
GPIPE_INLINE constexpr bool is_whole(Reversal const& reversal) {
    std::size_t const layers = reversal.layers();
    if (reversal.steps.size() == layers) return true; // backwards only
    if (reversal.steps.size() != 2 * layers) return false;
    for (std::size_t l = 0; l < layers; ++l) {
        ReversalStep const& step = reversal.steps[l];
        if (step.backward || step.keep != Keep::all || reversal.forward[l] != Keep::nothing)
            return false;
    }
    return true;
}

/// How often a reversal runs a layer again, all layers together: the forwards in its steps.
GPIPE_INLINE constexpr std::size_t extra_forwards(Reversal const& reversal) {
    std::size_t count = 0;
    for (ReversalStep const& step : reversal.steps) count += !step.backward;
    return count;
}

namespace detail {

// Steps of which the number is not known before.
class StepList {
  public:
    constexpr void forward(std::size_t layer, Keep keep) {
        add({false, keep, static_cast<std::uint32_t>(layer)});
    }
    constexpr void backward(std::size_t layer) {
        add({true, Keep::nothing, static_cast<std::uint32_t>(layer)});
    }
    // Layers [first, last) are kept whole, then reversed.
    constexpr void whole(std::size_t first, std::size_t last) {
        for (std::size_t l = first; l < last; ++l) forward(l, Keep::all);
        for (std::size_t l = last; l-- > first;) backward(l);
    }
    constexpr Array<ReversalStep> steps() const { return first_of(room_, size_); }

  private:
    constexpr void add(ReversalStep const& step) {
        if (size_ == room_.size()) enlarge(room_, size_, 2 * size_ + 16);
        room_[size_++] = step;
    }
    Array<ReversalStep> room_;
    std::size_t size_ = 0;
};

GPIPE_INLINE constexpr void check_layers(std::size_t layers) {
    if (layers == 0) throw std::invalid_argument("gpipe: there is no layer to reverse");
}

} // namespace detail

/// Layers that `expensive` names are kept whole by the forward; each run of others is kept whole
/// again right before its backwards, from the output of the expensive layer in front of it.
/// Selective recomputation (Korthikanti et al. 2022). Throws std::invalid_argument if there is no
/// layer.
GPIPE_INLINE constexpr Reversal selective(Array<bool> const& expensive) {
    detail::check_layers(expensive.size());
    Reversal result;
    result.forward = Array<Keep>(expensive.size());
    detail::StepList steps;
    for (std::size_t last = expensive.size(); last > 0;) {
        std::size_t first = last - 1;
        if (expensive[first]) {
            result.forward[first] = Keep::all;
            steps.backward(first);
        } else {
            while (first > 0 && !expensive[first - 1]) --first;
            steps.whole(first, last);
        }
        last = first;
    }
    result.steps = steps.steps();
    return result;
}

/// The forward keeps every layer whole: nothing runs again.
GPIPE_INLINE constexpr Reversal keep_everything(std::size_t layers) {
    return selective(Array<bool>(layers, true));
}

/// The forward keeps the input of every segment; each, the last first, is kept whole again right
/// before its backwards. starts[j] is the first layer of segment j. Throws std::invalid_argument
/// unless there is a layer, starts[0] is 0 and the others ascend and are below `layers`.
GPIPE_INLINE constexpr Reversal segments(std::size_t layers, Array<std::size_t> const& starts) {
    detail::check_layers(layers);
    bool sound = !starts.empty() && starts[0] == 0 && starts[starts.size() - 1] < layers;
    for (std::size_t j = 1; j < starts.size(); ++j) sound = sound && starts[j - 1] < starts[j];
    if (!sound)
        throw std::invalid_argument("gpipe: segments begin at layer 0 and then at ever later "
                                    "layers of the cell");
    Reversal result;
    result.forward = Array<Keep>(layers);
    detail::StepList steps;
    std::size_t last = layers;
    for (std::size_t j = starts.size(); j-- > 0;) {
        if (j > 0) result.forward[starts[j]] = Keep::input;
        steps.whole(starts[j], last);
        last = starts[j];
    }
    result.steps = steps.steps();
    return result;
}

/// Segments of so many layers, the last one of what is left. Throws std::invalid_argument if there
/// is no layer or the length is zero.
GPIPE_INLINE constexpr Reversal every_segment(std::size_t layers, std::size_t length) {
    detail::check_layers(layers);
    if (length == 0) throw std::invalid_argument("gpipe: a segment has at least one layer");
    Array<std::size_t> starts((layers - 1) / length + 1);
    for (std::size_t j = 0; j < starts.size(); ++j) starts[j] = j * length;
    return segments(layers, starts);
}

/// So many segments whose lengths differ by one at the most, the shorter ones in front. Throws
/// std::invalid_argument unless 1 <= number <= layers.
GPIPE_INLINE constexpr Reversal equal_segments(std::size_t layers, std::size_t number) {
    detail::check_layers(layers);
    if (number == 0 || number > layers)
        throw std::invalid_argument("gpipe: there are between one segment and one per layer");
    Array<std::size_t> starts(number);
    for (std::size_t j = 0; j < number; ++j) starts[j] = j * layers / number;
    return segments(layers, starts);
}

/// By cell how it is reversed, where cells begin with the layers `first`: those of which nothing is
/// said, by no reversals at all or by one of no layers, as a whole, by the recompute if one comes.
GPIPE_INLINE constexpr Array<Reversal> each_reversal(Array<Reversal> reversals,
                                                     std::size_t const* first, std::size_t cells) {
    if (reversals.empty()) reversals = Array<Reversal>(cells);
    for (std::size_t c = 0; c < cells; ++c)
        if (reversals[c].layers() == 0) reversals[c] = equal_segments(first[c + 1] - first[c], 1);
    return reversals;
}

} // namespace gpipe
