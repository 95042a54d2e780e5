// The proof of schedules as Training has it done, within the compilers' own limits: at K = 32 and
// M = 128, of 24,576 actions where a device has two cells and backwards come in two halves, of
// 32,768 with recomputes.
#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/catalogue.hpp>
#include <gpipe/schedule/check.hpp>

#include <cstddef>

namespace {

using gpipe::detail::check_lowered;
using gpipe::detail::check_schedule;
using namespace gpipe::schedule;

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
