// expect GPIPE_BARRIER: gpipe: layer Index \(L\) has Parameters, but no gradient reaches it
// expect GPIPE_BARRIER: CheckTrainable<(1, Learns, 2, Rounds>|.*Index=1, L=Learns, Barrier=2)
// expect GPIPE_BARRIER_IN_REPEAT: gpipe: layer Index \(L\) has Parameters, but no gradient reaches it
// expect GPIPE_BARRIER_IN_REPEAT: CheckTrainable<(2, Learns, 3, Rounds>|.*Index=2, L=Learns)
// expect GPIPE_ITSELF: gpipe: layer Index \(L\) has Parameters, but no gradient reaches it
// expect GPIPE_ITSELF: CheckTrainable<(1, Quantizes, 1, Quantizes>|.*Index=1, L=Quantizes)
// expect GPIPE_TOP: gpipe: layer Index \(L\) has Parameters, but no gradient reaches it
// expect GPIPE_TOP: CheckTrainable<(0, Learns, 2, Rounds>|.*Index=0, L=Learns, Barrier=2)
// expect GPIPE_ONLY_EVALUATES: gpipe: layer Index \(L\) has Parameters, but no gradient reaches it
// expect GPIPE_ONLY_EVALUATES: CheckTrainable<(0, Learns, 1, Evaluates>|.*Index=0, L=Learns, Barr)
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

using gpipe::Repeat;

struct Free : blank::Map<4> {};
struct Learns : blank::Linear<4> {};
// To integers, and from there: no gradient passes.
struct Rounds : blank::Map<4> {
    using Output = gpipe::Tensor<int, 4>;
};
struct Quantizes : blank::Linear<4> {
    using Output = gpipe::Tensor<int, 4>;
};
// Without a backward.
struct Evaluates {
    using Input = gpipe::Tensor<float, 4>;
    using Output = Input;
    static constexpr bool only_evaluates = true;
    void forward(auto&, auto, auto) const {}
};
struct LooksUp : blank::Embedding<4, 4> {};

#if defined(GPIPE_BARRIER)
using Net = gpipe::Pipeline<Free, Learns, Rounds, LooksUp, Learns>;
#elif defined(GPIPE_BARRIER_IN_REPEAT)
using Net = gpipe::Pipeline<Free, Free, Repeat<2, Learns, Rounds, LooksUp>, Learns>;
#elif defined(GPIPE_ITSELF)
using Net = gpipe::Pipeline<Free, Quantizes, LooksUp>;
#elif defined(GPIPE_TOP)
using Net = gpipe::Pipeline<Learns, Free, Rounds>;
#elif defined(GPIPE_ONLY_EVALUATES)
using Net = gpipe::Pipeline<Learns, Evaluates, Learns>;
#else
using Net = gpipe::Pipeline<Free, Evaluates, Rounds, LooksUp, Repeat<2, Free, Learns>>;
#endif
using Train = gpipe::Training<Net, gpipe::Loss<blank::Loss<4>>>;
static_assert(Train::layer_count == Net::size);
