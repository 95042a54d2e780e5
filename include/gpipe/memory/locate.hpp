#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/plan/sweep.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpipe {

namespace detail {

// The bytes of a value of a plan that is no part; none of what is a turn only, or on its way from
// rank to rank.
GPIPE_INLINE constexpr std::size_t bytes_of(MemoryPlan const& plan, Value const& value) {
    Edges const& edges = plan.lowered.edges;
    std::size_t const slot = plan.pools.pool_of(value, edges).bytes;
    if (value.holds == Holds::discarded) // smaller than the input, in whose slot it is
        return std::min(slot, edges[edges.out_of(value.owner)[0]].bytes);
    if (!is_of_edge(value.holds)) return slot;
    Edge const& edge = edges[value.owner];
    bool const gradient = value.holds == Holds::gradient || value.holds == Holds::arrived ||
                          value.holds == Holds::staged_gradient;
    return std::min(slot, gradient ? edge.gradient_bytes : edge.bytes);
}
// Where it lies, in this slot of its pool.
GPIPE_INLINE constexpr Span in_pool(MemoryPlan const& plan, Value const& value, std::size_t slot) {
    Pool const& pool = plan.pools.pool_of(value, plan.lowered.edges);
    if (pool.bytes == 0) return {};
    std::size_t const begin = pool.at + slot * pool.bytes;
    return {begin, begin + bytes_of(plan, value), static_cast<std::uint32_t>(pool.space)};
}

} // namespace detail

/// Where all values of a table lie, in offsets of a device's arena or, behind the devices, of the
/// host's memory: the one answer, for find_needs() and prove().
class Located {
  public:
    /// Of the plan's own table.
    [[gnu::cold]] constexpr explicit Located(MemoryPlan const& plan)
        : Located(plan, plan.operands, false) {}
    /// Of that, or of an `evaluation` over the same memory: there what has a slot lies where
    /// it does in the plan.
    [[gnu::cold]] constexpr Located(MemoryPlan const& plan, Operands const& operands,
                                    bool evaluation)
        : spans_(operands.values.size()) {
        PartTable const parts = plan.part_table(evaluation);
        Room const& room = evaluation ? plan.evaluation_room : plan.room;
        std::size_t const all = plan.lowered.programs.micro_batches();
        for (std::size_t v = 0; v < spans_.size(); ++v) {
            Value const& value = operands.values[v];
            if (!has_bytes(value.holds)) continue;
            std::size_t const c = value.owner, m = value.micro_batch;
            std::size_t const d = plan.lowered.programs.device_of(
                is_of_edge(value.holds) ? plan.lowered.edges[c].to : c);
            bool const has_room = is_placed(value.holds) && plan.has_room(d);
            if (value.holds == Holds::part) {
                std::size_t const p = v - parts.begin[c * all + m];
                std::size_t const at =
                    has_room     ? plan.begin[d].evaluation + room.at[v]
                    : evaluation ? plan.begin[d].evaluation + plan.parts.evaluation_at[c][p]
                                 : plan.begin[d].parts + plan.parts.at[v];
                spans_[v] = {at, at + parts.of(c, m)->parts[p].bytes,
                             static_cast<std::uint32_t>(d)};
                continue;
            }
            std::size_t const slot = !evaluation ? plan.pools.of(v)
                                     : is_of_edge(value.holds)
                                         ? plan.pools.of(plan.operands.number(value.holds, c, m))
                                         : 0;
            Span& at = spans_[v] = detail::in_pool(plan, value, slot);
            if (!has_room || at.begin == at.end) continue;
            std::size_t const bytes = at.end - at.begin;
            at.begin = plan.begin[d].evaluation + room.at[v];
            at.end = at.begin + bytes;
        }
    }
    /// Of a value, by its number.
    constexpr Span const& operator[](std::size_t value) const { return spans_[value]; }
    /// Of an action's operand.
    constexpr Span const& operator()(std::size_t, Operand const& operand) const {
        return spans_[operand.value];
    }

  private:
    Array<Span> spans_; // by value
};

/// Where a value of a plan's table lies, and how long: in Lowered::order.
struct Stay {
    Span at;                ///< see Located
    std::uint32_t from = 0; ///< the action that writes it, or the first that finds it
    std::uint32_t to = 0;   ///< the last that uses it
};

/// Of a value, by its number: see Operands::number().
[[gnu::cold]] GPIPE_INLINE constexpr Stay place(MemoryPlan const& plan, std::size_t value) {
    Stay result{Located(plan)[value]};
    bool any = false;
    for (std::uint32_t const i : plan.lowered.order)
        for (Operand const& operand : plan.operands[i]) {
            if (operand.value != value) continue;
            if (!any) result.from = i;
            result.to = i;
            any = true;
        }
    return result;
}

} // namespace gpipe
