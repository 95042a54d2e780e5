// Promises P1 and P5: what is trained does not depend on how the pipeline runs.

#include "support/expected.hpp"

#include <deque>
#include <doctest/doctest.h>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Backward;
using toy::Deferred;
using toy::Remote;

using Real = float;
constexpr std::size_t L = toy::layers<Real>;
constexpr std::uint64_t seed = toy::expected_seed;

template <class Device> using Train = toy::Train<Real, Device>;
using Plain = toy::Plain<Real>;

using Expected = toy::Expected<Real>;

template <class Device>
typename Train<Device>::Options options(std::size_t samples, std::size_t cells,
                                        std::size_t micro_batches) {
    typename Train<Device>::Options result;
    result.samples = samples;
    result.seed = seed;
    result.cells = cells;
    result.micro_batches = micro_batches;
    return result;
}

std::vector<std::vector<std::size_t>> compositions(std::size_t of) {
    std::vector<std::vector<std::size_t>> result;
    for (std::size_t cuts = 0; cuts < std::size_t{1} << (of - 1); ++cuts) {
        std::vector<std::size_t> sizes{1};
        for (std::size_t i = 0; i + 1 < of; ++i)
            if (cuts >> i & 1)
                sizes.push_back(1);
            else
                ++sizes.back();
        result.push_back(sizes);
    }
    return result;
}

} // namespace

TEST_CASE_TEMPLATE("P1 losses, gradients and parameters after three steps are the plain loop's in "
                   "every bit, for every K, schedule, checkpointing and timing",
                   Device, Host, Deferred, Remote) {
    std::size_t point = 0;
    for (toy::NamedSchedule const& schedule : toy::schedules) {
        Expected const expected(4, schedule.order, {13, 13, 13});
        for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
            for (std::size_t cells = 1; cells <= L; ++cells)
                for (auto const& run : toy::runs<Device>()) {
                    if (toy::left_out(point, 7)) continue;
                    auto o = options<Device>(13, cells, 4);
                    o.schedule = schedule.policy;
                    o.checkpointing = checkpointing.policy;
                    o.device = run;
                    toy::Watch watch;
                    Train<Device> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
                    INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells, ", ",
                         toy::describe(run));
                    CHECK(expected.differs(train) == "");
                }
    }
}

TEST_CASE_TEMPLATE("P1 every schedule there is trains the same, with every number of devices, "
                   "checkpointing and timing",
                   Device, Host, Deferred, Remote) {
    Backward const orders[] = {Backward::descending, Backward::ascending};
    std::size_t const micro_batches = 8;
    std::vector<std::size_t> const sizes{13, 7, 13}; // of 7 samples one micro-batch stays empty
    Expected const descending(micro_batches, orders[0], sizes);
    Expected const ascending(micro_batches, orders[1], sizes);
    std::size_t point = 0;
    std::size_t trained = 0;
    std::size_t halves = 0;
    toy::each_of_catalogue(
        L, L, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
                for (auto const& run : toy::runs<Device>()) {
                    if (point++ % toy::one_of(29) != 0) continue;
                    auto o = options<Device>(13, k, micro_batches);
                    o.schedule = schedule;
                    o.checkpointing = checkpointing.policy;
                    o.device = run;
                    if (point % 2 == 0) o.slack = point % 4 ? gpipe::chosen_slack : 0;
                    toy::Watch watch;
                    Train<Device> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
                    INFO(schedule.name(), " of ", schedule.cells_per_device(),
                         " cells per device, slack ", o.slack, ", ", checkpointing.name,
                         ", K = ", k, ", ", toy::describe(run));
                    bool const descends = schedule.name() == "GPipe";
                    CHECK((descends ? descending : ascending).differs(train) == "");
                    CHECK(train.devices() == k);
                    CHECK(train.cells() == k * schedule.cells_per_device());
                    ++trained;
                    halves += watch.count(0, gpipe::Phase::weight_gradient) > 0;
                }
        });
    MESSAGE(trained << " trainings, " << halves << " with the halves of backward apart");
    CHECK((halves > trained / 4 || toy::sanitized));
    CHECK(halves < trained);
}

TEST_CASE("P1 the orders of backwards are told apart: descending is not ascending") {
    // Otherwise the comparison with the right order would show nothing.
    Expected const ascending(4, Backward::ascending, {13, 13, 13});
    toy::Watch watch;
    Train<Host> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, options<Host>(13, 3, 4));
    CHECK(ascending.differs(train) != "");
}

TEST_CASE_TEMPLATE("P1 every balance by hand trains the same", Device, Host, Deferred, Remote) {
    std::size_t n = 0, point = 0;
    auto const runs = toy::runs<Device>();
    std::deque<Expected> expected;
    for (toy::NamedSchedule const& schedule : toy::schedules)
        expected.emplace_back(3, schedule.order, std::vector<std::size_t>{8, 5});
    for (auto const& sizes : compositions(L)) {
        std::size_t const orders = std::size(toy::schedules);
        std::size_t const ways = 3 * orders;
        for (std::size_t way = toy::long_tests() ? 0 : n % ways,
                         end = toy::long_tests() ? ways : way + 1;
             way < end; ++way, ++n) {
            if (toy::left_out(point, 7)) continue;
            auto o = options<Device>(8, sizes.size(), 3);
            o.schedule = toy::schedules[way % orders].policy;
            o.checkpointing = toy::checkpointings[way / orders].policy;
            o.device = runs[n % runs.size()];
            toy::hand = sizes;
            toy::Watch watch;
            Train<Device> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
            toy::hand.clear();
            std::string text;
            for (std::size_t size : sizes) text += std::to_string(size) + " ";
            INFO("balance ", text, toy::schedules[way % orders].name, ", ",
                 toy::checkpointings[way / orders].name, ", ", toy::describe(o.device));
            CHECK(expected[way % orders].differs(train) == "");
            CHECK(train.plan().first.size() == sizes.size() + 1);
        }
    }
}

TEST_CASE_TEMPLATE("P1 every schedule that there can be trains the same: some by chance", Device,
                   Host, Deferred, Remote) {
    std::mt19937 random(5);
    std::size_t const trials = toy::long_tests() ? 5000 : 200 / toy::one_of(1);
    auto const runs = toy::runs<Device>();
    auto const balances = compositions(L);
    for (std::size_t trial = 0; trial < trials; ++trial) {
        std::size_t const micro_batches = 1 + random() % 6;
        std::size_t const samples = 1 + random() % 14;
        Expected const expected(micro_batches, Backward::ascending,
                                {samples, 1 + random() % samples, samples});
        toy::hand = balances[random() % balances.size()];
        toy::chance = trial;
        auto o = options<Device>(samples, toy::hand.size(), micro_batches);
        o.schedule = toy::ByChance{};
        o.checkpointing = toy::checkpointings[random() % 3].policy;
        o.device = runs[random() % runs.size()];
        toy::Watch watch;
        Train<Device> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
        toy::hand.clear();
        INFO("trial ", trial, ", K = ", train.cells(), ", M = ", micro_batches, ", N = ", samples,
             ", ", toy::describe(o.device));
        CHECK(expected.differs(train) == "");
    }
}

namespace {

// toy::Dealt by devices: two cells each.
struct DealtToDevices {
    using policy_kind = gpipe::policy::Schedule;
    static constexpr std::size_t cells_per_device = 2;
    static constexpr gpipe::Programs programs(std::size_t devices, std::size_t micro_batches) {
        return toy::Dealt::programs(2 * devices, micro_batches);
    }
};

} // namespace

TEST_CASE("P1 several cells on a device train the same") {
    Expected const expected(4, Backward::ascending, {13, 13, 13});
    for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
        for (std::size_t devices = 1; 2 * devices <= L; ++devices)
            for (auto const& run : toy::runs<Deferred>()) {
                auto o = options<Deferred>(13, devices, 4);
                o.schedule = DealtToDevices{};
                o.checkpointing = checkpointing.policy;
                o.device = run;
                toy::Watch watch;
                Train<Deferred> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
                INFO(checkpointing.name, ", K = ", devices, ", ", toy::describe(run));
                CHECK(expected.differs(train) == "");
            }
}

TEST_CASE("P1 steps that try one lane and all lanes are the same steps") {
    // Left alone, the host's pool tries short steps both ways.
    std::vector<std::size_t> const sizes(80, 6);
    Expected const expected(3, Backward::descending, sizes);
    toy::Watch watch;
    Train<Host> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, options<Host>(6, 4, 3));
    CHECK(expected.differs(train) == "");
}

TEST_CASE("P1 constants and `dynamic` train the same") {
    Expected const expected(4, Backward::descending, {12, 12, 12});
    toy::Watch watch;
    using Constant =
        gpipe::Training<toy::Net<Real>, gpipe::Balance<1, 4, 3, 2>, gpipe::MicroBatches<4>,
                        gpipe::Loss<toy::MeanSquare<Real, 3>>, gpipe::Optimizer<Adam>>;
    static_assert(Constant::is_constant);
    static_assert(Constant::bubble() == gpipe::ratio(3, 7));
    Constant train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, {.samples = 12, .seed = seed});
    CHECK(expected.differs(train) == "");
    // The plan that a user may static_assert on is the one that runs.

    for (std::size_t d = 0; d < 4; ++d) CHECK(Constant::peak_bytes(d, 3) == train.arena(d).size());
    CHECK_THROWS_AS(Constant::peak_bytes(4, 3), std::out_of_range);
    CHECK_THROWS_AS(Constant::peak_micro_batches(4), std::out_of_range);
}

TEST_CASE_TEMPLATE("P1 so do those of schedules with several cells on a device", Schedule,
                   gpipe::schedule::ZeroBubbleV, gpipe::schedule::Interleaved1F1B<2>) {
    Expected const expected(4, Backward::ascending, {12, 5, 12});
    toy::Watch watch;
    using Constant =
        gpipe::Training<toy::Net<Real>, gpipe::Balance<2, 3, 3, 2>, gpipe::MicroBatches<4>,
                        gpipe::Loss<toy::MeanSquare<Real, 3>>, gpipe::Optimizer<Adam>, Schedule>;
    static_assert(Constant::is_constant && Constant::device_count == 2);
    Constant train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, {.samples = 12, .seed = seed});
    CHECK(expected.differs(train) == "");
    CHECK(train.devices() == 2);
    for (std::size_t d = 0; d < 2; ++d) CHECK(Constant::peak_bytes(d, 3) == train.arena(d).size());
}

TEST_CASE("P1 a constant cut that knows what runs again is the one that is found at construction, "
          "and changes no bit") {
    using Net = gpipe::Pipeline<gpipe::Repeat<12, toy::Linear<double, 1, 1>>>;
    using Loss = gpipe::Loss<toy::MeanSquare<double, 1>>;
    using gpipe::schedule::OneForwardOneBackward;
    using Constant = gpipe::Training<Net, Loss, gpipe::Cells<2>, gpipe::MicroBatches<16>,
                                     OneForwardOneBackward, gpipe::Optimizer<Adam>>;
    using Chosen = gpipe::Training<Net, Loss, gpipe::Cells<gpipe::dynamic>,
                                   gpipe::MicroBatches<gpipe::dynamic>, gpipe::schedule::Dynamic,
                                   gpipe::checkpoint::Dynamic, gpipe::Optimizer<Adam>>;
    Constant constant(Net{}, {}, {}, {.samples = 16, .seed = 1});
    Chosen::Options options;
    options.samples = 16;
    options.seed = 1;
    options.micro_batches = 16;
    options.schedule = OneForwardOneBackward{};
    options.cells = 2;
    Chosen chosen(Net{}, {}, {}, options);
    CHECK(constant.plan().first[1] == 5);
    CHECK(chosen.plan().first[1] == 5);
    options.checkpointing = gpipe::checkpoint::Never{};
    Chosen even(Net{}, {}, {}, options);
    CHECK(even.plan().first[1] == 6);
    auto const data = toy::numbers<double>(16, 1);
    for (int step = 0; step < 3; ++step) {
        double const loss = constant.step(data, data).loss;
        CHECK(chosen.step(data, data).loss == loss);
        CHECK(even.step(data, data).loss == loss);
    }
    for (std::size_t layer = 0; layer < 12; ++layer)
        CHECK(constant.parameter<double>(layer, 0)[0] == even.parameter<double>(layer, 0)[0]);
}

TEST_CASE_TEMPLATE("P5 Lingvo P2 N need not divide by M: any N, M and K train as the plain loop",
                   Device, Host, Deferred, Remote) {
    auto const runs = toy::runs<Device>();
    std::size_t n = 0, point = 0;
    for (std::size_t micro_batches : {1, 2, 3, 5, 8})
        for (std::size_t samples : {1, 2, 3, 4, 7, 8, 9}) {
            if (toy::left_out(point, 3)) continue;
            std::vector<std::size_t> const same{samples, samples};
            Expected const descending(micro_batches, Backward::descending, same);
            Expected const ascending(micro_batches, Backward::ascending, same);
            for (std::size_t cells : {std::size_t{1}, std::size_t{2}, std::size_t{7}, L})
                for (toy::NamedSchedule const& schedule : toy::schedules) {
                    auto o = options<Device>(samples, cells, micro_batches);
                    o.schedule = schedule.policy;
                    o.checkpointing = toy::checkpointings[n % 3].policy;
                    o.device = runs[n / 3 % runs.size()];
                    ++n;
                    toy::Watch watch;
                    Train<Device> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
                    INFO("N = ", samples, ", M = ", micro_batches, ", K = ", cells, ", ",
                         schedule.name, ", ", toy::describe(o.device));
                    bool const down = schedule.order == Backward::descending;
                    CHECK((down ? descending : ascending).differs(train) == "");
                }
        }
}

TEST_CASE_TEMPLATE("P5 mini-batches of any size up to the planned one follow each other", Device,
                   Host, Deferred, Remote) {
    std::vector<std::size_t> const sizes{11, 1, 4, 11, 3, 10, 2, 7};
    for (toy::NamedSchedule const& schedule : toy::schedules) {
        Expected const expected(4, schedule.order, sizes);
        for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
            for (std::size_t cells : {1, 3, 6}) {
                auto o = options<Device>(11, cells, 4);
                o.schedule = schedule.policy;
                o.checkpointing = checkpointing.policy;
                o.device = toy::runs<Device>()[2];
                toy::Watch watch;
                Train<Device> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
                INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells);
                CHECK(expected.differs(train) == "");
            }
    }
}

TEST_CASE("P5 micro-batches differ by at most one sample, the larger first, in order") {
    for (std::size_t micro_batches = 1; micro_batches < 12; ++micro_batches)
        for (std::size_t samples = 0; samples < 40; ++samples) {
            auto const sizes = toy::deal(samples, micro_batches);
            std::size_t first = 0;
            for (std::size_t m = 0; m < micro_batches; ++m) {
                auto const range = gpipe::Split(samples, micro_batches)[m];
                CHECK(range.count == sizes[m]);
                CHECK(range.first == first);
                first += range.count;
            }
            CHECK(first == samples);
        }
}

TEST_CASE("P5 the programs without the missing micro-batches are proven too") {
    // A step of N < M samples walks the programs and leaves out what has no samples. What remains
    // are programs for N micro-batches; they pass the same proof.
    for (toy::NamedSchedule const& schedule : toy::schedules)
        for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
            for (std::size_t cells = 1; cells <= 6; ++cells)
                for (std::size_t micro_batches = 1; micro_batches <= 6; ++micro_batches) {
                    gpipe::Programs const all =
                        checkpointing.policy.lower(schedule.policy.programs(cells, micro_batches));
                    for (std::size_t samples = 1; samples <= micro_batches; ++samples) {
                        gpipe::Programs some(all.devices(), cells, samples, all.size());
                        for (std::size_t c = 0; c < cells; ++c) some.place(c, all.device_of(c));
                        for (std::size_t d = 0; d < all.devices(); ++d) {
                            for (gpipe::Action const& action : all.program(d))
                                if (action.micro_batch < samples) some.add(action);
                            some.next_device();
                        }
                        auto const verdict = gpipe::verify(some);
                        INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells,
                             ", M = ", micro_batches, ", N = ", samples);
                        CHECK(verdict.problem == gpipe::Problem::sound);
                    }
                }
}
