// Cuts are constants.
#include <gpipe/balance/balance.hpp>
#include <gpipe/balance/check.hpp>

#include <array>
#include <cstddef>
#include <limits>
#include <type_traits>

namespace {

using gpipe::objective::Bottleneck;
using gpipe::objective::LeastVariance;

template <std::size_t N> using Costs = std::array<double, N>;

template <std::size_t K, class Objective = Bottleneck, std::size_t L>
constexpr std::array<std::size_t, K> sizes(Costs<L> const& costs) {
    std::array<std::size_t, K + 1> first{};
    gpipe::Cells<K, Objective>::cut(costs.data(), L, K, first.data());
    std::array<std::size_t, K> result{};
    for (std::size_t k = 0; k < K; ++k) result[k] = first[k + 1] - first[k];
    return result;
}
template <std::size_t... Sizes> constexpr std::array<std::size_t, sizeof...(Sizes)> are{Sizes...};

template <std::size_t L> constexpr Costs<L> equal_costs(double cost) {
    Costs<L> costs{};
    for (double& c : costs) c = cost;
    return costs;
}
// Behaviour L1, and the rules for ties.
static_assert(sizes<2>(Costs<6>{1, 2, 3, 4, 5, 6}) == are<4, 2>);
static_assert(sizes<2, LeastVariance>(Costs<6>{1, 2, 3, 4, 5, 6}) == are<4, 2>);
static_assert(sizes<2>(Costs<2>{0, 0}) == are<1, 1>);
static_assert(sizes<1>(Costs<1>{7}) == are<1>);
static_assert(sizes<4>(equal_costs<10>(0.1)) == are<2, 2, 3, 3>);
static_assert(sizes<4, LeastVariance>(equal_costs<10>(0.1)) == are<2, 2, 3, 3>);
// The bottleneck is 6 in any case: the rest is as even as it can be, not as early.
static_assert(sizes<3>(Costs<7>{6, 1, 1, 1, 1, 1, 1}) == are<1, 3, 3>);
// Cells of 1, 5, 5 against 6, 2, 3: a smaller bottleneck for more variance.
static_assert(sizes<3>(Costs<4>{1, 5, 2, 3}) == are<1, 1, 2>);
static_assert(sizes<3, LeastVariance>(Costs<4>{1, 5, 2, 3}) == are<2, 1, 1>);

// No unit is too large or too small.
constexpr double huge = std::numeric_limits<double>::max();
constexpr double tiny = std::numeric_limits<double>::denorm_min();
static_assert(sizes<2>(Costs<3>{huge, huge, huge}) == are<1, 2>);
static_assert(sizes<2>(Costs<3>{2 * tiny, tiny, tiny}) == are<1, 2>);
static_assert(sizes<3, LeastVariance>(Costs<5>{huge, tiny, huge, 0, huge}) == are<1, 2, 2>);

// Policies.
template <class P>
concept Cuts = std::is_same_v<typename P::policy_kind, gpipe::policy::Cut>;
static_assert(Cuts<gpipe::Cells<4>> && Cuts<gpipe::Balance<2, 1, 1, 2>>);
static_assert(gpipe::Cells<4>::cells == 4 && gpipe::Balance<2, 1, 1, 2>::cells == 4);
static_assert(gpipe::Cells<gpipe::dynamic>::cells == gpipe::dynamic);
static_assert(std::is_same_v<gpipe::Cells<4>, gpipe::Cells<4, Bottleneck>>);
static_assert([] {
    std::size_t first[4]{};
    gpipe::Balance<2, 1, 3>::cut(nullptr, 6, 3, first);
    return first[0] == 0 && first[1] == 2 && first[2] == 3 && first[3] == 6;
}());

static_assert(gpipe::first_empty_cell(are<2, 0, 0>.data(), 3) == 1);
static_assert(gpipe::first_empty_cell(are<2, 1, 1>.data(), 3) == 3);
static_assert(gpipe::balance_sum(are<2, 1, 3>.data(), 3) == 6);
static_assert(gpipe::balance_sum(are<gpipe::dynamic, 3>.data(), 2) == gpipe::dynamic);
static_assert(gpipe::first_invalid_cost(Costs<3>{1, 0, huge}.data(), 3) == 3);
static_assert(gpipe::first_invalid_cost(Costs<3>{1, -tiny, -1}.data(), 3) == 1);
static_assert(gpipe::first_invalid_cost(Costs<2>{1, std::numeric_limits<double>::infinity()}.data(),
                                        2) == 1);
static_assert(gpipe::first_invalid_cost(
                  Costs<2>{std::numeric_limits<double>::quiet_NaN(), 1}.data(), 2) == 0);

} // namespace

static_assert(gpipe::CheckCut<gpipe::Balance<2, 1, 3>, 6>::ok());
static_assert(gpipe::CheckCut<gpipe::Cells<6>, 6>::ok());
static_assert(gpipe::CheckCut<gpipe::Cells<gpipe::dynamic>, 6>::ok());
