// plan/sweep.hpp: plans are constants, and so is the proof that their needs keep what lies in the
// same bytes apart, which is that of the tables that are walked. Each plan is an evaluation of its
// own.
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/training.hpp>

#include <cstddef>
#include <cstdint>

namespace {

using namespace gpipe::checkpoint;
using namespace gpipe::schedule;
using gpipe::Link;

using L = blank::Linear<4>;

template <class Schedule, class Checkpointing, Link link> constexpr gpipe::MemoryPlan plan() {
    using Train =
        gpipe::Training<gpipe::Pipeline<L, L, L, L>, gpipe::Cells<2>, gpipe::MicroBatches<3>,
                        gpipe::Loss<blank::Loss<4>>, Schedule, Checkpointing>;
    return Train::plan_for(1, link);
}
constexpr bool is_sound(gpipe::MemoryPlan const& plan, gpipe::Needs const& needs) {
    return bool(prove(walk_of(plan.lowered), plan.operands, needs, gpipe::Located(plan)));
}
// All but one of an action.
constexpr gpipe::Needs without(gpipe::Needs const& needs, std::size_t action, std::size_t at) {
    gpipe::Needs result(needs.size(), needs.count());
    for (std::size_t i = 0; i < needs.size(); ++i) {
        gpipe::Array<std::uint32_t> kept(needs[i].size());
        std::size_t count = 0;
        for (std::size_t n = 0; n < needs[i].size(); ++n)
            if (i != action || n != at) kept[count++] = needs[i][n];
        result.set(i, {kept.data(), count});
    }
    return result;
}
template <class Schedule, class Checkpointing, Link link> constexpr bool is_proven() {
    auto const planned = plan<Schedule, Checkpointing, link>();
    return is_sound(planned, planned.lowered.needs);
}
// No need is one too many.
template <class Schedule, class Checkpointing, Link link> constexpr bool is_least() {
    auto const planned = plan<Schedule, Checkpointing, link>();
    gpipe::Needs const& needs = planned.lowered.needs;
    for (std::size_t i = 0; i < needs.size(); ++i)
        for (std::size_t n = 0; n < needs[i].size(); ++n)
            if (is_sound(planned, without(needs, i, n))) return false;
    return needs.count() > 0;
}
template <class Schedule, class Checkpointing> constexpr bool proven() {
    static_assert(is_proven<Schedule, Checkpointing, Link::shared>());
    static_assert(is_proven<Schedule, Checkpointing, Link::copied>());
    return true;
}
template <class Schedule> constexpr bool all_proven() {
    return proven<Schedule, Never>() && proven<Schedule, ExceptLast>() &&
           proven<Schedule, Always>() && proven<Schedule, Offload<Never>>();
}
static_assert(all_proven<GPipe>() && all_proven<OneForwardOneBackward>());
static_assert(all_proven<ZeroBubbleH1>() && all_proven<ZeroBubbleH2>());
static_assert(all_proven<Interleaved1F1B<2>>() && all_proven<ZeroBubbleV>());
static_assert(is_least<GPipe, ExceptLast, Link::shared>());
static_assert(is_least<OneForwardOneBackward, Always, Link::copied>());

} // namespace
