#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/registry.hpp>
#include <gpipe/schedule/breadth_first.hpp>
#include <gpipe/schedule/building_blocks.hpp>
#include <gpipe/schedule/dual_pipe_v.hpp>
#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/schedule/interleaved.hpp>
#include <gpipe/schedule/one_forward_one_backward.hpp>
#include <gpipe/schedule/zero_bubble.hpp>
#include <gpipe/schedule/zero_bubble_v.hpp>

#include <cstddef>
#include <stdexcept>
#include <string_view>

namespace gpipe::schedule {

/// The most cells per device that the catalogue has schedules in loops for.
inline constexpr std::size_t most_cells_per_device = 8;

namespace detail {

// What lists call the number of cells per device, of schedules in loops.
inline constexpr std::string_view cells_number = "V";

template <class S> constexpr Dynamic made(Numbers const&) { return S{}; }

} // namespace detail

/// Every schedule of the library by its name; every number may be left out. Those in loops whose
/// name ends without theirs have `cells_per_device`.
GPIPE_INLINE constexpr Registry<Dynamic> schedules(std::size_t cells_per_device = 2) {
    using detail::made;
    NamedNumber const cells{.name = detail::cells_number,
                            .low = 1,
                            .high = most_cells_per_device,
                            .fallback = cells_per_device};
    Named<Dynamic> const all[] = {
        {GPipe::name, "all forwards, then all backwards, the last first", &made<GPipe>},
        {GPipeAscending::name, "the same, the first backward first", &made<GPipeAscending>},
        {OneForwardOneBackward::name, "K micro-batches ahead at most",
         &made<OneForwardOneBackward>},
        {EagerOneForwardOneBackward::name, "2 K - 1 ahead, which hides transfers",
         &made<EagerOneForwardOneBackward>},
        {ZeroBubbleH1::name, "backward in halves, as much memory as 1F1B", &made<ZeroBubbleH1>},
        {ZeroBubbleH2::name, "2 K - 1 ahead, for immediate updates", &made<ZeroBubbleH2>},
        {ZeroBubbleV::name, "two cells per device, there and back", &made<ZeroBubbleV>},
        {VHalf::name, "likewise, in half of the memory", &made<VHalf>},
        {VMin::name, "likewise, in a third of it", &made<VMin>},
        {DualPipeV::name, "likewise, forwards beside backwards", &made<DualPipeV>},
        {Interleaved1F1B<dynamic>::name,
         "1F1B over V cells per device, in loops",
         [](Numbers const& n) -> Dynamic { return Interleaved1F1B<dynamic>{n[0]}; },
         {cells}},
        {BreadthFirst<dynamic>::name,
         "GPipe over V cells per device, in loops",
         [](Numbers const& n) -> Dynamic { return BreadthFirst<dynamic>{n[0]}; },
         {cells}}};
    return Registry<Dynamic>("schedule", all);
}

/// Every schedule of the library, as its name alone says: those with one cell per device, those
/// with two in V order, and, for 1 to 8 `cells_per_device`, those in loops of that many, last.
GPIPE_INLINE constexpr Array<Dynamic> catalogue(std::size_t cells_per_device) {
    Registry<Dynamic> const all = schedules(cells_per_device);
    auto const in_loops = [](Named<Dynamic> const& entry) {
        return entry.numbers[0].name == detail::cells_number;
    };
    bool const loops = cells_per_device >= 1 && cells_per_device <= most_cells_per_device;
    std::size_t count = 0;
    for (auto const& entry : all.entries()) count += loops || !in_loops(entry);
    Array<Dynamic> result(count);
    std::size_t next = 0;
    for (bool const last : {false, true})
        for (auto const& entry : all.entries())
            if (in_loops(entry) == last && (loops || !last))
                result[next++] = entry.make({entry.numbers[0].fallback, entry.numbers[1].fallback});
    return result;
}

/// The schedule of that name; `cells_per_device` is for those in loops whose name does not end with
/// it. Throws std::invalid_argument, listing what there is, if there is none.
GPIPE_INLINE constexpr Dynamic find_schedule(std::string_view name,
                                             std::size_t cells_per_device = 2) {
    bool const in_loops =
        name == Interleaved1F1B<dynamic>::name || name == BreadthFirst<dynamic>::name;
    if (in_loops && (cells_per_device < 1 || cells_per_device > most_cells_per_device))
        gpipe::detail::throw_error<std::invalid_argument>(
            "gpipe: %.*s is for 1 to %zu cells per device, not %zu", static_cast<int>(name.size()),
            name.data(), most_cells_per_device, cells_per_device);
    return schedules(cells_per_device).find(name);
}

} // namespace gpipe::schedule
