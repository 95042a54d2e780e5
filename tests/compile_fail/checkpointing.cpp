// expect GPIPE_TOO_FEW_BYTES: gpipe: this device does not fit into the bytes of Policy, however often
// expect GPIPE_TOO_FEW_BYTES: CheckBudget<.*(, 0, 3584, 3583>|device=0, least_bytes=3584, bytes=3583)
// expect GPIPE_NO_BYTES: gpipe: Optimal<bytes, samples> needs bytes
// expect GPIPE_NO_SAMPLES: gpipe: Optimal<bytes, samples> needs samples in a micro-batch
// expect GPIPE_ALWAYS_IN_CELL: gpipe: Always runs again what the cell holds as well, whatever its
// expect GPIPE_ALWAYS_IN_CELL: CheckPolicyInCell<(1, gpipe::checkpoint::Always>|.*Index=1, Policy=gpipe::checkpoint::Always)
// expect GPIPE_BUDGET_IN_CELL: gpipe: PerCell takes Never, ExceptLast and policies that reverse one cell
// expect GPIPE_BUDGET_IN_CELL: CheckPolicyInCell<(0, gpipe::checkpoint::Optimal<|.*Index=0, Policy=gpipe::checkpoint::Optimal<)
// expect GPIPE_NO_POLICY_IN_CELL: gpipe: PerCell takes Never, ExceptLast and policies that reverse one
// expect GPIPE_NO_CELLS: gpipe: PerCell needs a policy for each cell
// expect GPIPE_FEWER_CELLS: gpipe: PerCell has more or fewer checkpointing policies than there are
// expect GPIPE_FEWER_CELLS: CheckPoliciesOfCells<.*(, 3, 2>|policies=3, cells=2)
// expect GPIPE_DYNAMIC_SEGMENTS: gpipe: a checkpointing policy whose numbers are dynamic is an object
// expect GPIPE_DYNAMIC_BYTES: gpipe: a checkpointing policy whose numbers are dynamic is an object
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

using namespace gpipe::checkpoint;

#if defined(GPIPE_TOO_FEW_BYTES)
using Checkpointing = Optimal<3583, 2>;
#elif defined(GPIPE_NO_BYTES)
using Checkpointing = Optimal<0, 2>;
#elif defined(GPIPE_NO_SAMPLES)
using Checkpointing = Optimal<5120, 0>;
#elif defined(GPIPE_ALWAYS_IN_CELL)
using Checkpointing = PerCell<Never, Always>;
#elif defined(GPIPE_BUDGET_IN_CELL)
using Checkpointing = PerCell<Optimal<5120, 2>, Never>;
#elif defined(GPIPE_NO_POLICY_IN_CELL)
using Checkpointing = PerCell<Never, int>;
#elif defined(GPIPE_NO_CELLS)
using Checkpointing = PerCell<>;
#elif defined(GPIPE_FEWER_CELLS)
using Checkpointing = PerCell<Never, Never, SquareRoot>;
#elif defined(GPIPE_DYNAMIC_SEGMENTS)
using Checkpointing = EverySegment<gpipe::dynamic>;
#elif defined(GPIPE_DYNAMIC_BYTES)
using Checkpointing = Optimal<gpipe::dynamic, 2>;
#else
using Checkpointing = Optimal<5120, 2>;
#endif

template <class Policy>
using Train = gpipe::Training<
    gpipe::Pipeline<blank::Linear<4>, blank::Linear<4>, blank::Linear<4>, blank::Linear<4>>,
    gpipe::Cells<2>, gpipe::MicroBatches<4>, gpipe::Loss<blank::Loss<4>>, Policy>;
static_assert(Train<Checkpointing>::layer_count == 4);
static_assert(Train<PerCell<EverySegment<2>, ExceptLast>>::peak_bytes(0, 1) > 0);
