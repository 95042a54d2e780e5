// What is wrong is said in the sentence; where, in the template arguments: policy, problem, cell,
// step.
// expect GPIPE_OTHER_LAYERS: gpipe: the reversal of Policy is not for the layers of this cell
// expect GPIPE_NO_SUCH_LAYER: gpipe: the reversal of Policy names, at this step, a layer that this cell does not
// expect GPIPE_NO_SUCH_LAYER: CheckReversal<.*(, 0, 0>|cell=0, step=0)
// expect GPIPE_REVERSED: gpipe: the reversal of Policy runs, at this step, a layer again behind its backward
// expect GPIPE_REVERSED: CheckReversal<.*(, 0, 4>|cell=0, step=4)
// expect GPIPE_NO_INPUT: gpipe: the reversal of Policy runs, at this step, a layer again whose input is nowhere
// expect GPIPE_NO_INPUT: CheckReversal<.*(, 0, 0>|cell=0, step=0)
// expect GPIPE_TWICE: gpipe: the reversal of Policy keeps, at this step, a layer whole that is so already
// expect GPIPE_TWICE: CheckReversal<.*(, 0, 2>|cell=0, step=2)
// expect GPIPE_ORDER: gpipe: the reversal of Policy keeps something, at this step, of a layer before
// expect GPIPE_ORDER: CheckReversal<.*(, 0, 0>|cell=0, step=0)
// expect GPIPE_IN_VAIN: gpipe: the reversal of Policy does not take up, at this step, what the forward before
// expect GPIPE_IN_VAIN: CheckReversal<.*(, 0, 4>|cell=0, step=4)
// expect GPIPE_OUT_OF_TURN: gpipe: the reversal of Policy runs, at this step, a backward that is not that of the
// expect GPIPE_OUT_OF_TURN: CheckReversal<.*(, 0, 2>|cell=0, step=2)
// expect GPIPE_NOT_WHOLE: gpipe: the reversal of Policy runs, at this step, a backward of a layer that is not
// expect GPIPE_NOT_WHOLE: CheckReversal<.*(, 0, 2>|cell=0, step=2)
// expect GPIPE_MISSING: gpipe: the reversal of Policy leaves out a backward
// expect GPIPE_AT_RUN_TIME: gpipe: reversal.cell. of the checkpointing policy is no constant: it must
// expect GPIPE_NO_REVERSAL: gpipe: a checkpointing policy needs: static constexpr gpipe::Programs lower
// expect GPIPE_NO_SEGMENT: gpipe: EverySegment<n> needs segments of at least one layer
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

using gpipe::Keep;
using gpipe::Reversal;
using gpipe::ReversalStep;

// A cell of two layers, all of which runs again, written out by hand.
struct Policy {
    using policy_kind = gpipe::policy::Checkpointing;
#if defined(GPIPE_NO_REVERSAL)
    static constexpr Reversal reverse(gpipe::CellToReverse const&) { return {}; }
#elif defined(GPIPE_AT_RUN_TIME)
    static Reversal reversal(gpipe::CellToReverse const&) { return {}; }
#else
    static constexpr Reversal reversal(gpipe::CellToReverse const&) {
        ReversalStep const steps[] = {
#if defined(GPIPE_NO_SUCH_LAYER)
            {false, Keep::all, 2},
#elif defined(GPIPE_NO_INPUT)
            {false, Keep::all, 1},
#elif defined(GPIPE_IN_VAIN)
            {false, Keep::nothing, 0},
#else
            {false, Keep::all, 0},
#endif
            {false, Keep::all, 1},
#if defined(GPIPE_TWICE)
            {false, Keep::all, 1},
#elif defined(GPIPE_OUT_OF_TURN)
            {true, Keep::nothing, 0},
#elif defined(GPIPE_NOT_WHOLE)
            {true, Keep::nothing, 1},
#endif
            {true, Keep::nothing, 1},
#if defined(GPIPE_IN_VAIN)
            {false, Keep::nothing, 0},
            {false, Keep::all, 0},
#endif
#if defined(GPIPE_REVERSED)
            {true, Keep::nothing, 0},
            {false, Keep::all, 0},
#elif !defined(GPIPE_MISSING)
            {true, Keep::nothing, 0},
#endif
        };
        Reversal result;
#if defined(GPIPE_OTHER_LAYERS)
        result.forward = gpipe::Array<Keep>(3);
#else
        result.forward = gpipe::Array<Keep>(2);
#endif
#if defined(GPIPE_ORDER)
        result.forward[1] = Keep::input;
#endif
        result.steps = gpipe::Array<ReversalStep>(sizeof(steps) / sizeof(steps[0]));
        for (std::size_t i = 0; i < result.steps.size(); ++i) result.steps[i] = steps[i];
#if defined(GPIPE_NOT_WHOLE)
        result.steps[1].keep = Keep::nothing;
#endif
        return result;
    }
#endif
};
#if defined(GPIPE_NO_SEGMENT)
using Checkpointing = gpipe::checkpoint::EverySegment<0>;
#else
using Checkpointing = Policy;
#endif

using Net = gpipe::Pipeline<blank::Linear<4>, blank::Linear<4>, blank::Linear<4>, blank::Linear<4>>;
using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>,
                              gpipe::Loss<blank::Loss<4>>, Checkpointing>;
static_assert(Train::peak_bytes(0, 1) > 0);
