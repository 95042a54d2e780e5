// expect GPIPE_A14_EMPTY: gpipe: a Pipeline needs at least one layer
// expect GPIPE_REPEAT_ZERO: gpipe: Repeat needs a count of at least 1 and at least one layer
// expect GPIPE_REPEAT_TOO_MUCH: gpipe: the layers of this Pipeline, with all that Repeat repeats, are
// expect GPIPE_REPEAT_NOTHING: gpipe: Repeat needs a count of at least 1 and at least one layer
// expect GPIPE_SOME_COSTS: gpipe: some layers of the chain declare a cost, layer Index \(L\) does not
// expect GPIPE_SOME_COSTS: CheckCost<(2, Free>|.*Index=2, L=Free)
// expect GPIPE_SOME_COSTS_IN_REPEAT: CheckCost<(3, Free>|.*Index=3, L=Free)
// expect GPIPE_SOME_COSTS_IN_REPEAT: gpipe: some layers of the chain declare a cost
// expect GPIPE_FIRST_HAS_NO_COST: CheckCost<(0, Free>|.*Index=0, L=Free)
// expect GPIPE_FIRST_HAS_NO_COST: gpipe: some layers of the chain declare a cost
#include <gpipe/pipeline.hpp>
#include <support/blank_layers.hpp>

using gpipe::Repeat;

struct Free : blank::Map<4> {};
struct Costs : blank::Map<4> {
    static constexpr float cost = 1;
};

#if defined(GPIPE_A14_EMPTY)
using Net = gpipe::Pipeline<>;
#elif defined(GPIPE_REPEAT_ZERO)
using Net = gpipe::Pipeline<Free, Repeat<0, Free>>;
#elif defined(GPIPE_REPEAT_NOTHING)
using Net = gpipe::Pipeline<Free, Repeat<2>>;
#elif defined(GPIPE_REPEAT_TOO_MUCH)
using Net = gpipe::Pipeline<Free, Repeat<(std::size_t{1} << 63) + 1, Free, Free>>;
#elif defined(GPIPE_SOME_COSTS)
using Net = gpipe::Pipeline<Costs, Costs, Free, Costs, Free>;
#elif defined(GPIPE_SOME_COSTS_IN_REPEAT)
using Net = gpipe::Pipeline<Costs, Repeat<3, Costs, Costs, Free>>;
#elif defined(GPIPE_FIRST_HAS_NO_COST)
using Net = gpipe::Pipeline<Free, Costs>;
#else
using Net = gpipe::Pipeline<Costs, Repeat<3, Costs, Costs>>;
using None = gpipe::Pipeline<Free, Repeat<3, Free>>;
static_assert(None::size == 4);
#endif
static_assert(Net::size > 0);
