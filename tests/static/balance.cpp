// Cuts are constants.
#include <gpipe/balance/balance.hpp>
#include <gpipe/balance/by_profile.hpp>
#include <gpipe/balance/check_cut.hpp>
#include <gpipe/balance/metrics.hpp>
#include <gpipe/pipeline.hpp>
#include <support/blank_layers.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

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
// L1: costs of 1 to 6 in two cells; and the rules for ties.
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

// Long chains are cut within the default limits of every compiler.

// Whole numbers from 1 to 2^12: the sums of squares below are exact in doubles.
template <std::size_t L> constexpr Costs<L> random_costs() {
    Costs<L> costs{};
    std::uint64_t seed = 1;
    for (double& c : costs) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        c = static_cast<double>((seed >> 52) + 1);
    }
    return costs;
}

// 4,096 layers in 256 cells. No smaller bottleneck: under the next smaller whole number, cells
// filled one after the other are too few.
template <std::size_t L> constexpr std::size_t cells_needed(Costs<L> const& costs, double limit) {
    std::size_t needed = 1;
    double cell = 0;
    double const* const cost = costs.data();
    for (std::size_t l = 0; l < L; ++l) {
        if (cell + cost[l] > limit) {
            ++needed;
            cell = 0;
        }
        cell += cost[l];
    }
    return needed;
}
template <std::size_t L, std::size_t K> struct Large {
    static constexpr Costs<L> costs = random_costs<L>();
    static constexpr std::array<std::size_t, K + 1> first = [] {
        std::array<std::size_t, K + 1> cut{};
        gpipe::cut_by_bottleneck(costs.data(), L, K, cut.data());
        return cut;
    }();
    static constexpr double bottleneck = gpipe::bottleneck(costs.data(), first.data(), K);
};
static_assert(Large<4096, 256>::first[0] == 0 && Large<4096, 256>::first[256] == 4096);
static_assert(Large<4096, 256>::bottleneck > 0x1p12); // no layer alone decides
static_assert(cells_needed(Large<4096, 256>::costs, Large<4096, 256>::bottleneck) <= 256);
static_assert(cells_needed(Large<4096, 256>::costs, Large<4096, 256>::bottleneck - 1) > 256);
static_assert(sizes<256>(equal_costs<4096>(0.1))[0] == 16);
static_assert(sizes<256>(equal_costs<4096>(0.1))[255] == 16);

// Least variance up to layers * cells == 8,192, and ties by variance up to the limit: the sum of
// squares of whole numbers against the plain dynamic programme, which reaches 1,024.
template <std::size_t L, std::size_t K> constexpr double plain_least_squares() {
    Costs<L> const costs = random_costs<L>();
    double sums[L + 1]{};
    for (std::size_t l = 0; l < L; ++l) sums[l + 1] = sums[l] + costs[l];
    constexpr std::size_t places = L - K + 1;
    double best[2][places]{};
    for (std::size_t p = 0; p < places; ++p) {
        double const cell = sums[L] - sums[K - 1 + p];
        best[0][p] = cell * cell;
    }
    for (std::size_t k = K - 1; k-- > 0;) {
        double const* const rest = best[(K - 2 - k) % 2];
        double* const least = best[(K - 1 - k) % 2];
        for (std::size_t p = 0; p < (k == 0 ? 1 : places); ++p) {
            double minimum = std::numeric_limits<double>::max();
            for (std::size_t q = p; q < places; ++q) {
                double const cell = sums[k + 1 + q] - sums[k + p];
                double const sum = cell * cell + rest[q];
                if (sum < minimum) minimum = sum;
            }
            least[p] = minimum;
        }
    }
    return best[(K - 1) % 2][0];
}
template <std::size_t L, std::size_t K, class Objective> constexpr double squares() {
    Costs<L> const costs = random_costs<L>();
    std::array<std::size_t, K + 1> first{};
    Objective::cut(costs.data(), L, K, first.data());
    double sum = 0;
    std::size_t l = 0;
    for (std::size_t k = 0; k < K; ++k) {
        double cell = 0;
        for (; l < first[k + 1]; ++l) cell += costs[l];
        sum += cell * cell;
    }
    return sum;
}
static_assert(squares<256, 4, LeastVariance>() == plain_least_squares<256, 4>());
static_assert(squares<128, 8, LeastVariance>() == plain_least_squares<128, 8>());
static_assert(squares<64, 16, LeastVariance>() == plain_least_squares<64, 16>());
static_assert(squares<32, 32, LeastVariance>() == plain_least_squares<32, 32>());
static_assert(squares<2048, 4, LeastVariance>() <= squares<2048, 4, Bottleneck>());
static_assert(squares<1024, 8, LeastVariance>() <= squares<1024, 8, Bottleneck>());
static_assert(squares<512, 16, LeastVariance>() <= squares<512, 16, Bottleneck>());
static_assert(squares<256, 32, LeastVariance>() <= squares<256, 32, Bottleneck>());

// The widest search for ties: one layer above all others leaves the rest free.
template <std::size_t L> constexpr Costs<L> one_giant() {
    Costs<L> costs = random_costs<L>();
    costs[L / 2] = 0x1p40;
    return costs;
}
static_assert(sizes<8>(one_giant<512>()) == sizes<8, LeastVariance>(one_giant<512>()));
static_assert(sizes<16>(one_giant<256>()) == sizes<16, LeastVariance>(one_giant<256>()));

// Compilers agree on what a profile is of.
static_assert(gpipe::detail::name_without_arguments("gpipe::Layer<float, 3>::Part<int>") ==
              "Layer");
static_assert(gpipe::detail::name_without_arguments("{anonymous}::Layer") == "Layer");
static_assert(gpipe::detail::name_without_arguments("<unnamed>::Layer<a::b>") == "Layer");
static_assert(gpipe::detail::name_without_arguments("(anonymous namespace)::Layer<3>") == "Layer");
template <std::size_t n> struct Unnamed : blank::Linear<n> {};
static_assert(gpipe::chain_number(gpipe::Pipeline<blank::Linear<3, 2>, Unnamed<2>>::layers().data(),
                                  2) == 5533519617874341541u);
// And what replicas tell each other is a part of that.
template <std::size_t n> struct Telling : blank::Linear<2> {
    using Exchanged = gpipe::Tensor<float, n>;
    void exchange(auto&, auto, auto) const {}
};
static_assert(gpipe::chain_number(gpipe::Pipeline<Telling<1>>::layers().data(), 1) !=
              gpipe::chain_number(gpipe::Pipeline<Telling<2>>::layers().data(), 1));
// So is which of its parameters are frozen.
template <std::size_t tensor> struct Keeping : blank::Linear<2> {
    using Parameters = gpipe::Tensors<gpipe::Tensor<float, 2>, gpipe::Tensor<float, 2>>;
    using FrozenTensors = std::index_sequence<tensor>;
};
static_assert(gpipe::chain_number(gpipe::Pipeline<Keeping<0>>::layers().data(), 1) !=
              gpipe::chain_number(gpipe::Pipeline<Keeping<1>>::layers().data(), 1));
} // namespace

static_assert(gpipe::CheckCut<gpipe::Balance<2, 1, 3>, 6>::ok());
static_assert(gpipe::CheckCut<gpipe::Cells<6>, 6>::ok());
static_assert(gpipe::CheckCut<gpipe::Cells<gpipe::dynamic>, 6>::ok());
