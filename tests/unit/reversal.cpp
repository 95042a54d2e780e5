// Reversals of a cell's layers, against a walker, an exhaustive search and plain recurrences.
#include <support/long_tests.hpp>
#include <support/reversal_search.hpp>
#include <support/reversal_walk.hpp>

#include <gpipe/checkpoint/optimal.hpp>
#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/checkpoint/reversal_costs.hpp>
#include <gpipe/checkpoint/revolve.hpp>
#include <gpipe/checkpoint/rotor.hpp>
#include <gpipe/checkpoint/verify_reversal.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <doctest/doctest.h>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using gpipe::Array;
using gpipe::Keep;
using gpipe::Reversal;
using gpipe::ReversalCosts;
using gpipe::ReversalStep;
using toy::ReversalSearch;
using toy::Sequences;
using toy::walk;
using toy::Walked;

namespace {

constexpr double impossible = ReversalSearch::impossible;
constexpr std::size_t plenty = 1'000'000; // slots: no size is rounded

template <class T> Array<T> array(std::vector<T> const& values) {
    Array<T> result(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) result[i] = values[i];
    return result;
}
template <class T> std::vector<T> vector(Array<T> const& values) {
    return {values.begin(), values.end()};
}
Array<bool> subset(std::size_t layers, std::size_t set) {
    Array<bool> result(layers);
    for (std::size_t l = 0; l < layers; ++l) result[l] = set >> l & 1;
    return result;
}

ReversalCosts costs_of(std::size_t layers) {
    ReversalCosts costs;
    costs.forward = costs.backward = Array<double>(layers);
    costs.input = costs.all = Array<std::size_t>(layers);
    costs.forward_temporary = costs.backward_temporary = Array<std::size_t>(layers);
    return costs;
}
ReversalCosts equal_costs(std::size_t layers, std::size_t input, std::size_t all,
                          std::size_t forward_temporary, std::size_t backward_temporary) {
    ReversalCosts costs;
    costs.forward = Array<double>(layers, 1.0);
    costs.backward = Array<double>(layers, 2.0);
    costs.input = Array<std::size_t>(layers, input);
    costs.all = Array<std::size_t>(layers, all);
    costs.forward_temporary = Array<std::size_t>(layers, forward_temporary);
    costs.backward_temporary = Array<std::size_t>(layers, backward_temporary);
    return costs;
}

std::size_t uniform(std::mt19937_64& random, std::size_t from, std::size_t to) {
    return from + random() % (to - from + 1);
}
// Whole times, so that their sums are exact. Keeping a layer whole may take less than its output.
ReversalCosts random_costs(std::mt19937_64& random, std::size_t layers, std::size_t largest) {
    ReversalCosts costs = costs_of(layers);
    for (std::size_t l = 0; l < layers; ++l) {
        costs.forward[l] = static_cast<double>(uniform(random, 0, 4));
        costs.backward[l] = static_cast<double>(uniform(random, 0, 4));
        costs.input[l] = uniform(random, 0, largest);
        costs.all[l] = uniform(random, 0, 2 * largest);
        costs.forward_temporary[l] = uniform(random, 0, largest);
        costs.backward_temporary[l] = uniform(random, 0, largest);
    }
    return costs;
}
// A layer that is kept whole holds its output, as layers do.
ReversalCosts random_network(std::mt19937_64& random, std::size_t layers, std::size_t largest) {
    ReversalCosts costs = random_costs(random, layers, largest);
    for (std::size_t l = 0; l < layers; ++l) {
        costs.forward[l] += 1;
        costs.input[l] += 1;
    }
    for (std::size_t l = 0; l + 1 < layers; ++l) costs.all[l] += costs.input[l + 1];
    return costs;
}
ReversalCosts piece_of(ReversalCosts const& costs, std::size_t first, std::size_t last) {
    ReversalCosts result = costs_of(last - first);
    for (std::size_t l = first; l < last; ++l) {
        result.forward[l - first] = costs.forward[l];
        result.input[l - first] = costs.input[l];
        result.all[l - first] = costs.all[l];
        result.forward_temporary[l - first] = costs.forward_temporary[l];
        result.backward_temporary[l - first] = costs.backward_temporary[l];
    }
    return result;
}
// As much as anything can use.
std::size_t everything(ReversalCosts const& costs) {
    std::size_t sum = 0;
    std::size_t temporary = 0;
    for (std::size_t l = 0; l < costs.layers(); ++l) {
        sum += costs.all[l] + (l > 0 ? costs.input[l] : 0);
        temporary = std::max({temporary, costs.forward_temporary[l], costs.backward_temporary[l]});
    }
    return sum + temporary;
}

// Steps of a piece as the reversal of a cell that is no more than that.
Reversal whole_cell(Array<ReversalStep> const& steps, std::size_t first, std::size_t last) {
    Reversal result{Array<Keep>(last - first), steps};
    for (ReversalStep& step : result.steps) step.layer -= static_cast<std::uint32_t>(first);
    return result;
}

Reversal random_reversal(std::mt19937_64& random, std::size_t layers) {
    std::size_t const which = uniform(random, 0, 3);
    if (which == 0) return gpipe::selective(subset(layers, random()));
    if (which == 1) return gpipe::revolve(layers, uniform(random, 0, layers));
    if (which == 2) return gpipe::equal_segments(layers, uniform(random, 1, layers));
    ReversalCosts const costs = random_costs(random, layers, 5);
    std::size_t const in_flight = uniform(random, 1, 3);
    std::size_t const least = gpipe::optimal(costs, in_flight, 0, 1).least_bytes;
    return gpipe::optimal(costs, in_flight, least + uniform(random, 0, 10 * layers), plenty)
        .reversal;
}

template <class Error, class F> std::string message_of(F&& f) {
    try {
        f();
    } catch (Error const& e) {
        return e.what();
    }
    return "nothing was thrown";
}

} // namespace

// --- what a reversal is ---

TEST_CASE("segments run once again and are reversed, the last one first") {
    for (std::size_t n = 1; n <= 10; ++n) {
        ReversalCosts const costs = equal_costs(n, 1, 1, 0, 0);
        for (std::size_t set = 1; set < std::size_t{1} << n; set += 2) {
            std::vector<std::size_t> starts;
            for (std::size_t l = 0; l < n; ++l)
                if (set >> l & 1) starts.push_back(l);
            Reversal const reversal = gpipe::segments(n, array(starts));
            Walked const walked = walk(reversal, costs);
            REQUIRE(walked.fault == "");
            REQUIRE(walked.runs == std::vector<std::size_t>(n, 1));
            REQUIRE(walked.retained == starts.size() - 1);
            std::size_t longest = 0;
            starts.push_back(n);
            for (std::size_t j = 0; j + 1 < starts.size(); ++j)
                longest = std::max(longest, starts[j + 1] - starts[j]);
            REQUIRE(walked.wholes == longest);
            REQUIRE(walked.working == longest);
        }
    }
}

TEST_CASE("segments of one length, and segments as equal as can be") {
    for (std::size_t n = 1; n <= 40; ++n) {
        ReversalCosts const costs = equal_costs(n, 1, 1, 0, 0);
        for (std::size_t k = 1; k <= n + 3; ++k) {
            Walked const every = walk(gpipe::every_segment(n, k), costs);
            REQUIRE(every.fault == "");
            REQUIRE(every.wholes == std::min(k, n));
            REQUIRE(every.retained + 1 == (n + k - 1) / k);
            REQUIRE(every.forwards == n);
            if (k > n) continue;
            Reversal const reversal = gpipe::equal_segments(n, k);
            Walked const equal = walk(reversal, costs);
            REQUIRE(equal.fault == "");
            REQUIRE(equal.retained + 1 == k);
            REQUIRE(equal.wholes == (n + k - 1) / k);
            std::size_t shortest = n;
            for (std::size_t l = 0, begin = 0; l <= n; ++l) {
                if (l < n && (l == 0 || reversal.forward[l] != Keep::input)) continue;
                shortest = std::min(shortest, l - begin);
                begin = l;
            }
            REQUIRE(shortest == n / k);
        }
    }
}

TEST_CASE(
    "dear layers run once, cheap ones again, and nothing is stored for those behind dear ones") {
    std::mt19937_64 random(1);
    for (std::size_t n = 1; n <= 10; ++n) {
        for (std::size_t set = 0; set < std::size_t{1} << n; ++set) {
            ReversalCosts const costs = random_costs(random, n, 9);
            Walked const walked = walk(gpipe::selective(subset(n, set)), costs);
            REQUIRE(walked.fault == "");
            std::size_t retained = 0;
            for (std::size_t l = 0; l < n; ++l) {
                bool const dear = set >> l & 1;
                REQUIRE(walked.runs[l] == (dear ? 0 : 1));
                if (!dear) continue;
                retained += costs.all[l];
                if (l > 0 && !(set >> (l - 1) & 1)) retained += costs.input[l];
            }
            REQUIRE(walked.retained == retained);
        }
        CHECK(gpipe::extra_forwards(gpipe::keep_everything(n)) == 0);
        CHECK(gpipe::keep_everything(n).steps.size() == n);
    }
}

TEST_CASE("the number, time and bytes of a reversal are those of its walk") {
    std::mt19937_64 random(2);
    for (std::size_t i = 0; i < toy::cases(3000); ++i) {
        std::size_t const n = uniform(random, 1, 12);
        Reversal const reversal = random_reversal(random, n);
        ReversalCosts const costs = random_costs(random, n, 100);
        Walked const walked = walk(reversal, costs);
        REQUIRE(walked.fault == "");
        REQUIRE(gpipe::verify(reversal));
        REQUIRE(gpipe::extra_forwards(reversal) == walked.forwards);
        REQUIRE(gpipe::extra_time(reversal, costs) == walked.time);
        gpipe::ReversalBytes const bytes = gpipe::reversal_bytes(reversal, costs);
        REQUIRE(bytes.retained == walked.retained);
        REQUIRE(bytes.working == walked.working);
        REQUIRE(bytes.total(3) == 3 * walked.retained + walked.working);
    }
}

TEST_CASE("a reversal with anything changed is sound exactly if it can be walked") {
    std::mt19937_64 random(3);
    std::map<gpipe::ReversalProblem, std::size_t> seen;
    for (std::size_t i = 0; i < toy::cases(60'000); ++i) {
        std::size_t const n = uniform(random, 1, 7);
        Reversal reversal = random_reversal(random, n);
        std::vector<ReversalStep> steps = vector(reversal.steps);
        for (std::size_t changes = uniform(random, 1, 2); changes-- > 0 && !steps.empty();) {
            std::size_t const a = uniform(random, 0, steps.size() - 1);
            std::size_t const b = uniform(random, 0, steps.size() - 1);
            switch (uniform(random, 0, 6)) {
            case 0:
                steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(a));
                break;
            case 1:
                steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(a), steps[b]);
                break;
            case 2:
                std::swap(steps[a], steps[b]);
                break;
            case 3:
                steps[a].keep = static_cast<Keep>(random() % 3);
                break;
            case 4:
                steps[a].layer = static_cast<std::uint32_t>(random() % (n + 1));
                break;
            case 5:
                reversal.forward[a % n] = static_cast<Keep>(random() % 3);
                break;
            case 6:
                steps[a].backward = !steps[a].backward;
                break;
            }
        }
        reversal.steps = array(steps);
        gpipe::ReversalVerdict const verdict = gpipe::verify(reversal);
        std::string const fault = walk(reversal, equal_costs(n, 1, 1, 1, 1)).fault;
        CAPTURE(fault);
        REQUIRE(static_cast<bool>(verdict) == fault.empty());
        REQUIRE(static_cast<bool>(gpipe::verify(reversal)) == fault.empty());
        REQUIRE(verdict.position <= steps.size());
        ++seen[verdict.problem];
    }
    CHECK(seen.size() == gpipe::reversal_problem_count - 1); // all but: no layer
    CHECK(gpipe::verify(Reversal{}).problem == gpipe::ReversalProblem::empty);
    for (auto const& [problem, count] : seen) CHECK(gpipe::sentence(problem) != "");
}

TEST_CASE("a verdict names the first step that is wrong, and why") {
    using gpipe::ReversalProblem;
    constexpr ReversalStep b0{true, Keep::nothing, 0};
    constexpr ReversalStep b1{true, Keep::nothing, 1};
    constexpr ReversalStep f0{false, Keep::nothing, 0};
    constexpr ReversalStep f0_all{false, Keep::all, 0};
    constexpr ReversalStep f1_all{false, Keep::all, 1};
    constexpr ReversalStep f2_all{false, Keep::all, 2};
    struct Case {
        std::vector<ReversalStep> steps;
        ReversalProblem problem;
        std::size_t position;
    };
    Case const cases[] = {
        {{f0, f1_all, b1, f0_all, b0}, ReversalProblem::sound, 0},
        {{f0_all, f1_all, b1, b0}, ReversalProblem::sound, 0},
        {{f0_all, f1_all, f2_all}, ReversalProblem::no_such_layer, 2},
        {{f0, f1_all, b1, f0, f1_all}, ReversalProblem::reversed, 4},
        {{f1_all}, ReversalProblem::no_input, 0},
        {{f0, f1_all, b1, f0_all, b0, b0}, ReversalProblem::out_of_turn, 5},
        {{f0, f1_all, b1, f0, f0_all, b0}, ReversalProblem::in_vain, 4},
        {{f0_all, f0_all}, ReversalProblem::twice, 1},
        {{f0, f1_all, f0_all}, ReversalProblem::order, 2},
        {{f0_all, b0}, ReversalProblem::out_of_turn, 1},
        {{f0_all, b1}, ReversalProblem::not_whole, 1},
        {{f0_all, f1_all, b1}, ReversalProblem::missing, 3},
        {{}, ReversalProblem::missing, 0},
    };
    for (Case const& c : cases) {
        gpipe::ReversalVerdict const verdict = gpipe::verify({Array<Keep>(2), array(c.steps)});
        CAPTURE(&c - cases);
        CHECK(gpipe::sentence(verdict.problem) == gpipe::sentence(c.problem));
        CHECK(verdict.position == c.position);
    }
}

// --- equal layers ---

namespace {

// The fewest advances, by the recurrence: with one stored input, the first, and with more.
std::size_t fewest_advances(std::size_t n, std::size_t s) {
    static std::map<std::pair<std::size_t, std::size_t>, std::size_t> known;
    if (s == 1) return n * (n - 1) / 2;
    if (n == 1) return 0;
    auto const [at, added] = known.try_emplace({n, s}, std::numeric_limits<std::size_t>::max());
    if (!added) return at->second;
    std::size_t best = at->second;
    for (std::size_t j = 1; j < n; ++j)
        best = std::min(best, j + fewest_advances(n - j, s - 1) + fewest_advances(j, s));
    return known[{n, s}] = best;
}

// Pascal's triangle.
std::size_t choose(std::size_t n, std::size_t k) {
    std::vector<std::size_t> row(k + 1);
    row[0] = 1;
    for (std::size_t i = 1; i <= n; ++i)
        for (std::size_t j = std::min(i, k); j > 0; --j) row[j] += row[j - 1];
    return k > n ? 0 : row[k];
}
struct Formula {
    std::size_t repeats, advances;
};
Formula griewank_walther(std::size_t n, std::size_t s) {
    std::size_t r = 0;
    while (choose(s + r, s) < n) ++r;
    return {r, r * n - choose(s + r, s + 1)};
}

} // namespace

TEST_CASE("revolve: the formula, the recurrence and the steps have the same number of forwards") {
    for (std::size_t n = 1; n <= 64; ++n) {
        ReversalCosts const costs = equal_costs(n, 1, 1, 0, 0);
        for (std::size_t slots = 0; slots <= 12; ++slots) {
            CAPTURE(n);
            CAPTURE(slots);
            Formula const formula = griewank_walther(n, slots + 1);
            REQUIRE(formula.advances == fewest_advances(n, slots + 1));
            std::size_t const forwards = n + formula.advances;
            REQUIRE(gpipe::revolve_forwards(n, slots) == forwards);
            Reversal const reversal = gpipe::revolve(n, slots);
            REQUIRE(gpipe::extra_forwards(reversal) == forwards);
            Walked const walked = walk(reversal, costs);
            REQUIRE(walked.fault == "");
            REQUIRE(walked.retained == 0);
            REQUIRE(walked.wholes == 1);
            REQUIRE(walked.inputs <= slots);
            // Advanced over at most r times, and kept whole once.
            REQUIRE(*std::max_element(walked.runs.begin(), walked.runs.end()) ==
                    formula.repeats + 1);
        }
    }
}

TEST_CASE("revolve: long chains, and more slots than layers") {
    std::mt19937_64 random(4);
    for (int i = 0; i < 40; ++i) {
        std::size_t const n = uniform(random, 65, 3000);
        std::size_t const slots = uniform(random, 1, i % 2 == 0 ? 8 : 60);
        CAPTURE(n);
        CAPTURE(slots);
        std::size_t const forwards = n + griewank_walther(n, slots + 1).advances;
        REQUIRE(gpipe::revolve_forwards(n, slots) == forwards);
        Reversal const reversal = gpipe::revolve(n, slots);
        REQUIRE(gpipe::extra_forwards(reversal) == forwards);
        REQUIRE(gpipe::verify(reversal));
    }
    for (std::size_t n = 1; n <= 30; ++n) {
        for (std::size_t const slots : {n - 1, n, n + 1, 10 * n, ~std::size_t{0}}) {
            CHECK(gpipe::revolve_forwards(n, slots) == 2 * n - 1);
            CHECK(gpipe::extra_forwards(gpipe::revolve(n, slots)) == 2 * n - 1);
        }
    }
    CHECK(gpipe::revolve_forwards(1'000'000, 0) == 500'000'500'000);
}

TEST_CASE("revolve: no sequence at all that keeps one layer whole at a time has fewer forwards") {
    for (std::size_t n = 1; n <= 6; ++n) {
        for (std::size_t slots = 0; slots < 5; ++slots) {
            // Two layers kept whole do not fit, nor more inputs than slots beside one and its own.
            ReversalCosts const costs = equal_costs(n, 1, 50, 0, 0);
            std::size_t const bytes = 50 + (n > 1) + slots;
            REQUIRE(ReversalSearch(costs, bytes, Sequences::persistent).time() ==
                    static_cast<double>(gpipe::revolve_forwards(n, slots)));
        }
    }
}

// --- one piece ---

namespace {

// Rotor against the search, in every budget from none to everything.
void compare_with_search(ReversalCosts const& costs) {
    std::size_t const n = costs.layers();
    std::size_t const least = gpipe::rotor(costs, 0, n, 0, plenty).least_bytes;
    std::size_t const most = everything(costs);
    for (std::size_t budget = least > 2 ? least - 2 : 0; budget <= most; ++budget) {
        CAPTURE(budget);
        double const best = ReversalSearch(costs, budget, Sequences::persistent).time();
        gpipe::PieceReversal const found = gpipe::rotor(costs, 0, n, budget, plenty);
        REQUIRE(found.least_bytes == least);
        REQUIRE(found.possible == (budget >= least));
        REQUIRE(found.possible == (best < impossible));
        if (!found.possible) continue;
        REQUIRE(found.time == best);
        Walked const walked = walk(whole_cell(found.steps, 0, n), costs);
        REQUIRE(walked.fault == "");
        REQUIRE(walked.time == best);
        REQUIRE(walked.working <= budget);
        if (budget == least) REQUIRE(walked.working == least);
    }
}

} // namespace

TEST_CASE("rotor finds what exhaustive search finds, on small chains, in every budget") {
    std::mt19937_64 random(5);
    for (std::size_t i = 0; i < 2500 / toy::one_of(10); ++i) {
        std::size_t const n = uniform(random, 1, 5);
        compare_with_search(i % 2 == 0 ? random_costs(random, n, 3) : random_network(random, n, 2));
    }
    for (std::size_t i = 0; i < 50 / toy::one_of(10); ++i) {
        std::size_t const n = uniform(random, 6, 7);
        compare_with_search(i % 2 == 0 ? random_costs(random, n, 2) : random_network(random, n, 1));
    }
}

TEST_CASE("rotor: a piece is reversed as a chain of its own") {
    std::mt19937_64 random(6);
    for (int i = 0; i < 300; ++i) {
        std::size_t const n = uniform(random, 1, 9);
        std::size_t const first = uniform(random, 0, n - 1);
        std::size_t const last = uniform(random, first + 1, n);
        ReversalCosts const costs = random_costs(random, n, 5);
        ReversalCosts const alone = piece_of(costs, first, last);
        std::size_t const budget = uniform(random, 0, everything(alone));
        gpipe::PieceReversal const a = gpipe::rotor(costs, first, last, budget, plenty);
        gpipe::PieceReversal const b = gpipe::rotor(alone, 0, last - first, budget, plenty);
        REQUIRE(a.possible == b.possible);
        REQUIRE(a.least_bytes == b.least_bytes);
        if (!a.possible) continue;
        REQUIRE(a.time == b.time);
        REQUIRE(vector(whole_cell(a.steps, first, last).steps) == vector(b.steps));
    }
}

TEST_CASE("rotor is close to the best of all sequences, and needs no more bytes than any") {
    std::mt19937_64 random(7);
    double worst = 1.0;
    double sum = 0.0;
    std::size_t slower = 0;
    std::size_t compared = 0;
    for (std::size_t i = 0; i < 1500 / toy::one_of(10); ++i) {
        std::size_t const n = uniform(random, 3, 6);
        ReversalCosts const costs = random_network(random, n, uniform(random, 1, 4));
        std::size_t const least = gpipe::rotor(costs, 0, n, 0, plenty).least_bytes;
        REQUIRE(ReversalSearch(costs, least - 1, Sequences::any).time() == impossible);
        for (std::size_t budget = least; budget <= everything(costs); budget += 1 + i % 3) {
            double const best = ReversalSearch(costs, budget, Sequences::any).time();
            double const found = gpipe::rotor(costs, 0, n, budget, plenty).time;
            REQUIRE(best <= found);
            ++compared;
            slower += found > best;
            worst = std::max(worst, found / best);
            sum += found / best;
        }
    }
    double const mean = sum / static_cast<double>(compared);
    MESSAGE("slower than the best of all sequences in ", slower, " of ", compared,
            ", by a factor of at most ", worst, ", on average ", mean);
    CHECK(mean <= 1.01);
}

TEST_CASE("rotor is the best of all sequences on equal layers") {
    for (std::size_t n = 1; n <= 6; ++n) {
        for (std::size_t all = 1; all <= 4; ++all) {
            ReversalCosts const costs = equal_costs(n, 1, all, 2, 2);
            for (std::size_t budget = 0; budget <= everything(costs); ++budget) {
                gpipe::PieceReversal const found = gpipe::rotor(costs, 0, n, budget, plenty);
                REQUIRE((found.possible ? found.time : impossible) ==
                        ReversalSearch(costs, budget, Sequences::any).time());
            }
        }
    }
}

TEST_CASE("rotor: rounding costs time, never bytes, nor what is possible") {
    std::mt19937_64 random(8);
    for (std::size_t i = 0; i < 300 / toy::one_of(1); ++i) {
        std::size_t const n = uniform(random, 1, 12);
        ReversalCosts const costs = random_costs(random, n, 1000);
        std::size_t const slots = uniform(random, 1, 40);
        std::size_t const least = gpipe::rotor(costs, 0, n, 0, slots).least_bytes;
        CHECK(!gpipe::rotor(costs, 0, n, least - (least > 0), slots).possible == (least > 0));
        double before = std::numeric_limits<double>::infinity();
        for (std::size_t budget = least; budget < everything(costs) + 50;
             budget += uniform(random, 1, 400)) {
            gpipe::PieceReversal const found = gpipe::rotor(costs, 0, n, budget, slots);
            REQUIRE(found.possible);
            Walked const walked = walk(whole_cell(found.steps, 0, n), costs);
            REQUIRE(walked.fault == "");
            REQUIRE(walked.working <= budget);
            REQUIRE(walked.time == found.time);
            REQUIRE(found.time <= before);
            REQUIRE(found.time >= gpipe::rotor(costs, 0, n, budget, 1000).time);
            before = found.time;
        }
    }
}

namespace {

struct Least {
    std::size_t bytes;
    double time;
    bool operator<(Least const& other) const {
        return bytes != other.bytes ? bytes < other.bytes : time < other.time;
    }
};
// The least bytes of a piece and, of what the same parts can do in these, the least time.
Least least_of(ReversalCosts const& costs, std::size_t first, std::size_t last) {
    if (first == last) return {0, 0};
    Least const rest = least_of(costs, first + 1, last);
    Least best{costs.all[first] + std::max({costs.forward_temporary[first],
                                            costs.backward_temporary[first], rest.bytes}),
               costs.forward[first] + rest.time};
    double advance = 0;
    for (std::size_t k = first + 1; k < last; ++k) {
        Least const behind = least_of(costs, k, last);
        Least const before = least_of(costs, first, k);
        advance += costs.forward[k - 1];
        best = std::min(best, Least{std::max(costs.input[k] + behind.bytes, before.bytes),
                                    advance + behind.time + before.time});
    }
    return best;
}

} // namespace

TEST_CASE("rotor: in one slot, it is the fastest of the least in bytes") {
    std::mt19937_64 random(14);
    for (std::size_t i = 0; i < toy::cases(2000); ++i) {
        std::size_t const n = uniform(random, 2, 7);
        ReversalCosts const costs = random_network(random, n, uniform(random, 1, 9));
        Least const least = least_of(costs, 0, n);
        gpipe::PieceReversal const found = gpipe::rotor(costs, 0, n, least.bytes, 1);
        REQUIRE(found.least_bytes == least.bytes);
        REQUIRE(found.time == least.time);
    }
}

TEST_CASE("rotor needs 61, 41, 29, 21, 15 and 5 forwards beyond one per layer on 24 equal ones") {
    // Inputs of one slot, layers kept whole of four, and one for the gradient that comes in, which
    // is there all the time.
    ReversalCosts const costs = equal_costs(24, 1, 4, 1, 1);
    std::array<std::size_t, 6> const budgets{8, 10, 14, 20, 40, 80};
    std::array<double, 6> const beyond{61, 41, 29, 21, 15, 5};
    for (std::size_t i = 0; i < budgets.size(); ++i) {
        CHECK(gpipe::rotor(costs, 0, 24, budgets[i], plenty).time == 24 + beyond[i]);
        // A budget in slots of its own size is not rounded either.
        ReversalCosts const large = equal_costs(24, 1 << 20, 4 << 20, 1 << 20, 1 << 20);
        CHECK(gpipe::rotor(large, 0, 24, budgets[i] << 20, budgets[i]).time == 24 + beyond[i]);
    }
}

// --- a cell of a pipeline ---

namespace {

// The least over everything a forward can keep, each followed by the fastest of all sequences.
double every_forward(ReversalCosts const& costs, std::size_t in_flight, std::size_t budget) {
    std::size_t const n = costs.layers();
    double best = impossible;
    std::vector<Keep> keep(n, Keep::nothing);
    for (bool more = true; more;) {
        std::size_t const retained = walk({array(keep), {}}, costs).retained;
        if (in_flight * retained <= budget)
            best = std::min(best, ReversalSearch(costs, budget - in_flight * retained,
                                                 Sequences::persistent, keep)
                                      .time());
        std::size_t l = 0;
        while (l < n && keep[l] == Keep::all) keep[l++] = Keep::nothing;
        more = l < n;
        if (more) keep[l] = static_cast<Keep>(static_cast<int>(keep[l]) + 1);
    }
    return best;
}

void check_optimal(gpipe::OptimalReversal const& found, ReversalCosts const& costs,
                   std::size_t in_flight, std::size_t budget) {
    Walked const walked = walk(found.reversal, costs);
    REQUIRE(walked.fault == "");
    REQUIRE(walked.time == found.time);
    REQUIRE(walked.retained == found.bytes.retained);
    REQUIRE(walked.working == found.bytes.working);
    REQUIRE(in_flight * walked.retained + walked.working <= budget);
}

} // namespace

TEST_CASE("optimal finds what search finds behind every forward, in every budget") {
    std::mt19937_64 random(10);
    for (std::size_t i = 0; i < 3000 / toy::one_of(10); ++i) {
        std::size_t const n = uniform(random, 1, 4);
        std::size_t const in_flight = 1 + i % 3;
        ReversalCosts const costs =
            i % 2 == 0 ? random_costs(random, n, 3) : random_network(random, n, 2);
        std::size_t const least = gpipe::optimal(costs, in_flight, 0, plenty).least_bytes;
        if (least > 0) {
            REQUIRE(every_forward(costs, in_flight, least - 1) == impossible);
            REQUIRE(!gpipe::optimal(costs, in_flight, least - 1, plenty).possible);
        }
        for (std::size_t budget = least; budget <= in_flight * everything(costs);
             budget += 1 + in_flight) {
            CAPTURE(budget);
            gpipe::OptimalReversal const found = gpipe::optimal(costs, in_flight, budget, plenty);
            REQUIRE(found.possible);
            REQUIRE(found.least_bytes == least);
            REQUIRE(found.time == every_forward(costs, in_flight, budget));
            check_optimal(found, costs, in_flight, budget);
        }
    }
}

TEST_CASE("optimal is as fast as everything that is built in other ways and fits") {
    std::mt19937_64 random(11);
    for (int i = 0; i < (toy::sanitized ? 12 : 60); ++i) {
        std::size_t const n = uniform(random, 1, 8);
        std::size_t const in_flight = uniform(random, 1, 5);
        ReversalCosts const costs =
            i % 2 == 0 ? random_costs(random, n, 8) : random_network(random, n, 8);
        std::vector<Reversal> others{gpipe::square_root(costs, in_flight)};
        for (std::size_t set = 0; set < std::size_t{1} << n; ++set) {
            others.push_back(gpipe::selective(subset(n, set)));
            if (set % 2 == 0) continue;
            std::vector<std::size_t> starts;
            for (std::size_t l = 0; l < n; ++l)
                if (set >> l & 1) starts.push_back(l);
            others.push_back(gpipe::segments(n, array(starts)));
        }
        for (std::size_t slots = 0; slots < n; ++slots) others.push_back(gpipe::revolve(n, slots));
        for (Reversal const& other : others) {
            Walked const walked = walk(other, costs);
            std::size_t const budget = in_flight * walked.retained + walked.working;
            gpipe::OptimalReversal const found = gpipe::optimal(costs, in_flight, budget, plenty);
            REQUIRE(found.possible);
            REQUIRE(found.time <= walked.time);
        }
    }
}

TEST_CASE("optimal: rounding costs time, never bytes, nor what is possible") {
    std::mt19937_64 random(12);
    for (int i = 0; i < 120; ++i) {
        std::size_t const n = uniform(random, 1, 10);
        std::size_t const in_flight = uniform(random, 1, 6);
        ReversalCosts const costs =
            i % 2 == 0 ? random_costs(random, n, 1000) : random_network(random, n, 1000);
        std::size_t const slots = uniform(random, 1, 40);
        std::size_t const least = gpipe::optimal(costs, in_flight, 0, slots).least_bytes;
        CHECK(gpipe::optimal(costs, in_flight, least, slots).bytes.total(in_flight) == least);
        double before = std::numeric_limits<double>::infinity();
        std::size_t const most = in_flight * everything(costs);
        for (std::size_t budget = least; budget < most;
             budget += uniform(random, 1, most / 16 + 1)) {
            gpipe::OptimalReversal const found = gpipe::optimal(costs, in_flight, budget, slots);
            REQUIRE(found.possible);
            check_optimal(found, costs, in_flight, budget);
            REQUIRE(found.time <= before);
            before = found.time;
            std::vector<Reversal> others{gpipe::square_root(costs, in_flight)};
            for (std::size_t k = 1; k <= n; ++k) {
                others.push_back(gpipe::equal_segments(n, k));
                others.push_back(gpipe::every_segment(n, k));
                others.push_back(gpipe::revolve(n, k - 1));
            }
            for (Reversal const& other : others) {
                Walked const walked = walk(other, costs);
                if (in_flight * walked.retained + walked.working <= budget)
                    REQUIRE(found.time <= walked.time);
            }
        }
        gpipe::OptimalReversal const all = gpipe::optimal(costs, in_flight, most, slots);
        CHECK(all.time == 0);
        CHECK(gpipe::extra_forwards(all.reversal) == 0);
    }
}

TEST_CASE("optimal: between keeping everything and one piece, on 24 equal layers") {
    ReversalCosts const costs = equal_costs(24, 1, 4, 1, 1);
    auto const time = [&](std::size_t budget) {
        return gpipe::optimal(costs, 8, budget, plenty).time;
    };
    CHECK(time(8 * 24 * 4 + 1) == 0);
    CHECK(time(8 * 24 * 4) > 0);
    CHECK(time(24 * 4 + 1) <= 24);
    CHECK(gpipe::optimal(costs, 8, 0, 1).least_bytes == 6); // a layer, its input, the temporary
}

TEST_CASE("the square root rule takes the number of segments for which its estimate is least") {
    std::mt19937_64 random(13);
    for (std::size_t i = 0; i < toy::cases(2000); ++i) {
        std::size_t const n = uniform(random, 1, 30);
        std::size_t const in_flight = uniform(random, 1, 9);
        ReversalCosts const costs = random_network(random, n, uniform(random, 1, 40));
        std::size_t inputs = 0;
        std::size_t all = 0;
        for (std::size_t l = 0; l < n; ++l) {
            all += costs.all[l];
            if (l > 0) inputs += costs.input[l];
        }
        // in_flight * s * a + n / s * A, times s and the number of inputs
        std::size_t const number = n > 1 ? n - 1 : 1;
        auto const better = [&](std::size_t s, std::size_t than) {
            return (in_flight * s * s * inputs + all * number) * than <
                   (in_flight * than * than * inputs + all * number) * s;
        };
        std::size_t best = 1;
        for (std::size_t s = 2; s <= n; ++s)
            if (better(s, best)) best = s;
        Walked const walked =
            walk(gpipe::square_root(costs, in_flight), equal_costs(n, 1, 1, 0, 0));
        REQUIRE(walked.fault == "");
        REQUIRE(walked.retained + 1 == best);
    }
}

TEST_CASE("optimal: so many micro-batches in flight that nothing can be retained") {
    ReversalCosts const costs = equal_costs(9, 4, 16, 1, 1);
    for (std::size_t budget = 21; budget < 160; ++budget) {
        double const best = gpipe::rotor(costs, 0, 9, budget, plenty).time;
        for (std::size_t shift = 10; shift < 64; ++shift) {
            std::size_t const in_flight = std::size_t{1} << shift;
            gpipe::OptimalReversal const found = gpipe::optimal(costs, in_flight, budget, plenty);
            check_optimal(found, costs, in_flight, budget);
            REQUIRE(found.bytes.retained == 0);
            REQUIRE(found.time == best);
        }
    }
}

// --- errors ---

TEST_CASE("what cannot be reversed is said") {
    using Error = std::invalid_argument;
    ReversalCosts const costs = equal_costs(4, 1, 1, 0, 0);
    std::string const no_layer = "gpipe: there is no layer to reverse";
    CHECK(message_of<Error>([] { gpipe::keep_everything(0); }) == no_layer);
    CHECK(message_of<Error>([] { gpipe::equal_segments(0, 1); }) == no_layer);
    CHECK(message_of<Error>([] { gpipe::every_segment(0, 1); }) == no_layer);
    CHECK(message_of<Error>([] { gpipe::revolve(0, 1); }) == no_layer);
    CHECK(message_of<Error>([] { gpipe::rotor({}, 0, 0, 0, 1); }) == no_layer);
    CHECK(message_of<Error>([] { gpipe::optimal({}, 1, 0, 1); }) == no_layer);

    std::string const ascend =
        "gpipe: segments begin at layer 0 and then at ever later layers of the cell";
    std::vector<std::vector<std::size_t>> const starts{{}, {1}, {0, 4}, {0, 2, 2}, {0, 3, 1}};
    for (auto const& s : starts)
        CHECK(message_of<Error>([&] { gpipe::segments(4, array(s)); }) == ascend);
    CHECK(message_of<Error>([] { gpipe::every_segment(4, 0); }) ==
          "gpipe: a segment has at least one layer");
    std::string const between = "gpipe: there are between one segment and one per layer";
    CHECK(message_of<Error>([] { gpipe::equal_segments(4, 0); }) == between);
    CHECK(message_of<Error>([] { gpipe::equal_segments(4, 5); }) == between);

    std::string const piece = "gpipe: there is no such piece of the cell";
    CHECK(message_of<Error>([&] { gpipe::rotor(costs, 2, 2, 9, 9); }) == piece);
    CHECK(message_of<Error>([&] { gpipe::rotor(costs, 2, 5, 9, 9); }) == piece);
    std::string const slot = "gpipe: a budget has at least one slot";
    CHECK(message_of<Error>([&] { gpipe::rotor(costs, 0, 4, 9, 0); }) == slot);
    CHECK(message_of<Error>([&] { gpipe::optimal(costs, 1, 9, 0); }) == slot);
    CHECK(message_of<Error>([&] { gpipe::optimal(costs, 0, 9, 9); }) ==
          "gpipe: there is at least one micro-batch in flight");

    ReversalCosts short_one = costs;
    short_one.all = Array<std::size_t>(3);
    CHECK(message_of<Error>([&] { gpipe::check_reversal_costs(short_one); }) ==
          "gpipe: the costs of a reversal are not of one length");
    ReversalCosts huge = costs;
    huge.forward_temporary[1] = ~std::size_t{0} / 2;
    huge.backward_temporary[3] = ~std::size_t{0} / 2 - 7; // with eight sizes of one, the largest
    CHECK(message_of<Error>([&] { gpipe::check_reversal_costs(huge); }) == "nothing was thrown");
    CHECK(gpipe::optimal(huge, 1, ~std::size_t{0}, 9).possible);
    huge.all[3] += 1;
    CHECK(message_of<Error>([&] { gpipe::check_reversal_costs(huge); }) ==
          "gpipe: the sizes of a reversal are too large to add");
    ReversalCosts negative = costs;
    negative.forward[2] = -1;
    CHECK(message_of<Error>([&] { gpipe::square_root(negative, 1); }) ==
          "gpipe: the cost of layer 2 is negative; costs are finite and not negative");
}
