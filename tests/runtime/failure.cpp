// Promise P6: a layer that throws, anywhere, at any time.

#include "support/counting.hpp"
#include "support/net.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <doctest/doctest.h>
#include <limits>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::Kind;
using gpipe::device::Host;
using toy::Backward;
using toy::Fault;
using toy::Phase;
using toy::Remote;
using toy::Thrown;

using Real = double;
constexpr std::size_t L = toy::layers<Real>;
constexpr std::size_t N = 7;
constexpr std::size_t M = 3;

template <class Device> using Train = toy::Train<Real, Device>;

template <class Device>
typename Train<Device>::Options options(std::size_t cells, toy::NamedSchedule const& schedule,
                                        toy::NamedCheckpointing const& checkpointing,
                                        typename Device::Options device) {
    typename Train<Device>::Options result;
    result.samples = N;
    result.seed = 3;
    result.cells = cells;
    result.micro_batches = M;
    result.schedule = schedule.policy;
    result.checkpointing = checkpointing.policy;
    result.device = device;
    return result;
}

// Parameters and optimizer state, every byte.
template <class T> std::vector<std::byte> state_of(T& train) {
    std::vector<std::byte> bytes;
    for (std::size_t d = 0; d < train.programs().devices(); ++d) {
        auto const arena = train.arena(d);
        auto const& plan = train.plan().devices[d];
        bytes.insert(bytes.end(), arena.begin(),
                     arena.begin() + static_cast<std::ptrdiff_t>(plan.parameters));
        auto const optimizer =
            arena.begin() + static_cast<std::ptrdiff_t>(plan.parameters + plan.gradients);
        bytes.insert(bytes.end(), optimizer,
                     optimizer + static_cast<std::ptrdiff_t>(plan.optimizer));
    }
    return bytes;
}

std::size_t micro_batch_of(std::size_t first_sample) {
    std::size_t m = 0;
    for (std::size_t first = 0; first != first_sample; ++m) first += toy::deal(N, M)[m];
    return m;
}
Kind kind_of(Phase phase) {
    return phase == Phase::recompute         ? Kind::recompute
           : phase == Phase::backward        ? Kind::backward
           : phase == Phase::input_gradient  ? Kind::input_gradient
           : phase == Phase::weight_gradient ? Kind::weight_gradient
                                             : Kind::forward;
}
template <class T> std::size_t cell_of(T const& train, std::size_t layer) {
    if (layer >= L) return train.cells() - 1;
    std::size_t cell = 0;
    while (train.plan().first[cell + 1] <= layer) ++cell;
    return cell;
}

// The action that makes such a call: the loss is called in the first half of a backward that comes
// in two.
template <class T> Kind action_of(T const& train, Fault const& fault) {
    bool const loss = fault.layer >= L && fault.phase == Phase::backward;
    bool const halves = (train.plan().parts.way(train.cells() - 1, 0) & gpipe::way_halves) != 0;
    return loss && halves ? Kind::input_gradient : kind_of(fault.phase);
}

// Whether failure() tells the place of `fault`.
template <class T> std::string misplaced(T const& train, Fault const& fault) {
    if (!train.failure()) return "no failure()";
    gpipe::Failure const& f = *train.failure();
    if (f.layer != std::min(fault.layer, L)) return "layer " + std::to_string(f.layer);
    if (f.micro_batch != micro_batch_of(fault.first_sample)) return "micro-batch";
    if (f.action != action_of(train, fault)) return "action";
    if (f.cell != cell_of(train, fault.layer)) return "cell";
    char const* const names[] = {"Linear", "Tanh",    "Saver", "Tag",          "Carry",     "Untag",
                                 "Square", "Dropout", "Scale", "StrictLinear", "MeanSquare"};
    if (f.layer_name.find(names[std::min(fault.layer, L)]) == std::string_view::npos)
        return "layer name " + std::string(f.layer_name);
    std::string const place = f.place();
    for (std::string const& part :
         {"layer " + std::to_string(f.layer) + " (", std::string(gpipe::name(f.action)),
          "micro-batch " + std::to_string(f.micro_batch), "cell " + std::to_string(f.cell)})
        if (place.find(part) == std::string::npos) return "place() " + place;
    return {};
}

// A step that must throw what the watch was told to; what goes wrong, or nothing.
template <class T>
std::string fails_rightly(T& train, toy::Watch const& watch, toy::Data<Real> const& data,
                          Fault const& fault) {
    try {
        train.step(data.inputs, data.targets);
        return "nothing was thrown";
    } catch (Thrown const& thrown) {
        if (thrown.at != fault) return "another failure";
        if (thrown.token != watch.token || *thrown.token != 42) return "another object";
        return misplaced(train, fault);
    } catch (...) {
        return "something else was thrown";
    }
}

// Those of all runtime tests, and some with several cells on a device.
std::vector<toy::NamedSchedule> schedules_to_fail() {
    std::vector<toy::NamedSchedule> result(std::begin(toy::schedules), std::end(toy::schedules));
    for (gpipe::schedule::Dynamic const& schedule :
         {gpipe::schedule::Dynamic(gpipe::schedule::ZeroBubbleV{}),
          gpipe::schedule::Dynamic(gpipe::schedule::Interleaved1F1B<3>{})})
        result.push_back({std::string(schedule.name()), schedule, Backward::ascending});
    return result;
}

} // namespace

TEST_CASE_TEMPLATE("P6 F4 whatever throws at any layer, micro-batch and action arrives as it was "
                   "thrown, changes nothing, and training goes on as if nothing had happened",
                   Device, Host, Remote) {
    auto const runs = toy::runs<Device>();
    std::size_t const few = toy::long_tests() ? 1 : toy::sanitized ? 23 : 5;
    std::size_t point = 0;
    std::size_t way = 0;
    std::size_t faults = 0;
    for (std::size_t cells : {std::size_t{1}, std::size_t{2}, std::size_t{4}, L})
        for (toy::NamedSchedule const& schedule : schedules_to_fail())
            for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing()) {
                if (cells * schedule.policy.cells_per_device() > L) continue;
                if (point++ % few != 0) continue;
                toy::Watch watch;
                auto const run = runs[way++ % runs.size()];
                Train<Device> train(toy::make_net<Real>(watch), {&watch}, Adam{1e-2f},
                                    options<Device>(cells, schedule, checkpointing, run));
                toy::Watch other;
                toy::Plain<Real> plain(toy::make_net<Real>(other), {}, Adam{1e-2f}, 3, M,
                                       schedule.order);
                toy::Data<Real> const data(N);
                INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells, ", ",
                     toy::describe(run));

                // Every call that a step makes is a place to throw at.
                watch.logs = true;
                CHECK(train.step(data.inputs, data.targets).loss ==
                      plain.step(data.inputs, data.targets));
                watch.logs = false;
                auto const calls = watch.log();
                CHECK(calls.size() >= 2 * L * M + M); // forwards, backwards, the loss
                auto const before = state_of(train);
                for (toy::Call const& call : calls) {
                    Fault const fault{call.layer, call.first_sample, call.phase};
                    watch.faults = {fault};
                    INFO("layer ", fault.layer, ", first sample ", fault.first_sample, ", phase ",
                         static_cast<int>(fault.phase));
                    CHECK(fails_rightly(train, watch, data, fault) == "");
                    CHECK(train.steps() == 1);
                    CHECK((state_of(train) == before));
                    ++faults;
                }
                watch.faults.clear();
                for (int step = 0; step < 2; ++step) {
                    CHECK(train.step(data.inputs, data.targets).loss ==
                          plain.step(data.inputs, data.targets));
                    CHECK(toy::difference(train, plain) == "");
                    CHECK(!train.failure());
                }
            }
    CHECK(faults * few > 3000);
}

TEST_CASE_TEMPLATE("P6 of several failures in a step the first in the programs' order is told, "
                   "whatever the timing",
                   Device, Host, Remote) {
    std::mt19937 random(11);
    auto const runs = toy::runs<Device>();
    std::size_t const trials = toy::long_tests() ? 40 : 6;
    for (std::size_t cells : {1, 3, 5})
        for (toy::NamedSchedule const& schedule : schedules_to_fail())
            for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
                for (auto const& run : runs) {
                    if (cells * schedule.policy.cells_per_device() > L) continue;
                    toy::Watch watch;
                    Train<Device> train(toy::make_net<Real>(watch), {&watch}, Adam{},
                                        options<Device>(cells, schedule, checkpointing, run));
                    toy::Data<Real> const data(N);
                    watch.logs = true;
                    train.step(data.inputs, data.targets);
                    watch.logs = false;
                    auto const calls = watch.log();

                    // The place of a call in the one order that everybody agrees on.
                    auto const order = gpipe::linear_order(train.programs());
                    auto const rank = [&](Fault const& fault) {
                        std::size_t const cell = cell_of(train, fault.layer);
                        std::size_t r = 0;
                        while (!(train.programs()[order[r]].kind == action_of(train, fault) &&
                                 train.programs()[order[r]].cell == cell &&
                                 train.programs()[order[r]].micro_batch ==
                                     micro_batch_of(fault.first_sample)))
                            ++r;
                        bool const upwards =
                            fault.phase == Phase::forward || fault.phase == Phase::recompute;
                        std::size_t const within = upwards            ? fault.layer
                                                   : fault.layer >= L ? 0
                                                                      : L - fault.layer;
                        return r * 100 + within;
                    };
                    for (std::size_t trial = 0; trial < trials; ++trial) {
                        watch.faults.clear();
                        std::size_t const count = 2 + trial % 3;
                        for (std::size_t f = 0; f < count; ++f) {
                            auto const& call = calls[random() % calls.size()];
                            watch.faults.push_back({call.layer, call.first_sample, call.phase});
                        }
                        Fault const first = *std::min_element(
                            watch.faults.begin(), watch.faults.end(),
                            [&](Fault const& a, Fault const& b) { return rank(a) < rank(b); });
                        INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells, ", ",
                             toy::describe(run));
                        CHECK(fails_rightly(train, watch, data, first) == "");
                    }
                }
}

TEST_CASE_TEMPLATE("P6 the first failure is told again in every repetition of a step", Device, Host,
                   Remote) {
    // Two devices race for it: the one that is told must not depend on who wins.
    toy::Watch watch;
    Train<Device> train(
        toy::make_net<Real>(watch), {&watch}, Adam{},
        options<Device>(5, toy::schedules[0], toy::checkpointings[0], toy::runs<Device>()[3]));
    toy::Data<Real> const data(N);
    // Cell 1's forward of micro-batch 0 stands before cell 0's of micro-batch 2.
    watch.faults = {{0, 5, Phase::forward}, {2, 0, Phase::forward}};
    std::size_t const times = toy::long_tests() ? 5000 : 300;
    for (std::size_t i = 0; i < times; ++i)
        CHECK(fails_rightly(train, watch, data, {2, 0, Phase::forward}) == "");
}

namespace {

// Two layers that fail at the same time: each waits until the other has begun, and the second
// throws when the first has long done so.
std::atomic<int> begun{0};
struct Meets : toy::Linear<Real, 3, 3> {
    void forward(auto& ctx, auto x, auto y) const {
        toy::Linear<Real, 3, 3>::forward(ctx, x, y);
        bool const first = ctx.layer() == 0 && ctx.first_sample() == 1;
        bool const second = ctx.layer() == 1 && ctx.first_sample() == 0;
        if (!ctx.training() || !(first || second)) return;
        ++begun;
        while (begun < 2) std::this_thread::yield();
        if (second) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        throw Thrown{{ctx.layer(), ctx.first_sample(), Phase::forward}, nullptr};
    }
};

} // namespace

TEST_CASE(
    "P6 of two layers that fail at once the first in the programs' order is told, even if the "
    "other throws last") {
    using Race = toy::Training<gpipe::Pipeline<Meets, Meets>, toy::MeanSquare<Real, 3>, Adam, Host>;
    Race::Options o;
    o.samples = 3;
    o.cells = 2;
    o.micro_batches = 3;
    o.checkpointing = gpipe::checkpoint::Never{}; // the last cell's forwards run early
    o.device.threads = 2;
    Race train({}, {}, {}, o);
    auto const data = toy::numbers<Real>(9, 1);
    for (int times = 0; times < 5; ++times) {
        begun = 0;
        try {
            train.step(data, data);
            FAIL("nothing was thrown");
        } catch (Thrown const& thrown) {
            CHECK(thrown.at == Fault{0, 1, Phase::forward});
            CHECK(train.failure()->layer == 0);
        }
    }
}

TEST_CASE_TEMPLATE("P6 a failure in evaluate or predict surfaces, and training is as before",
                   Device, Host, Remote) {
    for (std::size_t cells : {1, 4}) {
        toy::Watch watch;
        Train<Device> train(toy::make_net<Real>(watch), {&watch}, Adam{1e-2f},
                            options<Device>(cells, toy::schedules[2], toy::checkpointings[1],
                                            toy::runs<Device>()[1]));
        toy::Watch other;
        toy::Plain<Real> plain(toy::make_net<Real>(other), {}, Adam{1e-2f}, 3, M,
                               toy::schedules[2].order);
        toy::Data<Real> const data(N);
        std::vector<Real> outputs(N * 3);
        auto const before = state_of(train);
        for (std::size_t layer = 0; layer <= L; ++layer)
            for (std::size_t first_sample : {0, 3, 5}) {
                Fault const fault{layer < L ? layer : toy::Watch::loss, first_sample,
                                  Phase::evaluate};
                watch.faults = {fault};
                CHECK_THROWS_AS(train.evaluate(data.inputs, data.targets), Thrown);
                CHECK(misplaced(train, fault) == "");
                if (layer < L) {
                    CHECK_THROWS_AS(train.predict(data.inputs, outputs), Thrown);
                    CHECK(misplaced(train, fault) == "");
                } else {
                    CHECK_NOTHROW(train.predict(data.inputs, outputs)); // calls no loss
                    CHECK(!train.failure());
                }
                CHECK((state_of(train) == before));
            }
        watch.faults.clear();
        CHECK(train.step(data.inputs, data.targets).loss == plain.step(data.inputs, data.targets));
        CHECK(toy::difference(train, plain) == "");
    }
}

namespace {

// Throws when it is initialized, if told to.
bool refuses = false;
struct Refuses : toy::Linear<Real, 3, 3> {
    void initialize(auto& ctx) const {
        toy::Linear<Real, 3, 3>::initialize(ctx);
        if (refuses && ctx.layer() == 2) throw Thrown{{ctx.layer(), 0, Phase::forward}, nullptr};
    }
};

} // namespace

TEST_CASE(
    "P6 a layer that throws when it is initialized leaves through the constructor, and leaves "
    "nothing behind") {
    using Throws = toy::Training<gpipe::Pipeline<gpipe::Repeat<4, Refuses>>,
                                 toy::MeanSquare<Real, 3>, Adam, Host>;
    auto const build = [] {
        Throws::Options o;
        o.samples = 4;
        o.cells = 4;
        o.device.threads = 3;
        Throws train({}, {}, {}, o);
    };
    refuses = false;
    build(); // whatever is made once and kept
    refuses = true;
    long const before = toy::live_allocations;
    CHECK_THROWS_AS(build(), Thrown);
    CHECK(toy::live_allocations == before);
    refuses = false;
    CHECK_NOTHROW(build());
    CHECK(toy::live_allocations == before);
}

#ifdef GPIPE_COUNTS_ALLOCATIONS
namespace {

struct Steep { // y = w x, whose gradient may be infinite
    using Input = gpipe::Tensor<float>;
    using Output = Input;
    using Parameters = Input;
    bool is = false;

    void initialize(auto& context) const { context.parameters()[0] = 1; }
    void forward(auto& context, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s) y(s) = context.parameters()[0] * x(s);
    }
    void backward(auto& context, auto, auto dy, auto dx) const {
        for (std::size_t s = 0; s < dy.samples(); ++s) dx(s) = dy(s);
        context.gradients()[0] += is ? std::numeric_limits<float>::infinity() : 1;
    }
};
struct One { // or no number
    using Target = gpipe::Tensors<>;
    bool is_none = false;

    gpipe::LossValue<> operator()(auto&, auto y, auto, auto dy) const {
        for (std::size_t s = 0; s < y.samples(); ++s) dy(s) = 1;
        return {is_none ? std::numeric_limits<double>::quiet_NaN() : 1, 1};
    }
};

} // namespace

TEST_CASE("where there is no memory for what a step that failed is to say, that is said") {
    using Steeper =
        gpipe::Training<gpipe::Pipeline<Steep, Steep>, gpipe::Cells<2>, gpipe::MicroBatches<2>,
                        gpipe::Loss<One>, gpipe::update::Immediate>;
    float const x[] = {1, 2};
    for (bool const of_loss : {false, true}) {
        long failed = 0;
        for (bool ends = false; !ends; ++failed) {
            Steeper train{{}, {}, {}, {.samples = 2, .finite_gradients = true}};
            train.step(x, {});
            train.change_layer<1>([&](auto& layer) { layer.is = !of_loss; });
            train.change_loss([&](auto& loss) { loss.is_none = of_loss; });
            int said = 0; // 1: that there is no memory, 2: what is not finite
            toy::allocations_left = failed;
            try {
                train.step(x, {});
            } catch (std::bad_alloc const&) {
                said = 1;
            } catch (std::domain_error const&) {
                said = 2;
            }
            ends = toy::allocations_left.exchange(-1) >= 0;
            CAPTURE(of_loss);
            CAPTURE(failed);
            CHECK(said == (ends ? 2 : 1));
            CHECK(train.failure());
        }
        CHECK(failed > 1);
    }
}
#endif
