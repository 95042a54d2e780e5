#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/breadth_first.hpp>
#include <gpipe/schedule/building_blocks.hpp>
#include <gpipe/schedule/dual_pipe_v.hpp>
#include <gpipe/schedule/gpipe.hpp>
#include <gpipe/schedule/interleaved.hpp>
#include <gpipe/schedule/one_forward_one_backward.hpp>
#include <gpipe/schedule/zero_bubble.hpp>
#include <gpipe/schedule/zero_bubble_v.hpp>

#include <cstddef>
#include <string_view>
#include <utility>

namespace gpipe::schedule {

/// The most cells per device that the catalogue has schedules in loops for.
inline constexpr std::size_t most_cells_per_device = 8;

namespace detail {

// The schedules in loops, by the number of cells per device less 1.
template <std::size_t... v>
constexpr void add_loops(Dynamic* to, std::size_t cells_per_device, std::index_sequence<v...>) {
    Dynamic const interleaved[] = {Interleaved1F1B<v + 1>{}...};
    Dynamic const breadth_first[] = {BreadthFirst<v + 1>{}...};
    to[0] = interleaved[cells_per_device - 1];
    to[1] = breadth_first[cells_per_device - 1];
}

} // namespace detail

/// Every schedule of the library: those with one cell per device, those with two in V order, and,
/// for 1 to 8 `cells_per_device`, those in loops of that many.
GPIPE_INLINE constexpr Array<Dynamic> catalogue(std::size_t cells_per_device) {
    Dynamic const others[] = {
        GPipe{},        GPipeAscending{}, OneForwardOneBackward{}, EagerOneForwardOneBackward{},
        ZeroBubbleH1{}, ZeroBubbleH2{},   ZeroBubbleV{},           VHalf{},
        VMin{},         DualPipeV{}};
    constexpr std::size_t count = sizeof(others) / sizeof(others[0]);
    bool const loops = cells_per_device >= 1 && cells_per_device <= most_cells_per_device;
    Array<Dynamic> result(count + (loops ? 2 : 0));
    for (std::size_t s = 0; s < count; ++s) result[s] = others[s];
    if (loops)
        detail::add_loops(result.data() + count, cells_per_device,
                          std::make_index_sequence<most_cells_per_device>());
    return result;
}

/// The schedule of that name, empty if there is none. `cells_per_device` is for those in loops.
GPIPE_INLINE constexpr Dynamic find_schedule(std::string_view name, std::size_t cells_per_device) {
    for (Dynamic const& schedule : catalogue(cells_per_device))
        if (schedule.name() == name) return schedule;
    return {};
}

} // namespace gpipe::schedule
