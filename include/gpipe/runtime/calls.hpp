#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/runtime/step.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Where a layer's parameters and their gradients lie.
struct LayerMemory {
    /// By tensor, in its device's memory; null on other ranks.
    ///@{
    std::byte* const* parameters = nullptr;
    std::byte* const* gradients = nullptr;
    ///@}
    BufferMemory buffers{}; ///< likewise
};

/// The calls of a cell, list by list: of each way stage by stage.
///@{
inline constexpr std::size_t call_list_count = way_count * stage_count;
GPIPE_INLINE constexpr std::size_t call_list(std::size_t way, Stage stage) {
    return way * stage_count + static_cast<std::size_t>(stage);
}
///@}

/// All calls that the actions of a training consist of, list by list.
class Calls {
  public:
    /// The calls of one action, in their order.
    struct Range {
        Call const* first = nullptr; ///< the first
        Call const* last = nullptr;  ///< one past
    };

    Calls() = default;
    /// `begin`: by cell and list, and the end.
    Calls(Array<Call> calls, Array<SkipPlace> skips, Array<std::size_t> const& begin)
        : calls_(std::move(calls)), skips_(std::move(skips)), lists_(begin.size() - 1) {
        for (std::size_t i = 0; i < lists_.size(); ++i)
            lists_[i] = {calls_.data() + begin[i], calls_.data() + begin[i + 1]};
    }
    /// By cell and list.
    [[gnu::always_inline]] Range const& operator[](std::size_t list) const { return lists_[list]; }
    /// All of them, list by list.
    Call* data() { return calls_.data(); }
    std::size_t size() const { return calls_.size(); } ///< how many

  private:
    Array<Call> calls_;
    Array<SkipPlace> skips_; // that calls point to
    Array<Range> lists_;
};

namespace detail {

// The calls of one cell, at `to`.
class CellCallMaker {
  public:
    CellCallMaker(Model const& model, MemoryPlan const& plan, Array<LayerMemory> const& memory,
                  std::size_t learner, std::size_t cell, Call* to, SkipPlace* skips)
        : model_(model), plan_(plan), memory_(memory), cell_(cell), first_(plan.first[cell]),
          learner_(learner), to_(to), skips_(skips) {}

    /// Where the places of skips end.
    SkipPlace* skips() const { return skips_; }
    /// Puts a list behind the others; returns where it ends.
    Call* add(std::size_t list) {
        add_stage(plan_.parts.of(cell_, list / stage_count), static_cast<Stage>(list % stage_count),
                  list / stage_count == way_evaluates);
        return to_;
    }

  private:
    void add_stage(CellWay const& way, Stage stage, bool evaluates) {
        auto const s = static_cast<std::size_t>(stage);
        auto const uses = way.parts[stage];
        std::size_t const first = first_part_address(plan_.cells[cell_]);
        address_ = Array<Region>(way.parts.parts.size());
        for (std::size_t u = 0; u < uses.size(); ++u)
            address_[uses[u].part] = static_cast<Region>(first + u);
        for (std::size_t i = way.calls.begin[s]; i < way.calls.begin[s + 1]; ++i) {
            CellCall const& one = way.calls.calls[i];
            Call call;
            call.x = place(way, one.x);
            call.y = place(way, one.y);
            call.dy = place(way, one.dy);
            call.dx = place(way, one.dx);
            call.saved = place(way, one.saved);
            call.deferred = place(way, one.deferred);
            call.scratch = place(way, one.scratch);
            call.saving = one.saving;
            call.again = stage > Stage::recompute && one.kind == CallKind::forward;
            std::size_t const layer = first_ + one.layer;
            call.index = static_cast<std::uint32_t>(layer);
            if (one.kind == CallKind::loss) {
                call.function = evaluates            ? model_.loss.evaluate
                                : model_.loss.scales ? model_.loss.scaled
                                                     : model_.loss.train;
                call.layer = model_.loss.object;
            } else {
                call.function = function_of(layer, one.kind);
                call.layer = model_.layers[layer].object;
                call.parameters = memory_[layer].parameters;
                call.gradients = memory_[layer].gradients;
                LayerInfo const& info = model_.infos[layer];
                call.unwanted = info.unwanted();
                if (info.has_buffers() || info.exchanges()) call.buffers = &memory_[layer].buffers;
                call.exchanges = !evaluates && exchanges(info, one.kind, stage);
                add_skips(call, way, one, stage == Stage::recompute || call.again);
            }
            *to_++ = call;
        }
    }
    // Once of each micro-batch.
    static bool exchanges(LayerInfo const& layer, CallKind kind, Stage stage) {
        if (kind == CallKind::forward) return layer.exchanged.count > 0 && stage == Stage::forward;
        return layer.exchanged_gradient.count > 0 && kind != CallKind::weight_gradient;
    }
    CallFunction function_of(std::size_t layer, CallKind kind) const {
        LayerFunctions const& functions = model_.layers[layer].functions;
        bool const lowest = layer == learner_;
        switch (kind) {
        case CallKind::forward:
            return functions.forward;
        case CallKind::input_gradient:
            return lowest ? functions.lowest_input_gradient : functions.input_gradient;
        case CallKind::weight_gradient:
            return functions.weight_gradient;
        default:
            return lowest ? functions.lowest_backward : functions.backward;
        }
    }
    Place place(CellWay const& way, std::uint32_t tensor) const {
        switch (tensor) {
        case tensor::none:
            return {};
        case tensor::input:
            return {0, cell_ == 0 ? Region::given : Region::input};
        case tensor::output:
            return {0, Region::output};
        case tensor::output_gradient:
            return {0, Region::output_gradient};
        case tensor::input_gradient:
            return {0, Region::input_gradient};
        default:
            break;
        }
        auto const [part, offset] = way.places[tensor];
        return {offset, part == TensorPlace::retained ? Region::retained : address_[part]};
    }
    // Within the cell, or of those to other cells what nobody wants; else where the action has
    // them.
    void add_skips(Call& call, CellWay const& way, CellCall const& one, bool again) {
        SkipEnds const& ends = model_.infos[call.index].skips;
        call.skips = skips_;
        for (std::uint32_t e = 0; e < ends.count(); ++e) {
            std::size_t const s = skip_of(model_.skips, call.index, e);
            CellSkip const& inside = way.calls.skips[one.skips + e];
            SkipPlace here{place(way, inside.value), place(way, inside.gradient)};
            if (std::uint32_t const number = plan_.skip_edges[s]; number != Operands::none) {
                Edge const& edge = plan_.lowered.edges[number];
                bool const gives = e < ends.stashes;
                std::uint16_t const slot = gives ? edge.giver_slot : edge.taker_slot;
                if (!again || !gives) here.value = {0, skip_address(slot, false)};
                if (edge.gradient) here.gradient = {0, skip_address(slot, true)};
            }
            *skips_++ = here;
        }
    }
    Model const& model_;
    MemoryPlan const& plan_;
    Array<LayerMemory> const& memory_;
    std::size_t cell_;
    std::size_t first_;     // layer
    std::size_t learner_;   // of the chain
    Array<Region> address_; // by part, in the stage that is added
    Call* to_;
    SkipPlace* skips_;
};

} // namespace detail

/// The calls of a model over its plan, which must live as long: of the cells that these ranks' own
/// devices have. `memory`: by layer; `learner`: lowest_learner().
[[gnu::cold]] GPIPE_INLINE Calls make_calls(Model const& model, MemoryPlan const& plan,
                                            Array<LayerMemory> const& memory, std::size_t learner,
                                            Ranks const& ranks) {
    Programs const& programs = plan.lowered.programs;
    std::size_t const cells = programs.cells();
    std::size_t most = 0, ends = 0;
    for (std::size_t w = 0; w < plan.parts.ways.size(); ++w) {
        if (!ranks.own(programs.device_of(w / way_count))) continue;
        most += plan.parts.ways[w].calls.calls.size();
        ends += plan.parts.ways[w].calls.skips.size();
    }
    Array<Call> calls(most);
    Array<SkipPlace> skips(ends);
    SkipPlace* skips_to = skips.data();
    Array<std::size_t> begin(cells * call_list_count + 1);
    Call* to = calls.data();
    for (std::size_t c = 0; c < cells; ++c) {
        detail::CellCallMaker cell(model, plan, memory, learner, c, to, skips_to);
        for (std::size_t list = 0; list < call_list_count; ++list) {
            if (ranks.own(programs.device_of(c))) to = cell.add(list);
            begin[c * call_list_count + list + 1] = static_cast<std::size_t>(to - calls.data());
        }
        skips_to = cell.skips();
    }
    return {std::move(calls), std::move(skips), begin};
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
