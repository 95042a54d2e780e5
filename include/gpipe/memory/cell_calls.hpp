#pragma once

#include <gpipe/checkpoint/weight_halves.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/cell_call.hpp>
#include <gpipe/memory/cell_use.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {
namespace detail {

// Builds the calls of a cell in a way. Who reads a tensor decides how long it lives, and nothing
// else.
class CellCallBuilder {
  public:
    constexpr CellCallBuilder(ChainShape const& chain, std::size_t first, std::size_t last,
                              CellUse const& use, Reversal const& reversal, std::size_t way)
        : chain_(chain), layers_(chain.layers + first), first_(first), count_(last - first),
          use_(use), reversal_(reversal), recomputes_((way & way_recomputes) != 0),
          evaluates_((way & way_evaluates) != 0), last_cell_(last == chain.size),
          learner_(chain.lowest_learner <= first ? 0
                                                 : std::min(chain.lowest_learner - first, count_)),
          stored_(count_ + 1, tensor::none), x_of_(count_, tensor::none),
          y_of_(count_, tensor::none), saved_of_(count_, tensor::none),
          deferred_of_(count_, tensor::none), gradient_of_(count_, tensor::none),
          skip_of_(chain.skips.size()) {
        while (again_ < reversal.steps.size() && !reversal.steps[again_].backward) ++again_;
        if ((way & way_halves) != 0) {
            halves_ = weight_halves(reversal, chain.layers, chain.lowest_learner, first);
            weight_steps_ = weight_steps(reversal, halves_);
        }
        std::size_t const most = 3 * count_ + reversal.steps.size() + weight_steps_.size() + 1;
        std::size_t ends = 0; // of a layer
        for (std::size_t i = 0; i < count_; ++i)
            ends = std::max<std::size_t>(ends, layers_[i].skips.count());
        all_.calls = Array<CellCall>(most);
        all_.tensors = Array<CellTensor>((4 + ends) * most + 2);
        all_.skips = Array<CellSkip>(ends * most);
    }

    constexpr CellCalls build() {
        std::uint32_t const y = forwards();
        if (evaluates_ && last_cell_) loss(y);
        all_.begin[1] = calls_;
        std::uint32_t const again = recomputes_ ? recompute() : y;
        all_.begin[2] = calls_;
        if (!evaluates_) backwards(again);
        all_.begin[3] = calls_;
        weight_gradients();
        all_.begin[4] = calls_;
        all_.calls = first_of(all_.calls, calls_);
        all_.tensors = first_of(all_.tensors, tensors_);
        all_.skips = first_of(all_.skips, skips_);
        return static_cast<CellCalls&&>(all_);
    }

  private:
    constexpr bool learns(std::size_t i) const { return i >= learner_; }
    constexpr bool reads_output(std::size_t i) const {
        return learns(i) && layers_[i].reads_output;
    }
    constexpr bool splits(std::size_t i) const {
        return !halves_.empty() && halves_[i] != WeightHalf::at_once;
    }

    constexpr std::uint32_t add(GroupSizes const& sizes) { return add(sizes.slots(use_.capacity)); }
    [[gnu::noinline]] constexpr std::uint32_t add(std::size_t bytes) {
        if (bytes == 0) return tensor::none;
        all_.tensors[tensors_] = {bytes, calls_, calls_};
        return tensors_++;
    }
    constexpr std::uint32_t read(std::uint32_t t) {
        if (t < tensors_) all_.tensors[t].end = calls_;
        return t;
    }
    [[gnu::noinline]] constexpr void put(CellCall const& call) { all_.calls[calls_++] = call; }

    // The cell's forward runs all layers. What comes first in the reversal is kept by it where no
    // recompute comes, else by that.
    constexpr std::uint32_t forwards() {
        auto const& steps = reversal_.steps;
        std::size_t const restart = again_ > 0 ? steps[0].layer : count_;
        std::uint32_t current = stored_[0] = tensor::input;
        for (std::size_t i = 0; i < count_; ++i) {
            Keep keep = reversal_.forward[i];
            if (i >= restart) keep = std::max(keep, steps[i - restart].keep);
            if (evaluates_ || (recomputes_ && i >= restart)) keep = Keep::nothing;
            if (i == restart) all_.restart = calls_, restart_from_ = current;
            current = forward(i, keep, current, false);
        }
        if (restart == count_) all_.restart = calls_;
        return current;
    }
    // All that, but for the last layer if nobody would read what that writes.
    constexpr std::uint32_t recompute() {
        auto const& steps = reversal_.steps;
        if (learner_ == count_ && !last_cell_) return tensor::output;
        std::uint32_t current = restart_from_;
        for (std::size_t s = 0; s < again_; ++s) {
            std::size_t const i = steps[s].layer;
            bool const leaves = i + 1 == count_ && !last_cell_;
            if (leaves && layers_[i].saved.count == 0 && !use_.rewrites_output)
                pass_by(i, current);
            else
                current = forward(i, std::max(steps[s].keep, reversal_.forward[i]), current, true);
        }
        return current;
    }
    constexpr void backwards(std::uint32_t y) {
        if (last_cell_) loss(y);
        auto const& steps = reversal_.steps;
        std::uint32_t current = tensor::none;
        std::size_t next = count_; // the backward that ran last
        for (std::size_t s = again_; s < steps.size() && next > learner_; ++s) {
            std::size_t const i = steps[s].layer;
            if (steps[s].backward)
                backward(next = i);
            else
                current = run_again(steps, s, current);
        }
    }
    // Behind a backward. Returns the output.
    constexpr std::uint32_t run_again(Array<ReversalStep> const& steps, std::size_t s,
                                      std::uint32_t x) {
        std::size_t const i = steps[s].layer;
        if (s == 0 || steps[s - 1].backward) x = stored_[i];
        // The cell's output is still where it was.
        bool const reads = reads_output(i) && (i + 1 < count_ || last_cell_);
        if (!steps[s + 1].backward || layers_[i].saved.count || reads)
            return forward(i, steps[s].keep, x, true);
        pass_by(i, x);
        return x;
    }
    constexpr void weight_gradients() {
        weighs_ = true;
        std::uint32_t current = tensor::none;
        for (std::size_t s = 0; s < weight_steps_.size(); ++s)
            if (weight_steps_[s].backward)
                weight_gradient(weight_steps_[s].layer);
            else
                current = run_again(weight_steps_, s, current);
    }
    constexpr void weight_gradient(std::size_t i) {
        CellCall call = reads_backward(CallKind::weight_gradient, i);
        call.deferred = read(deferred_of_[i]);
        call.scratch = add(layers_[i].scratch);
        put(call);
    }

    // Right before its backward a forward may have nothing to do.
    constexpr void pass_by(std::size_t i, std::uint32_t x) {
        x_of_[i] = stored_[i] = x;
        y_of_[i] = tensor::output; // of the cell, where anybody reads it
        saved_of_[i] = tensor::none;
    }
    // The ends of the layer's skips.
    constexpr void add_skips(CellCall& call, std::size_t i, bool again) {
        std::size_t const layer = first_ + i;
        SkipEnds const& ends = layers_[i].skips;
        auto const make = [&](std::size_t bytes) { return add(slot_bytes(bytes * use_.capacity)); };
        call.skips = skips_;
        for (std::uint32_t e = 0; e < ends.count(); ++e) {
            std::size_t const s = skip_of(chain_.skips, layer, e);
            SkipPair const& skip = chain_.skips[s];
            CellSkip& here = all_.skips[skips_++];
            CellSkip& inside = skip_of_[s]; // as it was written last
            bool const stashes = e < ends.stashes;
            bool const leaves = first_ + count_ <= skip.to || skip.from < first_;
            if (call.kind == CallKind::forward) {
                if (stashes && !leaves) inside.value = make(skip.bytes);
                if (stashes && leaves && again) here.value = make(skip.bytes);
                if (!leaves) here.value = read(inside.value);
                continue;
            }
            if (!stashes && !leaves && ends.backward_reads) here.value = read(inside.value);
            bool const wanted = chain_.wants_gradient(skip);
            if (call.kind == CallKind::weight_gradient) {
                if (stashes && !leaves && wanted) here.gradient = read(inside.gradient);
                continue;
            }
            if (!stashes && !wanted && writes_gradients(i))
                here.gradient = make(skip.gradient_bytes);
            if (leaves || !wanted) continue;
            if (!stashes) inside.gradient = make(skip.gradient_bytes);
            here.gradient = read(inside.gradient);
        }
    }

    // Returns the output. Saved tensors come first: they outlive it.
    constexpr std::uint32_t forward(std::size_t i, Keep keep, std::uint32_t x, bool again) {
        LayerInfo const& layer = layers_[i];
        bool const leaves = i + 1 == count_ && !last_cell_;
        CellCall call;
        call.layer = static_cast<std::uint32_t>(i);
        call.saving = keep == Keep::all && learns(i);
        call.x = read(x);
        call.saved = add(layer.saved);
        bool const in_vain =
            again && leaves && (weighs_ || (!use_.rewrites_output && !use_.discards));
        call.y = leaves && !in_vain ? tensor::output : add(layer.output);
        call.scratch = add(layer.scratch);
        add_skips(call, i, again);
        put(call);
        if (keep != Keep::nothing) stored_[i] = x;
        if (keep != Keep::all) return call.y;
        x_of_[i] = x;
        y_of_[i] = in_vain ? tensor::output : call.y;
        stored_[i + 1] = y_of_[i];
        saved_of_[i] = call.saved;
        return call.y;
    }
    constexpr void loss(std::uint32_t y) {
        CellCall call;
        call.kind = CallKind::loss;
        call.layer = static_cast<std::uint32_t>(count_);
        call.skips = skips_;
        call.y = read(y);
        call.dy = gradient_of_[count_ - 1] = add(layers_[count_ - 1].output_gradient);
        call.scratch = add(chain_.loss_scratch);
        put(call);
    }
    // What any backward of the layer reads, or a half of it.
    constexpr CellCall reads_backward(CallKind kind, std::size_t i) {
        CellCall call;
        call.kind = kind;
        call.saving = true;
        call.layer = static_cast<std::uint32_t>(i);
        if (layers_[i].reads_input) call.x = read(x_of_[i]);
        if (layers_[i].reads_output) call.y = read(y_of_[i]);
        call.saved = read(saved_of_[i]);
        call.dy = i + 1 == count_ && !last_cell_ ? tensor::output_gradient : read(gradient_of_[i]);
        add_skips(call, i, false);
        return call;
    }
    // Whether what runs of it in a backward writes gradients. Of the lowest learner nobody wants
    // anything but what its second half reads.
    constexpr bool writes_gradients(std::size_t i) const {
        LayerInfo const& layer = layers_[i];
        return first_ + i != chain_.lowest_learner || !layer.splits || layer.deferred.count > 0 ||
               (!splits(i) && layer.has_whole);
    }
    constexpr void backward(std::size_t i) {
        LayerInfo const& layer = layers_[i];
        if (splits(i) && !writes_gradients(i)) return; // its first half is nobody's
        CellCall call =
            reads_backward(splits(i) ? CallKind::input_gradient : CallKind::backward, i);
        if (i > learner_)
            call.dx = gradient_of_[i - 1] = add(layers_[i - 1].output_gradient);
        else
            call.dx = lowest_gradient(i);
        // A layer that has halves only puts down for the second what that reads.
        if (splits(i) || !layer.has_whole) call.deferred = deferred_of_[i] = add(layer.deferred);
        call.scratch = add(layer.scratch);
        put(call);
    }
    // The gradient of the input of the lowest layer that learns here.
    constexpr std::uint32_t lowest_gradient(std::size_t i) {
        LayerInfo const& layer = layers_[i];
        if (first_ + i == chain_.lowest_learner)
            return layer.accepts_none || !writes_gradients(i) ? tensor::none
                                                              : add(layer.input_gradient);
        return tensor::input_gradient;
    }

    ChainShape const& chain_;
    LayerInfo const* layers_;
    std::size_t first_, count_;
    CellUse const& use_;
    Reversal const& reversal_;
    bool recomputes_, evaluates_, last_cell_;
    bool weighs_ = false;      // whether the second half is being built
    Array<WeightHalf> halves_; // none: whole
    Array<ReversalStep> weight_steps_;
    std::size_t learner_;   // the lowest layer of the cell that has a backward; count_ if none
    std::size_t again_ = 0; // steps in front of the first backward
    CellCalls all_;
    std::uint32_t calls_ = 0, tensors_ = 0, skips_ = 0; // built so far
    std::uint32_t restart_from_ = tensor::input; // what the first layer reads that runs again
    Array<std::uint32_t> stored_;                // by layer: where its input can be read again
    // Of the forward that kept a layer whole last.
    Array<std::uint32_t> x_of_, y_of_, saved_of_, deferred_of_;
    Array<std::uint32_t> gradient_of_; // of its output
    Array<CellSkip> skip_of_;          // by skip of the chain
};

} // namespace detail
/// The calls of layers [first, last) of a chain, reversed so, in one of their ways.
[[gnu::cold]] GPIPE_INLINE constexpr CellCalls
cell_calls(ChainShape const& chain, std::size_t first, std::size_t last, CellUse const& use,
           Reversal const& reversal, std::size_t way) {
    return detail::CellCallBuilder(chain, first, last, use, reversal, way).build();
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
