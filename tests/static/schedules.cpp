// The family of schedules as constants: programs, bubbles and peaks, each within the default limits
// of every compiler.
#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/check_schedule.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/schedule/verify.hpp>

#include <cstddef>
#include <cstdint>

namespace {

using namespace gpipe::schedule;
using gpipe::bubble;
using gpipe::peak_micro_batches;
using gpipe::ratio;
using gpipe::verify;

// The largest that is promised, one evaluation each.
template <class Schedule> constexpr bool fits() {
    static_assert(gpipe::ScheduleFunction<Schedule>);
    static_assert(Schedule::programs(32, 128).cells() == 32 * gpipe::cells_per_device<Schedule>);
    return true;
}
static_assert(fits<GPipe>() && fits<GPipeAscending>());
static_assert(fits<OneForwardOneBackward>() && fits<EagerOneForwardOneBackward>());
static_assert(fits<Interleaved1F1B<2>>() && fits<Interleaved1F1B<4>>());
static_assert(fits<BreadthFirst<2>>() && fits<BreadthFirst<4>>());
static_assert(fits<ZeroBubbleH1>() && fits<ZeroBubbleH2>() && fits<ZeroBubbleV>());
static_assert(fits<VHalf>() && fits<VMin>() && fits<DualPipeV>());

// Simulated as well.
static_assert(bubble(OneForwardOneBackward::programs(32, 128)) == ratio(31, 159));
static_assert(bubble(ZeroBubbleV::programs(32, 128)) == ratio(31, 799));
static_assert(bubble(Interleaved1F1B<2>::programs(8, 32)) == ratio(7, 71));
static_assert(bubble(ZeroBubbleH1::programs(8, 32)) == ratio(7, 103));
static_assert(bubble(DualPipeV::programs(8, 32)) == ratio(7, 199));
static_assert(bubble(VHalf::programs(8, 32)) == ratio(19, 211));
static_assert(bubble(VMin::programs(8, 32)) == ratio(27, 219));

// Sound, and as much memory as is said.
template <class Schedule, std::size_t K> constexpr bool sound() {
    static_assert(verify(Schedule::programs(K, 2 * K + 1)));
    static_assert(verify(Schedule::programs(K, 2 * K)));
    return true;
}
template <class Schedule> constexpr bool all_sound() {
    return sound<Schedule, 1>() && sound<Schedule, 2>() && sound<Schedule, 5>();
}
static_assert(all_sound<OneForwardOneBackward>() && all_sound<EagerOneForwardOneBackward>());
static_assert(all_sound<Interleaved1F1B<3>>() && all_sound<BreadthFirst<3>>());
static_assert(all_sound<ZeroBubbleH1>() && all_sound<ZeroBubbleH2>() && all_sound<ZeroBubbleV>());
static_assert(all_sound<VHalf>() && all_sound<VMin>() && all_sound<DualPipeV>());
static_assert(peak_micro_batches(OneForwardOneBackward::programs(8, 16), 2) == 6);
static_assert(peak_micro_batches(EagerOneForwardOneBackward::programs(8, 16), 2) == 11);
static_assert(peak_micro_batches(Interleaved1F1B<2>::programs(8, 16), 0) == 14 + 8 + 1);
static_assert(peak_micro_batches(ZeroBubbleH2::programs(8, 16), 7) == 15);
static_assert(peak_micro_batches(ZeroBubbleV::programs(8, 16), 3) == 16);
static_assert(peak_micro_batches(VHalf::programs(8, 16), 3) == 10);
static_assert(peak_micro_batches(VMin::programs(8, 16), 1) == 8);

// Costs, latency and bandwidth.
constexpr gpipe::CellCosts<std::int64_t> costs{.forward = 2,
                                               .input_gradient = 3,
                                               .weight_gradient = 2,
                                               .output_bytes = 8,
                                               .gradient_bytes = 8};
constexpr std::int64_t time(std::int64_t latency, std::int64_t bandwidth) {
    return gpipe::simulate<std::int64_t>(GPipe::programs(3, 4), costs, latency, bandwidth).makespan;
}
static_assert(time(0, gpipe::unlimited<std::int64_t>) == 7 * (4 + 2));
static_assert(time(1, gpipe::unlimited<std::int64_t>) == 7 * (4 + 2) + 2 * 2);
static_assert(time(1, 4) == 7 * (4 + 2) + 2 * 2 * (1 + 2)); // 2 per transfer, hidden but for ends

// The catalogue.
static_assert(catalogue(4).size() == schedules().entries().size());
static_assert(find_schedule("BreadthFirst", 4).cells_per_device() == 4);
static_assert(find_schedule("DualPipeV", 1).least_micro_batches(3) == 6);
static_assert(find_schedule("Interleaved1F1B-3").programs(2, 4).cells() == 6);

// The proof as Training has it done: of 24,576 actions where a device has two cells and backwards
// come in two halves, of 32,768 with recomputes.
using gpipe::detail::check_lowered;
using gpipe::detail::check_schedule;
static_assert(check_schedule<Interleaved1F1B<2>, 32, 128>());
static_assert(check_schedule<ZeroBubbleV, 32, 128>());
static_assert(check_schedule<VMin, 32, 128>());
static_assert(check_schedule<DualPipeV, 32, 128>());

static_assert(check_lowered<OneForwardOneBackward, gpipe::checkpoint::ExceptLast, 32, 128>());
static_assert(check_lowered<ZeroBubbleV, gpipe::checkpoint::Always, 32, 128>());

// Beyond that at construction.
static_assert(check_schedule<GPipe, 1024, 1024>());
static_assert(check_lowered<GPipe, gpipe::checkpoint::ExceptLast, 1024, 1024>());

// Programs longer than sound ones can be are wrong at a place among those that they may hold.
struct Endless {
    static constexpr gpipe::Programs programs(std::size_t, std::size_t) {
        gpipe::Programs result(1, 1, 2, 100);
        result.add(gpipe::forward(0, 0));
        for (std::size_t i = 0; i < 99; ++i) result.add(gpipe::forward(0, 1));
        result.next_device();
        return result;
    }
};
using EndlessPrograms = gpipe::detail::SchedulePrograms<Endless, 1, 2>;
static_assert(EndlessPrograms::value.view().size() == 4 * 2 + 1);
constexpr gpipe::Verdict endless = gpipe::detail::EachVerdict<EndlessPrograms>::value;
static_assert(endless.problem == gpipe::Problem::twice && endless.position == 2);

} // namespace
