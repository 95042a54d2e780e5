#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/programs.hpp>

namespace gpipe {

/// Runs backwards whole, in the place of their first halves, in the cells c that have nothing to
/// run apart: where not `splits[c]`.
[[gnu::cold]] GPIPE_INLINE constexpr Programs join_halves(Programs const& schedule,
                                                          Array<bool> const& splits) {
    Programs result(schedule, schedule.devices(), schedule.size());
    for (std::size_t d = 0; d < schedule.devices(); ++d) {
        for (Action action : schedule.program(d)) {
            bool const joins = !splits[action.cell];
            if (joins && action.kind == Kind::weight_gradient) continue;
            if (joins && action.kind == Kind::input_gradient) action.kind = Kind::backward;
            result.add(action);
        }
        result.next_device();
    }
    return result;
}

} // namespace gpipe
