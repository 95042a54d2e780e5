#pragma once

#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>

// Programs as constants, of a schedule and of what a checkpointing policy makes of it each one of
// its own: a compiler limits the steps of one evaluation, not of all.
namespace gpipe::detail {

// Programs of so many devices and cells, and up to `capacity` actions.
template <std::size_t devices, std::size_t cells, std::size_t capacity> struct ConstantPrograms {
    bool fits = false; // these numbers of devices and cells, or nothing is there
    bool ended = false;
    std::size_t micro_batches = 0;
    std::size_t begin[devices + 1] = {};
    std::size_t device_of[cells + 1] = {};
    Action actions[capacity] = {};

    constexpr ProgramsView view() const {
        return {devices, cells, micro_batches, begin, device_of, actions};
    }
};

// What is beyond the capacity is left out.
template <std::size_t devices, std::size_t cells, std::size_t capacity>
constexpr ConstantPrograms<devices, cells, capacity> constant_of(Programs const& programs) {
    ConstantPrograms<devices, cells, capacity> result;
    if (programs.devices() != devices || programs.cells() != cells) return result;
    result.fits = true;
    result.ended = programs.ended();
    result.micro_batches = programs.micro_batches();
    std::size_t const size = programs.size() < capacity ? programs.size() : capacity;
    for (std::size_t d = 0; d < devices; ++d)
        result.begin[d + 1] = programs.end(d) < size ? programs.end(d) : size;
    for (std::size_t c = 0; c < cells; ++c) result.device_of[c] = programs.device_of(c);
    Action const* const from = programs.actions();
    Action* const to = result.actions;
    for (std::size_t i = 0; i < size; ++i) to[i] = from[i];
    return result;
}

// The other way round.
GPIPE_INLINE constexpr Programs programs_of(ProgramsView const& view) {
    Programs result(view.devices, view.cells, view.micro_batches, view.size());
    for (std::size_t c = 0; c < view.cells; ++c) result.place(c, view.device_of[c]);
    for (std::size_t d = 0; d < view.devices; ++d)
        result.add_program({view.actions + view.begin[d], view.begin[d + 1] - view.begin[d]});
    return result;
}

// A schedule's programs. Sound ones hold at most four actions of a (cell, micro-batch); of any with
// more, one of the first so many and one is wrong.
template <class Schedule, std::size_t K, std::size_t M> struct SchedulePrograms {
    static constexpr std::size_t devices = K;
    static constexpr std::size_t cells = K * cells_per_device<Schedule>;
    static constexpr std::size_t micro_batches = M;
    static constexpr std::size_t capacity = 4 * cells * M + 1;
    static constexpr auto value = constant_of<K, cells, capacity>(Schedule::programs(K, M));
};
// The same with recomputes.
template <class Schedule, class Pass, std::size_t K, std::size_t M>
struct LoweredPrograms : SchedulePrograms<Schedule, K, M> {
    using Plain = SchedulePrograms<Schedule, K, M>;
    static constexpr auto value = constant_of<K, Plain::cells, Plain::capacity>(
        Pass::lower(programs_of(Plain::value.view())));
};

} // namespace gpipe::detail
