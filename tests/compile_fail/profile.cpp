// expect GPIPE_OTHER_LAYERS: gpipe: the profile is stale: it is of Profiled layers
// expect GPIPE_OTHER_LAYERS: CheckProfile<(4, 3, 8, 8|.*Profiled=4, Layers=3)
// expect GPIPE_OTHER_SAMPLES: gpipe: the profile is stale: it is for micro-batches of ProfiledSamples
// expect GPIPE_OTHER_SAMPLES: CheckProfile<(4, 4, 8, 16|.*ProfiledSamples=8, Samples=16)
// expect GPIPE_OTHER_SHAPES: gpipe: the profile is stale: it is of layers of other types or shapes
// expect GPIPE_PROFILE_OF_FEW: gpipe: there are more cells \(K\) than layers \(Layers\)
// expect GPIPE_PROFILE_ON_RANKS: gpipe: layers are timed in one process: on a device, not on what joins those of ranks
#include <gpipe/balance/by_profile.hpp>
#include <gpipe/profile.hpp>
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>
#include <support/ranks.hpp>

#include <type_traits>

template <std::size_t n> using Chain = gpipe::Pipeline<gpipe::Repeat<n, blank::Linear<4>>>;
inline constexpr gpipe::LayerProfile layers[] = {{.forward = 1, .parameters = 10},
                                                 {.forward = 1, .parameters = 10},
                                                 {.forward = 1, .parameters = 10},
                                                 {.forward = 1, .backward = 2, .parameters = 10}};
inline constexpr gpipe::ProfileView profile{
    gpipe::chain_number(Chain<4>::layers().data(), 4), 8, {layers, 4}};

#if defined(GPIPE_OTHER_LAYERS)
using Net = Chain<3>;
#elif defined(GPIPE_OTHER_SHAPES)
using Net = gpipe::Pipeline<blank::Map<4>, gpipe::Repeat<3, blank::Linear<4>>>;
#else
using Net = Chain<4>;
#endif
#if defined(GPIPE_OTHER_SAMPLES)
using Cut = gpipe::balance::ByTime<Net, 16, profile, 2>;
#elif defined(GPIPE_PROFILE_OF_FEW)
using Cut = gpipe::balance::ByTime<Net, 8, profile, 5>;
#else
using Cut = gpipe::balance::ByTime<Net, 8, profile, 2>;
static_assert(
    std::is_same_v<gpipe::balance::ByTime<Chain<4>, 8, profile, 2>, gpipe::Balance<3, 1>>);
static_assert(
    std::is_same_v<gpipe::balance::BySize<Chain<4>, 8, profile, 2>, gpipe::Balance<2, 2>>);
#endif
using Train = gpipe::Training<Net, Cut, gpipe::Loss<blank::Loss<4>>>;
static_assert(Train::cell_count == Cut::cells);

#if defined(GPIPE_PROFILE_ON_RANKS)
using Device = toy::Rank;
#else
using Device = gpipe::device::Host;
#endif
auto profiled() {
    return gpipe::profile(Net{}, gpipe::ProfileOptions<Device>{.samples = 8}).layers.size();
}
