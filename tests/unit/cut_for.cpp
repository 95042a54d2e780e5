// Cuts that know what cells run again: which of three is taken, and what that is worth.
#include "support/schedules.hpp"

#include <gpipe/checkpoint/dynamic_policy.hpp>
#include <gpipe/schedule/verify.hpp>
#include <gpipe/search/cut_for.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace {

using gpipe::Array;
using gpipe::Programs;
using gpipe::schedule::OneForwardOneBackward;
namespace checkpoint = gpipe::checkpoint;
using Cells = gpipe::Cells<gpipe::dynamic>;

Array<std::size_t> plain(Array<double> const& costs, std::size_t cells) {
    Array<std::size_t> first(cells + 1);
    Cells::cut(costs.data(), costs.size(), cells, first.data());
    return first;
}
bool same(Array<std::size_t> const& a, Array<std::size_t> const& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
}
// What a step takes where the actions of a cell take what its layers cost, backwards twice that.
double step(Programs const& programs, Array<double> const& costs, Array<std::size_t> const& first) {
    return gpipe::simulate<double>(programs,
                                   [&](gpipe::Action const& a) {
                                       double cost = 0;
                                       for (std::size_t l = first[a.cell]; l < first[a.cell + 1];
                                            ++l)
                                           cost += costs[l];
                                       return cost * static_cast<double>(gpipe::unit_cost(a));
                                   })
        .makespan;
}

} // namespace

TEST_CASE("no simulated step is longer than with the cut by costs alone, under any schedule") {
    std::mt19937_64 random(1);
    std::size_t shorter = 0, all = 0;
    for (std::size_t const m : {4u, 9u, 32u})
        toy::each_of_catalogue(4, 12, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            std::size_t const cells = k * schedule.cells_per_device();
            for (checkpoint::Dynamic const& policy : {checkpoint::Dynamic(checkpoint::ExceptLast{}),
                                                      checkpoint::Dynamic(checkpoint::Always{}),
                                                      checkpoint::Dynamic(checkpoint::Never{})}) {
                INFO(std::string(schedule.name()), ", K = ", k, ", M = ", m, ", ",
                     std::string(policy.name()));
                Array<double> costs(cells + random() % 20);
                for (double& cost : costs) cost = static_cast<double>(1 + random() % 5);
                Programs const programs = policy.lower(schedule.programs(k, m));
                Array<std::size_t> const before = plain(costs, cells);
                Array<std::size_t> const first = gpipe::cut_for<Cells>(costs, programs);
                CHECK(step(programs, costs, first) <= step(programs, costs, before));
                if (policy.name() != "except-last") CHECK(same(first, before));
                shorter += step(programs, costs, first) < step(programs, costs, before);
                ++all;
            }
        });
    MESSAGE(shorter << " of " << all << " steps shorter");
    CHECK(shorter > all / 20);
}

TEST_CASE("under 1F1B the last cell, which recomputes nothing, gets more layers") {
    Array<double> const costs(24, 1.0);
    Programs const programs = checkpoint::ExceptLast::lower(OneForwardOneBackward::programs(2, 32));
    Array<std::size_t> const first = gpipe::cut_for<Cells>(costs, programs);
    CHECK(first[1] == 10);
    Array<std::size_t> const one = plain(costs, 1);
    Programs const alone = checkpoint::ExceptLast::lower(OneForwardOneBackward::programs(1, 32));
    double const whole = step(alone, costs, one);
    CHECK(whole / step(programs, costs, plain(costs, 2)) == doctest::Approx(1.49).epsilon(0.01));
    CHECK(whole / step(programs, costs, first) > 1.65);
    // The paper's objective, and cuts by hand, are what they are.
    using Paper = gpipe::Cells<2, gpipe::objective::LeastVariance>;
    CHECK(gpipe::cut_for<Paper>(costs, programs)[1] == 12);
    CHECK(gpipe::cut_for<gpipe::Balance<4, 20>>(costs, programs)[1] == 4);
}

TEST_CASE("any costs will do: none, the largest there are, very small ones") {
    Programs const programs = checkpoint::ExceptLast::lower(OneForwardOneBackward::programs(2, 32));
    for (double const cost :
         {0.0, std::numeric_limits<double>::max(), std::numeric_limits<double>::min()}) {
        Array<double> const costs(24, cost);
        CHECK(gpipe::cut_for<Cells>(costs, programs)[1] == (cost > 0 ? 10 : plain(costs, 2)[1]));
    }
}

TEST_CASE("of many micro-batches some are looked at, of many cells none") {
    using gpipe::weighed_micro_batches;
    CHECK(weighed_micro_batches(8, 4, 1) == 8);
    CHECK(weighed_micro_batches(1000, 4, 1) == 256);
    CHECK(weighed_micro_batches(1000, 32, 1) == 32);
    CHECK(weighed_micro_batches(1000, 33, 1) == 0);
    CHECK(weighed_micro_batches(7, 4, 8) == 0); // of which the schedule has no programs
    CHECK(weighed_micro_batches(7, 0, 1) == 0);
}
