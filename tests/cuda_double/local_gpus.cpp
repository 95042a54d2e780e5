// Replicas of one process with GPUs each, on a double of CUDA: what they compute, and what becomes
// of them when something fails.
#include "support/enqueued_net.hpp"
#include "support/enqueued_norm.hpp"
#include "support/folder.hpp"
#include "support/gpu_replicas.hpp"

#include <gpipe/replicas.hpp>
#include <gpipe/state/state.hpp>
#include <gpipe/transport/local_gpus.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Cuda;
using toy::Fault;

using Real = float;
using Net = toy::EnqueuedNet<Real>;
Net make_net(toy::Watch& watch) { return toy::make_enqueued_net<Real>(watch); }
using ExchangeNet = toy::ExchangeNetOf<Real, toy::WatchedEnqueued>;
toy::ExchangeNet<Real> make_exchange_net_on_host(toy::Watch&) { return {}; }
using Loss = toy::MeanSquare<Real, 3>;

template <class Shard, class OnGpu = Net, class... Policies>
using OnGpus =
    gpipe::Training<OnGpu, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<toy::EnqueuedLoss<Loss>>, gpipe::Optimizer<Adam>, Cuda,
                    gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic,
                    gpipe::Replicas<gpipe::dynamic, Shard>, Policies...>;
using Train = OnGpus<gpipe::shard::Nothing>;

// Replica after replica, of as many GPUs as it has devices; or all of them on one.
std::vector<int> gpus(std::size_t count, bool one) {
    std::vector<int> all(count);
    for (std::size_t g = 0; g < count; ++g) all[g] = one ? 0 : static_cast<int>(g);
    return all;
}
cuda_double::Options session(std::size_t devices, std::uint64_t order, bool peers) {
    return {.devices = static_cast<int>(devices), .seed = order, .peers = [=](int, int) {
                return peers;
            }};
}

// What both have that is not the same; nothing if that is nothing.
template <class Net, class A, class B> std::string differs(A& a, B& b, bool looks_at_gradients) {
    auto const layers = Net::layers();
    for (std::size_t l = 0; l < layers.size(); ++l)
        for (std::size_t t = 0; t < layers[l].parameters.count; ++t) {
            std::string const where = std::to_string(t) + " of layer " + std::to_string(l);
            std::vector<std::byte> one(layers[l].parameters.bytes[t]), other(one.size());
            a.read_parameter(l, t, std::span(one));
            b.read_parameter(l, t, std::span(other));
            if (one != other) return "parameter " + where;
            if (!looks_at_gradients) continue;
            a.read_gradient(l, t, std::span(one));
            b.read_gradient(l, t, std::span(other));
            if (one != other) return "gradient " + where;
        }
    return "";
}

template <class Shard, auto on_gpus = &make_net, auto on_host = &toy::make_net<Real>,
          class... Policies>
void train_alike(std::size_t points) {
    using OnGpu = decltype(on_gpus(std::declval<toy::Watch&>()));
    using T = OnGpus<Shard, OnGpu, Policies...>;
    constexpr bool shards = std::is_same_v<Shard, gpipe::shard::OptimizerState>;
    toy::each_replica_case<Shard, Loss, on_host>(
        points, sizeof...(Policies) == 0,
        [](toy::ReplicaCase const& of, auto& host, toy::Watch& watch) {
            bool const one = of.number % 4 == 1, together = of.number % 2 == 1;
            std::size_t const devices = of.cells * of.replicas;
            cuda_double::Session const doubles(session(devices, of.number % 5, of.number % 3 == 0));
            auto o = of.on_gpus<typename T::Options>();
            o.cells = of.cells;
            o.device.gpus = gpus(devices, one);
            o.debug = of.number % 5 == 2;
            {
                T train(on_gpus(watch), {}, Adam{1e-2f}, o);
                std::vector<typename T::Pending> pending;
                std::vector<double> losses;
                for (std::size_t const size : of.sizes) {
                    auto const data = of.data(size);
                    if (size % 2 == 1) train.accumulate(data.inputs, data.targets);
                    pending.push_back(train.start(data.inputs, data.targets));
                    if (!together) static_cast<void>(pending.back().result());
                }
                for (auto& step : pending) losses.push_back(step.result().loss);
                CHECK((losses == of.losses));
                auto const held_out = of.held_out();
                CHECK(train.evaluate(held_out.inputs, held_out.targets).loss ==
                      host.evaluate(held_out.inputs, held_out.targets).loss);
                std::vector<Real> outputs(held_out.targets.size()), others(outputs.size());
                train.predict(held_out.inputs, std::span(outputs));
                host.predict(held_out.inputs, std::span(others));
                CHECK((outputs == others));
                CHECK(differs<OnGpu>(train, host, !shards) == "");
            }
            CHECK(cuda_double::complaints() == "");
        });
}

} // namespace

TEST_CASE("P1 replicas on GPUs of one process train as those on the host, in every bit, in any "
          "order that streams allow, on a GPU each or all on one, with peer access or without") {
    train_alike<gpipe::shard::Nothing>(149);
}

TEST_CASE("P1 and so they do where each has a part of the optimizer's state") {
    train_alike<gpipe::shard::OptimizerState>(197);
}

TEST_CASE_TEMPLATE("P1 and where each device updates at once", Shard, gpipe::shard::Nothing,
                   gpipe::shard::OptimizerState) {
    train_alike<Shard, &make_net, &toy::make_net<Real>, gpipe::update::Immediate>(139);
}

TEST_CASE("P1 and where they tell each other something within a micro-batch") {
    train_alike<gpipe::shard::Nothing, &toy::made_with<ExchangeNet>, &make_exchange_net_on_host>(
        199);
}

namespace {

// Two replicas of two devices.
Train::Options of_two(std::size_t micro_batches = 3) {
    Train::Options o;
    o.samples = 8;
    o.seed = 7;
    o.micro_batches = micro_batches;
    o.cells = 2;
    o.replicas = 2;
    o.clip_norm = 0.05;
    return o;
}
std::vector<std::byte> state_of(Train& train) {
    std::vector<std::byte> all;
    auto const layers = Net::layers();
    for (std::size_t l = 0; l < layers.size(); ++l)
        for (std::size_t t = 0; t < layers[l].parameters.count; ++t) {
            std::vector<std::byte> one(layers[l].parameters.bytes[t]);
            train.read_parameter(l, t, std::span(one));
            all.insert(all.end(), one.begin(), one.end());
        }
    return all;
}

} // namespace

TEST_CASE("P6 what throws in a replica on GPUs surfaces as it was thrown, wherever that was, by "
          "the handle of its step, changes nothing, and training goes on") {
    cuda_double::Session const doubles(session(4, 2, true));
    toy::Watch watch;
    toy::Data<Real> const data(13);
    {
        auto const make = [&] {
            return std::make_unique<Train>(make_net(watch), toy::EnqueuedLoss<Loss>{}, Adam{1e-2f},
                                           of_two());
        };
        auto const train = make(), other = make();
        std::uint64_t steps = 0;
        for (std::size_t const sample : {0, 3, 7, 9}) // of the second replica the last two
            for (auto const phase : {toy::Phase::forward, toy::Phase::backward})
                for (int const behind : {0, 1, 2}) { // steps that are started and not waited for
                    INFO("sample ", sample, ", ", behind, " behind");
                    auto const before = state_of(*train);
                    watch.faults = {{3, sample, phase}};
                    auto failing = train->start(data.inputs, data.targets);
                    watch.faults.clear();
                    std::vector<Train::Pending> more;
                    for (int n = 0; n < behind; ++n)
                        more.push_back(train->start(data.inputs, data.targets));
                    CHECK_THROWS_AS(failing.result(), toy::Thrown);
                    if (behind == 0) CHECK((state_of(*train) == before));
                    for (Train::Pending& step : more)
                        CHECK(step.result().loss == other->step(data.inputs, data.targets).loss);
                    CHECK(train->steps() == (steps += static_cast<std::uint64_t>(behind)));
                    { // whose handle is gone: the next call throws
                        watch.faults = {{3, sample, phase}};
                        static_cast<void>(train->start(data.inputs, data.targets));
                        watch.faults.clear();
                    }
                    if (behind == 2)
                        CHECK_THROWS_AS(train->evaluate(data.inputs, data.targets), toy::Thrown);
                    else if (behind == 1)
                        CHECK_THROWS_AS(train->compute_gradients(data.inputs, data.targets),
                                        toy::Thrown);
                    else
                        CHECK_THROWS_AS(state_of(*train), toy::Thrown);
                    CHECK(train->step(data.inputs, data.targets).loss ==
                          other->step(data.inputs, data.targets).loss);
                    ++steps;
                }
        CHECK((state_of(*train) == state_of(*other)));
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("whatever call of CUDA fails in a replica, that is thrown, nobody waits for ever, and "
          "nothing is left behind") {
    std::size_t failed = 0;
    for (int const what : {0, 1, 2, 3})
        for (std::size_t n = 0;; n += toy::one_of(what == 0 ? 127 : 79)) {
            INFO("call ", n, " of ", what);
            cuda_double::Session const doubles(session(4, n % 4, n % 3 == 0));
            toy::Watch watch;
            toy::Data<Real> const data(13);
            std::vector<Real> outputs(3 * 13);
            if (what == 0) cuda_double::fail_call(n, cudaErrorInvalidValue);
            bool threw = false, over = false;
            auto const attempt = [&](auto f) {
                try {
                    f();
                } catch (std::runtime_error const&) {
                    threw = true;
                }
            };
            attempt([&] {
                auto o = of_two(2);
                o.debug = n % 3 == 1 && n < 1000; // which looks again and again: calls without end
                Train train(make_net(watch), {}, Adam{1e-2f}, o);
                std::size_t const before = cuda_double::calls();
                if (what > 0) cuda_double::fail_call(n, cudaErrorInvalidValue);
                for (int i = 0; i < 2; ++i) // once more, whatever became of it
                    attempt([&] {
                        if (what == 1) train.predict(data.inputs, std::span(outputs));
                        if (what == 2) train.compute_gradients(data.inputs, data.targets);
                        if (what == 3) train.accumulate(data.inputs, data.targets);
                        auto first = train.start(data.inputs, data.targets);
                        auto second = train.start(data.inputs, data.targets);
                        static_cast<void>(first.result());
                        static_cast<void>(second.result());
                    });
                over = !threw && n >= cuda_double::calls() - before;
            });
            for (std::string const& leak : cuda_double::leaks()) CHECK(leak == "");
            for (std::string const& fault : cuda_double::faults()) CHECK(fault == "");
            static_cast<void>(cuda_double::complaints());
            if (over || (what == 0 && !threw && n >= cuda_double::calls())) break;
            failed += threw;
        }
    CHECK(failed > 0);
    MESSAGE(failed << " failed calls");
}

TEST_CASE(
    "P1 waits, records and copies that are left out of a step of replicas are races, or change "
    "what is trained") {
    std::size_t dropped = 0, noticed = 0;
    toy::Watch watch;
    toy::Data<Real> const data(13);
    std::vector<double> expected;
    for (std::size_t n = 0; n <= 3000; n += toy::one_of(13)) {
        cuda_double::Session const doubles(session(4, n % 4, true));
        std::vector<double> losses;
        try {
            Train train(make_net(watch), {}, Adam{1e-2f}, of_two(2));
            losses.push_back(train.step(data.inputs, data.targets).loss);
            if (!expected.empty()) cuda_double::drop_call(n);
            for (int i = 0; i < 3; ++i)
                losses.push_back(train.step(data.inputs, data.targets).loss);
        } catch (std::exception const&) { // replicas see that they are not alike any more
        }
        bool const races = !cuda_double::races().empty();
        static_cast<void>(cuda_double::complaints());
        if (expected.empty()) {
            expected = losses;
            CHECK(!races);
            continue;
        }
        if (cuda_double::dropped().empty()) break;
        ++dropped;
        noticed += races || losses != expected;
    }
    MESSAGE(noticed << " of " << dropped << " noticed"); // others order what others do, too
    CHECK((3 * noticed > dropped || dropped < 10));      // fewer: under sanitizers
}

TEST_CASE("P3 what replicas need beside the plan is made with them, not in a step") {
    cuda_double::Session const doubles(session(4, 0, true));
    toy::Watch watch;
    toy::Data<Real> const data(13);
    Train train(make_net(watch), {}, Adam{1e-2f}, of_two());
    auto const made = [] {
        return cuda_double::count("cudaEventCreateWithFlags") +
               cuda_double::count("cudaDeviceEnablePeerAccess") + cuda_double::count("cudaMalloc");
    };
    std::size_t const before = made();
    for (int i = 0; i < 2; ++i) train.step(data.inputs, data.targets);
    CHECK(made() == before);
}

TEST_CASE("what one call is refused for is told, and training goes on") {
    for (std::size_t const replicas : {1, 2}) {
        cuda_double::Session const doubles(session(4, 0, true));
        toy::Watch watch;
        toy::Data<Real> const data(13);
        auto o = of_two();
        o.samples = 13;
        o.replicas = replicas;
        Train train(make_net(watch), {}, Adam{1e-2f}, o);
        train.step(data.inputs, data.targets);
        static_cast<void>(cudaSetDevice(77)); // an error of the caller's own
        CHECK_THROWS_AS(train.step(data.inputs, data.targets), gpipe::cuda::Error);
        CHECK(train.step(data.inputs, data.targets).weight == 13);
        gpipe::cuda::Stream const stream(0);
        CHECK_THROWS_AS(train.start(data.inputs, data.targets, stream.get()),
                        std::invalid_argument); // pageable
        CHECK(train.step(data.inputs, data.targets).weight == 13);
        CHECK(train.steps() == 3);
        train.optimizer().learning_rate = std::numeric_limits<float>::quiet_NaN();
        CHECK_THROWS_WITH_AS(train.step(data.inputs, data.targets),
                             "gpipe: the optimizer's learning_rate is nan, and has to be finite",
                             std::invalid_argument);
        train.optimizer().learning_rate = 1e-2f;
        CHECK(train.step(data.inputs, data.targets).weight == 13);
        CHECK(train.steps() == 4);
    }
}

TEST_CASE("P6 what throws in one replica leaves the loss scale as it was, though the gradients of "
          "another overflow") {
    cuda_double::Session const doubles(session(4, 1, true));
    toy::Watch watch;
    toy::Data<Real> const data(16);
    auto large = data;
    for (std::size_t i = 0; i < 8 * 3; ++i) large.targets[i] = 1e18f; // of the first replica
    auto o = of_two();
    o.loss_scale = gpipe::LossScale::dynamic(0x1p70, 2, 0.25, 2);
    o.loss_scale.most = 0x1p80;
    Train train(make_net(watch), {}, Adam{1e-2f}, o), other(make_net(watch), {}, Adam{1e-2f}, o);
    watch.faults = {{3, 11, toy::Phase::backward}}; // in the second
    CHECK_THROWS_AS(train.step(large.inputs, large.targets), toy::Thrown);
    watch.faults.clear();
    for (int i = 0; i < 3; ++i) {
        CHECK(train.step(data.inputs, data.targets).loss ==
              other.step(data.inputs, data.targets).loss);
        CHECK(train.loss_scale() == other.loss_scale());
    }
    CHECK(other.step(large.inputs, large.targets).skipped()); // they would
}

TEST_CASE("whatever call of CUDA fails while a state is copied, that is thrown, no replica waits "
          "for ever, and the next try saves") {
    toy::Folder const folder;
    std::size_t failed = 0;
    for (std::size_t n = 0, last = 1; n < last; n += toy::one_of(7)) {
        CAPTURE(n);
        cuda_double::Session const doubles(session(4, n % 4, true));
        toy::Watch watch;
        auto o = of_two();
        o.snapshot = true;
        Train train(make_net(watch), {}, Adam{1e-2f}, o);
        toy::Data<Real> const data(13);
        train.step(data.inputs, data.targets);
        std::size_t const before = cuda_double::calls();
        cuda_double::fail_call(n, cudaErrorInvalidValue);
        try {
            gpipe::start_save(train, folder / "state").wait();
        } catch (gpipe::cuda::Error const&) {
            ++failed;
        }
        last = cuda_double::calls() - before;
        CHECK_NOTHROW(gpipe::start_save(train, folder / "state").wait());
        CHECK(gpipe::saved_state(folder / "state").steps == 1);
    }
    CHECK(failed > 0);
}

TEST_CASE("after an error of a device every call says that it was one") {
    cuda_double::Session const doubles(session(4, 0, true));
    toy::Watch watch;
    toy::Data<Real> const data(13);
    Train train(make_net(watch), {}, Adam{1e-2f}, of_two());
    train.step(data.inputs, data.targets);
    std::vector<Real> outputs(3 * 13);
    bool lost = false; // by which call, is up to the schedule
    for (std::size_t n = 200; n < 260 && !lost; ++n) {
        cuda_double::fail_call(n, cudaErrorInvalidValue);
        try {
            train.compute_gradients(data.inputs, data.targets);
        } catch (std::runtime_error const&) {
        }
        auto const said = toy::thrown_by([&] { train.evaluate(data.inputs, data.targets); });
        lost = !said.empty();
        if (!lost) continue;
        for (int i = 0; i < 2; ++i) {
            std::string const again =
                i == 0 ? toy::thrown_by([&] { train.predict(data.inputs, std::span(outputs)); })
                       : toy::thrown_by([&] { train.step(data.inputs, data.targets); });
            CHECK_MESSAGE(toy::has(again, "has an error of its device"), again);
        }
        CHECK_MESSAGE(toy::has(said, "has an error of its device"), said);
    }
    CHECK(lost);
    static_cast<void>(cuda_double::complaints());
}

TEST_CASE("between the same two devices all replicas have the slowest link of any") {
    cuda_double::Session const doubles(
        {.devices = 4, .peers = [](int a, int b) { return a < 2 && b < 2; }});
    toy::Watch watch;
    toy::Data<Real> const data(13);
    for (std::vector<int> const& gpus : {std::vector{0, 1, 2, 2}, std::vector{0, 1, 2, 3}}) {
        auto o = of_two();
        o.device.gpus = gpus;
        Train train(make_net(watch), {}, Adam{1e-2f}, o);
        CHECK(train.step(data.inputs, data.targets).weight == 13);
    }
}

TEST_CASE("P10 GPUs that are too few, and graphs, are refused") {
    cuda_double::Session const doubles(session(3, 0, true));
    toy::Watch watch;
    auto const refused = [&](Train::Options const& o, char const* words) {
        CHECK_THROWS_WITH(Train(make_net(watch), {}, Adam{1e-2f}, o), words);
    };
    refused(of_two(), "gpipe: 4 GPUs are needed, but CUDA sees only 3: Options::device.gpus "
                      "may name one for several devices");
    auto o = of_two();
    o.device.gpus = {0, 1, 2};
    refused(o, "gpipe: Options::device.gpus has 3 entries for 2 replicas of 2 devices each");
    o.device.gpus = {0, 1, 2, 3};
    refused(o, "gpipe: there is no GPU 3, but 3 of them");
    o.device.gpus = {0, 1, 1, 0};
    o.device.graphs = 1;
    refused(o, "gpipe: Options::device.graphs is 0 where replicas are in one process: those that "
               "transport::Nccl joins may keep their steps as graphs");
    o.device.graphs = 0;
    Train train(make_net(watch), {}, Adam{1e-2f}, o);
    toy::Data<Real> const data(13);
    CHECK(train.step(data.inputs, data.targets).weight == 13);
}
