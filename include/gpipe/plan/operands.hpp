#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/lowered.hpp>
#include <gpipe/plan/value.hpp>

#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Which values actions of a cell have beside the tensors of its edges. What a backward reads and
/// temporaries there always are.
struct CellValues {
    bool retained = false; ///< from the forward to the backward, whatever runs again between
    bool splits = false;   ///< whether halves of its backwards run apart, so that there are more
    /// Whether what is kept is there only while the backward runs: nothing runs again before that.
    bool kept_in_backward = false;
    bool discards = false;        ///< the output of a recompute, in a place of its own
    bool input_moves = false;     ///< whether what is offloaded includes the input
    bool gradient_inside = false; ///< whether the input's lies among its backward's temporaries
};

namespace detail {

template <class T> constexpr Array<T> first_of(Array<T> const& all, std::size_t size) {
    Array<T> result(size);
    for (std::size_t i = 0; i < size; ++i) result[i] = all[i];
    return result;
}

class OperandBuilder {
  public:
    constexpr OperandBuilder(Lowered const& lowered, Array<CellValues> const& cells)
        : lowered_(lowered), programs_(lowered.programs), edges_(lowered.edges), cells_(cells),
          micro_batches_(programs_.micro_batches()), keeps_(programs_.size()),
          again_(programs_.cells() * micro_batches_) {
        look_ahead();
        std::size_t const room = count_room();
        result_.edges = edges_.size();
        result_.cells = programs_.cells();
        result_.micro_batches = micro_batches_;
        result_.numbers = Array<std::uint32_t>(
            (holds_of_edges * result_.edges + (holds_count - holds_of_edges) * result_.cells) *
                micro_batches_,
            Operands::none);
        result_.begin = Array<std::uint32_t>(programs_.size() + 1);
        result_.all = Array<Operand>(room);
        result_.values = Array<Value>(room);
        for (std::size_t h = 0; h < holds_count; ++h)
            rows_[h] = result_.row(static_cast<Holds>(h), 0);
        numbers_ = result_.numbers.data();
        all_ = result_.all.data();
        values_ = result_.values.data();
    }
    constexpr Operands build() {
        for (std::size_t i = 0; i < programs_.size(); ++i) {
            result_.begin[i] = static_cast<std::uint32_t>(size_);
            action_ = static_cast<std::uint32_t>(i);
            now_ = programs_[i];
            add();
        }
        result_.begin[programs_.size()] = static_cast<std::uint32_t>(size_);
        result_.all = first_of(result_.all, size_);
        result_.values = first_of(result_.values, count_);
        return static_cast<Operands&&>(result_);
    }

  private:
    constexpr std::size_t pair() const { return now_.cell * micro_batches_ + now_.micro_batch; }
    // What a backward comes right behind keeps; and what runs again.
    constexpr void look_ahead() {
        Array<bool> next(again_.size());
        bool* const backward_next = next.data();
        Action const* const actions = programs_.actions();
        for (std::size_t i = programs_.size(); i-- > 0;) {
            Action const& a = actions[i];
            if (a.kind >= Kind::send_output) continue;
            std::size_t const pair = a.cell * micro_batches_ + a.micro_batch;
            bool const gradient = a.kind == Kind::backward || a.kind == Kind::input_gradient;
            keeps_.data()[i] = backward_next[pair];
            backward_next[pair] = gradient;
            reverses_ = reverses_ || gradient;
            if (a.kind == Kind::recompute) again_[pair] = true;
        }
    }
    constexpr std::size_t count_room() const {
        Array<std::size_t> of_cell(programs_.cells());
        for (std::size_t c = 0; c < of_cell.size(); ++c)
            of_cell[c] = 8 + 2 * (edges_.into(c).size() + edges_.out_of(c).size());
        std::size_t room = 0;
        Action const* const actions = programs_.actions();
        for (std::size_t i = 0; i < programs_.size(); ++i)
            room += is_transfer(actions[i].kind) ? 2 : of_cell.data()[actions[i].cell];
        return room;
    }

    constexpr void add() {
        switch (now_.kind) {
        case Kind::forward:
            return add_forward();
        case Kind::recompute:
            return add_recompute();
        case Kind::backward:
        case Kind::input_gradient:
        case Kind::weight_gradient:
            return add_backward();
        case Kind::offload:
        case Kind::fetch:
            return add_offload();
        default:
            return add_transfer();
        }
    }
    constexpr void add_forward() {
        CellValues const& cell = cells_[now_.cell];
        for (std::uint32_t const e : edges_.into(now_.cell))
            of_skip(edges_[e].taker_slot, false), read(Holds::input, e, Region::input);
        add_turn();
        for (std::uint32_t const e : edges_.out_of(now_.cell)) {
            of_skip(edges_[e].giver_slot, false);
            write(edges_[e].shared() ? Holds::input : Holds::output, e, Region::output);
        }
        if (cell.retained) write(Holds::retained, now_.cell, Region::retained);
        bool const keeps = keeps_[action_];
        add_block(Holds::kept, Region::kept, keeps && !cell.kept_in_backward);
        if (cell.splits) add_block(Holds::held, Region::held, keeps);
        // In an evaluation the loss may write its gradient.
        if (cell.splits && !reverses_) add_block(Holds::deferred, Region::deferred, false);
        add_block(Holds::temporary, Region::temporary, false);
    }
    constexpr void add_recompute() {
        CellValues const& cell = cells_[now_.cell];
        read_input(true);
        read_retained();
        add_turn();
        for (std::uint32_t const e : edges_.out_of(now_.cell))
            if (edges_[e].written_again()) write(Holds::output_again, e, Region::output);
        if (cell.discards) add_block(Holds::discarded, Region::output, false);
        add_block(Holds::kept, Region::kept, true);
        if (cell.splits) add_block(Holds::held, Region::held, true);
        add_block(Holds::temporary, Region::temporary, false);
    }
    // Whole, or one half.
    constexpr void add_backward() {
        CellValues const& cell = cells_[now_.cell];
        bool const first = now_.kind != Kind::weight_gradient;
        bool const second = now_.kind != Kind::input_gradient;
        read_input(false);
        read_retained();
        if (first && !cell.kept_in_backward) read(Holds::kept, now_.cell, Region::kept);
        if (cell.splits) read(Holds::held, now_.cell, Region::held);
        if (!first) read(Holds::deferred, now_.cell, Region::deferred);
        for (std::uint32_t const e : edges_.out_of(now_.cell)) {
            Edge const& edge = edges_[e];
            if (first ? edge.giver_reverses : edge.giver_weighs && edge.giver_reverses)
                read(edge.shared()    ? Holds::input
                     : again_[pair()] ? Holds::output_again
                                      : Holds::output,
                     e, Region::output);
            if (edge.gradient ? first || edge.giver_weighs : first && !edge.is_skip()) {
                of_skip(edge.giver_slot, true);
                read(edge.shared() || !edge.gradient ? Holds::gradient : Holds::arrived, e,
                     Region::output_gradient);
            }
        }
        add_turn();
        if (first && cell.kept_in_backward) add_block(Holds::kept, Region::kept, false);
        if (first && cell.splits) add_block(Holds::deferred, Region::deferred, !second);
        add_block(Holds::temporary, Region::temporary, false);
        for (std::uint32_t const e : edges_.into(now_.cell)) {
            Edge const& edge = edges_[e];
            // Of no bytes where none crosses: cells take their turns all the same.
            if (!first || (edge.is_skip() && !edge.gradient)) continue;
            of_skip(edge.taker_slot, true);
            write(Holds::gradient, e, Region::input_gradient,
                  cell.gradient_inside && !edge.is_skip() ? Use::over : Use::write);
        }
    }
    constexpr void add_transfer() {
        std::uint32_t const e = now_.edge;
        bool const staged = edges_[e].link == Link::staged;
        switch (now_.kind) {
        case Kind::send_output:
            read(Holds::output, e, Region::input);
            return write(staged ? Holds::staged_output : Holds::input, e, Region::output);
        case Kind::receive_input:
            read(Holds::staged_output, e, Region::input);
            return write(Holds::input, e, Region::output);
        case Kind::send_gradient:
            read(Holds::gradient, e, Region::input);
            return write(staged ? Holds::staged_gradient : Holds::arrived, e, Region::output);
        default:
            read(Holds::staged_gradient, e, Region::input);
            return write(Holds::arrived, e, Region::output);
        }
    }
    // To the host's memory the input goes behind what is retained, and so it comes back.
    constexpr void add_offload() {
        CellValues const& cell = cells_[now_.cell];
        bool const out = now_.kind == Kind::offload;
        if (out) {
            if (cell.retained) read(Holds::retained, now_.cell, Region::retained);
            if (cell.input_moves)
                for (std::uint32_t const e : edges_.into(now_.cell))
                    if (!edges_[e].is_skip()) read(Holds::input, e, Region::input);
            return write(Holds::offloaded, now_.cell, Region::output);
        }
        read(Holds::offloaded, now_.cell, Region::input);
        read(Holds::turn, now_.cell, Region::input);
        if (cell.retained) write(Holds::retained_back, now_.cell, Region::retained);
        if (cell.input_moves)
            for (std::uint32_t const e : edges_.into(now_.cell))
                if (!edges_[e].is_skip()) write(Holds::input_back, e, Region::output);
    }

    constexpr bool moved() const { return lowered_.offloads.moved(now_.cell, now_.micro_batch); }
    // Behind the forward.
    constexpr void read_input(bool recompute) {
        bool const back = cells_[now_.cell].input_moves && moved();
        for (std::uint32_t const e : edges_.into(now_.cell)) {
            bool const reads =
                recompute || (now_.kind == Kind::weight_gradient
                                  ? edges_[e].taker_weighs && edges_[e].taker_reverses
                                  : edges_[e].taker_reverses);
            if (!reads) continue;
            of_skip(edges_[e].taker_slot, false);
            read(back && !edges_[e].is_skip() ? Holds::input_back : Holds::input, e, Region::input);
        }
    }
    constexpr void read_retained() {
        if (!cells_[now_.cell].retained) return;
        read(moved() ? Holds::retained_back : Holds::retained, now_.cell, Region::retained);
    }
    // Whether a fetch waits for this action.
    [[gnu::noinline]] constexpr void add_turn() {
        std::size_t const reversal = lowered_.offloads.behind(action_);
        if (reversal == Offloads::none) return;
        Action const a = now_;
        now_ = programs_[reversal];
        write(Holds::turn, now_.cell, Region::input);
        now_ = a;
    }

    constexpr std::uint32_t make(Holds holds, std::size_t owner) {
        Value& value = values_[count_];
        value.writer = Operands::none;
        value.owner = static_cast<std::uint32_t>(owner);
        value.micro_batch = now_.micro_batch;
        value.holds = holds;
        return static_cast<std::uint32_t>(count_++);
    }
    constexpr std::uint32_t find(Holds holds, std::size_t owner) {
        auto const which = static_cast<std::size_t>(holds);
        std::uint32_t& at = numbers_[(rows_[which] + owner) * micro_batches_ + now_.micro_batch];
        if (at == Operands::none) at = make(holds, owner);
        return at;
    }
    // The next operand is that of a skip, if its end has a slot.
    constexpr void of_skip(std::uint16_t slot, bool gradient) {
        all_[size_].skip = static_cast<std::uint16_t>(slot > 0 ? 2 * slot - 1 + gradient : 0);
    }
    // Not inline: every kind of action would hold several of each.
    [[gnu::noinline]] constexpr void read(Holds holds, std::size_t owner, Region region) {
        Operand& operand = all_[size_++];
        operand.value = find(holds, owner);
        operand.region = region;
    }
    [[gnu::noinline]] constexpr void write(Holds holds, std::size_t owner, Region region,
                                           Use use = Use::write) {
        Operand& operand = all_[size_++];
        operand.value = find(holds, owner);
        operand.region = region;
        operand.use = use;
        values_[operand.value].writer = action_;
    }
    // One that others read, or one that the action has for itself.
    [[gnu::noinline]] constexpr void add_block(Holds holds, Region region, bool read_later) {
        if (read_later) return write(holds, now_.cell, region);
        Operand& operand = all_[size_++];
        operand.value = make(holds, now_.cell);
        operand.region = region;
        operand.use = Use::write;
        values_[operand.value].writer = action_;
    }

    Lowered const& lowered_;
    Programs const& programs_;
    Edges const& edges_;
    Array<CellValues> const& cells_;
    std::size_t micro_batches_;
    Array<bool> keeps_;     // by action: whether a backward reads what it leaves
    Array<bool> again_;     // by cell and micro-batch: whether a recompute comes
    bool reverses_ = false; // whether there is any backward
    Operands result_;
    // Addresses of its arrays: in constant evaluation a call costs as much as the rest of a line.
    std::size_t rows_[holds_count] = {};
    std::uint32_t* numbers_ = nullptr;
    Operand* all_ = nullptr;
    Value* values_ = nullptr;
    std::size_t size_ = 0;
    std::size_t count_ = 0;
    std::uint32_t action_ = 0;
    Action now_{};
};

} // namespace detail

/// What each action of a table reads and writes, where its cells have such values.
[[gnu::cold]] GPIPE_INLINE constexpr Operands find_operands(Lowered const& lowered,
                                                            Array<CellValues> const& cells) {
    return detail::OperandBuilder(lowered, cells).build();
}

/// What stands for any cells where only the order of actions matters.
[[gnu::cold]] GPIPE_INLINE constexpr Array<CellValues> any_cells(std::size_t cells) {
    CellValues any;
    any.retained = true;
    any.splits = true;
    return Array<CellValues>(cells, any);
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
