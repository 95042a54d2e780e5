#pragma once

#include <gpipe/memory/cell_use.hpp>
#include <gpipe/schedule/action.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <vector>

namespace toy {

using gpipe::ChainShape;
using gpipe::GroupSizes;
using gpipe::LayerInfo;

/// A chain of layers that exist as values only.
struct RandomChain {
    std::deque<std::vector<std::size_t>> storage;
    std::vector<LayerInfo> layers;
    std::vector<gpipe::SkipPair> skips;
    GroupSizes loss_scratch;

    GroupSizes group(std::vector<std::size_t> bytes) {
        storage.push_back(std::move(bytes));
        return {storage.back().data(), storage.back().size()};
    }
    ChainShape shape() const {
        return {layers.data(),
                layers.size(),
                gpipe::lowest_learner(layers.data(), layers.size()),
                loss_scratch,
                {},
                {skips.data(), skips.size()}};
    }
};

/// How often a layer has what.
struct Sizes {
    std::size_t most_bytes = 4000;
    std::size_t most_tensors = 2; ///< in a group
    int percent_saved = 40;
    int percent_scratch = 40;
    int percent_integers = 6;
    int percent_parameters = 60;
    int percent_splits = 50;   ///< of all layers: a backward in two halves
    int percent_deferred = 50; ///< of those: something left by the first half for the second
    int percent_whole = 50;    ///< likewise: a whole backward, too
    int percent_skips = 0;     ///< one more skip from a layer, and then again
    int percent_frozen = 0;    ///< of all layers, beside those without parameters
};

/// Skips from any layer to any behind it, half of them not far.
inline void add_skips(RandomChain& chain, std::mt19937_64& random, Sizes sizes) {
    auto const below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    auto const happens = [&](int percent) { return static_cast<int>(below(100)) < percent; };
    std::size_t const length = chain.layers.size(), most = 63;
    for (std::size_t from = 0; from + 1 < length; ++from)
        while (happens(sizes.percent_skips) && chain.skips.size() < most) {
            std::size_t const behind = length - 1 - from;
            std::size_t const to =
                from + 1 + below(happens(50) ? std::min<std::size_t>(behind, 3) : behind);
            std::size_t const bytes = 1 + below(sizes.most_bytes);
            chain.skips.push_back({static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(to),
                                   chain.layers[from].skips.stashes++, 0, bytes,
                                   happens(80) ? bytes : 0});
        }
    std::shuffle(chain.skips.begin(), chain.skips.end(), random);
    for (gpipe::SkipPair& skip : chain.skips) {
        gpipe::SkipEnds& ends = chain.layers[skip.to].skips;
        skip.pop = ends.stashes + ends.pops++;
        ends.backward_reads = ends.pops > 1 ? ends.backward_reads : happens(50);
    }
}

inline RandomChain random_chain(std::mt19937_64& random, std::size_t length, Sizes sizes) {
    auto const below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    auto const happens = [&](int percent) { return static_cast<int>(below(100)) < percent; };
    RandomChain chain;
    auto const some = [&] {
        std::vector<std::size_t> bytes(1 + below(sizes.most_tensors));
        for (std::size_t& b : bytes) b = 1 + below(sizes.most_bytes);
        return bytes;
    };
    // Of all tensors of a boundary, of none, or of the first of two.
    auto const gradient_of = [&](std::vector<std::size_t> boundary, bool carries) {
        if (boundary.size() > 1 && happens(20)) boundary[1] = 0;
        return carries ? boundary : std::vector<std::size_t>(boundary.size());
    };
    std::vector<std::size_t> boundary = some();
    bool carries = happens(80);
    std::vector<std::size_t> gradient = gradient_of(boundary, carries);
    for (std::size_t i = 0; i < length; ++i) {
        LayerInfo layer;
        layer.name = "layer";
        layer.input = chain.group(boundary);
        layer.input_gradient = chain.group(gradient);
        boundary = some();
        carries = !happens(sizes.percent_integers);
        gradient = gradient_of(boundary, carries);
        layer.output = chain.group(boundary);
        layer.output_gradient = chain.group(gradient);
        layer.output_carries_gradient = carries;
        if (happens(sizes.percent_saved)) layer.saved = chain.group(some());
        if (happens(sizes.percent_scratch)) layer.scratch = chain.group(some());
        if (happens(sizes.percent_parameters)) layer.parameters = chain.group(some());
        layer.reads_input = happens(60);
        layer.reads_output = happens(40);
        layer.accepts_none = happens(50);
        layer.splits = happens(sizes.percent_splits);
        layer.has_whole = !layer.splits || happens(sizes.percent_whole);
        if (layer.splits && happens(sizes.percent_deferred)) layer.deferred = chain.group(some());
        if (sizes.percent_frozen > 0 && happens(sizes.percent_frozen)) layer.freeze();
        chain.layers.push_back(layer);
    }
    if (happens(50)) chain.loss_scratch = chain.group(some());
    if (sizes.percent_skips > 0) add_skips(chain, random, sizes);
    return chain;
}

/// Whether a layer has a backward at all.
inline bool learns(ChainShape const& chain, std::size_t layer) {
    return layer >= chain.lowest_learner;
}

/// A tensor (or group) of one micro-batch, by what it is of which layer, or of which skip.
struct TensorName {
    enum What {
        output,   ///< of the layer; the input of the next
        again,    ///< an output of a recompute that nobody reads
        gradient, ///< of the layer's output
        unwanted, ///< the gradient of the lowest learner's input
        saved,
        deferred,
        skip,          ///< what is stashed, and popped
        skip_gradient, ///< of that
        forward_scratch,
        backward_scratch,
        weight_scratch,
        skip_again,    ///< what a recompute stashes for another cell
        skip_unwanted, ///< the gradient of what was stashed below the lowest learner
        loss_scratch,
    };
    What what = output;
    std::size_t layer = 0;

    friend bool operator==(TensorName const&, TensorName const&) = default;
    friend auto operator<=>(TensorName const&, TensorName const&) = default;
};
inline bool is_scratch(TensorName const& name) { return name.what >= TensorName::forward_scratch; }
inline bool is_skip_gradient(TensorName const& name) {
    return name.what == TensorName::skip_gradient || name.what == TensorName::skip_unwanted;
}
inline bool is_skip(TensorName const& name) {
    return name.what == TensorName::skip || name.what == TensorName::skip_again ||
           is_skip_gradient(name);
}

inline std::size_t bytes_of(ChainShape const& chain, TensorName const& name, std::size_t samples) {
    if (is_skip(name)) {
        gpipe::SkipPair const& skip = chain.skips[name.layer];
        return gpipe::slot_bytes((is_skip_gradient(name) ? skip.gradient_bytes : skip.bytes) *
                                 samples);
    }
    LayerInfo const& layer = chain.layers[name.layer];
    GroupSizes const& group = name.what == TensorName::output || name.what == TensorName::again
                                  ? layer.output
                              : name.what == TensorName::gradient     ? layer.output_gradient
                              : name.what == TensorName::unwanted     ? layer.input_gradient
                              : name.what == TensorName::saved        ? layer.saved
                              : name.what == TensorName::deferred     ? layer.deferred
                              : name.what == TensorName::loss_scratch ? chain.loss_scratch
                                                                      : layer.scratch;
    return group.slots(samples);
}

/// One call of a user's function, or one half of a backward: what it reads and what it writes,
/// scratch among that.
struct LayerCall {
    std::vector<TensorName> reads;
    std::vector<TensorName> writes;

    friend bool operator==(LayerCall const&, LayerCall const&) = default;
};

namespace detail {

// A forward of layer i in a cell of layers up to `last`. `again`: there was one before; `in_vain`:
// and nobody reads its output.
inline LayerCall call_forward(ChainShape const& chain, std::size_t i, std::size_t last, bool again,
                              bool in_vain) {
    LayerCall call;
    if (i > 0) call.reads.push_back({TensorName::output, i - 1});
    call.writes.push_back({in_vain ? TensorName::again : TensorName::output, i});
    call.writes.push_back({TensorName::saved, i});
    call.writes.push_back({TensorName::forward_scratch, i});
    for (std::size_t s = 0; s < chain.skips.size(); ++s) {
        if (chain.skips[s].to == i) call.reads.push_back({TensorName::skip, s});
        bool const gone = again && chain.skips[s].to >= last;
        if (chain.skips[s].from == i)
            call.writes.push_back({gone ? TensorName::skip_again : TensorName::skip, s});
    }
    return call;
}
// A backward of layer i, or a half of it: what any of them reads.
inline LayerCall reads_backward(ChainShape const& chain, std::size_t i) {
    LayerInfo const& layer = chain.layers[i];
    LayerCall call;
    if (i > 0 && layer.reads_input) call.reads.push_back({TensorName::output, i - 1});
    if (layer.reads_output) call.reads.push_back({TensorName::output, i});
    call.reads.push_back({TensorName::gradient, i});
    call.reads.push_back({TensorName::saved, i});
    for (std::size_t s = 0; s < chain.skips.size(); ++s) {
        gpipe::SkipPair const& skip = chain.skips[s];
        if (skip.to == i && layer.skips.backward_reads) call.reads.push_back({TensorName::skip, s});
        if (skip.from == i && skip.gradient_bytes > 0)
            call.reads.push_back({TensorName::skip_gradient, s});
    }
    return call;
}
inline void write_input_gradient(ChainShape const& chain, std::size_t i, LayerCall& call) {
    if (i > chain.lowest_learner)
        call.writes.push_back({TensorName::gradient, i - 1});
    else if (!chain.layers[i].accepts_none)
        call.writes.push_back({TensorName::unwanted, i});
    for (std::size_t s = 0; s < chain.skips.size(); ++s) {
        gpipe::SkipPair const& skip = chain.skips[s];
        if (skip.to == i && skip.gradient_bytes > 0)
            call.writes.push_back(
                {learns(chain, skip.from) ? TensorName::skip_gradient : TensorName::skip_unwanted,
                 s});
    }
}
inline void call_first_half(ChainShape const& chain, std::size_t i, std::vector<LayerCall>& calls) {
    // Of the lowest learner nobody wants anything but what its second half reads.
    if (i == chain.lowest_learner && chain.layers[i].deferred.count == 0) return;
    LayerCall call = reads_backward(chain, i);
    write_input_gradient(chain, i, call);
    call.writes.push_back({TensorName::deferred, i});
    call.writes.push_back({TensorName::backward_scratch, i});
    calls.push_back(call);
}
inline void call_second_half(ChainShape const& chain, std::size_t i,
                             std::vector<LayerCall>& calls) {
    LayerCall call = reads_backward(chain, i);
    if (chain.layers[i].deferred.count > 0) call.reads.push_back({TensorName::deferred, i});
    call.writes.push_back({TensorName::weight_scratch, i});
    calls.push_back(call);
}
inline void call_whole(ChainShape const& chain, std::size_t i, std::vector<LayerCall>& calls) {
    LayerCall call = reads_backward(chain, i);
    write_input_gradient(chain, i, call);
    call.writes.push_back({TensorName::backward_scratch, i});
    calls.push_back(call);
}

} // namespace detail

/// The loss, which writes its gradient in an evaluation as well if it cannot do without.
inline LayerCall call_of_loss(ChainShape const& chain) {
    std::size_t const last = chain.size - 1;
    return {{{TensorName::output, last}},
            {{TensorName::gradient, last}, {TensorName::loss_scratch, last}}};
}

/// What an action of the cell with layers [first, last) calls, in order: from the definition of a
/// layer's functions, and not from how the planner or the engine go about it. `rewrites`: whether a
/// recompute has to write the output that crosses to the next cell as well, since backward reads it
/// where it was.
inline std::vector<LayerCall> calls_of(ChainShape const& chain, std::size_t first, std::size_t last,
                                       gpipe::Kind kind, bool rewrites = false) {
    using gpipe::Kind;
    std::vector<LayerCall> calls;
    bool const last_cell = last == chain.size;
    if (kind == Kind::forward || kind == Kind::recompute) {
        bool const again = kind == Kind::recompute;
        if (again && !last_cell && !learns(chain, last - 1)) return calls; // nobody reads anything
        bool const leaves_out =
            again && !last_cell && !rewrites && chain.layers[last - 1].saved.count == 0;
        for (std::size_t i = first; i < last - leaves_out; ++i) {
            bool const in_vain = again && !last_cell && !rewrites && i + 1 == last;
            calls.push_back(detail::call_forward(chain, i, last, again, in_vain));
        }
        return calls;
    }
    if (last_cell && kind != Kind::weight_gradient) calls.push_back(call_of_loss(chain));
    for (std::size_t i = last; i-- > first && learns(chain, i);) {
        LayerInfo const& layer = chain.layers[i];
        if (layer.frozen && !layer.has_whole) { // of its halves the first is left
            if (kind != Kind::weight_gradient) detail::call_first_half(chain, i, calls);
            continue;
        }
        bool const whole = !layer.splits ? kind != Kind::weight_gradient
                                         : kind == Kind::backward && layer.has_whole;
        if (whole) detail::call_whole(chain, i, calls);
        if (whole || !layer.splits) continue;
        if (kind != Kind::weight_gradient) detail::call_first_half(chain, i, calls);
        if (kind != Kind::input_gradient) detail::call_second_half(chain, i, calls);
    }
    return calls;
}

} // namespace toy
