// The family of schedules: every generator is within the default limits of every compiler.
#include <gpipe/schedule/catalogue.hpp>

#include <cstddef>

namespace {

using namespace gpipe::schedule;

// One evaluation each.
template <class Schedule> constexpr bool fits() {
    static_assert(Schedule::programs(32, 128).cells() == 32 * gpipe::cells_per_device<Schedule>);
    return true;
}
static_assert(fits<GPipe>() && fits<GPipeAscending>());
static_assert(fits<OneForwardOneBackward>() && fits<EagerOneForwardOneBackward>());
static_assert(fits<Interleaved1F1B<2>>() && fits<Interleaved1F1B<4>>());
static_assert(fits<BreadthFirst<2>>() && fits<BreadthFirst<4>>());
static_assert(fits<ZeroBubbleH1>() && fits<ZeroBubbleH2>() && fits<ZeroBubbleV>());
static_assert(fits<VHalf>() && fits<VMin>() && fits<DualPipeV>());

} // namespace
