// Whatever can be chosen of a training, chosen together: a seeded sample, which covers all pairs of
// choices that there are, against one device that recomputes nothing. What each of them does by
// itself has a file of its own.
#include "support/covering.hpp"
#include "support/net.hpp"
#include "support/ranks.hpp"
#include "support/together_net.hpp"

#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::dynamic;
using gpipe::LossScale;
using gpipe::device::Host;
using gpipe::shard::Nothing;
using gpipe::shard::OptimizerState;
using toy::Choice;
using toy::Deferred;
using toy::Remote;
using Real = float;

using Net = toy::TogetherNet;
using toy::Heat;
using Data = toy::TogetherData;
constexpr std::size_t L = Net::size;
using Loss = toy::MeanSquare<Real, 3>;

/// One with a hook of gradients, or none.
using Clipped = gpipe::Hooked<Adam, gpipe::ClipByValue>;
using AnyAdam = gpipe::optimizer::OneOf<Adam, Clipped>;
template <class Device, class... Policies>
using TrainOf =
    gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>, gpipe::Loss<Loss>,
                    gpipe::Optimizer<AnyAdam>, gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic,
                    Device, Policies...>;
template <class Shard, class... Update>
using OfThreads = TrainOf<Host, gpipe::Replicas<dynamic, Shard>, Update...>;
template <class Shard> using OfRanks = TrainOf<toy::Wired, gpipe::Replicas<dynamic, Shard>>;

/// What is chosen, by factor: levels from 0 on.
enum Factor {
    where, // Host, Deferred, Remote, ranks, replicas in one process
    micro_batches,
    schedule,
    devices,
    checkpointing,
    way,      // threads, or links and orders of what is deferred, or who has which devices
    replicas, // 1 to 3, where there are any
    shards,
    update, // when all is done, or immediate
    hook,   // of gradients
    frozen,
    gradients, // as they are, clipped, looked at
    scale,     // none, fixed, one that moves
    slack,
    debug,
    parts,   // that are accumulated before some steps
    between, // nothing, an evaluation, gradients alone
    sizes,   // full; uneven; with empty micro-batches
    shift,   // a tensor that may be absent: never there, always, by turns
    tap,     // whether the gradient within the chain is wanted
    heard,   // whether actions have a hook
    fails    // nothing, a layer once
};
constexpr std::size_t counts_of_micro_batches[] = {1, 3, 4, 8};

std::vector<gpipe::schedule::Dynamic> const& schedules() {
    static auto const all = [] {
        std::vector<gpipe::schedule::Dynamic> list;
        toy::each_of_catalogue(1, L, 8, [&](auto one, std::size_t) { list.push_back(one); });
        return list;
    }();
    return all;
}
std::vector<std::size_t> levels() {
    return {5,
            4,
            schedules().size(),
            4,
            toy::every_checkpointing().size(),
            4,
            3,
            2,
            2,
            2,
            5,
            3,
            3,
            3,
            2,
            3,
            3,
            3,
            3,
            2,
            2,
            2};
}
/// Why there is no such training, whatever is chosen where nothing is yet; null: there is.
char const* refused(Choice const& choice) {
    auto const is = [&](Factor factor, std::size_t level) { return choice[factor] == level; };
    auto const known = [&](Factor factor) { return choice[factor] != toy::undecided; };
    if (choice[where] < 3 && ((known(replicas) && choice[replicas] > 0) || is(shards, 1)))
        return "replicas are ranks, or threads of one process";
    if (is(where, 4) && is(replicas, 0)) return "one replica is none";
    if (is(where, 3) && is(replicas, 0) && is(devices, 0)) return "one device is one rank";
    if (known(schedule) && known(micro_batches) &&
        counts_of_micro_batches[choice[micro_batches]] <
            schedules()[choice[schedule]].least_micro_batches(known(devices) ? choice[devices] + 1
                                                                             : 1))
        return "a schedule that needs more micro-batches";
    if (!is(update, 1)) return nullptr;
    if (is(gradients, 1) || is(scale, 1) || is(scale, 2))
        return "what is immediate knows no norm of all";
    if (is(fails, 1)) return "what fails when some have updated is of no use any more";
    if (is(where, 3) || is(shards, 1)) return "not compiled: see immediate_replicas.cpp";
    return nullptr;
}
std::string words(Choice const& choice) {
    std::string text;
    for (std::size_t const level : choice) text += std::to_string(level) + ' ';
    gpipe::schedule::Dynamic const& chosen = schedules()[choice[schedule]];
    return text + std::string(chosen.name()) + " of " + std::to_string(chosen.cells_per_device()) +
           " cells per device, K = " + std::to_string(choice[devices] + 1) + ", " +
           toy::every_checkpointing()[choice[checkpointing]].name;
}

// All but what no bit depends on.
template <class T> typename T::Options options(Choice const& choice) {
    typename T::Options o;
    o.samples = 8;
    o.seed = 7;
    o.cells = 1;
    o.micro_batches = counts_of_micro_batches[choice[micro_batches]];
    o.frozen = std::vector<std::vector<std::size_t>>{{}, {0}, {8, 12}, {8}, {0}}[choice[frozen]];
    if (choice[frozen] == 3) o.frozen_parameters = {{0, 1}, {12, 0}};
    if (choice[frozen] == 4) o.frozen_parameters = {{3, 0}, {6, 0}}; // the ends of a tie
    o.clip_norm = choice[gradients] == 1 ? 0.05 : 0;
    o.finite_gradients = choice[gradients] == 2;
    o.loss_scale = std::vector<LossScale>{
        {}, LossScale::fixed(256), LossScale::dynamic(1 << 14, 4, 0.25, 2)}[choice[scale]];
    return o;
}
template <class T> typename T::Options all_options(Choice const& choice) {
    auto o = options<T>(choice);
    o.cells = choice[devices] + 1;
    o.schedule = schedules()[choice[schedule]];
    o.checkpointing = toy::every_checkpointing()[choice[checkpointing]].policy;
    o.slack = std::vector<std::size_t>{gpipe::no_wait, gpipe::chosen_slack, 0}[choice[slack]];
    o.debug = choice[debug] == 1;
    return o;
}

AnyAdam optimizer(Choice const& choice) {
    if (choice[hook] == 1) return Clipped{{1e-2f}, {0.02f}};
    return Adam{1e-2f};
}
// What layers of a training share with who trains it.
struct Shared {
    std::atomic<bool> now = false; // whether one throws
    std::vector<Real> flown;       // the gradient behind the first

    explicit Shared(Choice const& choice)
        : flown(choice[tap] ? 6 * 24 * (choice[replicas] + 1) : 0) {}
    Net net() {
        Net net;
        toy::trips_of(net).now = &now;
        if (!flown.empty()) toy::tap_of(net).to = flown.data();
        return net;
    }
};

std::size_t skips = 0, failures = 0; // of all trainings

// Trains, and what is to be seen of it: numbers, and in the end all that it has.
template <class T> std::vector<double> run(T& train, Choice const& choice, Shared& shared) {
    std::size_t const all = choice[replicas] + 1;
    std::vector<std::size_t> const samples =
        std::vector<std::vector<std::size_t>>{{8, 8, 8}, {8, 7, 5}, {8, 2, 3}}[choice[sizes]];
    auto const batch = [&](Data const& data, std::size_t i) {
        return data.batch(choice[shift] == 1 || (choice[shift] == 2 && i % 2 == 1));
    };
    std::atomic<std::size_t> begun = 0, ended = 0; // actions
    if (choice[heard] == 1)
        toy::each_part(train, [&](auto& part) {
            part.on_action([&](auto const& event) { ++(event.begins ? begun : ended); });
        });
    std::vector<double> seen;
    for (std::size_t i = 0; i < 4; ++i) {
        Data const data(samples[i % 3] * all, static_cast<std::uint32_t>(i));
        Data const part(i % 2 ? all : 8 * all - 1, static_cast<std::uint32_t>(9 + i));
        toy::heat(train, 1 + static_cast<Real>(i) / 4);
        if (choice[between] == 2)
            seen.push_back(train.compute_gradients(batch(data, i), data.targets).loss);
        std::fill(shared.flown.begin(), shared.flown.end(), Real(0));
        for (std::size_t p = 0; p < choice[parts] && i != 1; ++p)
            train.accumulate(batch(part, p), part.targets);
        if (choice[between] == 1) seen.push_back(train.evaluate(batch(data, i), data.targets).loss);
        shared.now = choice[fails] == 1 && i == 2;
        try {
            auto const result = train.step(batch(data, i), data.targets);
            seen.insert(seen.end(), {result.loss, result.weight, double(result.skipped())});
            if (!result.skipped()) {
                if (choice[update] == 0) seen.push_back(result.gradient_norm);
                seen.insert(seen.end(), shared.flown.begin(), shared.flown.end());
            }
            skips += result.skipped();
        } catch (std::exception const&) {
            seen.push_back(-1);
            ++failures;
        }
        shared.now = false;
    }
    toy::add_state<Net>(train, seen);
    if (choice[heard] == 1) {
        toy::each_part(train, [](auto& part) { part.on_action(nullptr); });
        CHECK(begun > 0);
        CHECK((begun == ended || choice[fails] == 1)); // what throws has no end
    }
    return seen;
}

template <class T> std::vector<double> run_alone(typename T::Options o, Choice const& choice) {
    Shared shared(choice);
    T train(shared.net(), {}, optimizer(choice), o);
    auto const seen = run(train, choice, shared);
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
    infer.predict(data.batch(choice[shift] != 0), outputs);
    train.predict(data.batch(choice[shift] != 0), expected);
    CHECK(outputs == expected);
    CHECK(infer.used_bytes() == infer.planned_bytes());
}
template <class Device, class... Update> std::vector<double> run_on(Choice const& choice) {
    using T = TrainOf<Device, Update...>;
    auto o = all_options<T>(choice);
    o.device = toy::runs<Device>()[choice[way]];
    Shared shared(choice);
    T train(shared.net(), {}, optimizer(choice), o);
    auto const seen = run(train, choice, shared);
    CHECK(train.used_bytes() == train.planned_bytes());
    check_inference<Device>(train, choice);
    return seen;
}
template <class Shard, class... Update> std::vector<double> run_in_threads(Choice const& choice) {
    using T = OfThreads<Shard, Update...>;
    auto o = all_options<T>(choice);
    o.replicas = choice[replicas] + 1;
    o.device.threads = choice[way];
    return run_alone<T>(o, choice);
}
// Of the devices of a replica each rank has some.
std::vector<std::size_t> split(std::size_t count, std::size_t how) {
    if (how == 0) return std::vector<std::size_t>(count, 1);
    if (count == 1 || how == 1) return {count};
    return {how == 2 ? 1 : count - 1, how == 2 ? count - 1 : 1};
}
template <class Shard> std::vector<double> run_on_ranks(Choice const& choice) {
    using T = OfRanks<Shard>;
    Shared shared(choice);
    auto o = all_options<T>(choice);
    o.replicas = choice[replicas] + 1;
    std::vector<std::size_t> ranks; // how many devices each has
    for (std::size_t r = 0; r < o.replicas; ++r)
        for (std::size_t const own : split(o.cells, choice[way])) ranks.push_back(own);
    if (ranks.size() == 1) ranks = {1, o.cells - 1};
    toy::Crew<T> crew(ranks, choice[slack] == 0, 1 + choice[way] % 2,
                      [&](std::size_t, toy::Rank::Options device) {
                          auto own = o;
                          own.device = device;
                          return std::make_unique<T>(shared.net(), Loss{}, optimizer(choice), own);
                      });
    return run(crew, choice, shared);
}
template <class... Update> std::vector<double> updated(Choice const& choice) {
    if (choice[where] == 0) return run_on<Host, Update...>(choice);
    if (choice[where] == 1) return run_on<Deferred, Update...>(choice);
    if (choice[where] == 2) return run_on<Remote, Update...>(choice);
    return run_in_threads<Nothing, Update...>(choice);
}
std::vector<double> found(Choice const& choice) {
    if (choice[update] == 1) return updated<gpipe::update::Immediate>(choice);
    bool const whole = choice[shards] == 0;
    if (choice[where] == 3)
        return whole ? run_on_ranks<Nothing>(choice) : run_on_ranks<OptimizerState>(choice);
    return whole ? updated<>(choice) : run_in_threads<OptimizerState>(choice);
}
std::vector<double> expected(Choice const& choice) {
    using T = OfThreads<Nothing>;
    auto o = options<T>(choice);
    o.replicas = choice[replicas] + 1;
    if (schedules()[choice[schedule]].name() != "GPipe")
        o.schedule = gpipe::schedule::GPipeAscending{};
    o.checkpointing = gpipe::checkpoint::Never{};
    return run_alone<T>(o, choice);
}

} // namespace

TEST_CASE("P1 P3 P5 P6 a sample of 200 trainings in which each choice stands with each other") {
    toy::Covering covering(levels(), refused, 9);
    std::size_t const trainings = toy::long_tests() ? 5000 : toy::sanitized ? 20 : 200;
    for (std::size_t n = 0; n < trainings; ++n) {
        Choice const choice = covering.next();
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
    // 200 trainings have no more than 200 pairs of a schedule and a checkpointing.
    std::size_t missed = 0, others = 0;
    for (auto const& pair : covering.left())
        ++(pair.a == checkpointing && pair.b == schedule ? missed : others);
    std::map<std::string, std::size_t> never;
    for (auto const& pair : covering.never()) {
        char const* const why = refused(covering.with(pair));
        ++never[why ? why : "no third choice goes with both"];
    }
    std::string why_not;
    for (auto const& [why, count] : never) why_not += "\n  " + std::to_string(count) + ": " + why;
    MESSAGE(trainings << " trainings, all pairs of choices but " << missed + others << " of "
                      << covering.to_be_had() << ", of which " << missed
                      << " are of a schedule and a checkpointing; " << skips << " steps skipped, "
                      << failures << " failed; not to be had are" << why_not);
    CHECK((toy::sanitized || others == 0));
    CHECK((toy::sanitized ||
           missed + trainings * 9 / 10 <= schedules().size() * toy::every_checkpointing().size()));
    CHECK((!toy::long_tests() || missed == 0));
    CHECK(skips > 0);
    CHECK(failures > 0);
}
