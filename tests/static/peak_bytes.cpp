// peak_bytes() of K = 8 and M = 64, within what g++ computes in a constant by itself; clang takes
// less, see examples/policies.md.
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

#include <gpipe/gpipe.hpp>

#include <cstddef>

namespace {

template <class Schedule, std::size_t K, std::size_t M>
constexpr std::size_t second_device = gpipe::Training<
    gpipe::Pipeline<gpipe::Repeat<32, blank::Costly<64>>>, gpipe::Loss<blank::Loss<64>>,
    gpipe::Cells<K>, gpipe::MicroBatches<M>, Schedule, gpipe::checkpoint::Always>::peak_bytes(1, 8);

// Of GPipe all inputs wait for their backwards, of 1F1B those in flight.
template <std::size_t K, std::size_t M>
constexpr bool fewer_wait = second_device<gpipe::schedule::OneForwardOneBackward, K, M> <
                            second_device<gpipe::schedule::GPipe, K, M>;

static_assert(fewer_wait<2, 8>);
#if defined __GNUC__ && !defined __clang__ && !defined __CUDACC__
static_assert(fewer_wait<8, 64>);
#endif

} // namespace
