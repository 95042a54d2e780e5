#pragma once

#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/memory/cell_use.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpipe::detail {

inline constexpr std::uint32_t no_tensor = static_cast<std::uint32_t>(-1);

// A tensor of a micro-batch in a cell, between the call that writes it and the last that reads it.
// Times are indices of calls.
struct ReversalTensor {
    enum class Role : std::uint8_t {
        outside,    // at an end of the cell: no memory of its own
        activation, // may outlive the calls around it
        saved,      // outlives them
        gradient,   // waits among the temporaries for the next backward
        scratch,    // of one call
    };
    Role role = Role::outside;
    Region region = Region::temporary;
    bool even = false; // the parity of its layer decides at which end of the temporaries it lies
    std::size_t bytes = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
};

enum class CallKind : std::uint8_t { forward, backward, loss };

// A call by its tensors: indices, or no_tensor.
struct ReversalCall {
    CallKind kind = CallKind::forward;
    bool saving = false;
    std::uint32_t layer = 0; // in the cell; of the loss, their number
    std::uint32_t x = no_tensor;
    std::uint32_t y = no_tensor;
    std::uint32_t dy = no_tensor;
    std::uint32_t dx = no_tensor;
    std::uint32_t saved = no_tensor;
    std::uint32_t deferred = no_tensor;
    std::uint32_t scratch = no_tensor;
    std::size_t skips = 0; // where the ends of its layer begin among all
};

// The end of a skip in a call: of one to another cell what nobody wants, see CellLayout::skips.
struct ReversalSkip {
    std::uint32_t value = no_tensor;
    std::uint32_t gradient = no_tensor;
};

// Everything that a micro-batch does in a cell, from its forward to the end of its backward, as one
// sequence of calls. Those from `start` on begin the reversal: a forward that the backward comes
// right behind runs them, too, else the recompute does, but for the last of them if nobody would
// read what that writes. Those from `backward` on are the backward.
struct ReversalCalls {
    Array<ReversalCall> calls;
    Array<ReversalTensor> tensors;
    Array<ReversalSkip> skips;
    std::size_t skip_count = 0;
    std::size_t call_count = 0;
    std::size_t tensor_count = 0;
    std::size_t start = 0;
    std::size_t recompute_end = 0;
    std::size_t backward = 0;
    std::uint32_t input_gradient = no_tensor; // of the cell or the lowest learner: see CellLayout
    std::uint32_t again = no_tensor; // what a recompute writes as the cell's output, in vain
};

// Builds that. Who reads a tensor decides how long it lives, and so where it may lie: in a block
// that the micro-batch has from its forward on (retained) or from the begin of its reversal on
// (kept); among the temporaries if the next call is the last to read it.
class ReversalBuilder {
    using Role = ReversalTensor::Role;

  public:
    constexpr ReversalBuilder(ChainShape const& chain, std::size_t first, std::size_t last,
                              CellUse const& use, Reversal const& reversal)
        : chain_(chain), layers_(chain.layers + first), count_(last - first), use_(use),
          reversal_(reversal), last_cell_(last == chain.size),
          learner_(chain.lowest_learner <= first ? 0
                                                 : std::min(chain.lowest_learner - first, count_)),
          has_lowest_(chain.lowest_learner >= first && chain.lowest_learner < last),
          stored_(count_ + 1, no_tensor), x_of_(count_, no_tensor), y_of_(count_, no_tensor),
          saved_of_(count_, no_tensor), gradient_of_(count_, no_tensor),
          skip_of_(chain.skips.size()) {
        std::size_t const most = count_ + reversal.steps.size() + 1; // calls, the loss among them
        std::size_t ends = 0;                                        // of a layer
        for (std::size_t i = 0; i < count_; ++i)
            ends = std::max<std::size_t>(ends, layers_[i].skips.count());
        all_.calls = Array<ReversalCall>(most);
        all_.tensors = Array<ReversalTensor>((5 + ends) * most + 4);
        all_.skips = Array<ReversalSkip>(ends * most);
    }

    constexpr ReversalCalls build() {
        auto const& steps = reversal_.steps;
        std::size_t begin = 0; // of the backwards
        while (begin < steps.size() && !steps[begin].backward) ++begin;
        std::size_t const restart = begin > 0 ? steps[0].layer : count_;

        std::uint32_t current = stored_[0] = outside(Region::input);
        for (std::size_t i = 0; i < restart; ++i)
            current = forward(i, reversal_.forward[i], current);
        all_.start = all_.call_count;
        again_ = true;
        // These run for the forward as well, which keeps what it says or what they say.
        for (std::size_t s = 0; s < begin; ++s) {
            std::size_t const i = steps[s].layer;
            current = forward(i, std::max(steps[s].keep, reversal_.forward[i]), current);
        }
        all_.backward = all_.recompute_end = all_.call_count;
        std::size_t const top = count_ - 1;
        if (!last_cell_ && begin > 0) {
            if (learner_ == count_)
                all_.recompute_end = all_.start; // nobody would read anything
            else if (!layers_[top].saved.count && !use_.rewrites_output)
                --all_.recompute_end;
            else if (use_.recomputes)
                all_.again =
                    add(Role::scratch, layers_[top].output, top % 2 == 0, all_.call_count - 1);
        }

        if (last_cell_) loss(current);
        std::size_t next = count_; // the backward that ran last
        for (std::size_t s = begin; s < steps.size() && next > learner_; ++s) {
            ReversalStep const& step = steps[s];
            if (step.backward) {
                backward(next = step.layer);
                continue;
            }
            std::size_t const i = step.layer;
            if (steps[s - 1].backward) current = stored_[i];
            // Right before its own backward a forward may have nothing to do.
            if (steps[s + 1].backward && !layers_[i].saved.count && !needs_output(i))
                x_of_[i] = current;
            else
                current = forward(i, step.keep, current);
        }
        place();
        return static_cast<ReversalCalls&&>(all_);
    }

  private:
    constexpr bool learns(std::size_t i) const { return i >= learner_; }
    constexpr bool needs_output(std::size_t i) const {
        return learns(i) && layers_[i].reads_output;
    }

    constexpr std::uint32_t add(Role role, GroupSizes const& sizes, bool even, std::size_t time) {
        return add(role, sizes.slots(use_.capacity), even, time);
    }
    [[gnu::noinline]] constexpr std::uint32_t add(Role role, std::size_t bytes, bool even,
                                                  std::size_t time) {
        if (bytes == 0) return no_tensor;
        all_.tensors[all_.tensor_count] = {role, Region::temporary, even, bytes, time, time};
        return static_cast<std::uint32_t>(all_.tensor_count++);
    }
    constexpr std::uint32_t add(Role role, GroupSizes const& sizes, bool even = false) {
        return add(role, sizes, even, all_.call_count);
    }
    constexpr std::uint32_t outside(Region region) {
        all_.tensors[all_.tensor_count] = {Role::outside, region};
        return static_cast<std::uint32_t>(all_.tensor_count++);
    }
    constexpr std::uint32_t read(std::uint32_t tensor) {
        if (tensor != no_tensor) all_.tensors[tensor].end = all_.call_count;
        return tensor;
    }
    [[gnu::noinline]] constexpr void put(ReversalCall const& call) {
        all_.calls[all_.call_count++] = call;
    }
    // Whether what is built now is a forward that may run again, in any cell but the last.
    constexpr bool runs_again(std::size_t i) const {
        return again_ && (all_.backward > 0 ||
                          (use_.runs_again && learner_ < count_ &&
                           (i + 1 < count_ || layers_[i].saved.count > 0 || use_.rewrites_output)));
    }
    // The ends of the layer's skips.
    constexpr void add_skips(ReversalCall& call, std::size_t i) {
        std::size_t const layer = static_cast<std::size_t>(layers_ - chain_.layers) + i;
        SkipEnds const& ends = layers_[i].skips;
        bool const even = i % 2 == 0;
        auto const make = [&](Role role, std::size_t bytes) {
            return add(role, slot_bytes(bytes * use_.capacity), even, all_.call_count);
        };
        call.skips = all_.skip_count;
        for (std::uint32_t e = 0; e < ends.count(); ++e) {
            std::size_t const s = skip_of(chain_.skips, layer, e);
            SkipPair const& skip = chain_.skips[s];
            ReversalSkip& here = all_.skips[all_.skip_count++];
            ReversalSkip& inside = skip_of_[s]; // as it was written last
            bool const stashes = e < ends.stashes;
            bool const leaves = layer - i + count_ <= skip.to || skip.from < layer - i;
            if (call.kind == CallKind::forward) {
                if (stashes && !leaves) inside.value = make(Role::activation, skip.bytes);
                if (stashes && leaves && runs_again(i))
                    here.value = make(Role::scratch, skip.bytes);
                if (!leaves) here.value = read(inside.value);
                continue;
            }
            if (!stashes && !leaves && ends.backward_reads) here.value = read(inside.value);
            if (!stashes && !chain_.wants_gradient(skip))
                here.gradient = make(Role::scratch, skip.gradient_bytes);
            if (leaves || !chain_.wants_gradient(skip)) continue;
            if (!stashes) inside.gradient = make(Role::gradient, skip.gradient_bytes);
            here.gradient = read(inside.gradient);
        }
    }

    // Returns the output.
    constexpr std::uint32_t forward(std::size_t i, Keep keep, std::uint32_t x) {
        LayerInfo const& layer = layers_[i];
        bool const whole = keep == Keep::all && learns(i);
        bool const leaves = i + 1 == count_ && !last_cell_;
        ReversalCall call;
        call.layer = static_cast<std::uint32_t>(i);
        call.saving = whole;
        call.x = read(x);
        // What no backward will read is scratch. Saved tensors lie under the output, which dies
        // first.
        call.saved = add(whole ? Role::saved : Role::scratch, layer.saved);
        call.y = leaves ? outside(Region::output) : add(Role::activation, layer.output, i % 2 == 0);
        call.scratch = add(Role::scratch, layer.scratch);
        add_skips(call, i);
        put(call);
        if (keep != Keep::nothing) stored_[i] = x;
        stored_[i + 1] = keep == Keep::all ? call.y : stored_[i + 1];
        if (keep == Keep::all) {
            x_of_[i] = x;
            y_of_[i] = call.y;
            saved_of_[i] = call.saved;
        }
        return call.y;
    }
    constexpr void loss(std::uint32_t y) {
        std::size_t const top = count_ - 1;
        ReversalCall call;
        call.kind = CallKind::loss;
        call.layer = static_cast<std::uint32_t>(count_);
        call.y = read(y);
        call.dy = gradient_of_[top] =
            add(Role::gradient, layers_[top].output_gradient, top % 2 == 0);
        call.scratch = add(Role::scratch, chain_.loss_scratch);
        put(call);
    }
    constexpr void backward(std::size_t i) {
        LayerInfo const& layer = layers_[i];
        ReversalCall call;
        call.kind = CallKind::backward;
        call.saving = true;
        call.layer = static_cast<std::uint32_t>(i);
        call.x = layer.reads_input ? read(x_of_[i]) : no_tensor;
        call.y = layer.reads_output ? read(y_of_[i]) : no_tensor;
        call.saved = read(saved_of_[i]);
        call.dy = i + 1 == count_ && !last_cell_ ? outside(Region::output_gradient)
                                                 : read(gradient_of_[i]);
        if (i > learner_)
            call.dx = gradient_of_[i - 1] =
                add(Role::gradient, layers_[i - 1].output_gradient, i % 2 == 1);
        else
            call.dx = lowest_gradient(i);
        // A layer in halves puts down for the second what that reads.
        if (!layer.has_whole) call.deferred = add(Role::scratch, layer.deferred);
        call.scratch = add(Role::scratch, layer.scratch);
        add_skips(call, i);
        put(call);
    }
    // The gradient of the input of the lowest layer that learns here.
    constexpr std::uint32_t lowest_gradient(std::size_t i) {
        LayerInfo const& layer = layers_[i];
        bool const writes = !layer.splits || layer.deferred.count > 0 || layer.has_whole;
        bool const discarded = has_lowest_ && !layer.accepts_none && writes;
        if (!discarded && !use_.holds_gradient)
            return has_lowest_ ? no_tensor : outside(Region::input_gradient);
        all_.input_gradient = add(Role::gradient, layer.input_gradient, i % 2 == 1);
        return all_.input_gradient;
    }
    constexpr void place() {
        for (std::size_t t = 0; t < all_.tensor_count; ++t) {
            ReversalTensor& tensor = all_.tensors[t];
            bool const saved = tensor.role == Role::saved;
            if (!saved && tensor.role != Role::activation) continue;
            if (tensor.begin < all_.start) {
                if (saved || tensor.end >= all_.start) tensor.region = Region::retained;
            } else if (tensor.begin < all_.backward) {
                if (saved || tensor.end >= all_.backward) tensor.region = Region::kept;
            } else if (saved || tensor.end > tensor.begin + 1) {
                tensor.region = Region::kept;
            }
        }
    }

    ChainShape const& chain_;
    LayerInfo const* layers_;
    std::size_t count_;
    CellUse const& use_;
    Reversal const& reversal_;
    bool last_cell_;
    std::size_t learner_; // the lowest layer of the cell that has a backward; count_ if none
    bool has_lowest_;     // whether that is the chain's
    ReversalCalls all_;
    Array<std::uint32_t> stored_; // by layer: where its input can be read again
    // Of the forward that kept a layer whole last.
    Array<std::uint32_t> x_of_;
    Array<std::uint32_t> y_of_;
    Array<std::uint32_t> saved_of_;
    Array<std::uint32_t> gradient_of_; // of its output
    Array<ReversalSkip> skip_of_;      // by skip of the chain
    bool again_ = false;               // behind what only the forward runs
};

} // namespace gpipe::detail
