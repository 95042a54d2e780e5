#include "support/long_tests.hpp"

#include <gpipe/balance/balance.hpp>
#include <gpipe/balance/metrics.hpp>
#include <gpipe/core/dynamic.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <doctest/doctest.h>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using Costs = std::vector<double>;
using Cut = std::vector<std::size_t>;     // first layers of the cells, then the number of layers
using Whole = std::vector<std::uint64_t>; // costs as integers, for references without rounding
__extension__ typedef unsigned __int128 Wide;

template <class Objective> Cut cut(Costs const& costs, std::size_t cells) {
    Cut first(cells + 1, 12345);
    Objective::cut(costs.data(), costs.size(), cells, first.data());
    return first;
}
Cut by_bottleneck(Costs const& costs, std::size_t cells) {
    return cut<gpipe::objective::Bottleneck>(costs, cells);
}
Cut by_variance(Costs const& costs, std::size_t cells) {
    return cut<gpipe::objective::LeastVariance>(costs, cells);
}

Costs scaled(Whole const& whole, int exponent = 0) {
    Costs costs;
    for (std::uint64_t const w : whole)
        costs.push_back(std::ldexp(static_cast<double>(w), exponent));
    return costs;
}

// What a cut is judged by. The three are compared in this order, or without the first.
struct Quality {
    std::uint64_t bottleneck = 0;
    Wide squares = 0;
    Cut first;
};
Quality quality(Whole const& costs, Cut const& first) {
    Quality q{0, 0, first};
    for (std::size_t k = 0; k + 1 < first.size(); ++k) {
        std::uint64_t cell = 0;
        for (std::size_t l = first[k]; l < first[k + 1]; ++l) cell += costs[l];
        q.bottleneck = std::max(q.bottleneck, cell);
        q.squares += Wide{cell} * cell;
    }
    return q;
}
bool less_variance(Quality const& a, Quality const& b) {
    return a.squares != b.squares ? a.squares < b.squares : a.first < b.first;
}
bool less_bottleneck(Quality const& a, Quality const& b) {
    return a.bottleneck != b.bottleneck ? a.bottleneck < b.bottleneck : less_variance(a, b);
}

// All cuts of so many layers into so many non-empty cells.
std::vector<Cut> all_cuts(std::size_t layers, std::size_t cells) {
    std::vector<Cut> cuts;
    for (std::uint64_t places = 0; places < std::uint64_t{1} << (layers - 1); ++places) {
        Cut first{0};
        for (std::size_t l = 1; l < layers; ++l)
            if ((places >> (l - 1)) & 1) first.push_back(l);
        first.push_back(layers);
        if (first.size() == cells + 1) cuts.push_back(first);
    }
    return cuts;
}

// Both objectives against every cut there is: not only as good as the best, but the very cut that
// the tie rules name.
void compare_with_every_cut(Whole const& costs, std::size_t cells, std::vector<Cut> const& cuts,
                            int exponent) {
    Quality least_bottleneck = quality(costs, cuts[0]);
    Quality least_variance = least_bottleneck;
    for (Cut const& first : cuts) {
        Quality const q = quality(costs, first);
        if (less_bottleneck(q, least_bottleneck)) least_bottleneck = q;
        if (less_variance(q, least_variance)) least_variance = q;
    }
    Costs const real = scaled(costs, exponent);
    REQUIRE(by_bottleneck(real, cells) == least_bottleneck.first);
    REQUIRE(by_variance(real, cells) == least_variance.first);
}

// The plain dynamic programmes, O(cells * layers^2), from the back: the best that cells k, k + 1,
// ... can do when cell k begins at layer i.
struct Plain {
    std::size_t layers, cells;
    std::vector<std::uint64_t> sums;
    static constexpr std::uint64_t never = ~std::uint64_t{0};

    Plain(Whole const& costs, std::size_t k) : layers(costs.size()), cells(k), sums(layers + 1) {
        std::partial_sum(costs.begin(), costs.end(), sums.begin() + 1);
    }
    std::uint64_t cell(std::size_t i, std::size_t j) const { return sums[j] - sums[i]; }

    std::vector<std::vector<std::uint64_t>> bottlenecks() const {
        std::vector best(cells + 1, std::vector<std::uint64_t>(layers + 1, never));
        best[cells][layers] = 0;
        for (std::size_t k = cells; k-- > 0;)
            for (std::size_t i = 0; i < layers; ++i)
                for (std::size_t j = i + 1; j <= layers; ++j)
                    best[k][i] = std::min(best[k][i], std::max(cell(i, j), best[k + 1][j]));
        return best;
    }
    std::uint64_t bottleneck() const { return bottlenecks()[0][0]; }

    // The lexicographically smallest cut with no cell above the limit.
    Cut earliest(std::uint64_t limit) const {
        auto const best = bottlenecks();
        Cut first{0};
        for (std::size_t k = 0; k < cells; ++k) {
            std::size_t j = first[k] + 1;
            while (std::max(cell(first[k], j), best[k + 1][j]) > limit) ++j;
            first.push_back(j);
        }
        return first;
    }

    // The lexicographically smallest cut of least squares with no cell above the limit.
    Cut least_squares(std::uint64_t limit) const {
        constexpr Wide nothing = ~Wide{0};
        std::vector best(cells + 1, std::vector<Wide>(layers + 1, nothing));
        best[cells][layers] = 0;
        for (std::size_t k = cells; k-- > 0;)
            for (std::size_t i = 0; i < layers; ++i)
                for (std::size_t j = i + 1; j <= layers && cell(i, j) <= limit; ++j)
                    if (best[k + 1][j] != nothing)
                        best[k][i] =
                            std::min(best[k][i], Wide{cell(i, j)} * cell(i, j) + best[k + 1][j]);
        Cut first{0};
        for (std::size_t k = 0; k < cells; ++k) {
            std::size_t const i = first[k];
            std::size_t j = i + 1;
            while (best[k + 1][j] == nothing || cell(i, j) > limit ||
                   Wide{cell(i, j)} * cell(i, j) + best[k + 1][j] != best[k][i])
                ++j;
            first.push_back(j);
        }
        return first;
    }
};

std::uint64_t uniform(std::mt19937_64& random, std::uint64_t below) { return random() % below; }
double unit(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }
double log_normal(std::mt19937_64& random) {
    double sum = -6.0; // twelve uniform numbers: close enough to a normal one
    for (int n = 0; n < 12; ++n) sum += unit(random);
    return std::exp(sum);
}

constexpr std::size_t families = 5;
char const* const family_names[families] = {"log-normal", "near-equal", "small integers",
                                            "many zeros", "one giant"};
// Chains as they come, in integers with a sum below 2^45 that doubles hold exactly.
Whole chain(std::mt19937_64& random, std::size_t layers, std::size_t family) {
    Whole costs(layers);
    for (std::uint64_t& c : costs) {
        if (family == 0)
            c = static_cast<std::uint64_t>(log_normal(random) * 0x1p24);
        else if (family == 1)
            c = 1'000'000 + uniform(random, 1000);
        else if (family == 2)
            c = 1 + uniform(random, 5);
        else if (family == 3)
            c = uniform(random, 4) == 0 ? uniform(random, 9) : 0;
        else
            c = uniform(random, 1000);
    }
    if (family == 4) costs[uniform(random, layers)] = 1'000'000'000;
    return costs;
}

bool well_formed(Cut const& first, std::size_t layers) {
    if (first.front() != 0 || first.back() != layers) return false;
    for (std::size_t k = 0; k + 1 < first.size(); ++k)
        if (first[k] >= first[k + 1]) return false;
    return true;
}

// How many cells it takes under a limit, filled one after the other: as few as any cut has.
std::size_t cells_needed(Whole const& costs, std::uint64_t limit) {
    std::size_t needed = 1;
    std::uint64_t cell = 0;
    for (std::uint64_t const c : costs) {
        if (c > limit) return costs.size() + 1;
        if (cell + c > limit) {
            ++needed;
            cell = 0;
        }
        cell += c;
    }
    return needed;
}

template <class Error, class F> std::string message_of(F&& f) {
    try {
        f();
    } catch (Error const& e) {
        return e.what();
    }
    return "nothing was thrown";
}
bool has(std::string const& text, std::string const& part) {
    return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("both objectives find the very cut that exhaustive search finds, on all small chains") {
    // Every chain over a set of costs: with zeros, with many ties, with few.
    struct Sweep {
        std::vector<std::uint64_t> values;
        std::size_t longest;
    };
    Sweep const sweeps[] = {{{0, 1}, 9}, {{0, 1, 2}, 7}, {{1, 2, 5}, 7}, {{0, 3, 4, 9}, 6}};
    std::size_t point = 0;
    for (Sweep const& sweep : sweeps) {
        for (std::size_t layers = 1; layers <= sweep.longest; ++layers) {
            for (std::size_t cells = 1; cells <= layers; ++cells) {
                auto const cuts = all_cuts(layers, cells);
                std::vector<std::size_t> digits(layers, 0);
                for (bool more = true; more;) {
                    Whole costs;
                    for (std::size_t const d : digits) costs.push_back(sweep.values[d]);
                    if (point++ % toy::one_of(1) == 0)
                        compare_with_every_cut(costs, cells, cuts, 0);
                    std::size_t l = 0;
                    while (l < layers && ++digits[l] == sweep.values.size()) digits[l++] = 0;
                    more = l < layers;
                }
            }
        }
    }
}

TEST_CASE("both objectives find the very cut that exhaustive search finds, on random real costs") {
    std::mt19937_64 random(1);
    for (std::size_t layers = 1; layers <= 9; ++layers) {
        for (std::size_t cells = 1; cells <= layers; ++cells) {
            auto const cuts = all_cuts(layers, cells);
            for (std::size_t n = 0; n < 100 / toy::one_of(1); ++n) {
                Whole costs(layers); // 40 random bits each, so that the reference does not round
                for (std::uint64_t& c : costs) c = random() >> (24 + uniform(random, 8));
                compare_with_every_cut(costs, cells, cuts, -37);
            }
        }
    }
}

TEST_CASE("by weights, the largest product of a cell is the smallest of all cuts, no less than the "
          "most expensive layer's in the heaviest cell; of several the least sum of squares") {
    std::mt19937_64 random(8);
    std::size_t moved = 0;
    std::size_t exact = 0; // no cut at all has a smaller one
    std::size_t compared = 0;
    for (std::size_t layers = 1; layers <= 9; ++layers)
        for (std::size_t cells = 1; cells <= layers; ++cells) {
            auto const cuts = all_cuts(layers, cells);
            for (std::size_t n = 0; n < 60 / toy::one_of(1); ++n) {
                Whole costs(layers);
                for (std::uint64_t& c : costs) c = 1 + uniform(random, n % 2 ? 9 : 1000);
                gpipe::Array<std::size_t> weights(cells);
                for (std::size_t& w : weights) w = 1 + uniform(random, n % 3 ? 5 : 100);
                std::uint64_t const least = *std::max_element(costs.begin(), costs.end()) *
                                            *std::max_element(weights.begin(), weights.end());
                auto const weighed = [&](Cut const& first) {
                    Quality q{0, 0, first};
                    for (std::size_t k = 0; k < cells; ++k) {
                        std::uint64_t cell = 0;
                        for (std::size_t l = first[k]; l < first[k + 1]; ++l) cell += costs[l];
                        cell *= weights[k];
                        q.bottleneck = std::max(q.bottleneck, cell);
                        q.squares += Wide{cell} * cell;
                    }
                    return q;
                };
                Quality best = weighed(cuts[0]);
                std::uint64_t smallest = best.bottleneck;
                best.bottleneck = std::max(best.bottleneck, least);
                for (Cut const& first : cuts) {
                    Quality q = weighed(first);
                    smallest = std::min(smallest, q.bottleneck);
                    q.bottleneck = std::max(q.bottleneck, least);
                    if (less_bottleneck(q, best)) best = q;
                }
                Costs const real = scaled(costs, -7);
                Cut found(cells + 1);
                gpipe::cut_by_bottleneck(real.data(), layers, cells, found.data(), weights);
                REQUIRE(found == best.first);
                moved += found != by_bottleneck(real, cells);
                exact += weighed(found).bottleneck == smallest;
                ++compared;
                for (std::size_t& w : weights) w = 7;
                gpipe::cut_by_bottleneck(real.data(), layers, cells, found.data(), weights);
                REQUIRE(found == by_bottleneck(real, cells));
            }
        }
    MESSAGE(compared << " cuts, " << moved << " others than by costs alone, " << exact
                     << " with the smallest product there is");
    CHECK(moved > compared / 4);
    Cut first(3);
    Costs const costs(4, 1.0);
    for (std::size_t const k : {0, 1}) {
        gpipe::Array<std::size_t> none(2, 1);
        none[k] = 0;
        CHECK_THROWS_WITH_AS(gpipe::cut_by_bottleneck(costs.data(), 4, 2, first.data(), none),
                             "gpipe: the weight of a cell is zero", std::invalid_argument);
    }
}

TEST_CASE("by weights, too, cuts beyond the limit for ties are the earliest that do") {
    std::mt19937_64 random(9);
    Costs const equal(2000, 1.0);
    for (std::size_t cells : {3u, 7u, 20u}) {
        gpipe::Array<std::size_t> weights(cells);
        for (std::size_t& w : weights) w = 90 + uniform(random, 40);
        Cut first(cells + 1);
        gpipe::cut_by_bottleneck(equal.data(), 2000, cells, first.data(), weights);
        // Of equal layers: the smallest limit under which the cells hold them all.
        std::size_t limit = 0;
        auto const room = [&] {
            std::size_t layers = 0;
            for (std::size_t const w : weights) layers += limit / w;
            return layers;
        };
        while (room() < 2000) ++limit;
        Cut expected(cells + 1, 2000);
        for (std::size_t k = cells; --k > 0;) expected[k] = expected[k + 1] - limit / weights[k];
        expected[0] = 0;
        CHECK(first == expected);
    }
}

TEST_CASE("both objectives agree with the plain dynamic programme on random chains") {
    std::mt19937_64 random(2);
    for (std::size_t family = 0; family < families; ++family) {
        CAPTURE(family_names[family]);
        for (std::size_t n = 0; n < 1000 / toy::one_of(1); ++n) {
            std::size_t const layers = 1 + uniform(random, 48);
            std::size_t const cells = 1 + uniform(random, layers);
            Whole const costs = chain(random, layers, family);
            Plain const plain(costs, cells);
            REQUIRE(by_bottleneck(scaled(costs), cells) == plain.least_squares(plain.bottleneck()));
            REQUIRE(by_variance(scaled(costs), cells) == plain.least_squares(Plain::never));
        }
    }
}

TEST_CASE("beyond the limit for ties by variance, the cuts are the earliest that do") {
    std::mt19937_64 random(3);
    for (std::size_t family = 0; family < families; ++family) {
        CAPTURE(family_names[family]);
        for (std::size_t n = 0; n < 1 + 7 / toy::one_of(1); ++n) {
            std::size_t const layers = 250 + uniform(random, 60);
            std::size_t const cells = gpipe::variance_tie_limit / layers + 1 + uniform(random, 9);
            Whole const costs = chain(random, layers, family);
            Plain const plain(costs, cells);
            REQUIRE(by_bottleneck(scaled(costs), cells) == plain.earliest(plain.bottleneck()));
            REQUIRE(by_variance(scaled(costs), cells) == plain.least_squares(Plain::never));
        }
    }
}

TEST_CASE("the rule for ties changes just above the limit") {
    REQUIRE(gpipe::variance_tie_limit == 4096);
    // By variance, cells of 128 equal layers hold 4 or 5; the earliest cut leaves the front light.
    Costs const equal(128, 1.0);
    CHECK(by_bottleneck(equal, 31)[1] == 4); // 3,968
    CHECK(by_bottleneck(equal, 33)[1] == 1); // 4,224: at most 4
    CHECK(by_bottleneck(Costs(64, 1.0), 63) == by_variance(Costs(64, 1.0), 63));
    CHECK(by_bottleneck(Costs(1024, 1.0), 4)[1] == 256);            // 4,096: still by variance
    CHECK(by_bottleneck(Costs(1023, 1.0), 4)[1] == 255);            // 256 in the three that follow
    CHECK(by_bottleneck(Costs(1025, 1.0), 4)[1] == 1025 - 3 * 257); // 4,100: as light as it can be
}

TEST_CASE("full-precision costs are as good as the plain dynamic programme in doubles") {
    std::mt19937_64 random(4);
    for (std::size_t n = 0; n < 1000 / toy::one_of(1); ++n) {
        std::size_t const layers = 2 + uniform(random, 60);
        std::size_t const cells = 1 + uniform(random, std::min<std::size_t>(layers, 16));
        Costs costs(layers);
        for (double& c : costs) c = n % 2 ? log_normal(random) : 1.0 + 1e-3 * unit(random);
        std::vector max_of(cells + 1, std::vector<double>(layers + 1, 1e300));
        std::vector squares(cells + 1, std::vector<double>(layers + 1, 1e300));
        max_of[cells][layers] = squares[cells][layers] = 0.0;
        for (std::size_t k = cells; k-- > 0;) {
            for (std::size_t i = 0; i < layers; ++i) {
                double cell = 0.0;
                for (std::size_t j = i + 1; j <= layers; ++j) {
                    cell += costs[j - 1];
                    max_of[k][i] = std::min(max_of[k][i], std::max(cell, max_of[k + 1][j]));
                    squares[k][i] = std::min(squares[k][i], cell * cell + squares[k + 1][j]);
                }
            }
        }
        Cut const first = by_bottleneck(costs, cells);
        REQUIRE(gpipe::bottleneck(costs.data(), first.data(), cells) ==
                doctest::Approx(max_of[0][0]).epsilon(1e-13));
        double const total = std::accumulate(costs.begin(), costs.end(), 0.0);
        double const number = static_cast<double>(cells);
        double const least = squares[0][0] / number - total / number * total / number;
        Cut const flat = by_variance(costs, cells);
        REQUIRE(gpipe::variance(costs.data(), flat.data(), cells) <= least + 1e-12 * total * total);
    }
}

TEST_CASE("ten thousand layers in 256 cells: no smaller bottleneck, no earlier cut") {
    std::mt19937_64 random(5);
    std::size_t const layers = 10'000;
    std::size_t const cells = 256;
    for (std::size_t family = 0; family < families; ++family) {
        CAPTURE(family_names[family]);
        Whole const costs = chain(random, layers, family);
        Cut const first = by_bottleneck(scaled(costs), cells);
        REQUIRE(well_formed(first, layers));
        std::uint64_t const attained = quality(costs, first).bottleneck;
        CHECK(cells_needed(costs, attained - 1) > cells);
        for (std::size_t k = 1; k < cells; ++k) {
            std::uint64_t earlier = costs[first[k] - 1];
            for (std::size_t l = first[k]; l < first[k + 1]; ++l) earlier += costs[l];
            CHECK((first[k] == k || earlier > attained));
        }
        CHECK(well_formed(by_variance(scaled(costs), cells), layers));
    }
}

TEST_CASE("two thousand layers: least variance agrees with the plain dynamic programme") {
    std::mt19937_64 random(6);
    for (std::size_t family = 0; family < families; ++family) {
        CAPTURE(family_names[family]);
        Whole const costs = chain(random, toy::sanitized ? 500 : 2000, family);
        Plain const plain(costs, 9);
        CHECK(by_variance(scaled(costs), 9) == plain.least_squares(Plain::never));
    }
}

TEST_CASE("a cut does not depend on the unit of the costs, from denormals to the largest doubles") {
    std::mt19937_64 random(7);
    for (int n = 0; n < 200; ++n) {
        std::size_t const layers = 1 + uniform(random, 30);
        std::size_t const cells = 1 + uniform(random, layers);
        Whole costs = chain(random, layers, static_cast<std::size_t>(n) % families);
        Cut const least_bottleneck = by_bottleneck(scaled(costs), cells);
        Cut const least_variance = by_variance(scaled(costs), cells);
        // -1074: the costs are multiples of the smallest denormal. 993: 2^30 * 2^993 is the largest
        // power of two, and a sum of two such costs is beyond every double.
        for (int const exponent : {-1074, -1050, -1046, -1042, -1022, -300, -1, 1, 300, 993}) {
            CAPTURE(exponent);
            REQUIRE(by_bottleneck(scaled(costs, exponent), cells) == least_bottleneck);
            REQUIRE(by_variance(scaled(costs, exponent), cells) == least_variance);
        }
    }
}

TEST_CASE("costs that differ in their last bit only are told apart") {
    // With 512 to 1,023 layers, one unit of the sums is the last bit of these costs.
    std::mt19937_64 random(12);
    for (int n = 0; n < 500; ++n) {
        Whole costs(512 + uniform(random, 512));
        std::uint64_t const bits = 2 + uniform(random, 3);
        for (std::uint64_t& c : costs) c = (std::uint64_t{1} << 52) + uniform(random, bits);
        std::size_t const cells = 9 + uniform(random, 120);
        Cut const first = by_bottleneck(scaled(costs), cells);
        REQUIRE(cells_needed(costs, quality(costs, first).bottleneck - 1) > cells);
    }
}

TEST_CASE("beside a cost 2^64 times theirs, others count as zero") {
    for (int exponent = -64 - 7; exponent >= -1074; exponent -= 1) {
        CAPTURE(exponent);
        double const tiny = std::ldexp(1.999, exponent);
        Costs const costs{1.0, tiny, tiny, tiny, tiny, tiny, tiny};
        REQUIRE(by_bottleneck(costs, 3) == Cut{0, 1, 2, 7});
        REQUIRE(by_variance(costs, 3) == Cut{0, 1, 2, 7});
    }
}

TEST_CASE("huge and tiny costs side by side: the huge ones get cells of their own") {
    double const huge = std::numeric_limits<double>::max();
    double const tiny = std::numeric_limits<double>::denorm_min();
    Costs const costs{tiny, huge, tiny, 1.0, huge, 0.0, 1e-300, huge};
    for (std::size_t cells = 1; cells <= costs.size(); ++cells) {
        CAPTURE(cells);
        for (Cut const& first : {by_bottleneck(costs, cells), by_variance(costs, cells)}) {
            CHECK(well_formed(first, costs.size()));
            if (cells < 3) continue;
            for (std::size_t k = 0; k < cells; ++k)
                CHECK(std::count(costs.begin() + static_cast<std::ptrdiff_t>(first[k]),
                                 costs.begin() + static_cast<std::ptrdiff_t>(first[k + 1]),
                                 huge) <= 1);
        }
    }
}

TEST_CASE("costs that are all zero are cut all the same") {
    for (std::size_t layers = 1; layers <= 12; ++layers) {
        for (std::size_t cells = 1; cells <= layers; ++cells) {
            Costs const zeros(layers, 0.0);
            Costs const negative_zeros(layers, -0.0);
            for (Cut const& first :
                 {by_bottleneck(zeros, cells), by_variance(zeros, cells),
                  by_bottleneck(negative_zeros, cells), by_variance(negative_zeros, cells)}) {
                REQUIRE(well_formed(first, layers));
                for (std::size_t k = 0; k < cells; ++k) REQUIRE(first[k] == k); // earliest
            }
        }
    }
    // [0, 0] into 2 is 1 + 1 (behaviour L1).
    CHECK(by_bottleneck({0.0, 0.0}, 2) == Cut{0, 1, 2});
}

TEST_CASE("L1 one to six into two is four and two") {
    Costs const costs{1, 2, 3, 4, 5, 6};
    CHECK(by_bottleneck(costs, 2) == Cut{0, 4, 6});
    CHECK(by_variance(costs, 2) == Cut{0, 4, 6});
}

TEST_CASE(
    "equal layers tie exactly whatever their cost, so the variance decides and not rounding") {
    std::mt19937_64 random(8);
    for (int n = 0; n < 200; ++n) {
        double const cost = n == 0 ? 0.1 : log_normal(random);
        std::size_t const layers = 1 + uniform(random, 60);
        std::size_t const cells = 1 + uniform(random, layers);
        Cut const first = by_bottleneck(Costs(layers, cost), cells);
        REQUIRE(first == by_variance(Costs(layers, cost), cells));
        for (std::size_t k = 0; k < cells; ++k) {
            // The larger cells come last.
            std::size_t const larger = k >= cells - layers % cells ? 1 : 0;
            REQUIRE(first[k + 1] - first[k] == layers / cells + larger);
        }
    }
}

TEST_CASE("the objectives differ where a smaller bottleneck costs variance") {
    std::mt19937_64 random(9);
    int differ = 0;
    for (int n = 0; n < 500; ++n) {
        Whole const whole = chain(random, 24, 0);
        Costs const costs = scaled(whole);
        Quality const b = quality(whole, by_bottleneck(costs, 8));
        Quality const v = quality(whole, by_variance(costs, 8));
        REQUIRE(b.bottleneck <= v.bottleneck);
        REQUIRE(v.squares <= b.squares);
        differ += b.bottleneck < v.bottleneck && v.squares < b.squares ? 1 : 0;
    }
    CHECK(differ > 10);
}

namespace {

// A chain that both the compiler and the program can make.
template <std::size_t Layers> constexpr std::array<double, Layers> made(std::uint64_t seed) {
    std::array<double, Layers> costs{};
    for (double& c : costs) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        std::uint64_t const bits = seed >> 33;
        c = seed % 3 == 0 ? static_cast<double>(bits % 4) : static_cast<double>(bits) * 0x1p-29;
    }
    return costs;
}
template <class Objective, std::size_t Layers, std::size_t K>
constexpr std::array<std::size_t, K + 1> made_cut(std::uint64_t seed) {
    auto const costs = made<Layers>(seed);
    std::array<std::size_t, K + 1> first{};
    Objective::cut(costs.data(), Layers, K, first.data());
    return first;
}
template <class Objective, std::size_t Layers, std::size_t K, std::uint64_t Seed>
bool same_at_run_time() {
    constexpr auto constant = made_cut<Objective, Layers, K>(Seed);
    std::uint64_t volatile seed = Seed; // the compiler may not fold what follows
    return constant == made_cut<Objective, Layers, K>(seed);
}
template <class Objective, std::size_t Layers, std::size_t K, std::uint64_t... Seeds>
bool all_same_at_run_time(std::integer_sequence<std::uint64_t, Seeds...>) {
    bool const same[] = {same_at_run_time<Objective, Layers, K, Seeds>()...};
    return std::all_of(std::begin(same), std::end(same), [](bool s) { return s; });
}

} // namespace

TEST_CASE_TEMPLATE("the compiler and the program find the same cut", Objective,
                   gpipe::objective::Bottleneck, gpipe::objective::LeastVariance) {
    CHECK(all_same_at_run_time<Objective, 1, 1>(std::make_integer_sequence<std::uint64_t, 2>()));
    CHECK(all_same_at_run_time<Objective, 7, 3>(std::make_integer_sequence<std::uint64_t, 20>()));
    CHECK(all_same_at_run_time<Objective, 24, 8>(std::make_integer_sequence<std::uint64_t, 20>()));
    CHECK(all_same_at_run_time<Objective, 61, 13>(std::make_integer_sequence<std::uint64_t, 10>()));
    CHECK(all_same_at_run_time<Objective, 256, 4>(std::make_integer_sequence<std::uint64_t, 3>()));
}

TEST_CASE("L1 a chain that cannot be cut is refused with the numbers") {
    Costs const three{1, 2, 3};
    for (auto* f : {by_bottleneck, by_variance}) {
        std::string const more = message_of<std::invalid_argument>([&] { f(three, 5); });
        CHECK(more == "gpipe: 5 cells are more than the 3 layers of the pipeline; every cell holds "
                      "at least one layer");
        CHECK(has(message_of<std::invalid_argument>([&] { f(three, 0); }), "cells is zero"));
        CHECK(has(message_of<std::invalid_argument>([&] { f({}, 1); }), "1 cells are more than"));
        CHECK(has(message_of<std::invalid_argument>([&] { f({1}, 2); }), "the 1 layers"));
    }
    CHECK_NOTHROW(gpipe::check_cells(3, 3));
    CHECK_NOTHROW(gpipe::check_cells(3, 1));
}

TEST_CASE("a cost that is no cost is refused with its layer and what is wrong") {
    struct Bad {
        double cost;
        char const* words;
    };
    double const infinity = std::numeric_limits<double>::infinity();
    double const nan = std::numeric_limits<double>::quiet_NaN();
    Bad const bads[] = {{-1.0, "negative"},      {-1e-320, "negative"}, {infinity, "infinite"},
                        {-infinity, "infinite"}, {nan, "not a number"}, {-nan, "not a number"}};
    for (Bad const& bad : bads) {
        for (std::size_t at = 0; at < 4; ++at) {
            Costs costs{1, 0, 1e308, 2};
            CHECK_NOTHROW(gpipe::check_costs(costs.data(), 4));
            costs[at] = bad.cost;
            std::string const wanted = "gpipe: the cost of layer " + std::to_string(at) + " is " +
                                       bad.words + "; costs are finite and not negative";
            for (auto* f : {by_bottleneck, by_variance})
                CHECK(message_of<std::invalid_argument>([&] { f(costs, 2); }) == wanted);
        }
    }
}

TEST_CASE("a balance by hand is taken as it is, or refused with the numbers") {
    auto const sizes_into = [](std::vector<std::size_t> const& sizes, std::size_t layers) {
        return message_of<std::invalid_argument>(
            [&] { gpipe::check_balance(sizes.data(), sizes.size(), layers); });
    };
    CHECK(sizes_into({2, 1, 3}, 6) == "nothing was thrown");
    CHECK(sizes_into({6}, 6) == "nothing was thrown");
    std::string const sum = "gpipe: the balance sums to 5 but the pipeline has 6 layers; Cells<K> "
                            "finds a balance by itself";
    CHECK(sizes_into({2, 3}, 6) == sum);
    CHECK(has(sizes_into({3}, 2), "sums to 3 but the pipeline has 2 layers"));
    CHECK(sizes_into({2, 0, 4}, 6) ==
          "gpipe: entry 1 of the balance is zero; every cell holds at least one layer");
    CHECK(has(sizes_into({0, 2}, 2), "entry 0 of the balance is zero"));
    CHECK(has(sizes_into({}, 0), "the balance is empty"));
    // -1 and 3 would be 2 if the sum could wrap.
    CHECK(has(sizes_into({static_cast<std::size_t>(-1), 3}, 2), "sums to"));

    Cut first(5);
    gpipe::Balance<2, 1, 1, 2>::cut(nullptr, 6, 4, first.data());
    CHECK(first == Cut{0, 2, 3, 4, 6});
    auto const three_cells = [&] { gpipe::Balance<2, 1, 1, 2>::cut(nullptr, 6, 3, first.data()); };
    CHECK(message_of<std::invalid_argument>(three_cells) ==
          "gpipe: the balance has 4 entries, but there are 3 cells: one on each device, or as many "
          "as the schedule has");
    auto const five_cells = [&] { gpipe::Balance<2, 1, 1, 2>::cut(nullptr, 6, 5, first.data()); };
    CHECK(message_of<std::invalid_argument>(five_cells) ==
          "gpipe: the balance has 4 entries, but there are 5 cells: one on each device, or as many "
          "as the schedule has");
    auto const seven_layers = [&] { gpipe::Balance<2, 1, 1, 2>::cut(nullptr, 7, 4, first.data()); };
    CHECK(has(message_of<std::invalid_argument>(seven_layers), "sums to 6 but the pipeline has 7"));
}

namespace {

struct OnePerCellThenTheRest {
    static constexpr void cut(double const*, std::size_t layers, std::size_t cells,
                              std::size_t* first) {
        for (std::size_t k = 0; k < cells; ++k) first[k] = k;
        first[cells] = layers;
    }
};

} // namespace

TEST_CASE(
    "Cells cuts by its objective, also one of the user's, and by bottleneck if none is named") {
    std::mt19937_64 random(10);
    Costs uneven = scaled(chain(random, 24, 0));
    while (by_bottleneck(uneven, 8) == by_variance(uneven, 8))
        uneven = scaled(chain(random, 24, 0));
    Cut first(9);
    gpipe::Cells<8>::cut(uneven.data(), 24, 8, first.data());
    CHECK(first == by_bottleneck(uneven, 8));
    gpipe::Cells<gpipe::dynamic>::cut(uneven.data(), 24, 8, first.data());
    CHECK(first == by_bottleneck(uneven, 8));
    gpipe::Cells<8, gpipe::objective::LeastVariance>::cut(uneven.data(), 24, 8, first.data());
    CHECK(first == by_variance(uneven, 8));
    Cut two(3);
    gpipe::Cells<2, OnePerCellThenTheRest>::cut(uneven.data(), 24, 2, two.data());
    CHECK(two == Cut{0, 1, 24});
}

TEST_CASE("the metrics of a cut are those of its cells") {
    Costs const costs{1, 2, 3, 4, 5, 6};
    Cut const first{0, 4, 6};
    CHECK(gpipe::bottleneck(costs.data(), first.data(), 2) == 11.0);
    CHECK(gpipe::variance(costs.data(), first.data(), 2) == 0.25);
    std::mt19937_64 random(11);
    for (int n = 0; n < 200; ++n) {
        std::size_t const layers = 1 + uniform(random, 20);
        std::size_t const cells = 1 + uniform(random, layers);
        Whole const whole = chain(random, layers, static_cast<std::size_t>(n) % families);
        Costs const real = scaled(whole);
        Cut const cuts = by_bottleneck(real, cells);
        Quality const q = quality(whole, cuts);
        CHECK(gpipe::bottleneck(real.data(), cuts.data(), cells) ==
              static_cast<double>(q.bottleneck));
        double const number = static_cast<double>(cells);
        double const mean = std::accumulate(real.begin(), real.end(), 0.0) / number;
        CHECK(gpipe::variance(real.data(), cuts.data(), cells) ==
              doctest::Approx(static_cast<double>(q.squares) / number - mean * mean)
                  .epsilon(1e-9)
                  .scale(1.0 + mean * mean));
    }
}
