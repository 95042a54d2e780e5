// The proof of schedules as Training has it done, within the compilers' own limits: at K = 32 and
// M = 128, of 24,576 actions where a device has two cells and backwards come in two halves, of
// 65,024 with recomputes and messages.
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

// What they prove is what the run-time functions build.
template <class Schedule, class Pass, std::size_t K, std::size_t M> constexpr bool same() {
    namespace detail = gpipe::detail;
    using Messages = detail::WithMessages<detail::LoweredPrograms<Schedule, Pass, K, M>>;
    auto const& slots = detail::MessageSlots<Messages>::value;
    auto const lowered = gpipe::with_messages(Pass::lower(Schedule::programs(K, M)));
    bool same = lowered.programs.size() == Messages::capacity;
    for (std::size_t d = 0; d <= K; ++d)
        same = same && Messages::value.begin[d] == lowered.programs.begin(d);
    for (std::size_t i = 0; i < Messages::capacity; ++i)
        same = same && Messages::value.actions[i] == lowered.programs[i] &&
               slots.slot[i] == lowered.slot[i];
    for (std::size_t c = 0; c < lowered.programs.cells(); ++c)
        same = same && slots.input_slots[c] == lowered.input_slots[c] &&
               slots.gradient_slots[c] == lowered.gradient_slots[c];
    return same && verify(lowered);
}
static_assert(same<GPipe, gpipe::checkpoint::ExceptLast, 1, 3>());
static_assert(same<GPipe, gpipe::checkpoint::ExceptLast, 4, 8>());
static_assert(same<ZeroBubbleV, gpipe::checkpoint::Always, 4, 8>());
static_assert(same<Interleaved1F1B<3>, gpipe::checkpoint::Never, 4, 8>());

} // namespace
