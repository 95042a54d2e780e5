// expect GPIPE_L1_MORE_CELLS: gpipe: there are more cells \(K\) than layers \(Layers\)
// expect GPIPE_L1_MORE_CELLS: CheckCells<(5, 4>|.*K=5, Layers=4)
// expect GPIPE_L1_NO_CELLS: gpipe: the number of cells is zero; a pipeline has at least one
// expect GPIPE_L1_NO_CELLS: CheckCells<(0, 4>|.*K=0, Layers=4)
// expect GPIPE_A3_SUM_TOO_LARGE: gpipe: the balance sums to Sum, but the pipeline has Layers layers
// expect GPIPE_A3_SUM_TOO_LARGE: CheckBalanceSum<(5, 4>|.*Sum=5, Layers=4)
// expect GPIPE_A3_SUM_TOO_SMALL: gpipe: the balance sums to Sum, but the pipeline has Layers layers
// expect GPIPE_A3_SUM_TOO_SMALL: CheckBalanceSum<(3, 4>|.*Sum=3, Layers=4)
// expect GPIPE_A4_ZERO_ENTRY: gpipe: entry Index of the balance is zero
// expect GPIPE_A4_ZERO_ENTRY: CheckBalanceEntry<(1, 3>|.*Index=1, Cells=3)
// expect GPIPE_ZERO_ENTRY_AND_SUM: gpipe: entry Index of the balance is zero
// expect GPIPE_A3_EMPTY_BALANCE: gpipe: the balance sums to Sum, but the pipeline has Layers layers
// expect GPIPE_A3_EMPTY_BALANCE: CheckBalanceSum<(0, 4>|.*Sum=0, Layers=4)
// expect GPIPE_ODD_BALANCE: gpipe: the schedule has CellsPerDevice cells on each device
// expect GPIPE_ODD_BALANCE: CheckBalanceDevices<(3, 2>|.*Entries=3, CellsPerDevice=2)
// expect GPIPE_MORE_CELLS_IN_V: gpipe: there are more cells \(K\) than layers \(Layers\)
// expect GPIPE_MORE_CELLS_IN_V: CheckCells<(6, 4>|.*K=6, Layers=4)
// expect GPIPE_LEAVES_THE_LAST: gpipe: the cut \(Cut\) is wrong at first\[Cell\], which it fills with First behind Before
// expect GPIPE_LEAVES_THE_LAST: CheckFoundCut<(.*, 2, 3, 2, 2, 4>|.*Cell=2, First=3, Before=2, Cells=2, Layers=4)
// expect GPIPE_BEGINS_BEHIND: gpipe: the cut \(Cut\) is wrong at first\[Cell\], which it fills with First behind Before
// expect GPIPE_CUTS_BEYOND: gpipe: the cut \(Cut\) is wrong at first\[Cell\], which it fills with First behind Before
// expect GPIPE_CUTS_NOTHING: gpipe: what a cut is best at \(Objective\) has: static constexpr void cut\(double const\* costs
#include <gpipe/schedule/zero_bubble_v.hpp>
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

template <std::size_t... found> struct Cuts {
    static constexpr void cut(double const*, std::size_t, std::size_t, std::size_t* first) {
        for (std::size_t const layer : {found...}) *first++ = layer;
    }
};
struct Nothing {};

#if defined(GPIPE_ODD_BALANCE) || defined(GPIPE_MORE_CELLS_IN_V)
using Schedule = gpipe::schedule::ZeroBubbleV;
#else
using Schedule = gpipe::schedule::GPipe;
#endif
#if defined(GPIPE_ODD_BALANCE)
using Cut = gpipe::Balance<2, 1, 1>;
#elif defined(GPIPE_MORE_CELLS_IN_V)
using Cut = gpipe::Cells<3>;
#elif defined(GPIPE_L1_MORE_CELLS)
using Cut = gpipe::Cells<5>;
#elif defined(GPIPE_L1_NO_CELLS)
using Cut = gpipe::Cells<0>;
#elif defined(GPIPE_A3_SUM_TOO_LARGE)
using Cut = gpipe::Balance<2, 3>;
#elif defined(GPIPE_A3_SUM_TOO_SMALL)
using Cut = gpipe::Balance<2, 1>;
#elif defined(GPIPE_LEAVES_THE_LAST)
using Cut = gpipe::Cells<2, Cuts<0, 2, 3>>;
#elif defined(GPIPE_BEGINS_BEHIND)
using Cut = gpipe::Cells<2, Cuts<1, 2, 4>>;
#elif defined(GPIPE_CUTS_BEYOND)
using Cut = gpipe::Cells<2, Cuts<0, 9, 4>>;
#elif defined(GPIPE_CUTS_NOTHING)
using Cut = gpipe::Cells<2, Nothing>;
#elif defined(GPIPE_A4_ZERO_ENTRY)
using Cut = gpipe::Balance<2, 0, 2>;
#elif defined(GPIPE_ZERO_ENTRY_AND_SUM)
using Cut = gpipe::Balance<2, 0>;
#elif defined(GPIPE_A3_EMPTY_BALANCE)
using Cut = gpipe::Balance<>;
#else
using Cut = gpipe::Balance<3, 1>;
using Finest = gpipe::Training<gpipe::Pipeline<gpipe::Repeat<4, blank::Linear<4>>>, gpipe::Cells<4>,
                               gpipe::Loss<blank::Loss<4>>>;
static_assert(Finest::cell_count == 4);
using InV =
    gpipe::Training<gpipe::Pipeline<gpipe::Repeat<4, blank::Linear<4>>>, gpipe::Balance<1, 1, 1, 1>,
                    gpipe::Loss<blank::Loss<4>>, gpipe::schedule::ZeroBubbleV>;
static_assert(InV::cell_count == 4 && InV::device_count == 2);
using ByHand = gpipe::Training<gpipe::Pipeline<gpipe::Repeat<4, blank::Linear<4>>>,
                               gpipe::Cells<2, Cuts<0, 3, 4>>, gpipe::Loss<blank::Loss<4>>>;
static_assert(ByHand::first_layers()[1] == 3);
#endif
using Train = gpipe::Training<gpipe::Pipeline<gpipe::Repeat<4, blank::Linear<4>>>, Cut,
                              gpipe::Loss<blank::Loss<4>>, Schedule>;
static_assert(Train::cell_count == Cut::cells);
