// device::Cuda under a whole training, over the double of the CUDA runtime: what it computes, in
// what order, and what happens when calls fail or are left out.
#include "support/enqueued_net.hpp"
#include "support/overlap_layers.hpp"
#include "support/timeline_entries.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::Kind;
using gpipe::device::Cuda;
using toy::Backward;
using toy::Enqueued;

using Real = float;
constexpr std::uint64_t seed = 7;

using Net = toy::EnqueuedNet<Real>;
constexpr std::size_t L = Net::size;
using Loss = toy::EnqueuedLoss<toy::MeanSquare<Real, 3>>;
using Train = toy::Training<Net, Loss, Adam, Cuda>;
using Immediately =
    gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                    gpipe::checkpoint::Dynamic, gpipe::update::Immediate, Cuda>;
using Plain = toy::Plain<Real>;

Net make_net(toy::Watch& watch) { return toy::make_enqueued_net<Real>(watch); }

// With three micro-batches gradients are clipped.
double clip_of(std::size_t micro_batches) { return micro_batches == 3 ? 0.05 : 0; }

template <class T = Train>
typename T::Options options(std::size_t samples, std::size_t cells, std::size_t micro_batches,
                            std::size_t gpus) {
    typename T::Options o;
    o.samples = samples;
    o.seed = seed;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.clip_norm = clip_of(micro_batches);
    for (std::size_t k = 0; k < cells; ++k) o.device.gpus.push_back(static_cast<int>(k % gpus));
    return o;
}

// How steps are run.
struct Way {
    bool peers = true;      // whether the GPUs have access to each other
    std::size_t graphs = 0; // sizes of mini-batches that are kept as graphs
    bool together = false;  // whether a step is started before the one before is done
    gpipe::Link link = gpipe::Link::shared;
};
cuda_double::Options session_options(Way const& way, std::size_t gpus, std::uint64_t order = 0) {
    return {.devices = static_cast<int>(gpus),
            .seed = order,
            .peers = [peers = way.peers](int, int) { return peers; }};
}
void set_way(auto& o, Way const& way) {
    o.device.graphs = way.graphs;
    o.device.link = way.link;
}

// Parameters and mean gradients, tensor by tensor.
template <class Read> std::vector<Real> state_by(Read read) {
    std::vector<Real> all;
    for (std::size_t layer = 0; layer < L; ++layer) {
        auto const& sizes = Net::leaf_info[layer].parameters;
        for (std::size_t t = 0; t < sizes.count; ++t)
            for (bool gradient : {false, true}) {
                std::vector<Real> values(sizes.bytes[t] / sizeof(Real));
                read(layer, t, gradient, std::span(values));
                all.insert(all.end(), values.begin(), values.end());
            }
    }
    return all;
}
template <class T> std::vector<Real> state_of(T& train) {
    return state_by([&](std::size_t layer, std::size_t t, bool gradient, std::span<Real> to) {
        gradient ? train.read_gradient(layer, t, to) : train.read_parameter(layer, t, to);
    });
}

// Another one for each step.
float rate(std::size_t step) { return 1e-2f / static_cast<float>(step + 1); }

// What the same net on the host gives after three steps of these sizes.
struct Expected {
    std::vector<std::size_t> sizes;
    std::vector<double> losses;
    std::vector<Real> state;
    double between = 0; // an evaluation after the second step
    double evaluated = 0;
    std::vector<Real> predicted;

    Expected(std::size_t micro_batches, gpipe::schedule::Dynamic schedule,
             std::vector<std::size_t> batches)
        : sizes(std::move(batches)), predicted(8 * 3) {
        using Host = gpipe::device::Host;
        toy::Train<Real, Host>::Options o;
        o.samples = 8;
        o.seed = seed;
        o.cells = 1;
        o.micro_batches = micro_batches;
        o.clip_norm = clip_of(micro_batches);
        o.schedule = schedule;
        toy::Watch watch;
        toy::Train<Real, Host> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(i));
            train.optimizer().learning_rate = rate(i);
            losses.push_back(train.step(data.inputs, data.targets).loss);
            toy::Data<Real> const held_out(8, 9);
            if (i == 1) between = train.evaluate(held_out.inputs, held_out.targets).loss;
        }
        state = state_by([&](std::size_t layer, std::size_t t, bool gradient, std::span<Real> to) {
            gradient ? train.read_gradient(layer, t, to) : train.read_parameter(layer, t, to);
        });
        toy::Data<Real> const data(8, 9), other(8, 10);
        evaluated = train.evaluate(data.inputs, data.targets).loss;
        train.predict(other.inputs, predicted);
    }

    // The first thing that is otherwise; empty if nothing.
    template <class T> std::string differs(T& train, bool together = false) const {
        std::vector<typename T::Pending> pending;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(i));
            train.optimizer().learning_rate = rate(i);
            pending.push_back(train.start(data.inputs, data.targets));
            if (!together) static_cast<void>(pending[i].result());
            if (i == 1) { // changes nothing
                toy::Data<Real> const held_out(8, 9);
                if (train.evaluate(held_out.inputs, held_out.targets).loss != between)
                    return "an evaluation between steps";
            }
        }
        for (std::size_t i = 0; i < sizes.size(); ++i)
            if (pending[i].result().loss != losses[i])
                return "the loss of step " + std::to_string(i);
        if (state_of(train) != state) return "parameters or gradients";
        if (train.steps() != sizes.size()) return "the number of steps";
        toy::Data<Real> const data(8, 9), other(8, 10);
        if (train.evaluate(data.inputs, data.targets).loss != evaluated) return "an evaluation";
        // Pinned: a copy to other memory would make the host wait, and so order what is not.
        gpipe::cuda::PinnedBuffer const pinned(predicted.size() * sizeof(Real));
        std::span<Real> const outputs{reinterpret_cast<Real*>(pinned.data()), predicted.size()};
        train.predict(other.inputs, outputs);
        return std::equal(outputs.begin(), outputs.end(), predicted.begin()) ? "" : "a prediction";
    }
};

} // namespace

TEST_CASE(
    "C4 E1 M2 P1 on streams of one to four GPUs a training gives what it gives on the host, in any "
    "order that streams and events allow, and nothing races") {
    std::size_t point = 0;
    for (std::size_t micro_batches : {1, 2, 3, 8}) {
        for (toy::NamedSchedule const& schedule : toy::schedules) {
            Expected const expected(micro_batches, schedule.policy, {8, 8, 8, 8, 7, 8, 1});
            for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
                for (std::size_t cells = 1; cells <= 4; ++cells)
                    for (std::size_t gpus = 1; gpus <= cells; ++gpus)
                        for (std::size_t w = 0; w < 4; ++w) {
                            if (point++ % toy::one_of(83) != 0) continue;
                            Way way{w % 2 == 0, w / 2 * 2, (cells + gpus) % 2 == 0};
                            if (gpus == 1 && w % 2 == 1) way.link = gpipe::Link::copied;
                            std::uint64_t const order = (cells + gpus + micro_batches) % 4;
                            cuda_double::Session session(session_options(way, gpus, order));
                            auto o = options(8, cells, micro_batches, gpus);
                            set_way(o, way);
                            o.schedule = schedule.policy;
                            o.checkpointing = checkpointing.policy;
                            toy::Watch watch;
                            Train train(make_net(watch), {}, Adam{1e-2f}, o);
                            INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells,
                                 ", M = ", micro_batches, ", ", gpus, " GPUs, order ", order,
                                 ", peers ", way.peers, ", graphs ", way.graphs, ", together ",
                                 way.together);
                            CHECK(expected.differs(train, way.together) == "");
                            CHECK(cuda_double::races() == std::vector<std::string>{});
                        }
        }
    }
}

TEST_CASE("P1 every schedule there is gives on streams what it gives on the host") {
    std::size_t const micro_batches = 8;
    std::vector<std::size_t> const sizes{8, 8, 8, 5, 8};
    Expected const descending(micro_batches, gpipe::schedule::GPipe{}, sizes);
    Expected const ascending(micro_batches, gpipe::schedule::GPipeAscending{}, sizes);
    std::size_t point = 0;
    std::size_t halves = 0;
    toy::each_of_catalogue(
        L, L, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t cells) {
            if (cells > 4) return;
            for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
                for (std::size_t gpus : {std::size_t{1}, (cells + 1) / 2, cells})
                    for (std::size_t w = 0; w < 4; ++w) {
                        if (point++ % toy::one_of(179) != 0) continue;
                        Way way{w % 2 == 0, w / 2 * 2, point % 2 == 0};
                        if (gpus == 1 && w % 2 == 1) way.link = gpipe::Link::copied;
                        cuda_double::Session session(session_options(way, gpus, point % 4));
                        auto o = options(8, cells, micro_batches, gpus);
                        set_way(o, way);
                        o.schedule = schedule;
                        o.checkpointing = checkpointing.policy;
                        toy::Watch watch;
                        Train train(make_net(watch), {}, Adam{1e-2f}, o);
                        INFO(schedule.name(), " of ", schedule.cells_per_device(),
                             " cells per device, ", checkpointing.name, ", K = ", cells, ", ", gpus,
                             " GPUs, peers ", way.peers, ", graphs ", way.graphs, ", together ",
                             way.together);
                        bool const descends = schedule.name() == "GPipe";
                        CHECK((descends ? descending : ascending).differs(train, way.together) ==
                              "");
                        CHECK(cuda_double::races() == std::vector<std::string>{});
                        halves += watch.count(0, gpipe::Phase::weight_gradient) > 0;
                    }
        });
    CHECK((halves > 10 || toy::sanitized));
}

TEST_CASE("P1 with immediate updates, too") {
    std::size_t const micro_batches = 8;
    Expected const descending(micro_batches, gpipe::schedule::GPipe{}, {8, 8, 8, 5, 8});
    Expected const ascending(micro_batches, gpipe::schedule::GPipeAscending{}, {8, 8, 8, 5, 8});
    std::size_t point = 0;
    toy::each_of_catalogue(
        L, L, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t cells) {
            if (cells > 4) return;
            for (std::size_t gpus : {std::size_t{1}, cells})
                for (std::size_t w = 0; w < 4; ++w) {
                    if (point++ % toy::one_of(5) != 0) continue;
                    Way const way{w % 2 == 0, w / 2 * 2, point % 2 == 0};
                    cuda_double::Session session(session_options(way, gpus, point % 4));
                    auto o = options<Immediately>(8, cells, micro_batches, gpus);
                    set_way(o, way);
                    o.schedule = schedule;
                    toy::Watch watch;
                    Immediately train(make_net(watch), {}, Adam{1e-2f}, o);
                    INFO(schedule.name(), ", K = ", cells, ", ", gpus, " GPUs, peers ", way.peers,
                         ", graphs ", way.graphs, ", together ", way.together);
                    bool const descends = schedule.name() == "GPipe";
                    CHECK((descends ? descending : ascending).differs(train, way.together) == "");
                    CHECK(cuda_double::races() == std::vector<std::string>{});
                }
        });
}

namespace {

// Whether the first GPU, if it is quick, runs the next step's first forward before the second has
// the last weight gradient of this one.
template <class Update> bool overlaps() {
    using Meeting = gpipe::Pipeline<Enqueued<toy::FirstToMeet>, Enqueued<toy::SecondToMeet>>;
    using T = gpipe::Training<Meeting, gpipe::Cells<2>, gpipe::MicroBatches<4>,
                              gpipe::Loss<toy::EnqueuedLoss<toy::MeanSquare<Real, 2>>>,
                              gpipe::Optimizer<Adam>, Cuda, gpipe::schedule::ZeroBubbleH2,
                              gpipe::checkpoint::Never, Update>;
    cuda_double::Session const session({.devices = 2, .first_device = true});
    toy::Overlap meeting{.samples = 8, .seconds = 0};
    toy::FirstToMeet first;
    toy::SecondToMeet second;
    first.meeting = second.meeting = &meeting;
    T train(Meeting(Enqueued<toy::FirstToMeet>(first), Enqueued<toy::SecondToMeet>(second)), {},
            Adam{}, {.samples = 8, .device = {.gpus = {0, 1}}});
    std::vector<Real> const data(16, 0.5f);
    auto one = train.start(data, data), two = train.start(data, data);
    one.result();
    two.result();
    CHECK(cuda_double::races() == std::vector<std::string>{});
    return meeting.met;
}

} // namespace

TEST_CASE(
    "with immediate updates a step that ended well is told as it was, whatever is thrown in the "
    "one behind") {
    cuda_double::Session const session({.devices = 2});
    toy::Watch watch;
    Immediately train(make_net(watch), {}, Adam{1e-2f}, options<Immediately>(8, 2, 2, 2)),
        twin(make_net(watch), {}, Adam{1e-2f}, options<Immediately>(8, 2, 2, 2));
    toy::Data<Real> const data(8, 8);
    double const expected = twin.step(data.inputs, data.targets).loss;
    auto first = train.start(data.inputs, data.targets);
    watch.faults = {{0, 0, gpipe::Phase::backward}};
    CHECK_THROWS_AS(train.start(data.inputs, data.targets), toy::Thrown);
    watch.faults.clear();
    CHECK(first.result().loss == expected);
    CHECK(cuda_double::races() == std::vector<std::string>{});
}

TEST_CASE(
    "with immediate updates a loss that is not finite is no fault of the parts that come next") {
    toy::Data<Real> const data(8, 8), part(5, 5);
    toy::Data<Real> bad = data;
    bad.targets[4] = std::numeric_limits<Real>::quiet_NaN();
    for (std::size_t const graphs : {0, 2})
        for (bool const together : {false, true}) {
            cuda_double::Session const session({.devices = 2});
            toy::Watch watch;
            auto o = options<Immediately>(8, 2, 2, 2);
            o.device.graphs = graphs;
            Immediately train(make_net(watch), {}, Adam{1e-2f}, o),
                twin(make_net(watch), {}, Adam{1e-2f}, o);
            for (int turn = 0; turn < 4; ++turn) {
                auto wrong = train.start(bad.inputs, bad.targets);
                if (!together) CHECK_THROWS_AS(wrong.result(), std::domain_error);
                for (Immediately* const each : {&train, &twin})
                    for (int n = 0; n < turn; ++n) each->accumulate(part.inputs, part.targets);
                CHECK(train.step(data.inputs, data.targets).loss ==
                      twin.step(data.inputs, data.targets).loss);
                if (together) CHECK_THROWS_AS(wrong.result(), std::domain_error);
            }
            CHECK(state_of(train) == state_of(twin));
            CHECK(train.steps() == 4);
            CHECK(cuda_double::races() == std::vector<std::string>{});
        }
}

TEST_CASE("with immediate updates the first GPU begins the next step while the last is not done "
          "with this one") {
    CHECK(overlaps<gpipe::update::Immediate>());
    CHECK_FALSE(overlaps<gpipe::update::AfterCommit>());
}

namespace {

using Dropped = Enqueued<toy::Dropout<Real, 6>>;
template <std::size_t from, std::size_t to> using Dense = Enqueued<toy::Linear<Real, from, to>>;
using Dropping =
    gpipe::Pipeline<Dense<5, 6>, Dropped, Dense<6, 6>, Dropped, Dense<6, 6>, Dropped, Dense<6, 3>>;

// Losses of three steps, and the first parameters behind them.
template <class Update> std::vector<Real> dropping(gpipe::schedule::Dynamic const& schedule) {
    using T = gpipe::Training<Dropping, gpipe::Balance<2, 2, 2, 1>, gpipe::MicroBatches<4>,
                              gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                              Update, Cuda>;
    cuda_double::Session session({.devices = 2});
    auto o = typename T::Options{};
    o.samples = 8;
    o.schedule = schedule;
    o.device.gpus = {0, 1, 0, 1};
    T train({}, {}, Adam{1e-2f}, o);
    std::vector<Real> result(5 * 6);
    for (std::uint32_t i = 0; i < 3; ++i) {
        toy::Data<Real> const data(8, i);
        result.push_back(static_cast<Real>(train.step(data.inputs, data.targets).loss));
    }
    train.read_parameter(0, 0, std::span(result).first(5 * 6));
    return result;
}

} // namespace

TEST_CASE("P2 layers that run after an immediate commit draw the numbers of their own step") {
    toy::each_of_catalogue(4, 4, 4, [](gpipe::schedule::Dynamic schedule, std::size_t devices) {
        CAPTURE(schedule.name());
        if (devices * schedule.cells_per_device() == 4)
            CHECK(dropping<gpipe::update::AfterCommit>(schedule) ==
                  dropping<gpipe::update::Immediate>(schedule));
    });
}

namespace {

// One training of two steps, an evaluation and a prediction; what went wrong, or nothing.
std::string outcome(Expected const& expected, std::size_t cells, std::size_t gpus,
                    gpipe::schedule::Dynamic const& schedule,
                    gpipe::checkpoint::Dynamic const& checkpointing, std::size_t micro_batches,
                    Way const& way) {
    auto o = options(8, cells, micro_batches, gpus);
    set_way(o, way);
    o.schedule = schedule;
    o.checkpointing = checkpointing;
    toy::Watch watch;
    try {
        Train train(make_net(watch), {}, Adam{1e-2f}, o);
        return expected.differs(train, way.together);
    } catch (std::exception const& error) {
        return error.what();
    }
}

// Whether a call can be left out because others imply it. Steps are held apart by marks on the hub,
// which is the first stream and is waited for by the first event; mostly the streams' own order and
// the gradients that come back do that already. And a device has the step's state although none of
// its layers draws random numbers.
bool is_implied(std::string const& call, std::vector<std::string> const& log) {
    bool const is_state = call.find("cudaMemcpyAsync") != std::string::npos &&
                          call.find(" of " + std::to_string(sizeof(gpipe::StepState)) + " bytes") !=
                              std::string::npos;
    if (is_state || call.find("cudaStreamWaitEvent on stream 1 event ") != std::string::npos ||
        call.find(" event 2 (dropped)") != std::string::npos)
        return true;
    std::size_t const event = call.find(" event ");
    if (call.find("cudaEventRecord") == std::string::npos || event == std::string::npos)
        return false;
    std::string const of = call.substr(event, call.find(" (dropped)") - event);
    return std::any_of(log.begin(), log.end(), [&](std::string const& other) {
        return other.ends_with("cudaStreamWaitEvent on stream 1" + of);
    });
}

} // namespace

TEST_CASE("every wait, record and copy is needed: leaving out any one of them is noticed") {
    constexpr std::size_t micro_batches = 3;
    std::size_t dropped = 0;
    std::size_t implied = 0;
    std::size_t turn = 0;
    for (toy::NamedSchedule const& schedule : toy::schedules) {
        Expected const expected(micro_batches, schedule.policy, {8, 8, 8, 8});
        for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
            for (Way const& way : {Way{true, 0, true}, Way{false, 0, true}, Way{true, 2, true}})
                for (std::size_t cells : {2, 4}) {
                    if (turn++ % toy::one_of(47) != 0) continue;
                    for (std::size_t n = 0;; ++n) {
                        cuda_double::Session session(session_options(way, 2, n % 4));
                        cuda_double::drop_call(n);
                        std::string trouble = outcome(expected, cells, 2, schedule.policy,
                                                      checkpointing.policy, micro_batches, way);
                        for (std::string const& race : cuda_double::races()) trouble += race;
                        trouble += cuda_double::complaints();
                        std::string const call = cuda_double::dropped();
                        if (call.empty()) break; // there are no more
                        ++dropped;
                        if (!trouble.empty()) continue;
                        ++implied;
                        CHECK_MESSAGE(is_implied(call, cuda_double::call_log()), schedule.name,
                                      ", ", checkpointing.name, ", K = ", cells, ", peers ",
                                      way.peers, ", graphs ", way.graphs, ": ", call);
                    }
                }
    }
    MESSAGE(dropped, " calls left out, ", implied, " of them implied by others, all else noticed");
    CHECK(dropped * toy::one_of(1) > 200);
    CHECK(implied < dropped / 10);
}

namespace {

// Without it there is no graph, and the step runs on streams: the last two lead the captured
// streams apart and together.
bool is_of_capture(std::string const& call) {
    for (char const* name :
         {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate",
          "cudaGraphLaunch", "cudaEventRecord", "cudaStreamWaitEvent"})
        if (call.find(name) == 0) return true;
    return false;
}

} // namespace

TEST_CASE("P6 whatever call fails, an exception names it, nothing leaks, and a new object trains") {
    constexpr std::size_t micro_batches = 2;
    Expected const expected(micro_batches, gpipe::schedule::GPipe{}, {8, 8, 8, 8});
    for (Way const& way : {Way{}, Way{false, 0, true}, Way{true, 2, true}}) {
        CAPTURE(way.peers);
        CAPTURE(way.graphs);
        auto const make_options = [&] {
            auto o = options(8, 3, micro_batches, 2);
            set_way(o, way);
            return o;
        };
        std::size_t failed = 0, refused = 0, went_on = 0;
        std::vector<std::string> silent;
        // The calls of the first step from its first kernel to its last, when nothing fails.
        std::size_t first_kernel = 0, last_kernel = 0;
        {
            cuda_double::Session session(session_options(way, 2));
            toy::Watch watch;
            Train train(make_net(watch), {}, Adam{1e-2f}, make_options());
            std::size_t const before = cuda_double::calls();
            toy::Data<Real> const data(8, 0);
            train.step(data.inputs, data.targets);
            auto const log = cuda_double::call_log();
            for (std::size_t i = before; i < log.size(); ++i)
                if (log[i].find("cudaLaunchKernel") == 0) {
                    last_kernel = i;
                    if (first_kernel == 0) first_kernel = i;
                }
            REQUIRE(first_kernel < last_kernel);
        }
        for (std::size_t n = 0;; n += toy::one_of(3)) {
            cuda_double::Session session(session_options(way, 2, n % 4));
            cuda_double::fail_call(n, cudaErrorMemoryAllocation);
            toy::Watch watch;
            std::string said;
            bool placed = false;
            bool stepped = false;
            try {
                Train train(make_net(watch), {}, Adam{1e-2f}, make_options());
                stepped = true;
                std::vector<Train::Pending> pending;
                auto const start = [&](std::size_t i) {
                    toy::Data<Real> const data(8, static_cast<std::uint32_t>(i));
                    train.optimizer().learning_rate = rate(i);
                    if (pending.size() <= i)
                        pending.push_back(train.start(data.inputs, data.targets));
                    if (!way.together) static_cast<void>(pending[i].result());
                };
                // The same object trains on, as if nothing had been, or says why it does not.
                bool refuses = false;
                auto const again = [&](std::size_t i) {
                    try {
                        start(i);
                    } catch (std::runtime_error const& refusal) {
                        CHECK(std::string(refusal.what()).find("of no use") != std::string::npos);
                        refuses = true;
                    }
                };
                for (std::size_t i = 0; i < expected.sizes.size() && !refuses; ++i) try {
                        start(i);
                    } catch (gpipe::cuda::Error const& error) {
                        said = error.what();
                        placed = train.failure().has_value();
                        if (pending.size() > i) // it was started, and waiting for it failed
                            refuses = true;
                        else
                            again(i);
                    } catch (std::runtime_error const& refusal) { // after what a handle was told
                        CHECK(std::string(refusal.what()).find("of no use") != std::string::npos);
                        refuses = true;
                    }
                if (refuses) {
                    ++refused;
                    for (Train::Pending& step : pending) try {
                            static_cast<void>(step.result());
                        } catch (gpipe::cuda::Error const& error) {
                            said = error.what();
                        }
                    toy::Data<Real> const data(8, 0);
                    CHECK_THROWS_AS(train.step(data.inputs, data.targets), std::runtime_error);
                } else {
                    try {
                        std::vector<double> losses;
                        for (Train::Pending& step : pending) losses.push_back(step.result().loss);
                        CHECK(losses == expected.losses);
                        went_on += !said.empty();
                        std::vector<Real> const state = state_of(train);
                        CHECK(state == expected.state);
                    } catch (gpipe::cuda::Error const& error) { // in reading
                        said = error.what();
                    }
                }
            } catch (gpipe::cuda::Error const& error) {
                said = error.what();
            }
            if (cuda_double::calls() <= n) break; // there are no more
            INFO("call ", n, ": ", cuda_double::call_log()[n], "; said: ", said);
            if (said.empty()) {
                silent.push_back(cuda_double::call_log()[n]);
            } else {
                ++failed;
                CHECK(said.find("cudaErrorMemoryAllocation") != std::string::npos);
                if (stepped && n >= first_kernel && n <= last_kernel) CHECK(placed);
            }
            CHECK(cuda_double::complaints() == "");
            CHECK(cuda_double::leaks() == std::vector<std::string>{});
            if (n / toy::one_of(3) % 8 != 0) continue;
            Train train(make_net(watch), {}, Adam{1e-2f}, make_options());
            CHECK(expected.differs(train, way.together) == "");
        }
        MESSAGE(failed, " calls failed with an exception, after which the object trained on ",
                went_on, " times and refused ", refused, " times; ", silent.size(),
                " more calls failed in destructors");
        for (std::string const& call : silent)
            CHECK((call.find("Destroy") != std::string::npos ||
                   call.find("Free") != std::string::npos ||
                   call.find("cudaSetDevice") != std::string::npos ||
                   call.find("cudaGetDevice") != std::string::npos ||
                   call.find("cudaStreamSynchronize") != std::string::npos ||
                   (way.graphs > 0 && is_of_capture(call))));
        CHECK(failed * toy::one_of(3) > 800);
    }
}

TEST_CASE("P6 a layer that throws while it enqueues leaves everything as it was") {
    constexpr std::size_t micro_batches = 3;
    Expected const expected(micro_batches, gpipe::schedule::GPipe{}, {8, 7});
    std::size_t point = 0;
    for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
        for (Way const& way : {Way{}, Way{false, 0, true}, Way{true, 1, true}})
            for (gpipe::Phase phase :
                 {gpipe::Phase::forward, gpipe::Phase::recompute, gpipe::Phase::backward})
                for (std::size_t layer = 0; layer < L; ++layer)
                    for (std::size_t first_sample : {0, 3, 6}) {
                        if (point++ % toy::one_of(3) != 0) continue;
                        cuda_double::Session session(session_options(way, 2, layer % 4));
                        auto o = options(8, 3, micro_batches, 2);
                        o.checkpointing = checkpointing.policy;
                        set_way(o, way);
                        toy::Watch watch;
                        Train train(make_net(watch), {}, Adam{1e-2f}, o);
                        toy::Data<Real> const data(8, 0);
                        watch.faults = {{layer, first_sample, phase}};
                        try {
                            train.step(data.inputs, data.targets);
                            continue; // the layer is not called for that
                        } catch (toy::Thrown const& thrown) {
                            CHECK(thrown.at.layer == layer);
                        }
                        watch.faults.clear();
                        REQUIRE(train.failure());
                        CHECK(train.failure()->layer == layer);
                        CHECK(train.steps() == 0);
                        CHECK(expected.differs(train, way.together) == "");
                    }
}

TEST_CASE("P3 a step on GPUs makes nothing and allocates nothing, not even the first") {
    cuda_double::Session session({.devices = 2});
    toy::Watch watch;
    Train train(make_net(watch), {}, Adam{1e-2f}, options(8, 4, 3, 2));
    std::size_t const before = cuda_double::calls();
    toy::Data<Real> const data(8, 0);
    train.step(data.inputs, data.targets);
    train.evaluate(data.inputs, data.targets);
    auto const log = cuda_double::call_log();
    REQUIRE(log.size() > before + 50);
    for (std::size_t i = before; i < log.size(); ++i)
        for (char const* maker : {"Malloc", "Alloc", "Create", "Free", "Destroy"})
            CHECK_MESSAGE(log[i].find(maker) == std::string::npos, log[i]);
}

TEST_CASE("the timeline of a step has its end, with the state of each device, and nothing races") {
    for (std::size_t const k : {1u, 2u, 3u})
        for (std::size_t const graphs : {0u, 1u}) {
            CAPTURE(k);
            cuda_double::Session const doubles(session_options({}, k));
            {
                toy::Watch watch;
                auto o = options(9, k, 3, k); // which clips
                o.device.graphs = graphs;
                Train train(make_net(watch), {}, Adam{1e-2f}, o);
                toy::Data<Real> const data(9);
                train.step(data.inputs, data.targets);
                train.time_actions();
                train.step(data.inputs, data.targets);
                gpipe::Timeline const timeline = train.timeline();
                CHECK(toy::entries_of_cells(timeline) == train.programs().size());
                CHECK(toy::entries_of(timeline, Kind::commit).size() == 1);
                for (Kind const kind : {Kind::sum_squares, Kind::update}) {
                    auto const found = toy::entries_of(timeline, kind);
                    CHECK(found.size() == k); // each has parameters
                    for (std::size_t d = 0; d < found.size(); ++d) CHECK(found[d].device == d);
                }
                CHECK(toy::entries_of(timeline, Kind::take_state).size() == k - 1);
                CHECK(timeline.length() > timeline.makespan());
            }
            CHECK(cuda_double::complaints() == "");
        }
}

TEST_CASE("A6 GPUs that are not there are refused by name") {
    toy::Watch watch;
    auto const made = [&](std::vector<int> gpus, gpipe::Link link = gpipe::Link::shared) {
        auto o = options(8, 2, 2, 1);
        o.device.gpus = std::move(gpus);
        o.device.link = link;
        Train train(make_net(watch), {}, Adam{1e-2f}, o);
        return train.cells();
    };
    {
        cuda_double::Session session({.missing = cudaErrorNoDevice});
        CHECK_THROWS_AS(made({}), gpipe::cuda::NoDevice);
    }
    {
        cuda_double::Session session({.devices = 1});
        CHECK_THROWS_AS(made({}), gpipe::cuda::TooFewDevices);
        CHECK_THROWS_AS(made({0}), std::invalid_argument);
        CHECK_THROWS_WITH_AS(made({0, 1}), "gpipe: there is no GPU 1, but 1 of them",
                             std::invalid_argument);
        CHECK_THROWS_AS(made({-1, 0}), std::invalid_argument);
        CHECK(made({0, 0}) == 2);
        // It would be copied by nobody.
        CHECK_THROWS_WITH_AS(made({0, 0}, gpipe::Link::sent),
                             "gpipe: GPUs of one process are linked by Link::shared, copied or "
                             "staged, not by messages",
                             std::invalid_argument);
    }
}

TEST_CASE("G3 GPUs without peer access hand tensors over through the host's memory") {
    constexpr std::size_t micro_batches = 3;
    Expected const expected(micro_batches, gpipe::schedule::GPipe{}, {8, 7});
    cuda_double::Session session(
        {.devices = 2, .peers = [](int from, int to) { return from < to; }});
    toy::Watch watch;
    Train train(make_net(watch), {}, Adam{1e-2f}, options(8, 4, micro_batches, 2));
    CHECK(expected.differs(train) == "");
    for (std::string const& call : cuda_double::call_log())
        CHECK_MESSAGE(call.find("cudaMemcpyPeerAsync") == std::string::npos, call);
}

namespace {

// Launches and does not ask whether that went well, as <<<...>>> does not.
struct Careless {
    using Input = gpipe::Tensor<Real, 3>;
    using Output = Input;
    void forward(auto& context, auto x, auto y) const {
        toy::Ranges ranges;
        ranges.add(x);
        ranges.add(y);
        static_cast<void>(cuda_double::launch(
            context.stream(), [x, y] { std::copy(x.begin(), x.end(), y.begin()); }, ranges.reads,
            ranges.writes, "careless"));
    }
    void backward(auto&, auto, auto, auto) const {}
};

} // namespace

TEST_CASE("a launch that fails is the failure of the layer that launched") {
    using Chain =
        gpipe::Pipeline<Enqueued<toy::Tanh<Real, 3>>, Careless, Enqueued<toy::Tanh<Real, 3>>>;
    using Chained = toy::Training<Chain, Loss, Adam, Cuda>;
    std::vector<Real> const x(4 * 3, Real(0.5)), t(4 * 3);
    bool launched = false;
    for (std::size_t n = 0; !launched; ++n) {
        cuda_double::Session session;
        Chained::Options o;
        o.samples = 4;
        o.cells = 1;
        o.micro_batches = 2;
        o.device.gpus = gpipe::gpus(0);
        Chained train(Chain{}, {}, Adam{}, o);
        cuda_double::fail_call(n, cudaErrorLaunchOutOfResources);
        std::string said;
        try {
            train.evaluate(x, t);
        } catch (gpipe::cuda::Error const& error) {
            said = error.what();
        }
        auto const log = cuda_double::call_log();
        REQUIRE(n < log.size());
        if (!train.failure() || train.failure()->layer != 1) continue;
        launched = true;
        CHECK(said.find("cudaErrorLaunchOutOfResources") != std::string::npos);
        CHECK(train.failure()->micro_batch == 0);
    }
    CHECK(launched);
}
