#pragma once

// What can be chosen of a training whatever it runs on, the training of such a choice, and what it
// has to give: that of one device of a host, which recomputes nothing.

#include "covering.hpp"
#include "net.hpp"
#include "together_net.hpp"

#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace toy::together {

using Real = float;
using Loss = MeanSquare<Real, 3>;
using Data = TogetherData;
/// One with a hook of gradients, or none.
using Clipped = gpipe::Hooked<gpipe::Adam, gpipe::ClipByValue>;
using AnyAdam = gpipe::optimizer::OneOf<gpipe::Adam, Clipped>;
template <class Net, class Loss, class Device, class... Policies>
using TrainOf =
    gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<Loss>, gpipe::Optimizer<AnyAdam>, gpipe::schedule::Dynamic,
                    gpipe::checkpoint::Dynamic, Device, Policies...>;
template <class Shard, class... Update>
using OfThreads = TrainOf<TogetherNet, Loss, gpipe::device::Host,
                          gpipe::Replicas<gpipe::dynamic, Shard>, Update...>;

/// What is chosen, by factor: levels from 0 on. A test's own come behind these.
enum Factor : std::size_t {
    micro_batches,
    schedule,
    devices,
    checkpointing,
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
    heard,   // whether actions of some steps have a hook
    fails,   // nothing, a layer once
    factors
};
inline constexpr std::size_t counts_of_micro_batches[] = {1, 3, 4, 8};

inline std::vector<gpipe::schedule::Dynamic> const& schedules() {
    static auto const all = [] {
        std::vector<gpipe::schedule::Dynamic> list;
        each_of_catalogue(1, TogetherNet::size, 8,
                          [&](auto one, std::size_t) { list.push_back(one); });
        return list;
    }();
    return all;
}
/// How many levels each has, those of a test behind.
inline std::vector<std::size_t> levels(std::vector<std::size_t> const& own) {
    std::vector<std::size_t> all{4, schedules().size(),
                                 4, every_checkpointing().size(),
                                 3, 2,
                                 2, 2,
                                 5, 3,
                                 3, 3,
                                 2, 3,
                                 3, 3,
                                 3, 2,
                                 2, 2};
    all.insert(all.end(), own.begin(), own.end());
    return all;
}
/// Whether that is chosen, and whether anything is.
///@{
inline bool is(Choice const& choice, std::size_t factor, std::size_t level) {
    return choice[factor] == level;
}
inline bool known(Choice const& choice, std::size_t factor) { return choice[factor] != undecided; }
///@}
/// Why there is no such training anywhere, whatever is chosen where nothing is yet; null: there is.
inline char const* refused(Choice const& choice) {
    if (known(choice, schedule) && known(choice, micro_batches) &&
        counts_of_micro_batches[choice[micro_batches]] <
            schedules()[choice[schedule]].least_micro_batches(
                known(choice, devices) ? choice[devices] + 1 : 1))
        return "a schedule that needs more micro-batches";
    if (!is(choice, update, 1)) return nullptr;
    if (is(choice, gradients, 1) || is(choice, scale, 1) || is(choice, scale, 2))
        return "what is immediate knows no norm of all";
    if (is(choice, fails, 1)) return "what fails when some have updated is of no use any more";
    return nullptr;
}
inline std::string words(Choice const& choice) {
    std::string text;
    for (std::size_t const level : choice) text += std::to_string(level) + ' ';
    gpipe::schedule::Dynamic const& chosen = schedules()[choice[schedule]];
    return text + std::string(chosen.name()) + " of " + std::to_string(chosen.cells_per_device()) +
           " cells per device, K = " + std::to_string(choice[devices] + 1) + ", " +
           every_checkpointing()[choice[checkpointing]].name;
}

/// All but what no bit depends on.
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
    o.loss_scale = std::vector<gpipe::LossScale>{
        {},
        gpipe::LossScale::fixed(256),
        gpipe::LossScale::dynamic(1 << 14, 4, 0.25, 2)}[choice[scale]];
    return o;
}
/// That, too.
template <class T> typename T::Options all_options(Choice const& choice) {
    auto o = options<T>(choice);
    o.cells = choice[devices] + 1;
    if constexpr (requires { o.replicas; }) o.replicas = choice[replicas] + 1;
    o.schedule = schedules()[choice[schedule]];
    o.checkpointing = every_checkpointing()[choice[checkpointing]].policy;
    o.slack = std::vector<std::size_t>{gpipe::no_wait, gpipe::chosen_slack, 0}[choice[slack]];
    o.debug = choice[debug] == 1;
    return o;
}
inline AnyAdam optimizer(Choice const& choice) {
    if (choice[hook] == 1) return Clipped{{1e-2f}, {0.02f}};
    return gpipe::Adam{1e-2f};
}

/// How its steps are made.
struct Steps {
    std::size_t count = 4;
    bool overlap = false;                ///< each is started before the result of any is taken
    std::size_t skipped = 0, failed = 0; ///< of all trainings
};
/// Elements of the gradient that the tap is for.
inline std::size_t flown_elements(Choice const& choice) {
    return choice[tap] ? 6 * 24 * (choice[replicas] + 1) : 0;
}
/// What layers of a training share with who trains it.
struct Shared {
    std::atomic<bool> now = false; ///< whether one throws
    std::vector<Real> own;
    Real* flown = nullptr; ///< the gradient behind the first layer
    std::size_t elements = 0;
    /// What is to be told that the host reads or writes there.
    void (*reads)(void const*, std::size_t) = [](void const*, std::size_t) {};
    void (*writes)(void const*, std::size_t) = [](void const*, std::size_t) {};

    explicit Shared(Choice const& choice)
        : own(flown_elements(choice)), flown(own.data()), elements(own.size()) {}
    template <class Net = TogetherNet> Net net() {
        Net net;
        layer_of<10>(net).now = &now;
        if (elements > 0) layer_of<1>(net).to = flown;
        return net;
    }
    void clear() {
        writes(flown, elements * sizeof(Real));
        std::fill(flown, flown + elements, Real(0));
    }
    void add_to(std::vector<double>& seen) {
        reads(flown, elements * sizeof(Real));
        seen.insert(seen.end(), flown, flown + elements);
    }
};

/// Trains, and what is to be seen of it: numbers, and in the end all that it has.
template <class T>
std::vector<double> run(T& train, Choice const& choice, Shared& shared, Steps& steps) {
    std::size_t const all = choice[replicas] + 1;
    std::vector<std::size_t> const samples =
        std::vector<std::vector<std::size_t>>{{8, 8, 8}, {8, 7, 5}, {8, 2, 3}}[choice[sizes]];
    auto const batch = [&](Data const& data, std::size_t i) {
        return data.batch(choice[shift] == 1 || (choice[shift] == 2 && i % 2 == 1));
    };
    std::atomic<std::size_t> begun = 0, ended = 0; // actions
    auto const hear = [&](auto hook) {
        if (choice[heard] == 1) each_part(train, [&](auto& part) { part.on_action(hook); });
    };
    std::vector<std::vector<double>> seen(steps.count); // by step
    auto const note = [&](std::size_t i, auto const& result) {
        seen[i].insert(seen[i].end(), {result.loss, result.weight, double(result.skipped())});
        steps.skipped += result.skipped();
        if (result.skipped()) return;
        if (choice[update] == 0) seen[i].push_back(result.gradient_norm);
        shared.add_to(seen[i]);
    };
    auto const attempt = [&](std::size_t i, auto part_of_step) {
        try {
            part_of_step();
        } catch (std::exception const& error) {
            INFO(std::string(error.what()));
            CHECK((choice[fails] == 1 && i == 2));
            seen[i].push_back(-1);
            ++steps.failed;
        }
    };
    using Pending = decltype(train.start(batch(Data(1, 0), 0), Data(1, 0).targets));
    std::vector<std::pair<std::size_t, Pending>> pending;
    for (std::size_t i = 0; i < steps.count; ++i) {
        Data const data(samples[i % 3] * all, static_cast<std::uint32_t>(i));
        Data const part(i % 2 ? all : 8 * all - 1, static_cast<std::uint32_t>(9 + i));
        if (i == 1) hear([&](auto const& event) { ++(event.begins ? begun : ended); });
        if (i == 3) hear(nullptr);
        each_part(train, [&](auto& one) {
            one.template constant<Heat>().value = 1 + static_cast<Real>(i) / 4;
        });
        if (choice[between] == 2)
            seen[i].push_back(train.compute_gradients(batch(data, i), data.targets).loss);
        shared.clear();
        for (std::size_t p = 0; p < choice[parts] && i != 1; ++p)
            train.accumulate(batch(part, p), part.targets);
        if (choice[between] == 1)
            seen[i].push_back(train.evaluate(batch(data, i), data.targets).loss);
        shared.now = choice[fails] == 1 && i == 2;
        attempt(i, [&] {
            if (steps.overlap)
                pending.emplace_back(i, train.start(batch(data, i), data.targets));
            else
                note(i, train.step(batch(data, i), data.targets));
        });
        shared.now = false;
    }
    for (auto& [i, step] : pending) attempt(i, [&, i = i, &own = step] { note(i, own.result()); });
    std::vector<double> result;
    for (auto const& of_step : seen) result.insert(result.end(), of_step.begin(), of_step.end());
    add_state<TogetherNet>(train, result);
    if (choice[heard] == 1) {
        CHECK(begun > 0);
        CHECK((begun == ended || choice[fails] == 1)); // what throws has no end
    }
    // Of a crew each plans for a replica's devices, and has some of them.
    std::atomic<std::size_t> used = 0, planned = 0; // by threads
    std::size_t plans = 1;
    each_part(train, [&](auto& part) {
        used += part.used_bytes();
        planned = part.planned_bytes();
    });
    if constexpr (requires { train.ranks(); }) plans = all;
    CHECK(used == plans * planned);
    return result;
}
template <class T>
std::vector<double> run_alone(typename T::Options o, Choice const& choice, Steps& steps) {
    Shared shared(choice);
    T train(shared.net(), {}, optimizer(choice), o);
    return run(train, choice, shared, steps);
}
inline std::vector<double> expected(Choice const& choice, std::size_t count) {
    using T = OfThreads<gpipe::shard::Nothing>;
    auto o = options<T>(choice);
    o.replicas = choice[replicas] + 1;
    if (schedules()[choice[schedule]].name() != "GPipe")
        o.schedule = gpipe::schedule::GPipeAscending{};
    o.checkpointing = gpipe::checkpoint::Never{};
    Steps steps{.count = count};
    return run_alone<T>(o, choice, steps);
}

/// That what f(choice, steps) has seen is that, of so many choices of a covering sample, and that
/// all pairs of levels which `refused` leaves are among them: but some of a schedule and a
/// checkpointing, of which there are more than trainings. Under a sanitizer there may be fewer.
template <class F>
void check_sample(Covering covering, Covering::Refused const& refused, std::size_t trainings,
                  Steps steps, F f) {
    for (std::size_t n = 0; n < trainings; ++n) {
        Choice const choice = covering.next();
        INFO(n, ": ", words(choice));
        auto const wanted = expected(choice, steps.count);
        auto const seen = f(choice, steps);
        std::size_t differs = 0;
        while (differs < seen.size() && differs < wanted.size() && seen[differs] == wanted[differs])
            ++differs;
        CAPTURE(differs);
        CHECK(seen.size() == wanted.size());
        CHECK(differs == wanted.size());
    }
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
                      << " are of a schedule and a checkpointing; " << steps.skipped
                      << " steps skipped, " << steps.failed << " failed; not to be had are"
                      << why_not);
    CHECK((sanitized || others == 0));
    CHECK((sanitized ||
           missed + trainings * 9 / 10 <= schedules().size() * every_checkpointing().size()));
    CHECK((!long_tests() || missed == 0));
    CHECK(steps.skipped > 0);
    CHECK(steps.failed > 0);
}

} // namespace toy::together
