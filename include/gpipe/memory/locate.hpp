#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/plan/sweep.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Bytes [begin, end) of a device's arena or of the host's memory.
struct Location {
    std::size_t space = 0; ///< a device, or as many as there are: the host
    std::size_t begin = 0; ///< offset
    std::size_t end = 0;   ///< one past the last byte
};

namespace detail {

GPIPE_INLINE constexpr std::size_t bytes_of(MemoryPlan const& plan, Value const& value) {
    switch (value.holds) {
    case Holds::input:
    case Holds::input_back:
    case Holds::output:
    case Holds::output_again:
    case Holds::staged_output:
        return plan.lowered.edges[value.owner].bytes;
    case Holds::gradient:
    case Holds::arrived:
    case Holds::staged_gradient:
        return plan.lowered.edges[value.owner].gradient_bytes;
    case Holds::turn:
        return 0;
    default:
        return plan.pools.pool(value.holds, value.owner).bytes;
    }
}

} // namespace detail

/// Where a value of a plan lies that is in this slot of its pool: the one answer.
[[gnu::cold]] GPIPE_INLINE constexpr Location locate(MemoryPlan const& plan, Value const& value,
                                                     std::size_t slot) {
    std::size_t const c = value.owner;
    auto const in = [&](Pool const& pool, std::size_t bytes) {
        std::size_t const begin = pool.at + slot * pool.bytes;
        return Location{pool.space, begin, begin + bytes};
    };
    switch (value.holds) {
    case Holds::turn:
        return {};
    case Holds::temporary:
        return in(plan.pools.temporaries(plan.lowered.programs.device_of(c)),
                  plan.pools.temporaries(plan.lowered.programs.device_of(c)).bytes);
    case Holds::discarded: {
        Pool const& pool = plan.pools.pool(Holds::input, plan.lowered.edges.into(c)[0]);
        return in(pool, pool.bytes);
    }
    case Holds::gradient: {
        Edge const& edge = plan.lowered.edges[c];
        if (!plan.gradient_lies_inside(edge)) break;
        std::size_t const begin =
            plan.temporaries_at(edge.to) + plan.layouts[edge.to].input_gradient.offset;
        return {plan.lowered.programs.device_of(edge.to), begin, begin + edge.gradient_bytes};
    }
    default:
        break;
    }
    return in(plan.pools.pool(value.holds, c), detail::bytes_of(plan, value));
}

/// Where all values of a table lie, one address for each byte of all arenas and of the host's
/// memory: for find_needs() and prove().
class Located {
  public:
    /// Of the plan's own table.
    [[gnu::cold]] constexpr explicit Located(MemoryPlan const& plan)
        : Located(plan, plan.operands, false) {}
    /// Of that, or of an `evaluation` over the same memory: there what crosses an edge lies where
    /// it does in the plan, blocks in the first slot of their pools.
    [[gnu::cold]] constexpr Located(MemoryPlan const& plan, Operands const& operands,
                                    bool evaluation)
        : locations_(operands.values.size()), begin_(plan.devices.size() + 1) {
        for (std::size_t d = 0; d < plan.devices.size(); ++d)
            begin_[d + 1] = begin_[d] + plan.devices[d].total();
        for (std::size_t v = 0; v < locations_.size(); ++v) {
            Value const& value = operands.values[v];
            if (!has_bytes(value.holds)) continue;
            std::size_t slot = 0;
            if (!evaluation)
                slot = plan.pools.of(v);
            else if (is_of_edge(value.holds))
                slot = plan.pools.of(
                    plan.operands.number(value.holds, value.owner, value.micro_batch));
            locations_[v] = locate(plan, value, slot);
        }
    }
    /// Of a value, by its number.
    constexpr Location const& operator[](std::size_t value) const { return locations_[value]; }
    /// Of an action's operand.
    constexpr Span operator()(std::size_t, Operand const& operand) const {
        Location const& at = locations_[operand.value];
        return {begin_[at.space] + at.begin, begin_[at.space] + at.end};
    }

  private:
    Array<Location> locations_;
    Array<std::uint64_t> begin_; // of a space
};

} // namespace gpipe
