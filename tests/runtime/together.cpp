// Whatever can be chosen of a training, chosen together by chance: a seeded sample, which covers
// nearly all pairs of choices, against one device that recomputes nothing. What each of them does
// by itself has a file of its own.
#include "support/net.hpp"
#include "support/ranks.hpp"
#include "support/together_net.hpp"

#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::dynamic;
using gpipe::LossScale;
using gpipe::device::Host;
using gpipe::shard::Nothing;
using gpipe::shard::OptimizerState;
using toy::Deferred;
using toy::Remote;
using Real = float;

using Net = toy::TogetherNet;
using toy::Heat;
using Data = toy::TogetherData;
constexpr std::size_t L = Net::size;
using Loss = toy::MeanSquare<Real, 3>;

template <class Device, class... Policies>
using TrainOf = gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>,
                                gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                                gpipe::checkpoint::Dynamic, Device, Policies...>;
template <class Shard> using OfThreads = TrainOf<Host, gpipe::Replicas<dynamic, Shard>>;
template <class Shard> using OfRanks = TrainOf<toy::Wired, gpipe::Replicas<dynamic, Shard>>;

/// What is chosen, by factor: levels from 0 on.
enum Factor {
    where, // Host, Deferred, Remote, ranks, replicas in one process
    micro_batches,
    programs, // schedule and number of devices
    checkpointing,
    way,      // threads, or links and orders of what is deferred, or who has which devices
    replicas, // 1 to 3, where there are any
    shards,
    frozen,
    gradients, // as they are, clipped, looked at
    scale,     // none, fixed, one that moves
    slack,
    debug,
    parts,   // that are accumulated before some steps
    between, // nothing, an evaluation, gradients alone
    sizes,   // full; uneven; with empty micro-batches
    fails,   // nothing, a layer once
    factors
};
using Choice = std::vector<std::size_t>;
constexpr std::size_t counts_of_micro_batches[] = {1, 3, 4, 8};

struct Programs {
    gpipe::schedule::Dynamic schedule;
    std::size_t devices;
};
std::vector<Programs> programs_of(std::size_t m) {
    std::vector<Programs> all;
    toy::each_of_catalogue(4, L, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        all.push_back({schedule, k});
    });
    return all;
}
std::vector<std::size_t> levels_of(std::size_t m) {
    return {5,
            4,
            programs_of(m).size(),
            toy::every_checkpointing().size(),
            4,
            3,
            2,
            5,
            3,
            3,
            3,
            2,
            3,
            3,
            3,
            2};
}
Choice chosen(std::mt19937_64& random) {
    std::size_t const m = random() % 4;
    std::vector<std::size_t> const levels = levels_of(counts_of_micro_batches[m]);
    Choice choice;
    for (std::size_t const count : levels) choice.push_back(random() % count);
    choice[micro_batches] = m;
    if (choice[where] < 3) choice[replicas] = choice[shards] = 0;
    if (choice[where] == 4 && choice[replicas] == 0) choice[replicas] = 1;
    return choice;
}
std::string words(Choice const& choice) {
    std::string text;
    for (std::size_t const level : choice) text += std::to_string(level) + ' ';
    auto const all = programs_of(counts_of_micro_batches[choice[micro_batches]]);
    return text + std::string(all[choice[programs]].schedule.name()) +
           ", K = " + std::to_string(all[choice[programs]].devices) + ", " +
           toy::every_checkpointing()[choice[checkpointing]].name;
}

// All but what no bit depends on.
template <class T> typename T::Options options(Choice const& choice) {
    typename T::Options o;
    o.samples = 8;
    o.seed = 7;
    o.cells = 1;
    o.micro_batches = counts_of_micro_batches[choice[micro_batches]];
    o.frozen = std::vector<std::vector<std::size_t>>{{}, {0}, {7, 11}, {7}, {0}}[choice[frozen]];
    if (choice[frozen] == 3) o.frozen_parameters = {{0, 1}, {11, 0}};
    if (choice[frozen] == 4) o.frozen_parameters = {{2, 0}, {5, 0}}; // the ends of a tie
    o.clip_norm = choice[gradients] == 1 ? 0.05 : 0;
    o.finite_gradients = choice[gradients] == 2;
    o.loss_scale = std::vector<LossScale>{
        {}, LossScale::fixed(256), LossScale::dynamic(1 << 14, 4, 0.25, 2)}[choice[scale]];
    return o;
}
template <class T> typename T::Options all_options(Choice const& choice) {
    auto o = options<T>(choice);
    Programs const chosen = programs_of(o.micro_batches)[choice[programs]];
    o.cells = chosen.devices;
    o.schedule = chosen.schedule;
    o.checkpointing = toy::every_checkpointing()[choice[checkpointing]].policy;
    o.slack = std::vector<std::size_t>{gpipe::no_wait, 1, 0}[choice[slack]];
    o.debug = choice[debug] == 1;
    return o;
}

std::size_t skips = 0, failures = 0; // of all trainings

// Trains, and what is to be seen of it: numbers, and in the end all that it has.
template <class T> std::vector<double> run(T& train, Choice const& choice, std::atomic<bool>& now) {
    std::size_t const all = choice[replicas] + 1;
    std::vector<std::size_t> const samples =
        std::vector<std::vector<std::size_t>>{{8, 8, 8}, {8, 7, 5}, {8, 2, 3}}[choice[sizes]];
    std::vector<double> seen;
    for (std::size_t i = 0; i < 4; ++i) {
        Data const data(samples[i % 3] * all, static_cast<std::uint32_t>(i));
        Data const part(i % 2 ? all : 8 * all - 1, static_cast<std::uint32_t>(9 + i));
        toy::heat(train, 1 + static_cast<Real>(i) / 4);
        if (choice[between] == 2)
            seen.push_back(train.compute_gradients(data.batch(), data.targets).loss);
        for (std::size_t p = 0; p < choice[parts] && i != 1; ++p)
            train.accumulate(part.batch(), part.targets);
        if (choice[between] == 1) seen.push_back(train.evaluate(data.batch(), data.targets).loss);
        now = choice[fails] == 1 && i == 2;
        try {
            auto const result = train.step(data.batch(), data.targets);
            seen.insert(seen.end(), {result.loss, result.weight, double(result.skipped())});
            if (!result.skipped()) seen.push_back(result.gradient_norm);
            skips += result.skipped();
        } catch (std::exception const&) {
            seen.push_back(-1);
            ++failures;
        }
        now = false;
    }
    toy::add_state<Net>(train, seen);
    return seen;
}
Net net_of(std::atomic<bool>& now) {
    Net net;
    toy::trips_of(net).now = &now;
    return net;
}

template <class T> std::vector<double> run_alone(typename T::Options o, Choice const& choice) {
    std::atomic<bool> now = false;
    T train(net_of(now), {}, Adam{1e-2f}, o);
    auto const seen = run(train, choice, now);
    CHECK(train.used_bytes() == train.planned_bytes());
    return seen;
}
// What it has learnt gives the same outputs, evaluated by any other devices.
template <class Device, class T> void check_inference(T& train, Choice const& choice) {
    using Infer =
        gpipe::Inference<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>, Device>;
    typename Infer::Options o;
    o.samples = 5;
    o.cells = 1 + choice[slack];
    o.micro_batches = counts_of_micro_batches[choice[micro_batches]];
    o.device = toy::runs<Device>()[choice[parts]];
    o.debug = choice[debug] == 0;
    Infer infer(Net{}, o);
    infer.copy_from(train);
    Data const data(8 * (choice[parts] + 1) - 1, 77);
    std::vector<Real> outputs(data.targets.size()), expected(data.targets.size());
    infer.template constant<Heat>().value = train.template constant<Heat>().value = 0.75f;
    infer.predict(data.batch(), outputs);
    train.predict(data.batch(), expected);
    CHECK(outputs == expected);
    CHECK(infer.used_bytes() == infer.planned_bytes());
}
template <class Device> std::vector<double> run_on(Choice const& choice) {
    using T = TrainOf<Device>;
    auto o = all_options<T>(choice);
    o.device = toy::runs<Device>()[choice[way]];
    std::atomic<bool> now = false;
    T train(net_of(now), {}, Adam{1e-2f}, o);
    auto const seen = run(train, choice, now);
    CHECK(train.used_bytes() == train.planned_bytes());
    check_inference<Device>(train, choice);
    return seen;
}
template <class Shard> std::vector<double> run_in_threads(Choice const& choice) {
    auto o = all_options<OfThreads<Shard>>(choice);
    o.replicas = choice[replicas] + 1;
    o.device.threads = choice[way];
    return run_alone<OfThreads<Shard>>(o, choice);
}
// Of the devices of a replica each rank has some.
std::vector<std::size_t> split(std::size_t devices, std::size_t way) {
    if (way == 0) return std::vector<std::size_t>(devices, 1);
    if (devices == 1 || way == 1) return {devices};
    return {way == 2 ? 1 : devices - 1, way == 2 ? devices - 1 : 1};
}
template <class Shard> std::vector<double> run_on_ranks(Choice const& choice) {
    using T = OfRanks<Shard>;
    std::atomic<bool> now = false;
    auto o = all_options<T>(choice);
    o.replicas = choice[replicas] + 1;
    std::vector<std::size_t> devices;
    for (std::size_t r = 0; r < o.replicas; ++r)
        for (std::size_t const own : split(o.cells, choice[way])) devices.push_back(own);
    if (devices.size() == 1) devices = {1, o.cells == 1 ? 1 : o.cells - 1};
    if (o.replicas == 1 && o.cells == 1) return run_on<Host>(choice); // one rank
    toy::Crew<T> crew(devices, choice[slack] == 0, 1 + choice[way] % 2,
                      [&](std::size_t, toy::Rank::Options device) {
                          auto own = o;
                          own.device = device;
                          return std::make_unique<T>(net_of(now), Loss{}, Adam{1e-2f}, own);
                      });
    return run(crew, choice, now);
}
std::vector<double> found(Choice const& choice) {
    bool const whole = choice[shards] == 0;
    switch (choice[where]) {
    case 0:
        return run_on<Host>(choice);
    case 1:
        return run_on<Deferred>(choice);
    case 2:
        return run_on<Remote>(choice);
    case 3:
        return whole ? run_on_ranks<Nothing>(choice) : run_on_ranks<OptimizerState>(choice);
    default:
        return whole ? run_in_threads<Nothing>(choice) : run_in_threads<OptimizerState>(choice);
    }
}
std::vector<double> expected(Choice const& choice) {
    using T = OfThreads<Nothing>;
    auto o = options<T>(choice);
    o.replicas = choice[replicas] + 1;
    auto const all = programs_of(o.micro_batches);
    if (all[choice[programs]].schedule.name() != "GPipe")
        o.schedule = gpipe::schedule::GPipeAscending{};
    o.checkpointing = gpipe::checkpoint::Never{};
    return run_alone<T>(o, choice);
}

} // namespace

TEST_CASE("P1 P3 P5 P6 a sample of 200 trainings in which everything is chosen by chance") {
    std::mt19937_64 random(42);
    std::set<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>> pairs;
    std::size_t const trainings = toy::long_tests() ? 5000 : toy::sanitized ? 20 : 200;
    for (std::size_t n = 0; n < trainings; ++n) {
        Choice const choice = chosen(random);
        for (std::size_t a = 0; a < factors; ++a)
            for (std::size_t b = 0; b < a; ++b)
                if (a != programs && b != programs) pairs.insert({a, choice[a], b, choice[b]});
        INFO(n, ": ", words(choice));
        auto const wanted = expected(choice);
        auto const seen = found(choice);
        std::size_t differs = 0;
        while (differs < seen.size() && differs < wanted.size() && seen[differs] == wanted[differs])
            ++differs;
        CAPTURE(differs);
        CHECK(seen.size() == wanted.size());
        CHECK(differs == wanted.size());
    }
    std::size_t all = 0;
    std::vector<std::size_t> const levels = levels_of(8);
    for (std::size_t a = 0; a < factors; ++a)
        for (std::size_t b = 0; b < a; ++b)
            if (a != programs && b != programs) all += levels[a] * levels[b];
    MESSAGE(trainings << " trainings, " << pairs.size() << " of " << all
                      << " pairs of choices (some are not to be had), " << skips
                      << " steps skipped, " << failures << " failed");
    CHECK((toy::sanitized || pairs.size() * 100 > all * 85));
    CHECK(skips > 0);
    CHECK(failures > 0);
}
