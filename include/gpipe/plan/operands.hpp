#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/cell_values.hpp>
#include <gpipe/plan/lowered.hpp>
#include <gpipe/plan/parts.hpp>
#include <gpipe/plan/value.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

namespace detail {

class OperandBuilder {
  public:
    constexpr OperandBuilder(Lowered const& lowered, Array<CellValues> const& cells,
                             PartTable const& parts)
        : lowered_(lowered), programs_(lowered.programs), edges_(lowered.edges), cells_(cells),
          parts_(parts), micro_batches_(programs_.micro_batches()), ways_(programs_) {
        for (Action const& a : programs_) reverses_ = reverses_ || gives_gradient(a.kind);
        result_.edges = edges_.size();
        result_.cells = programs_.cells();
        result_.micro_batches = micro_batches_;
        result_.numbers = Array<std::uint32_t>(
            (holds_of_edges * result_.edges + (holds_count - holds_of_edges) * result_.cells) *
                micro_batches_,
            Operands::none);
        result_.begin = Array<std::uint32_t>(programs_.size() + 1);
        result_.all = Array<Operand>(count_room());
        count_ = parts.begin.empty() ? 0 : parts.begin[parts.begin.size() - 1];
        result_.values = Array<Value>(programs_.size() + count_);
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
            way_ = ways_(now_.cell, now_.micro_batch);
            add();
        }
        result_.begin[programs_.size()] = static_cast<std::uint32_t>(size_);
        result_.all = first_of(result_.all, size_);
        result_.values = first_of(result_.values, count_);
        return static_cast<Operands&&>(result_);
    }

  private:
    constexpr std::size_t pair_of(Action const& a) const {
        return a.cell * micro_batches_ + a.micro_batch;
    }
    // For so many operands at first: of tensors of edges most actions have three at the most.
    constexpr std::size_t count_room() const {
        std::size_t room = 3 * programs_.size();
        for (Action const& a : programs_)
            if (WayParts const* const way = computes(a.kind) ? parts_of(a) : nullptr)
                room += (*way)[stage_of(a.kind)].size();
        return room;
    }
    template <class T> constexpr T& next(Array<T>& all, T*& first, std::size_t& count) {
        if (count == all.size()) {
            enlarge(all, count, 2 * count + 1);
            first = all.data();
        }
        return first[count++];
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
        for (std::uint32_t const e : edges_.into(now_.cell)) read(Holds::input, e, input_of(e));
        add_turn();
        for (std::uint32_t const e : edges_.out_of(now_.cell))
            write(edges_[e].shared() ? Holds::input : Holds::output, e, output_of(e));
        if (cells_[now_.cell].retained && reverses_)
            write(Holds::retained, now_.cell, Region::retained);
        add_parts();
    }
    constexpr void add_recompute() {
        read_input();
        read_retained();
        add_turn();
        for (std::uint32_t const e : edges_.out_of(now_.cell))
            if (edges_[e].written_again()) write(Holds::output_again, e, Region::output);
        if (cells_[now_.cell].discards) write(Holds::discarded, now_.cell, Region::output);
        add_parts();
    }
    // Whole, or one half.
    constexpr void add_backward() {
        Stage const stage = stage_of(now_.kind);
        bool const first = stage == Stage::backward;
        read_input();
        read_retained();
        for (std::uint32_t const e : edges_.out_of(now_.cell)) {
            Edge const& edge = edges_[e];
            if (edge.giver_reads.in(way_, stage))
                read(edge.shared()             ? Holds::input
                     : (way_ & way_recomputes) ? Holds::output_again
                                               : Holds::output,
                     e, Region::output);
            // Without a gradient a turn, which between ranks nobody waits for.
            if (edge.gradient ? edge.gradient_reads.in(way_, stage)
                              : first && !edge.is_skip() && edge.link != Link::sent)
                read(edge.shared() || !edge.gradient ? Holds::gradient : Holds::arrived, e,
                     edge.is_skip() ? skip_address(edge.giver_slot, true)
                                    : Region::output_gradient);
        }
        add_turn();
        for (std::uint32_t const e : edges_.into(now_.cell)) {
            Edge const& edge = edges_[e];
            // Of no bytes where none crosses: cells take their turns all the same.
            if (!first || (edge.is_skip() && !edge.gradient)) continue;
            write(Holds::gradient, e,
                  edge.is_skip() ? skip_address(edge.taker_slot, true) : Region::input_gradient);
        }
        add_parts();
    }
    // And in which slices the action uses what it has said before, which then stands among them.
    constexpr void add_parts() {
        if (parts_.ways.empty()) return;
        WayParts const& way = *parts_of(now_);
        Stage const stage = stage_of(now_.kind);
        std::size_t const own = size_;
        std::uint32_t const begin = parts_.begin[pair_of(now_)];
        auto address = static_cast<std::uint16_t>(first_part_address(cells_[now_.cell]));
        for (PartUse const& use : way[stage]) {
            Operand& operand = next(result_.all, all_, size_);
            operand.value = begin + use.part;
            operand.address = address++;
            operand.from = use.from;
            operand.to = use.to;
            if (way.parts[use.part].first != stage) continue;
            operand.use = Use::write;
            values_[operand.value] = {action_, now_.cell, now_.micro_batch, Holds::part};
        }
        for (std::size_t n = own; n-- > result_.begin[action_];) {
            auto const region = static_cast<Region>(all_[n].address);
            if (region < Region::input || region > Region::input_gradient) continue;
            PartUse const& use = way.other(stage, region);
            all_[n].from = use.from;
            all_[n].to = use.to;
            for (std::size_t at = n; at + 1 < size_ && all_[at + 1].from < use.from; ++at)
                std::swap(all_[at], all_[at + 1]);
        }
    }
    constexpr void add_transfer() {
        std::uint32_t const e = now_.edge;
        bool const staged = edges_[e].received();
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
        if (now_.kind == Kind::offload) {
            if (cell.retained) read(Holds::retained, now_.cell, Region::retained);
            for (std::uint32_t const e : edges_.into(now_.cell))
                if (moves_input(edges_[e])) read(Holds::input, e, Region::input);
            return write(Holds::offloaded, now_.cell, Region::output);
        }
        read(Holds::offloaded, now_.cell, Region::input);
        read(Holds::turn, now_.cell, Region::input);
        if (cell.retained) write(Holds::retained_back, now_.cell, Region::retained);
        for (std::uint32_t const e : edges_.into(now_.cell))
            if (moves_input(edges_[e])) write(Holds::input_back, e, Region::output);
    }

    // Whether that goes to slower memory, if anything of the micro-batch does.
    constexpr bool moves_input(Edge const& edge) const {
        return cells_[now_.cell].input_moves && !edge.is_skip();
    }
    constexpr bool moved() const { return lowered_.offloads.moved(now_.cell, now_.micro_batch); }
    // Behind the forward.
    constexpr void read_input() {
        for (std::uint32_t const e : edges_.into(now_.cell))
            if (edges_[e].taker_reads.in(way_, stage_of(now_.kind)))
                read(moves_input(edges_[e]) && moved() ? Holds::input_back : Holds::input, e,
                     input_of(e));
    }
    constexpr Region input_of(std::uint32_t e) const {
        return edges_[e].is_skip() ? skip_address(edges_[e].taker_slot, false) : Region::input;
    }
    constexpr Region output_of(std::uint32_t e) const {
        return edges_[e].is_skip() ? skip_address(edges_[e].giver_slot, false) : Region::output;
    }
    constexpr WayParts const* parts_of(Action const& a) const {
        return parts_.of(a.cell, a.micro_batch);
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
        auto const number = static_cast<std::uint32_t>(count_);
        Value& value = next(result_.values, values_, count_);
        value.writer = Operands::none;
        value.owner = static_cast<std::uint32_t>(owner);
        value.micro_batch = now_.micro_batch;
        value.holds = holds;
        return number;
    }
    constexpr std::uint32_t find(Holds holds, std::size_t owner) {
        auto const which = static_cast<std::size_t>(holds);
        std::uint32_t& at = numbers_[(rows_[which] + owner) * micro_batches_ + now_.micro_batch];
        if (at == Operands::none) at = make(holds, owner);
        return at;
    }
    // Not inline: every kind of action would hold several of each.
    [[gnu::noinline]] constexpr void read(Holds holds, std::size_t owner, Region region) {
        Operand& operand = next(result_.all, all_, size_);
        operand.value = find(holds, owner);
        operand.address = static_cast<std::uint16_t>(region);
    }
    [[gnu::noinline]] constexpr void write(Holds holds, std::size_t owner, Region region) {
        Operand& operand = next(result_.all, all_, size_);
        operand.value = find(holds, owner);
        operand.address = static_cast<std::uint16_t>(region);
        operand.use = Use::write;
        values_[operand.value].writer = action_;
    }

    Lowered const& lowered_;
    Programs const& programs_;
    Edges const& edges_;
    Array<CellValues> const& cells_;
    PartTable const& parts_;
    std::size_t micro_batches_;
    Ways ways_;
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
    std::size_t way_ = 0; // that its cell goes
};

} // namespace detail

/// What each action of a table reads and writes, where its cells have such values. `parts`: if they
/// are wanted, too.
[[gnu::cold]] GPIPE_INLINE constexpr Operands
find_operands(Lowered const& lowered, Array<CellValues> const& cells, PartTable const& parts = {}) {
    return detail::OperandBuilder(lowered, cells, parts).build();
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
