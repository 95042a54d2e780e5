// trace/: what a profiler is told, and that it is told nothing unless asked; timelines as
// constants.
#include <gpipe/trace/compare.hpp>
#include <gpipe/trace/nvtx.hpp>
#include <gpipe/trace/palette.hpp>
#include <gpipe/trace/unsplit.hpp>

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace {

using gpipe::ActionName;
using gpipe::ActionRange;
using gpipe::Kind;

static_assert(ActionName(Kind::forward, 2, 5) == std::string_view("forward cell 2 micro-batch 5"));
static_assert(ActionName(Kind::all_reduce, 2, 0) == std::string_view("all-reduce cell 2"));
static_assert(ActionName(Kind::update, 2, 0) == std::string_view("update"));
static_assert(ActionName(Kind::recompute, 0, 10) ==
              std::string_view("recompute cell 0 micro-batch 10"));
static_assert(ActionName(Kind::weight_gradient, 4294967295, 4294967295) ==
              std::string_view("weight gradient cell 4294967295 micro-batch 4294967295"));

#ifndef GPIPE_NVTX
static_assert(std::is_empty_v<ActionRange> && std::is_trivially_destructible_v<ActionRange>);
constexpr bool costs_nothing = (ActionRange(Kind::backward, 1, 2), true);
static_assert(costs_nothing);
#endif

// A timeline is a value like the programs that it is of.
constexpr gpipe::Timeline gpipe_of(std::size_t devices, std::size_t micro_batches) {
    gpipe::Programs const programs = gpipe::schedule::GPipe::programs(devices, micro_batches);
    return gpipe::timeline(programs, gpipe::simulate<std::int64_t>(programs, gpipe::unit_cost),
                           "GPipe");
}
static_assert(gpipe_of(3, 4).title() == "GPipe");
static_assert(gpipe_of(3, 4).makespan() == 18 && gpipe_of(3, 4).busy() == 36);
static_assert(gpipe_of(4, 4).bubble() == 1 - 48 / 84.0); // (K - 1) / (M + K - 1)
static_assert(gpipe_of(32, 64).size() == 2 * 32 * 64);
static_assert(gpipe_of(2, 1)[3].action == gpipe::backward(1, 0) && gpipe_of(2, 1)[3].end == 4);

// Not split, one device works at a time: K times as long as the work of one.
static_assert(gpipe::trace::unsplit(3, 4, gpipe::unit_cost).makespan() == 3 * 4 * 3);

static_assert(gpipe::trace::scaled(gpipe_of(3, 4), 0.5).makespan() == 9);
static_assert(gpipe::trace::compare(gpipe_of(2, 4), gpipe_of(4, 2))[1].busy() ==
              gpipe_of(2, 4).busy());
static_assert(gpipe::trace::MeanDurations(gpipe_of(3, 4))(gpipe::backward(1, 0)) == 2);

static_assert(gpipe::trace::colour_of(Kind::forward, 0).grey() >
              gpipe::trace::colour_of(Kind::backward, 0).grey());

} // namespace
