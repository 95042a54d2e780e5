#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/lifetimes.hpp>
#include <gpipe/memory/locate.hpp>
#include <gpipe/plan/happens_before.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// Where a device's values lie, in the order of ValuePlacer::values().
struct PlacedValues {
    Array<std::size_t> at;
    std::size_t height = 0;
};

// Gives inputs of cells, their gradients and parts a place each, on one device after the other.
// Two may lie in the same bytes if all who use the one are done before the other is written,
// whatever the timing. Or, with a slack: where forwards, halves of backwards and copies take one
// unit of time, by so many units. Then whoever is later than that is waited for.
class ValuePlacer {
  public:
    // All must outlive it.
    ValuePlacer(MemoryPlan const& plan, Lowered const& table, Operands const& operands,
                PartTable const& parts)
        : plan_(plan), programs_(table.programs), edges_(table.edges), operands_(operands),
          parts_(parts), walk_(walk_of(table)), before_(walk_, operands_),
          lives_(operands_.values.size()), by_device_(plan.parts.height.size()),
          slice_(programs_.size()), start_(programs_.size()), end_(programs_.size()),
          place_(programs_.size()) {
        Array<std::uint32_t> clock(walk_.streams);
        std::uint32_t place = 0;
        for (std::uint32_t const i : walk_.order) {
            std::uint32_t& now = clock[walk_.stream[i]];
            for (Operand const& operand : operands_[i]) {
                std::uint32_t const writer = operands_.values[operand.value].writer;
                if (operand.use == Use::read) now = std::max(now, end_[writer]);
                use(lives_[operand.value], i, operand);
            }
            place_[i] = place++;
            start_[i] = now;
            end_[i] = now += static_cast<std::uint32_t>(unit_cost(programs_[i]));
        }
        auto const each = [&](auto f) {
            for (std::uint32_t v = 0; v < lives_.size(); ++v)
                if (is_placed(operands_.values[v].holds) && lives_[v].writer != nobody &&
                    bytes_of(v) > 0)
                    f(v, device_of(operands_.values[v]));
        };
        Array<std::size_t> size(by_device_.size());
        each([&](std::uint32_t, std::size_t d) { ++size[d]; });
        for (std::size_t d = 0; d < size.size(); ++d) {
            by_device_[d] = Array<std::uint32_t>(size[d]);
            size[d] = 0;
        }
        each([&](std::uint32_t v, std::size_t d) { by_device_[d][size[d]++] = v; });
    }

    static constexpr std::size_t too_high = std::numeric_limits<std::size_t>::max();
    // What is placed on a device.
    Array<std::uint32_t> const& values(std::size_t device) const { return by_device_[device]; }
    // The lowest that it finds, or one that is low enough; begins with what is there, if anything.
    // `looks`: at so many others while it looks for a lower one, per order.
    void place(std::size_t device, std::size_t slack, std::size_t enough, std::size_t looks,
               PlacedValues& placed) {
        count_slices(device);
        Array<std::uint32_t> const& values = by_device_[device];
        std::size_t const size = values.size();
        Array<Lifetime> all(size);
        Array<Lifetime> surely(size); // as far as the device itself sees it
        for (std::size_t n = 0; n < size; ++n) {
            Life const& life = lives_[values[n]];
            find_times(life, device, slack, all[n], surely[n]);
            all[n].bytes = bytes_of(values[n]);
            surely[n].bytes = life.first_here == nobody ? 0 : all[n].bytes;
        }
        if (placed.at.empty()) placed = {Array<std::size_t>(size), too_high};
        if (size == 0) placed.height = 0;
        if (size > most_placed) return;
        std::size_t const bound = std::max(enough, live_bytes(surely, slices_ + 1));
        Sharing const sharing{*this, values, slack};
        placed.height = lower(all, slices_ + 1, bound, placed.at, placed.height, looks,
                              {Sharing::share, &sharing});
    }
    // As slots and parts, which a plan has anyway.
    PlacedValues in_slots(std::size_t device) const {
        Array<std::uint32_t> const& values = by_device_[device];
        PlacedValues placed{Array<std::size_t>(values.size()), 0};
        Array<std::size_t> slots(plan_.pools.size()); // by pool: where they begin
        for (std::size_t const c : programs_.cells_of(device))
            for (std::uint32_t const e : edges_.into(c)) {
                slots[plan_.pools.number(Holds::input, e)] = placed.height;
                placed.height += plan_.pools.pool(Holds::input, e).total();
            }
        for (std::size_t n = 0; n < values.size(); ++n) {
            std::uint32_t const v = values[n];
            if (operands_.values[v].holds == Holds::part) {
                placed.at[n] = placed.height + plan_.parts.at[v];
                continue;
            }
            std::size_t const pool = plan_.pools.number_of(operands_.values[v], edges_);
            placed.at[n] = slots[pool] + plan_.pools.of(v) * plan_.pools[pool].bytes;
        }
        placed.height += plan_.parts.height[device];
        return placed;
    }

  private:
    static constexpr std::uint32_t nobody = LastUsers::nobody;
    // Who writes a value, and who use it last; in which slices.
    struct Life {
        std::uint32_t writer = nobody;
        LastUsers last{};
        std::uint32_t first_here = nobody; // on the stream of the device that has it
        std::uint16_t from = 0;
        std::uint16_t to[LastUsers::most] = {};
        bool is_own = true; // whether nobody but that device uses it
    };

    // For lower(), of some values.
    struct Sharing {
        ValuePlacer const& placer;
        Array<std::uint32_t> const& values;
        std::size_t slack;

        static bool share(void const* of, std::uint32_t a, std::uint32_t b) {
            auto const& [placer, values, slack] = *static_cast<Sharing const*>(of);
            Life const& one = placer.lives_[values[a]];
            Life const& other = placer.lives_[values[b]];
            if (one.is_own && other.is_own) return false; // slices say all
            return placer.is_over(one, other, slack) || placer.is_over(other, one, slack);
        }
    };

    std::size_t device_of(Value const& value) const {
        return programs_.device_of(is_of_edge(value.holds) ? edges_[value.owner].to : value.owner);
    }
    std::size_t bytes_of(std::uint32_t v) const {
        Value const& value = operands_.values[v];
        if (value.holds == Holds::part) {
            std::size_t const first =
                parts_.begin[value.owner * programs_.micro_batches() + value.micro_batch];
            return parts_.of(value.owner, value.micro_batch)->parts[v - first].bytes;
        }
        return detail::bytes_of(plan_, value);
    }

    void use(Life& life, std::uint32_t user, Operand const& operand) const {
        if (life.writer == nobody) {
            life.writer = user;
            life.from = operand.from;
        }
        auto const sure = [&](std::uint32_t other) { return before_(other, user); };
        life.to[life.last.add(user, sure)] = operand.to;
        Value const& value = operands_.values[operand.value];
        if (!is_placed(value.holds)) return;
        bool const here = walk_.stream[user] == device_of(value);
        if (here && life.first_here == nobody) life.first_here = user;
        life.is_own = life.is_own && here;
    }
    // Whether all who use the one are done with it when the other is written.
    bool is_over(Life const& one, Life const& other, std::size_t slack) const {
        for (std::size_t u = 0; u < LastUsers::most; ++u) {
            std::uint32_t const user = one.last.users[u];
            if (user == nobody) continue;
            if (user == other.writer
                    ? one.to[u] < other.from
                    : before_(user, other.writer) || (place_[user] < place_[other.writer] &&
                                                      end_[user] + slack <= start_[other.writer]))
                continue;
            return false;
        }
        return true;
    }

    std::uint32_t slices_of(std::size_t i) const {
        Action const& a = programs_[i];
        if (!computes(a.kind)) return 1;
        return std::max<std::uint32_t>(
            1,
            parts_.of(a.cell, a.micro_batch)->slices[static_cast<std::size_t>(stage_of(a.kind))]);
    }
    // Of the device's own program.
    void count_slices(std::size_t device) {
        begin_ = programs_.begin(device);
        last_ = programs_.end(device);
        slices_ = 0;
        for (std::size_t i = begin_; i < last_; ++i) {
            slice_[i] = slices_;
            slices_ += slices_of(i);
        }
    }
    std::uint32_t slice_at(std::size_t i) const { return i < last_ ? slice_[i] : slices_; }
    // The first of the device's own actions that is sure of this one.
    std::size_t sure_of(std::size_t other) const {
        std::size_t low = begin_;
        for (std::size_t high = last_; low < high;) {
            std::size_t const middle = low + (high - low) / 2;
            (before_(other, middle) ? high : low) = middle + !before_(other, middle);
        }
        return low;
    }
    // The first of them whose time, or place, is not before that.
    std::size_t first_after(Array<std::uint32_t> const& times, std::uint32_t time) const {
        return static_cast<std::size_t>(
            std::lower_bound(times.begin() + begin_, times.begin() + last_, time) - times.begin());
    }
    // In slices, as far as others may be early or late.
    void find_times(Life const& life, std::size_t device, std::size_t slack, Lifetime& all,
                    Lifetime& surely) const {
        bool const own = walk_.stream[life.writer] == device;
        if (own) {
            all.begin = slice_[life.writer] + life.from;
        } else {
            std::size_t first = begin_ + before_.count(device, life.writer);
            if (start_[life.writer] >= slack)
                first = std::max(
                    first, std::min(first_after(place_, place_[life.writer]),
                                    first_after(end_, start_[life.writer] -
                                                          static_cast<std::uint32_t>(slack) + 1)));
            all.begin = slice_at(first);
        }
        if (life.first_here != nobody)
            surely.begin = surely.end = slice_[life.first_here] + (own ? life.from : 0);
        for (std::size_t u = 0; u < LastUsers::most; ++u) {
            std::uint32_t const user = life.last.users[u];
            if (user == nobody) continue;
            if (walk_.stream[user] != device) {
                std::size_t const over =
                    std::max(first_after(place_, place_[user]),
                             first_after(start_, end_[user] + static_cast<std::uint32_t>(slack)));
                all.end = std::max(all.end, slice_at(std::min(sure_of(user), over)));
                continue;
            }
            std::uint32_t const last =
                slice_[user] + std::min<std::uint32_t>(life.to[u], slices_of(user) - 1);
            all.end = std::max(all.end, last);
            surely.end = std::max(surely.end, last);
        }
    }

    MemoryPlan const& plan_;
    Programs const& programs_;
    Edges const& edges_;
    Operands const& operands_;
    PartTable const& parts_;
    Walk walk_;
    HappensBefore before_;
    Array<Life> lives_; // by value
    Array<Array<std::uint32_t>> by_device_;
    Array<std::uint32_t> slice_; // by action: its first, where it is the device's
    Array<std::uint32_t> start_; // by action, in units of time
    Array<std::uint32_t> end_;
    Array<std::uint32_t> place_;       // in the walk's order
    std::size_t begin_ = 0, last_ = 0; // the device's actions, and one past the last
    std::uint32_t slices_ = 0;
};

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
