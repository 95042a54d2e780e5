#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/curve.hpp>
#include <gpipe/memory/plan.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace gpipe {

namespace detail {

// Some bytes of an arena, and when they are in use.
struct Occupation {
    double begin = 0;
    double end = 0;
    std::size_t bytes = 0;
    std::size_t place = 0; // where they begin
    bool inside = false;   // whether they are no slot of a pool
};

// When actions of a plan run. Of copies there may be no times, as of programs without: such a one
// lasts from the end of who made what it moves until who reads that first begins.
template <class Times> class ActionSpans {
  public:
    constexpr ActionSpans(MemoryPlan const& plan, Times const& times)
        : plan_(plan), times_(times), first_reader_(plan.operands.values.size(), none) {
        for (std::uint32_t const i : plan.lowered.order)
            for (Operand const& operand : plan.operands[i])
                if (operand.use == Use::read && first_reader_[operand.value] == none)
                    first_reader_[operand.value] = i;
    }
    // When a slice of it begins, or the action has ended.
    constexpr double begin(std::size_t i, std::size_t slice) const {
        Action const& a = plan_.lowered.programs[i];
        if (slice == 0) return begin(i);
        if (!computes(a.kind)) return end(i);
        std::size_t const slices = plan_.parts.of(a.cell, plan_.parts.way(a.cell, a.micro_batch))
                                       .parts.slices[static_cast<std::size_t>(stage_of(a.kind))];
        if (slice >= slices) return end(i);
        return begin(i) +
               (end(i) - begin(i)) * static_cast<double>(slice) / static_cast<double>(slices);
    }
    // Not where its micro-batch was empty.
    constexpr bool has_run(std::size_t i) const {
        return !is_timed(i) || times_.start[i] < times_.end[i];
    }
    constexpr double begin(std::size_t i) const {
        if (is_timed(i)) return static_cast<double>(times_.start[i]);
        double begin = 0;
        for (Operand const& operand : plan_.operands[i]) {
            if (operand.use != Use::read) continue;
            std::size_t const writer = plan_.operands.values[operand.value].writer;
            begin = std::max(begin, is_timed(writer) ? end(writer) : this->begin(writer));
        }
        return begin;
    }
    constexpr double end(std::size_t i) const {
        if (is_timed(i)) return static_cast<double>(times_.end[i]);
        if (plan_.lowered.programs[i].kind == Kind::offload) return end_of_offload(i);
        double end = std::numeric_limits<double>::max();
        for (Operand const& operand : plan_.operands[i]) {
            std::uint32_t const reader = first_reader_[operand.value];
            if (operand.use == Use::read || reader == none) continue;
            end = std::min(end, is_timed(reader) ? begin(reader) : this->end(reader));
        }
        return std::max(begin(i), end);
    }

  private:
    static constexpr std::uint32_t none = 0xFFFFFFFF;
    constexpr bool is_timed(std::size_t i) const { return i < times_.start.size(); }
    // It is hidden behind the action that follows its forward.
    constexpr double end_of_offload(std::size_t i) const {
        Programs const& programs = plan_.lowered.programs;
        std::size_t const device = programs.device_of(programs[i].cell);
        std::size_t next = programs.begin(device);
        while (programs[next].kind != Kind::forward || programs[next].cell != programs[i].cell ||
               programs[next].micro_batch != programs[i].micro_batch)
            ++next;
        do ++next;
        while (!has_run(next) && next + 1 < programs.end(device));
        return std::max(end(next), begin(i));
    }
    MemoryPlan const& plan_;
    Times const& times_;
    Array<std::uint32_t> first_reader_; // by value
};

// The sum of what is in use, as steps.
GPIPE_INLINE constexpr Array<MemoryCurve::Point> steps_of(Array<Occupation> const& occupations,
                                                          std::size_t fixed) {
    struct Change {
        double time;
        std::size_t more, less;
    };
    std::size_t const size = 2 * occupations.size();
    Array<Change> changes(size);
    for (std::size_t i = 0; i < occupations.size(); ++i) {
        changes[2 * i] = {occupations[i].begin, occupations[i].bytes, 0};
        changes[2 * i + 1] = {occupations[i].end, 0, occupations[i].bytes};
    }
    std::sort(changes.begin(), changes.end(),
              [](Change const& a, Change const& b) { return a.time < b.time; });
    Array<MemoryCurve::Point> points(size + 1);
    points[0] = {0, fixed};
    std::size_t count = 1;
    std::size_t bytes = fixed;
    for (std::size_t i = 0; i < size;) {
        double const time = changes[i].time;
        // What ends at an instant makes room for what begins.
        std::size_t more = 0;
        std::size_t less = 0;
        for (; i < size && changes[i].time == time; ++i) {
            more += changes[i].more;
            less += changes[i].less;
        }
        bytes = bytes + more - less;
        if (time <= points[count - 1].time)
            points[count - 1].bytes = bytes;
        else if (bytes != points[count - 1].bytes)
            points[count++] = {time, bytes};
    }
    return first_of(points, count);
}

// By device, in the order of their beginnings; of the same place each ends before the next begins.
template <class Times>
constexpr Array<Array<Occupation>> occupations(MemoryPlan const& plan, Times const& times) {
    ActionSpans<Times> const spans(plan, times);
    Located const located(plan);
    // Whether it is no slot of a pool.
    auto const is_inside = [&](std::size_t v) {
        Holds const holds = plan.operands.values[v].holds;
        return holds == Holds::part || (is_placed(holds) && plan.has_room(located[v].space));
    };
    Array<double> begin(plan.operands.values.size()), end(begin.size());
    for (std::size_t i = 0; i < plan.lowered.programs.size(); ++i)
        for (Operand const& operand : plan.operands[i]) {
            std::size_t const v = operand.value;
            bool const inside = is_inside(v);
            if (operand.use == Use::write) begin[v] = spans.begin(i, inside ? operand.from : 0);
            end[v] = std::max(end[v], inside ? spans.begin(i, operand.to + 1u) : spans.end(i));
        }
    Array<Array<Occupation>> result(plan.devices.size());
    for (std::size_t d = 0; d < result.size(); ++d) {
        Array<Occupation> all(end.size());
        std::size_t size = 0;
        for (std::size_t v = 0; v < end.size(); ++v) {
            Value const& value = plan.operands.values[v];
            Span const& at = located[v];
            if (at.space != d || at.begin == at.end || begin[v] >= end[v]) continue;
            bool const inside = is_inside(v);
            all[size++] = {begin[v], end[v],
                           inside ? at.end - at.begin // else the whole slot
                                  : plan.pools.pool_of(value, plan.lowered.edges).bytes,
                           at.begin, inside};
        }
        std::sort(all.begin(), all.begin() + size, [](auto const& a, auto const& b) {
            return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
        });
        Array<std::size_t> order(size);
        for (std::size_t n = 0; n < size; ++n) order[n] = n;
        std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return all[a].place != all[b].place ? all[a].place < all[b].place : a < b;
        });
        for (std::size_t n = 0; n + 1 < size; ++n)
            if (all[order[n]].place == all[order[n + 1]].place && !all[order[n]].inside)
                all[order[n]].end = std::min(all[order[n]].end, all[order[n + 1]].begin);
        result[d] = first_of(all, size);
    }
    return result;
}

} // namespace detail

/// The bytes that are in use on each device over time, where the actions of a plan's programs start
/// at times.start and end at times.end, by index: those of simulate(), or of a run. What is
/// always in use are parameters, their gradients, the optimizer's states, what is staged for a
/// step, and handles. A tensor is in use from the begin of the call that writes it to the end of
/// the last that reads it, an action's calls sharing its time equally; where tensors between cells
/// have slots, these are from the begin of the action to the end of the last, and in whole. So the
/// peak is never above what is planned, and equals it where everything that is planned is in use at
/// once. Actions that take no time count for nothing. A transfer of which there is no time, as of
/// programs without transfers, lasts from the end of what it sends to the start of what reads that,
/// but no longer than until its slot is written again.
template <class Times>
[[gnu::cold]] constexpr Array<MemoryCurve> memory_usage(MemoryPlan const& plan,
                                                        Times const& times) {
    Array<Array<detail::Occupation>> const all = detail::occupations(plan, times);
    Array<MemoryCurve> curves(plan.devices.size());
    for (std::size_t d = 0; d < curves.size(); ++d) {
        DeviceBytes const& bytes = plan.devices[d];
        MemoryCurve& curve = curves[d];
        curve.fixed = bytes.total() - bytes.boundary - bytes.activations;
        curve.planned = bytes.total();
        curve.points = detail::steps_of(all[d], curve.fixed);
    }
    return curves;
}

} // namespace gpipe
