#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/runtime/step.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Where a layer's parameters and their gradients lie.
struct LayerMemory {
    std::byte* parameters = nullptr; ///< in its device's memory
    std::byte* gradients = nullptr;  ///< likewise
};

/// All calls that the actions of a training consist of, list by list.
class Calls {
  public:
    /// The calls of one action, in their order.
    struct Range {
        Call const* first = nullptr; ///< the first
        Call const* last = nullptr;  ///< one past
    };

    Calls() = default;
    /// `lists`: by cell and CallList.
    Calls(Array<Call> calls, Array<SkipPlace> skips, Array<std::size_t> const& begin)
        : calls_(std::move(calls)), skips_(std::move(skips)), lists_(begin.size() - 1) {
        for (std::size_t i = 0; i < lists_.size(); ++i)
            lists_[i] = {calls_.data() + begin[i], calls_.data() + begin[i + 1]};
    }
    /// By cell and CallList, see Tables.
    Range const& operator[](std::size_t list) const { return lists_[list]; }

  private:
    Array<Call> calls_;
    Array<SkipPlace> skips_; // that calls point to
    Array<Range> lists_;
};

namespace detail {

// A copy as a call: `layer` points to the number of bytes.
GPIPE_INLINE void copy_call(Call const& call, Frame const& frame) {
    std::memcpy(call.y.in(frame), call.x.in(frame), *static_cast<std::size_t const*>(call.layer));
}

// The calls of one cell, at `to`.
class CellCalls {
  public:
    CellCalls(Model const& model, MemoryPlan const& plan, Array<LayerMemory> const& memory,
              std::size_t learner, std::size_t cell, Call* to, SkipPlace* skips)
        : model_(model), plan_(plan), layout_(plan.layouts[cell]), memory_(memory), cell_(cell),
          first_(plan.first[cell]), last_(plan.first[cell + 1]), chain_learner_(learner),
          learner_(std::clamp(learner, first_, last_)), to_(to), skips_(skips) {}

    /// Where the places of skips end.
    SkipPlace* skips() const { return skips_; }
    /// Puts a list behind the others; returns where it ends.
    Call* add(CallList list) {
        if (list == CallList::offload || list == CallList::fetch) {
            add_copies(list == CallList::offload);
            return to_;
        }
        if (!plan_.reversals[cell_].calls.empty()) {
            add_reversal(list, plan_.reversals[cell_]);
            return to_;
        }
        bool const recomputes = list == CallList::recompute;
        if (list == CallList::pass || list == CallList::forward || list == CallList::evaluate)
            add_forwards(last_, list == CallList::forward, true);
        else if (recomputes)
            add_forwards(recompute_last(), true, false);
        else
            add_backwards(list);
        if (list == CallList::evaluate && is_last()) add_loss(model_.loss.evaluate);
        return to_;
    }

  private:
    bool is_last() const { return last_ == model_.layers.size(); }
    LayerPlaces const& places(std::size_t layer) const { return layout_.places[layer - first_]; }

    // One past the last layer that a recompute runs: one less where only the next cell would read
    // the result; none where nobody would read anything.
    std::size_t recompute_last() const {
        if (chain_learner_ >= last_ && !is_last()) return first_;
        bool const whole =
            is_last() || model_.infos[last_ - 1].saved.count > 0 || plan_.rewrites_output(cell_);
        return whole ? last_ : last_ - 1;
    }
    // Whatever it is called for and wherever its tensors lie.
    Call call_of(std::size_t layer) const {
        Call call;
        call.layer = model_.layers[layer].object;
        call.parameters = memory_[layer].parameters;
        call.gradients = memory_[layer].gradients;
        call.index = static_cast<std::uint32_t>(layer);
        return call;
    }
    Call call_of_loss(CallFunction function) const {
        Call call;
        call.function = function;
        call.layer = model_.loss.object;
        call.index = static_cast<std::uint32_t>(model_.layers.size());
        return call;
    }
    CallFunction backward_of(std::size_t layer) const {
        LayerFunctions const& functions = model_.layers[layer].functions;
        return layer == chain_learner_ ? functions.lowest_backward : functions.backward;
    }

    // Of a cell that keeps every layer whole.
    Call placed_call(std::size_t layer) const {
        LayerPlaces const& own = places(layer);
        Call call = call_of(layer);
        if (layer > first_) call.x = places(layer - 1).output;
        if (layer + 1 < last_) call.y = own.output;
        call.saved = own.saved;
        call.deferred = own.deferred;
        return call;
    }
    // The places of a layer's skips: within the cell, or for nobody, as `place(skip, end)` says;
    // else where the action has them.
    template <class F> void add_skips(Call& call, std::size_t layer, bool sends, F place) {
        SkipEnds const& ends = model_.infos[layer].skips;
        call.skips = skips_;
        for (std::uint32_t e = 0; e < ends.count(); ++e) {
            std::size_t const s = skip_of(model_.skips, layer, e);
            SkipPlace here = place(s, e);
            if (std::uint32_t const number = plan_.skip_edges[s]; number != Operands::none) {
                Edge const& edge = plan_.lowered.edges[number];
                bool const gives = e < ends.stashes;
                std::size_t const slot = 2u * (gives ? edge.giver_slot : edge.taker_slot) - 2;
                if (sends || !gives) here.value = {slot, Region::skip};
                if (edge.gradient) here.gradient = {slot + 1, Region::skip};
            }
            *skips_++ = here;
        }
    }
    void add_forwards(std::size_t last, bool saving, bool sends) {
        for (std::size_t layer = first_; layer < last; ++layer) {
            Call call = placed_call(layer);
            call.function = model_.layers[layer].functions.forward;
            call.scratch = places(layer).forward_scratch;
            call.saving = saving;
            add_skips(call, layer, sends, [&](auto s, auto) { return layout_.skips[s]; });
            *to_++ = call;
        }
    }
    void add_loss(CallFunction function) {
        Call call = call_of_loss(function);
        call.dy = places(last_ - 1).output_gradient;
        call.scratch = layout_.loss_scratch;
        *to_++ = call;
    }
    void add_backwards(CallList list) {
        bool const second = list == CallList::weight_gradient;
        if (is_last() && !second) add_loss(model_.loss.train);
        for (std::size_t layer = last_; layer-- > learner_;) {
            LayerFunctions const& functions = model_.layers[layer].functions;
            bool const lowest = layer == chain_learner_;
            Call call = placed_call(layer);
            call.function = list == CallList::backward ? backward_of(layer)
                            : second                   ? functions.weight_gradient
                            : lowest                   ? functions.lowest_input_gradient
                                                       : functions.input_gradient;
            if (!call.function) continue;
            if (layer + 1 < last_ || is_last()) call.dy = places(layer).output_gradient;
            if (lowest)
                call.dx = layout_.input_gradient;
            else if (layer > first_)
                call.dx = places(layer - 1).output_gradient;
            call.scratch = second ? places(layer).weight_scratch : places(layer).backward_scratch;
            call.saving = true;
            add_skips(call, layer, true, [&](auto s, auto) { return layout_.skips[s]; });
            *to_++ = call;
        }
    }

    // Between the device's memory and the host's, where the input lies behind the rest.
    void add_copies(bool out) {
        std::size_t const& retained = plan_.pools.pool(Holds::retained, cell_).bytes;
        auto const add = [&](Place from, Place to, std::size_t const& bytes) {
            if (bytes == 0) return;
            Call& call = *to_++ = Call{&copy_call, &bytes};
            call.x = from;
            call.y = to;
            call.index = static_cast<std::uint32_t>(first_);
        };
        Place const here{0, Region::retained};
        Place const input{out ? 0 : retained, Region::input};
        Place const output{out ? retained : 0, Region::output};
        add(out ? here : Place{0, Region::input}, out ? Place{0, Region::output} : here, retained);
        if (plan_.cells[cell_].input_moves)
            add(input, output, plan_.lowered.edges[cell_ - 1].bytes);
    }
    // Of a cell that is reversed piece by piece: see ReversalCalls.
    void add_reversal(CallList list, ReversalLayout const& reversal) {
        std::size_t begin = 0;
        std::size_t end = reversal.backward;
        if (list == CallList::input_gradient || list == CallList::weight_gradient) return;
        if (list == CallList::recompute) {
            begin = reversal.start;
            end = reversal.recompute_end;
        } else if (list == CallList::backward) {
            begin = reversal.backward;
            end = reversal.calls.size();
        }
        for (std::size_t i = begin; i < end; ++i) {
            Call call = call_at(reversal.calls[i]);
            bool const for_nobody =
                list == CallList::evaluate || (list == CallList::pass && i >= reversal.start);
            call.saving = call.saving && !for_nobody;
            call.again = list == CallList::backward && reversal.calls[i].kind == CallKind::forward;
            if (reversal.calls[i].kind != CallKind::loss)
                add_skips(
                    call, call.index, list != CallList::recompute && !call.again,
                    [&](auto, auto e) { return reversal.skips[reversal.calls[i].skips + e]; });
            *to_++ = call;
        }
        if (list != CallList::evaluate || !is_last()) return;
        // The loss comes first in the backward.
        *to_ = call_at(reversal.calls[reversal.backward]);
        (to_++)->function = model_.loss.evaluate;
    }
    Call call_at(PlacedCall const& placed) const {
        std::size_t const layer = first_ + placed.layer;
        Call call =
            placed.kind == CallKind::loss ? call_of_loss(model_.loss.train) : call_of(layer);
        if (placed.kind == CallKind::forward)
            call.function = model_.layers[layer].functions.forward;
        if (placed.kind == CallKind::backward) call.function = backward_of(layer);
        call.x = placed.x;
        call.y = placed.y;
        call.dy = placed.dy;
        call.dx = placed.dx;
        call.saved = placed.saved;
        call.deferred = placed.deferred;
        call.scratch = placed.scratch;
        call.saving = placed.saving;
        return call;
    }

    Model const& model_;
    MemoryPlan const& plan_;
    CellLayout const& layout_;
    Array<LayerMemory> const& memory_;
    std::size_t cell_;
    std::size_t first_, last_;
    std::size_t chain_learner_, learner_; // of the chain; of the cell, or its end
    Call* to_;
    SkipPlace* skips_;
};

} // namespace detail

/// The calls of a model over its plan, which must live as long. `memory`: by layer; `learner`:
/// lowest_learner().
[[gnu::cold]] GPIPE_INLINE Calls make_calls(Model const& model, MemoryPlan const& plan,
                                            Array<LayerMemory> const& memory, std::size_t learner) {
    std::size_t const cells = plan.lowered.programs.cells();
    std::size_t const layers = model.layers.size();
    std::size_t most = call_list_count * (layers + 1) + 4 * cells;
    for (ReversalLayout const& reversal : plan.reversals) most += 2 * reversal.calls.size();
    std::size_t ends = 0; // of a layer
    for (LayerInfo const& info : model.infos)
        ends = std::max<std::size_t>(ends, info.skips.count());
    Array<Call> calls(most);
    Array<SkipPlace> skips(ends * most);
    SkipPlace* skips_to = skips.data();
    Array<std::size_t> begin(cells * call_list_count + 1);
    Call* to = calls.data();
    for (std::size_t c = 0; c < cells; ++c) {
        detail::CellCalls cell(model, plan, memory, learner, c, to, skips_to);
        for (std::size_t list = 0; list < call_list_count; ++list) {
            to = cell.add(static_cast<CallList>(list));
            begin[c * call_list_count + list + 1] = static_cast<std::size_t>(to - calls.data());
        }
        skips_to = cell.skips();
    }
    return {std::move(calls), std::move(skips), begin};
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
