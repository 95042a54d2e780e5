#pragma once

#include <gpipe/memory/moves.hpp>
#include <gpipe/memory/plan.hpp>

#include <algorithm>
#include <cstddef>
#include <initializer_list>

namespace gpipe::detail {

// Some bytes of an arena, and when they are in use. What is one place has one number.
struct Occupation {
    std::size_t place = 0;
    std::size_t bytes = 0;
    double begin = 0;
    double end = 0;
};

// Collects what actions occupy on one device: which places there are, and from when to when.
template <class Times> class Occupations {
  public:
    constexpr Occupations(MemoryPlan const& plan, Times const& times, std::size_t device)
        : plan_(plan), programs_(plan.lowered.programs), times_(times), device_(device),
          micro_batches_(programs_.micro_batches()),
          all_(5 * programs_.size(device) + 8 * programs_.cells() * micro_batches_),
          open_(programs_.cells() * micro_batches_, no_action), moves_(find_moves(programs_)) {
        for (std::size_t c = 0; c < programs_.cells(); ++c) {
            if (programs_.device_of(c) != device) continue;
            if (c > 0) add_boundary(c);
            if (c + 1 < programs_.cells()) add_outbox(plan.transfers[c + 1]);
        }
        auto const kind = [&](std::size_t i) { return programs_[i].kind; };
        auto const runs_forward = [&](std::size_t i) {
            return kind(i) == Kind::forward || kind(i) == Kind::recompute;
        };
        auto const at_once = [&](std::size_t i) {
            return plan.blocks.in_backward[programs_[i].cell];
        };
        auto const keeps = [&](std::size_t i) {
            return runs_forward(i) && plan.blocks.keeps[i] && !at_once(i);
        };
        auto const passes = [&](std::size_t i) {
            return (runs_forward(i) && !plan.blocks.keeps[i] && !at_once(i)) ||
                   (ends_backward(kind(i)) && at_once(i));
        };
        auto const gradient = [&](std::size_t i) { return gives_gradient(kind(i)); };
        auto const last = [&](std::size_t i) { return ends_backward(kind(i)); };
        add_blocks(
            plan.blocks.retained,
            [&](std::size_t c) {
                return plan.offloaded[c].moves() ? 0 : plan.reversals[c].retained;
            },
            [&](std::size_t i) { return kind(i) == Kind::forward; }, last,
            [](std::size_t) { return false; });
        add_offloaded();
        add_blocks(
            plan.blocks.kept, [&](std::size_t c) { return plan.layouts[c].kept; }, keeps,
            [&](std::size_t i) { return gradient(i) && !at_once(i); }, passes);
        add_blocks(
            plan.blocks.held, [&](std::size_t c) { return plan.layouts[c].held; }, keeps, last,
            passes);
        add_blocks(
            plan.blocks.deferred, [&](std::size_t c) { return plan.layouts[c].deferred; },
            [&](std::size_t i) { return kind(i) == Kind::input_gradient; },
            [&](std::size_t i) { return kind(i) == Kind::weight_gradient; },
            [&](std::size_t i) { return kind(i) == Kind::backward; });
        std::size_t const temporaries = places_++;
        each_action([&](std::size_t i, Action const& a) {
            CellLayout const& layout = plan.layouts[a.cell];
            std::size_t const stack = layout.adjacent ? layout.kept : 0;
            add(temporaries, layout.temporary - stack, start(i), end(i));
        });
    }

    /// In the order of their beginnings; of the same place each ends before the next begins.
    constexpr Array<Occupation> take() {
        std::sort(all_.begin(), all_.begin() + size_, [](auto const& a, auto const& b) {
            return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
        });
        Array<std::size_t> last(places_, no_action);
        Array<Occupation> result(size_);
        for (std::size_t i = 0; i < size_; ++i) {
            Occupation const& now = result[i] = all_[i];
            std::size_t& before = last[now.place];
            if (before != no_action && result[before].end > now.begin)
                result[before].end = now.begin;
            before = i;
        }
        return result;
    }

  private:
    // A transfer that is not timed lasts from the end of what it sends to the start of what reads
    // that, an offload as long as the action behind its forward, a fetch until the reversal.
    // Not where its micro-batch was empty.
    constexpr bool has_run(std::size_t i) const { return times_.start[i] < times_.end[i]; }
    constexpr bool is_timed(std::size_t i) const { return i < times_.start.size(); }
    constexpr double start(std::size_t i) const {
        Action const& a = programs_[i];
        if (is_timed(i)) return static_cast<double>(times_.start[i]);
        if (is_transfer(a.kind)) return static_cast<double>(times_.end[find(a, true)]);
        if (a.kind == Kind::offload) return end(moves_[pair_of(a)].forward);
        // What it needs of its device; if that has not run, what ran before.
        double start = 0;
        for (std::size_t needed : plan_.lowered.needs[i]) {
            if (is_copy(programs_[needed].kind)) continue;
            while (!has_run(needed) && needed > programs_.begin(device_)) --needed;
            start = std::max(start, end(needed));
        }
        return start;
    }
    constexpr double end(std::size_t i) const {
        Action const& a = programs_[i];
        if (is_timed(i)) return static_cast<double>(times_.end[i]);
        if (is_transfer(a.kind)) return static_cast<double>(times_.start[find(a, false)]);
        if (a.kind == Kind::fetch) return start(moves_[pair_of(a)].reversal);
        std::size_t next = moves_[pair_of(a)].forward + 1;
        while (!has_run(next) && next + 1 < programs_.end(device_)) ++next;
        return std::max(end(next), start(i));
    }
    // Who sends what a transfer moves, or who reads it.
    constexpr std::size_t find(Action const& transfer, bool sender) const {
        bool const gradient =
            transfer.kind == Kind::send_gradient || transfer.kind == Kind::receive_gradient;
        bool const sends =
            transfer.kind == Kind::send_output || transfer.kind == Kind::send_gradient;
        std::size_t cell = transfer.cell;
        if (sends && !sender) cell = gradient ? cell - 1 : cell + 1;
        if (!sends && sender) cell = gradient ? cell + 1 : cell - 1;
        std::size_t i = 0;
        while (programs_[i].cell != cell || programs_[i].micro_batch != transfer.micro_batch ||
               (gradient ? !gives_gradient(programs_[i].kind) : programs_[i].kind != Kind::forward))
            ++i;
        return i;
    }

    constexpr std::size_t pair_of(Action const& a) const {
        return a.cell * micro_batches_ + a.micro_batch;
    }
    constexpr void add_offloaded() {
        for (std::size_t c = 0; c < programs_.cells(); ++c) {
            Offloaded const& cell = plan_.offloaded[c];
            if (!cell.moves() || programs_.device_of(c) != device_) continue;
            for (std::size_t m = 0; m < micro_batches_; ++m) {
                Move const& move = moves_[c * micro_batches_ + m];
                std::size_t const left = cell.moved(m) ? move.offload : move.end;
                add(places_ + cell.block[m], cell.retained, move.forward, {left});
                if (!cell.moved(m)) continue;
                add(places_ + cell.returned[m], cell.retained, move.fetch, {move.end});
                add(places_ + cell.blocks + cell.inputs.slot[m], cell.input, move.fetch,
                    {move.end});
            }
            places_ += cell.blocks + cell.inputs.slots;
        }
    }

    template <class F> constexpr void each_action(F f) {
        for (std::size_t i = programs_.begin(device_); i < programs_.end(device_); ++i)
            f(i, programs_[i]);
    }
    constexpr void add(std::size_t place, std::size_t bytes, double begin, double end) {
        if (bytes > 0 && begin < end) all_[size_++] = {place, bytes, begin, end};
    }
    // From the begin of one action to the end of others, as far as there are such.
    constexpr void add(std::size_t place, std::size_t bytes, std::size_t first,
                       std::initializer_list<std::size_t> last) {
        if (first == no_action) return;
        double end = 0;
        for (std::size_t const i : last)
            if (i != no_action) end = std::max(end, this->end(i));
        add(place, bytes, start(first), end);
    }

    constexpr void add_boundary(std::size_t cell) {
        BoundarySlots const& slots = plan_.boundaries[cell];
        std::size_t const bytes = plan_.slot_size[cell];
        for (std::size_t m = 0; m < micro_batches_; ++m) {
            auto const& input = slots.input_ends[m];
            auto const& gradient = slots.gradient_ends[m];
            add(places_ + slots.input[m], bytes, input.first, {input.last[0], input.last[1]});
            add(places_ + slots.gradient[m], bytes, gradient.first,
                {gradient.last[0], gradient.last[1]});
        }
        each_action([&](std::size_t i, Action const& a) {
            if (a.cell != cell || a.kind != Kind::recompute) return;
            std::size_t const slot = slots.discarded_output[a.micro_batch];
            if (slot != no_slot) add(places_ + slot, bytes, start(i), end(i));
        });
        places_ += slots.slots;
    }
    constexpr void add_outbox(Transfers const& transfers) {
        Outbox const& box = transfers.outbox;
        if (box.slots == 0) return;
        for (std::size_t m = 0; m < micro_batches_; ++m) {
            auto const tensor = [&](Array<std::size_t> const& slot,
                                    Array<Outbox::Ends> const& ends) {
                add(places_ + slot[m], transfers.slot_size, ends[m].first, {ends[m].last});
            };
            tensor(box.output, box.output_ends);
            tensor(box.recomputed, box.recomputed_ends);
            tensor(box.gradient, box.gradient_ends);
        }
        places_ += box.slots;
    }
    // See assign_blocks(): a micro-batch has its block from the action that begins() to the one
    // that ends(); one that passes() has a block while it runs.
    template <class Bytes, class Begins, class Ends, class Passes>
    constexpr void add_blocks(BlockUse const& use, Bytes bytes, Begins begins, Ends ends,
                              Passes passes) {
        Array<std::size_t> places(programs_.cells());
        for (std::size_t c = 0; c < programs_.cells(); ++c) {
            places[c] = places_;
            places_ += use.count[c];
        }
        each_action([&](std::size_t i, Action const& a) {
            if (use.count[a.cell] == 0) return;
            std::size_t& since = open_[a.cell * micro_batches_ + a.micro_batch];
            std::size_t const place = places[a.cell] + use.of_action[i];
            if (passes(i)) add(place, bytes(a.cell), start(i), end(i));
            if (begins(i)) since = i;
            if (!ends(i)) return;
            add(place, bytes(a.cell), start(since), end(i));
        });
    }

    MemoryPlan const& plan_;
    Programs const& programs_;
    Times const& times_;
    std::size_t device_;
    std::size_t micro_batches_;
    std::size_t places_ = 0;
    std::size_t size_ = 0;
    Array<Occupation> all_;
    Array<std::size_t> open_;
    Array<Move> moves_; // by cell and micro-batch
};

} // namespace gpipe::detail
