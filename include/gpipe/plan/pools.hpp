#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/happens_before.hpp>

#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Equal slots, one behind the other, that values take in turns.
struct Pool {
    std::size_t slots = 0; ///< how many
    std::size_t bytes = 0; ///< of each
    std::size_t space = 0; ///< a device, or as many as there are: the host's memory
    std::size_t at = 0;    ///< offset of the first

    /// All of them.
    constexpr std::size_t total() const { return slots * bytes; }
};

/// When a writer waits for room in a pool rather than have one slot more. Else, and where nothing
/// is said, none ever waits: a slot is taken again only by who starts after its last use whatever
/// the timing.
struct Patience {
    std::size_t enough = static_cast<std::size_t>(-1); ///< if there are so many slots
    std::size_t free = 1;                              ///< and so many of them are free
};

/// The pools of a table, and in which slot each value lies.
class Pools {
  public:
    constexpr Pools() = default;
    /// None yet.
    constexpr Pools(std::size_t edges, std::size_t cells, std::size_t values)
        : edges_(edges), pools_(5 * edges + 2 * cells), slot_(values) {}

    /// The pool of a value of an edge or a cell: inputs and gradients of an edge share one (and the
    /// output of a recompute that nobody reads goes where the gradient will), outputs and arrived
    /// gradients, and what a reversal finds, whether it has been away or not.
    ///@{
    constexpr Pool& pool(Holds holds, std::size_t owner) { return pools_[number(holds, owner)]; }
    constexpr Pool const& pool(Holds holds, std::size_t owner) const {
        return pools_[number(holds, owner)];
    }
    constexpr Pool const& pool_of(Value const& value, Edges const& edges) const {
        return pools_[number_of(value, edges)];
    }
    ///@}
    /// In which slot a value lies.
    ///@{
    constexpr std::uint32_t& of(std::size_t value) { return slot_[value]; }
    constexpr std::uint32_t of(std::size_t value) const { return slot_[value]; }
    ///@}
    /// So many values that have none come in front of the others.
    constexpr void put_in_front(std::size_t values) {
        Array<std::uint32_t> all(values + slot_.size());
        for (std::size_t v = 0; v < slot_.size(); ++v) all[values + v] = slot_[v];
        slot_ = static_cast<Array<std::uint32_t>&&>(all);
    }
    /// By number.
    ///@{
    constexpr Pool& operator[](std::size_t pool) { return pools_[pool]; }
    constexpr Pool const& operator[](std::size_t pool) const { return pools_[pool]; }
    ///@}
    /// How many there are.
    constexpr std::size_t size() const { return pools_.size(); }
    /// The number of a value's pool.
    constexpr std::size_t number_of(Value const& value, Edges const& edges) const {
        return value.holds == Holds::discarded ? number(Holds::input, edges.into(value.owner)[0])
                                               : number(value.holds, value.owner);
    }
    /// The number of a pool.
    constexpr std::size_t number(Holds holds, std::size_t owner) const {
        switch (holds) {
        case Holds::input:
        case Holds::gradient:
            return 5 * owner;
        case Holds::output:
        case Holds::output_again:
        case Holds::arrived:
            return 5 * owner + 1;
        case Holds::staged_output:
            return 5 * owner + 2;
        case Holds::staged_gradient:
            return 5 * owner + 3;
        case Holds::input_back:
            return 5 * owner + 4;
        default:
            break;
        }
        return 5 * edges_ + 2 * owner + (holds == Holds::offloaded);
    }

  private:
    std::size_t edges_ = 0;
    Array<Pool> pools_;
    Array<std::uint32_t> slot_; // by value
};

namespace detail {

// Gives slots to values in the linear order of their writers. Of the free slots of its pool a
// writer takes the one that came free last among those that it need not wait for: the devices on
// either side are sure of the slots that they freed themselves, so each takes its own and leaves
// the other's. If there is none, and its patience allows, the one that has been free for longest.
class SlotChooser {
  public:
    constexpr SlotChooser(Walk const& walk, Lowered const& lowered, Operands const& operands,
                          Array<Patience> const& patience)
        : lowered_(lowered), operands_(operands), sure_(walk, operands), patience_(patience),
          result_(lowered.edges.size(), lowered.programs.cells(), operands.values.size()),
          uses_(operands.values.size()), at_(operands.values.size(), none),
          free_(result_.size(), none), free_count_(result_.size()), slots_(16) {
        for (Operand const& operand : operands.all) ++uses_[operand.value];
        for (std::uint32_t const i : walk.order) visit(i);
    }
    constexpr Pools take_result() { return static_cast<Pools&&>(result_); }

  private:
    static constexpr std::uint32_t none = 0xFFFFFFFF;
    struct Slot {
        std::uint32_t number = 0;  // in its pool
        std::uint32_t next = none; // that came free before it
        LastUsers last{};
    };

    constexpr void visit(std::uint32_t i) {
        sure_.begin(i);
        for (Operand const& operand : operands_[i])
            if (operand.use == Use::write) take(operand.value);
        for (Operand const& operand : operands_[i]) {
            std::uint32_t const at = at_[operand.value];
            bool const last = --uses_[operand.value] == 0;
            if (at == none) continue;
            slots_[at].last.add(i, sure_);
            if (!last) continue;
            std::size_t const pool = pool_of(operand.value);
            slots_[at].next = free_[pool];
            free_[pool] = at;
            ++free_count_[pool];
        }
    }
    constexpr std::size_t pool_of(std::uint32_t v) const {
        return result_.number_of(operands_.values[v], lowered_.edges);
    }
    constexpr void take(std::uint32_t v) {
        Value const& value = operands_.values[v];
        if (value.holds == Holds::turn) return;
        if (value.holds == Holds::gradient) {
            Edge const& edge = lowered_.edges[value.owner];
            if (!edge.gradient) return;
        }
        std::size_t const p = pool_of(v);
        std::uint32_t before = none; // in the list of free slots
        std::uint32_t found = free_[p];
        std::uint32_t before_oldest = none; // where that comes to be `before`
        while (found != none && !is_sure(slots_[found])) {
            before_oldest = before;
            before = found;
            found = slots_[found].next;
        }
        Pool& pool = result_[p];
        if (found == none && before != none && pool.slots >= patience_[p].enough &&
            free_count_[p] >= patience_[p].free) {
            found = before;
            before = before_oldest;
        }
        if (found == none) {
            if (count_ == slots_.size()) enlarge(slots_, count_, 2 * count_);
            found = static_cast<std::uint32_t>(count_++);
            slots_[found].number = static_cast<std::uint32_t>(pool.slots++);
        } else {
            (before == none ? free_[p] : slots_[before].next) = slots_[found].next;
            --free_count_[p];
        }
        slots_[found].last = {};
        at_[v] = found;
        result_.of(v) = slots_[found].number;
    }
    // Whether the writer need not wait for it.
    constexpr bool is_sure(Slot const& slot) const {
        for (std::uint32_t const user : slot.last.users)
            if (user != none && !sure_(user)) return false;
        return true;
    }

    Lowered const& lowered_;
    Operands const& operands_;
    SureAlong sure_; // of the action that is visited
    Array<Patience> const& patience_;
    Pools result_;
    Array<std::uint32_t> uses_; // by value: still to come
    Array<std::uint32_t> at_;   // by value: its slot, among all
    Array<std::uint32_t> free_; // by pool: the slot that came free last
    Array<std::size_t> free_count_;
    Array<Slot> slots_;
    std::size_t count_ = 0;
};

} // namespace detail

/// Gives every value but parts its slot; bytes and offsets of pools are left to the caller.
/// `patience`: by pool.
[[gnu::cold]] GPIPE_INLINE constexpr Pools assign_slots(Walk const& walk, Lowered const& lowered,
                                                        Operands const& operands,
                                                        Array<Patience> const& patience) {
    return detail::SlotChooser(walk, lowered, operands, patience).take_result();
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
