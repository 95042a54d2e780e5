// Whatever can be chosen of a training, chosen together: a seeded sample, which covers all pairs of
// choices that there are, against one device that recomputes nothing. What each of them does by
// itself has a file of its own. On GPUs: cuda_double/together.cpp.
#include "support/together.hpp"
#include "support/ranks.hpp"

#include <gpipe/inference.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace {

using gpipe::device::Host;
using gpipe::shard::Nothing;
using gpipe::shard::OptimizerState;
using toy::Choice;
using toy::Deferred;
using toy::Remote;
using toy::together::OfThreads;
using toy::together::run;
using toy::together::Shared;
using toy::together::Steps;
using enum toy::together::Factor;
using Net = toy::TogetherNet;
using Data = toy::TogetherData;
using Loss = toy::together::Loss;

template <class Device, class... Policies>
using TrainOf = toy::together::TrainOf<Net, Loss, Device, Policies...>;
template <class Shard> using OfRanks = TrainOf<toy::Wired, gpipe::Replicas<gpipe::dynamic, Shard>>;

enum Own : std::size_t {
    where = factors, // Host, Deferred, Remote, ranks, replicas in one process
    way              // threads, or links and orders of what is deferred, or who has which devices
};
char const* refused(Choice const& choice) {
    auto const is = [&](std::size_t factor, std::size_t level) {
        return toy::together::is(choice, factor, level);
    };
    auto const known = [&](std::size_t factor) { return toy::together::known(choice, factor); };
    if (choice[where] < 3 && ((known(replicas) && choice[replicas] > 0) || is(shards, 1)))
        return "replicas are ranks, or threads of one process";
    if (is(where, 4) && is(replicas, 0)) return "one replica is none";
    if (is(where, 3) && is(replicas, 0) && is(devices, 0)) return "one device is one rank";
    if (is(update, 1) && (is(where, 3) || is(shards, 1)))
        return "not compiled: see immediate_replicas.cpp";
    return toy::together::refused(choice);
}

// What it has learnt gives the same outputs, evaluated by any other devices.
template <class Device, class T> void check_inference(T& train, Choice const& choice) {
    using Infer = gpipe::Inference<Net, gpipe::Cells<gpipe::dynamic>,
                                   gpipe::MicroBatches<gpipe::dynamic>, Device>;
    typename Infer::Options o;
    o.samples = 5;
    o.cells = 1 + choice[slack];
    o.micro_batches = toy::together::counts_of_micro_batches[choice[micro_batches]];
    o.device = toy::runs<Device>()[choice[parts]];
    o.debug = choice[debug] == 0;
    Infer infer(Net{}, o);
    infer.copy_from(train);
    Data const data(8 * (choice[parts] + 1) - 1, 77);
    std::vector<float> outputs(data.targets.size()), expected(data.targets.size());
    infer.template constant<toy::Heat>().value = train.template constant<toy::Heat>().value = 0.75f;
    infer.predict(data.batch(choice[shift] != 0), outputs);
    train.predict(data.batch(choice[shift] != 0), expected);
    CHECK(outputs == expected);
    CHECK(infer.used_bytes() == infer.planned_bytes());
}
template <class Device, class... Update>
std::vector<double> run_on(Choice const& choice, Steps& steps) {
    using T = TrainOf<Device, Update...>;
    auto o = toy::together::all_options<T>(choice);
    o.device = toy::runs<Device>()[choice[way]];
    Shared shared(choice);
    T train(shared.net(), {}, toy::together::optimizer(choice), o);
    auto const seen = run(train, choice, shared, steps);
    check_inference<Device>(train, choice);
    return seen;
}
template <class Shard, class... Update>
std::vector<double> run_in_threads(Choice const& choice, Steps& steps) {
    using T = OfThreads<Shard, Update...>;
    auto o = toy::together::all_options<T>(choice);
    o.device.threads = choice[way];
    return toy::together::run_alone<T>(o, choice, steps);
}
// Of the devices of a replica each rank has some.
std::vector<std::size_t> split(std::size_t count, std::size_t how) {
    if (how == 0) return std::vector<std::size_t>(count, 1);
    if (count == 1 || how == 1) return {count};
    return {how == 2 ? 1 : count - 1, how == 2 ? count - 1 : 1};
}
template <class Shard> std::vector<double> run_on_ranks(Choice const& choice, Steps& steps) {
    using T = OfRanks<Shard>;
    Shared shared(choice);
    auto const o = toy::together::all_options<T>(choice);
    std::vector<std::size_t> ranks; // how many devices each has
    for (std::size_t r = 0; r < o.replicas; ++r)
        for (std::size_t const own : split(o.cells, choice[way])) ranks.push_back(own);
    if (ranks.size() == 1) ranks = {1, o.cells - 1};
    toy::Crew<T> crew(ranks, choice[slack] == 0, 1 + choice[way] % 2,
                      [&](std::size_t, toy::Rank::Options device) {
                          auto own = o;
                          own.device = device;
                          return std::make_unique<T>(shared.net(), Loss{},
                                                     toy::together::optimizer(choice), own);
                      });
    return run(crew, choice, shared, steps);
}
template <class... Update> std::vector<double> updated(Choice const& choice, Steps& steps) {
    if (choice[where] == 0) return run_on<Host, Update...>(choice, steps);
    if (choice[where] == 1) return run_on<Deferred, Update...>(choice, steps);
    if (choice[where] == 2) return run_on<Remote, Update...>(choice, steps);
    return run_in_threads<Nothing, Update...>(choice, steps);
}
std::vector<double> found(Choice const& choice, Steps& steps) {
    if (choice[update] == 1) return updated<gpipe::update::Immediate>(choice, steps);
    bool const whole = choice[shards] == 0;
    if (choice[where] == 3)
        return whole ? run_on_ranks<Nothing>(choice, steps)
                     : run_on_ranks<OptimizerState>(choice, steps);
    return whole ? updated<>(choice, steps) : run_in_threads<OptimizerState>(choice, steps);
}

} // namespace

TEST_CASE("P1 P3 P5 P6 a sample of 200 trainings in which each choice stands with each other") {
    std::size_t const trainings = toy::long_tests() ? 5000 : toy::sanitized ? 20 : 200;
    toy::together::check_sample({toy::together::levels({5, 4}), refused, 9}, refused, trainings, {},
                                found);
}
