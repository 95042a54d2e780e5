#pragma once

#include <gpipe/call/call.hpp>
#include <gpipe/chain/info.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/cell_use.hpp>

#include <algorithm>
#include <cstddef>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// The places of one layer's tensors, relative to the regions of its cell: the blocks that a
/// micro-batch has for a time (see Region), and the temporaries, which all micro-batches share.
struct LayerPlaces {
    /// Of the tensor that the name says.
    ///@{
    Place output;
    Place output_gradient;
    Place saved;
    Place deferred;
    Place forward_scratch;
    Place backward_scratch;
    ///@}
    Place weight_scratch; ///< of the weight gradient; the same unless that runs apart
};

/// Where the tensors of one cell lie, by liveness over one forward and one backward of a
/// micro-batch. Kept tensors form a stack in the order of the layers: forward pushes, backward
/// pops. Temporaries live for one layer (scratch) or two (outputs that backward does not read;
/// output gradients), so they alternate between the low and the high end of their region, scratch
/// between them: with the height that the widest moment needs, nothing ever overlaps.
///
/// Where the halves of backward run apart, what the weight gradients read is not on the stack: it
/// has blocks of its own, for what forward leaves and for what the input gradients leave (output
/// gradients among that).
///
/// The tensor of a skip within the cell lies on the stack as if the layer that stashes it had saved
/// it, if a backward reads it; else, from the one forward to the other, above all other
/// temporaries, and there its gradient does, from the one backward to the other.
struct CellLayout {
    Array<LayerPlaces> places; ///< one per layer of the cell
    /// By skip of the chain. Of one to another cell what nobody wants: the tensor as a recompute
    /// stashes it again, the gradient where none is passed on.
    Array<SkipPlace> skips;
    Place loss_scratch; ///< of the last cell
    /// The gradient of the cell's input, where that stays inside; or of the lowest learner's input,
    /// which nobody wants, if that layer cannot do without.
    Place input_gradient;
    std::size_t kept = 0;      ///< bytes of a micro-batch's block from forward to backward
    std::size_t held = 0;      ///< from forward to the weight gradient
    std::size_t deferred = 0;  ///< from the input gradient to the weight gradient
    std::size_t temporary = 0; ///< bytes of the region of temporaries
    /// Whether the temporaries' region begins at the kept block's own start and reuses what the
    /// stack leaves free: possible where the device has one such block only. `temporary` is then
    /// the height of both.
    bool adjacent = false;

    /// Of the cell's activations with so many kept blocks.
    constexpr std::size_t bytes(std::size_t blocks) const {
        return adjacent ? temporary : blocks * kept + temporary;
    }
};

namespace detail {

// One moment of the run of a cell: what is live besides the stack.
struct Moment {
    std::size_t stack = 0; // height of the stack that is live (or about to be written)
    std::size_t low = 0;   // bytes of the tensor at the low end
    std::size_t high = 0;  // at the high end
    std::size_t scratch = 0;
    std::size_t low_base = 0; // where the low tensor was put
};

} // namespace detail

namespace detail {

// With the temporaries of even layers at the low or at the high end.
[[gnu::cold]] GPIPE_INLINE constexpr CellLayout lay_out_cell(ChainShape const& chain,
                                                             std::size_t first, std::size_t last,
                                                             CellUse const& use,
                                                             bool even_lies_low) {
    bool const adjacent = use.adjacent;
    bool const recomputes = use.recomputes;
    bool const apart = use.splits;
    std::size_t const capacity = use.capacity;
    bool const last_cell = last == chain.size;
    std::size_t const count = last - first;
    CellLayout layout;
    layout.places = Array<LayerPlaces>(count);
    layout.adjacent = adjacent;
    LayerInfo const* const layers = chain.layers + first;
    // Layers below the lowest learner have no backward; `learner` is relative to the cell.
    std::size_t const learner =
        chain.lowest_learner <= first ? 0 : std::min(chain.lowest_learner - first, count);

    auto const lies_low = [&](std::size_t i) { return (i % 2 == 0) == even_lies_low; };
    auto const learns = [&](std::size_t i) { return i >= learner; };
    auto const keeps_output = [&](std::size_t i) {
        if (i + 1 == count)
            return last_cell; // the loss reads it; else it is in the next cell's slot
        return (learns(i) && layers[i].reads_output) ||
               (learns(i + 1) && layers[i + 1].reads_input);
    };
    // Whether its weight gradient runs later than the rest of its backward.
    auto const splits = [&](std::size_t i) { return apart && learns(i) && layers[i].splits; };
    auto const holds_output = [&](std::size_t i) {
        return (splits(i) && layers[i].reads_output) ||
               (i + 1 < count && splits(i + 1) && layers[i + 1].reads_input);
    };
    auto const output_bytes = [&](std::size_t i) { return layers[i].output.slots(capacity); };
    auto const saved_bytes = [&](std::size_t i) { return layers[i].saved.slots(capacity); };
    auto const scratch_bytes = [&](std::size_t i) { return layers[i].scratch.slots(capacity); };
    auto const deferred_bytes = [&](std::size_t i) { return layers[i].deferred.slots(capacity); };
    // In a backward that runs both halves one puts down for the other what the second reads.
    auto const passed_bytes = [&](std::size_t i) {
        return splits(i) || layers[i].has_whole ? 0 : deferred_bytes(i);
    };
    // Whether a recompute runs it, in any cell but the last.
    auto const runs_again = [&](std::size_t i) {
        return use.runs_again && learner < count &&
               (i + 1 < count || layers[i].saved.count > 0 || use.rewrites_output);
    };
    // Sums over the skips from or to a layer.
    auto const sum_over_skips = [&](auto f) {
        std::size_t bytes = 0;
        for (std::size_t s = 0; s < chain.skips.size(); ++s) bytes += f(chain.skips[s]);
        return bytes;
    };
    auto const is_inside = [&](SkipPair const& skip) {
        return skip.from >= first && skip.to < last;
    };
    auto const value_bytes = [&](SkipPair const& skip) {
        return slot_bytes(skip.bytes * capacity);
    };
    auto const is_kept = [&](SkipPair const& skip) {
        return is_inside(skip) && learns(skip.to - first) &&
               layers[skip.to - first].skips.backward_reads;
    };
    auto const stash_bytes = [&](SkipPair const& skip, std::size_t i) {
        return skip.from == first + i && !is_inside(skip) && runs_again(i) ? value_bytes(skip) : 0;
    };
    // Whether a function of it is called that writes gradients. Of the lowest learner nobody wants
    // anything but what its second half reads.
    auto const writes_gradients = [&](std::size_t i) {
        LayerInfo const& layer = layers[i];
        return first + i != chain.lowest_learner || !layer.splits || layer.deferred.count > 0 ||
               (layer.has_whole && (!apart || use.mixes));
    };
    auto const unwanted_bytes = [&](SkipPair const& skip, std::size_t i) {
        return skip.to == first + i && !chain.wants_gradient(skip) && writes_gradients(i)
                   ? slot_bytes(skip.gradient_bytes * capacity)
                   : 0;
    };
    auto const stashed_bytes = [&](std::size_t i) {
        return sum_over_skips([&](SkipPair const& skip) { return stash_bytes(skip, i); });
    };
    auto const popped_bytes = [&](std::size_t i) {
        return sum_over_skips([&](SkipPair const& skip) { return unwanted_bytes(skip, i); });
    };
    layout.skips = Array<SkipPlace>(chain.skips.size());
    // Room in one of the blocks.
    auto const push = [&](std::size_t bytes, bool held) {
        std::size_t& height = held ? layout.held : layout.kept;
        Place const place{height, held ? Region::held : Region::kept};
        height += bytes;
        return place;
    };

    // The stack. top[i]: its height with layer i's saved tensors; full[i]: with its output as well.
    Array<std::size_t> top(count);
    Array<std::size_t> full(count);
    for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t s = 0; s < chain.skips.size(); ++s) {
            SkipPair const& skip = chain.skips[s];
            if (skip.from != first + i || !is_inside(skip)) continue;
            if (is_kept(skip))
                layout.skips[s].value = push(value_bytes(skip), splits(skip.to - first));
            if (!splits(i) || !chain.wants_gradient(skip)) continue;
            layout.skips[s].gradient = {layout.deferred, Region::deferred};
            layout.deferred += slot_bytes(skip.gradient_bytes * capacity);
        }
        if (learns(i)) layout.places[i].saved = push(saved_bytes(i), splits(i));
        top[i] = layout.kept;
        if (keeps_output(i)) layout.places[i].output = push(output_bytes(i), holds_output(i));
        full[i] = layout.kept;
        if (!splits(i)) continue;
        layout.places[i].deferred = {layout.deferred, Region::deferred};
        layout.deferred += deferred_bytes(i);
        if (i + 1 == count && !last_cell) continue; // its output gradient is in a slot
        layout.places[i].output_gradient = {layout.deferred, Region::deferred};
        layout.deferred += layers[i].output_gradient.slots(capacity);
    }

    // Forward. A temporary output of layer i lives at moments i and i + 1. What
    // a layer without a backward saves is scratch. A recomputed last layer that saves writes its
    // output here as well, since its slot in the next cell may be gone.
    auto const temporary_output = [&](std::size_t i) {
        if (keeps_output(i)) return std::size_t{0};
        if (i + 1 < count) return output_bytes(i);
        return recomputes && layers[i].saved.count > 0 ? output_bytes(i) : 0;
    };
    auto const forward_moment = [&](std::size_t i) {
        Moment moment{adjacent ? full[i] : 0};
        std::size_t const before = i > 0 ? temporary_output(i - 1) : 0;
        std::size_t const own = temporary_output(i);
        moment.low = lies_low(i) ? own : before;
        moment.high = lies_low(i) ? before : own;
        moment.scratch = scratch_bytes(i) + (learns(i) ? 0 : saved_bytes(i)) + stashed_bytes(i);
        // A low output must lie above the stack of the next moment as well.
        bool const stays = adjacent && lies_low(i) && own > 0 && i + 1 < count;
        moment.low_base = stays ? full[i + 1] : moment.stack;
        return moment;
    };
    // Backward. Moment i runs layer i; `count` is the loss. The output gradient of layer i is
    // written at moment i + 1 and read at i. The cell's outermost gradients lie
    // in boundary slots, but for the loss's, and for an input gradient that nobody wants.
    auto const temporary_gradient = [&](std::size_t i) {
        bool const here = i + 1 == count ? last_cell : learns(i);
        return here && !splits(i) ? layers[i].output_gradient.slots(capacity) : 0;
    };
    // What layer i writes as its input gradient, where that is the output gradient of no layer of
    // the cell that learns.
    auto const input_gradient = [&](std::size_t i) {
        bool const discarded =
            first + i == chain.lowest_learner && !layers[i].accepts_none && writes_gradients(i);
        return discarded || (use.holds_gradient && i == 0)
                   ? layers[i].input_gradient.slots(capacity)
                   : 0;
    };
    auto const gradient_below = [&](std::size_t i) { // written at moment i
        if (i > learner || i == count) return temporary_gradient(i - 1);
        return input_gradient(i);
    };
    auto const backward_moment = [&](std::size_t i) {
        Moment moment;
        if (i == count)
            moment.stack = layout.kept;
        else
            moment.stack = layers[i].reads_output ? full[i] : top[i];
        if (!adjacent) moment.stack = 0;
        std::size_t const own = i < count ? temporary_gradient(i) : 0;
        std::size_t const below = gradient_below(i);
        moment.low = lies_low(i) ? own : below;
        moment.high = lies_low(i) ? below : own;
        moment.scratch = i < count ? scratch_bytes(i) + passed_bytes(i) + popped_bytes(i)
                                   : chain.loss_scratch.slots(capacity);
        moment.low_base = moment.stack;
        if (lies_low(i) && own > 0) { // written one moment earlier, over a higher stack
            std::size_t const above = i + 1 < count
                                          ? (layers[i + 1].reads_output ? full[i + 1] : top[i + 1])
                                          : layout.kept;
            if (adjacent) moment.low_base = above;
        }
        return moment;
    };

    // The height that the widest moment needs, then every place. Scratch lies above the low tensor,
    // or under it where the stack has left enough room.
    auto const low_end = [](Moment const& m) { return m.low_base + m.low; };
    // A weight gradient may run while another micro-batch's stack is full. In a backward that runs
    // both halves one behind the other the second finds what the first has written.
    auto const weight_moment = [&](std::size_t i) {
        Moment moment{adjacent ? layout.kept : 0};
        moment.scratch = splits(i) ? scratch_bytes(i) : 0;
        if (use.mixes && !layers[i].has_whole) {
            Moment const first_half = backward_moment(i);
            moment.stack = std::max(moment.stack, low_end(first_half));
            moment.high = first_half.high;
        }
        moment.low_base = moment.stack;
        return moment;
    };

    auto const scratch_at = [&](Moment const& m) {
        return m.stack + m.scratch <= m.low_base ? m.stack : low_end(m);
    };
    auto const height = [&](Moment const& m) {
        return std::max(low_end(m), scratch_at(m) + m.scratch) + m.high;
    };
    for (std::size_t i = 0; i < count; ++i)
        layout.temporary = std::max(layout.temporary, height(forward_moment(i)));
    for (std::size_t i = learner; i < count + (last_cell ? 1 : 0); ++i)
        layout.temporary = std::max(layout.temporary, height(backward_moment(i)));
    for (std::size_t i = learner; i < count; ++i)
        if (splits(i)) layout.temporary = std::max(layout.temporary, height(weight_moment(i)));
    for (std::size_t i = 0; i < count; ++i) {
        Moment const m = forward_moment(i);
        LayerPlaces& places = layout.places[i];
        places.forward_scratch = {scratch_at(m), Region::temporary};
        std::size_t behind = scratch_at(m) + scratch_bytes(i);
        if (!learns(i)) {
            places.saved = {behind, Region::temporary};
            behind += saved_bytes(i);
        }
        for (std::size_t s = 0; s < chain.skips.size(); ++s) {
            if (stash_bytes(chain.skips[s], i) == 0) continue;
            layout.skips[s].value = {behind, Region::temporary};
            behind += stash_bytes(chain.skips[s], i);
        }
        if (std::size_t const own = temporary_output(i))
            places.output = {lies_low(i) ? m.low_base : layout.temporary - own, Region::temporary};
    }
    for (std::size_t i = learner; i < count + (last_cell ? 1 : 0); ++i) {
        Moment const m = backward_moment(i);
        if (i == count) {
            layout.loss_scratch = {scratch_at(m), Region::temporary};
            // Where no layer of the cell learns, the loss's gradient is written all the same.
            if (learner == count)
                layout.places[count - 1].output_gradient = {
                    lies_low(count) ? layout.temporary - temporary_gradient(count - 1) : m.low_base,
                    Region::temporary};
            continue;
        }
        LayerPlaces& places = layout.places[i];
        places.backward_scratch = {scratch_at(m), Region::temporary};
        places.weight_scratch = splits(i) ? Place{scratch_at(weight_moment(i)), Region::temporary}
                                          : places.backward_scratch;
        if (passed_bytes(i) > 0)
            places.deferred = {scratch_at(m) + scratch_bytes(i), Region::temporary};
        std::size_t behind = scratch_at(m) + scratch_bytes(i) + passed_bytes(i);
        for (std::size_t s = 0; s < chain.skips.size(); ++s) {
            if (unwanted_bytes(chain.skips[s], i) == 0) continue;
            layout.skips[s].gradient = {behind, Region::temporary};
            behind += unwanted_bytes(chain.skips[s], i);
        }
        if (i == learner && input_gradient(i) > 0)
            layout.input_gradient = {
                lies_low(i) ? layout.temporary - input_gradient(i) : m.low_base, Region::temporary};
        if (std::size_t const own = temporary_gradient(i))
            places.output_gradient = {lies_low(i) ? m.low_base : layout.temporary - own,
                                      Region::temporary};
    }
    // Each as low as those let it that wait at the same time: first tensors, then gradients.
    std::size_t const base = layout.temporary;
    for (bool const gradients : {false, true}) {
        auto const waits = [&](std::size_t s) {
            SkipPair const& skip = chain.skips[s];
            if (!is_inside(skip)) return false;
            return gradients ? chain.wants_gradient(skip) && !splits(skip.from - first)
                             : !is_kept(skip);
        };
        auto const place = [&](std::size_t s) -> Place& {
            return gradients ? layout.skips[s].gradient : layout.skips[s].value;
        };
        auto const end_of = [&](std::size_t s) {
            SkipPair const& skip = chain.skips[s];
            return place(s).offset +
                   slot_bytes((gradients ? skip.gradient_bytes : skip.bytes) * capacity);
        };
        for (std::size_t s = 0; s < chain.skips.size(); ++s) {
            if (!waits(s)) continue;
            place(s) = {base, Region::temporary};
            for (std::size_t t = 0; t < s; ++t) {
                bool const meet = waits(t) && chain.skips[t].from <= chain.skips[s].to &&
                                  chain.skips[s].from <= chain.skips[t].to &&
                                  place(t).offset < end_of(s) && place(s).offset < end_of(t);
                if (!meet) continue;
                place(s).offset = end_of(t);
                t = static_cast<std::size_t>(-1); // all of them again
            }
            layout.temporary = std::max(layout.temporary, end_of(s));
        }
    }
    return layout;
}

} // namespace detail

/// Lays out the layers [first, last) of a chain. Which of neighbouring temporaries lies low is
/// tried both ways.
[[gnu::cold]] GPIPE_INLINE constexpr CellLayout
lay_out_cell(ChainShape const& chain, std::size_t first, std::size_t last, CellUse const& use) {
    CellLayout low = detail::lay_out_cell(chain, first, last, use, true);
    CellLayout high = detail::lay_out_cell(chain, first, last, use, false);
    return high.temporary < low.temporary ? high : low;
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
