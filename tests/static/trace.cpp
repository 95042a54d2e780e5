// trace/: what a profiler is told, and that it is told nothing unless asked.
#include <gpipe/trace/nvtx.hpp>

#include <string_view>
#include <type_traits>

namespace {

using gpipe::ActionName;
using gpipe::ActionRange;
using gpipe::Kind;

static_assert(ActionName(Kind::forward, 2, 5) == std::string_view("forward cell 2 micro-batch 5"));
static_assert(ActionName(Kind::recompute, 0, 10) ==
              std::string_view("recompute cell 0 micro-batch 10"));
static_assert(ActionName(Kind::weight_gradient, 4294967295, 4294967295) ==
              std::string_view("weight gradient cell 4294967295 micro-batch 4294967295"));

#ifndef GPIPE_NVTX
static_assert(std::is_empty_v<ActionRange> && std::is_trivially_destructible_v<ActionRange>);
constexpr bool costs_nothing = (ActionRange(Kind::backward, 1, 2), true);
static_assert(costs_nothing);
#endif

} // namespace
