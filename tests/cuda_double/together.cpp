// Whatever can be chosen of a training on GPUs, chosen together, over the double of the CUDA
// runtime: a seeded sample, which covers all pairs of choices that there are, against one device of
// a host. What each of them does by itself has a file of its own. On the host:
// runtime/together.cpp.
#include "support/together.hpp"
#include "support/cuda_double/cuda_double.hpp"
#include "support/enqueued_norm.hpp"
#include "support/enqueued_tap.hpp"
#include "support/nccl_crew.hpp"

#include <gpipe/device/cuda_memory.hpp>
#include <gpipe/transport/local_gpus.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace {

using gpipe::device::Cuda;
using gpipe::shard::Nothing;
using gpipe::shard::OptimizerState;
using toy::Choice;
using toy::together::Shared;
using toy::together::Steps;
using enum toy::together::Factor;
using Net = toy::TogetherNetOf<toy::Enqueued>;
using Loss = toy::EnqueuedLoss<toy::together::Loss>;

template <class... Policies> using TrainOf = toy::together::TrainOf<Net, Loss, Cuda, Policies...>;
template <class Shard> using InOneProcess = TrainOf<gpipe::Replicas<gpipe::dynamic, Shard>>;
template <class Shard, class... Update>
using OfRanks = TrainOf<gpipe::transport::Nccl<gpipe::LocalRanks>,
                        gpipe::Replicas<gpipe::dynamic, Shard>, Update...>;

enum Own : std::size_t {
    where = factors, // one training, replicas in one process, ranks over NCCL
    gpus,            // one, half as many as devices, as many
    link,            // shared, copied, staged
    graphs,          // none, two, eight
    order,           // of what streams allow
    overlap          // whether steps are started before the result of one is taken
};
constexpr std::size_t counts_of_graphs[] = {0, 2, 8};

// Of so many devices in all.
std::size_t count_gpus(Choice const& choice, std::size_t count) {
    if (choice[gpus] == 0) return 1;
    return choice[gpus] == 1 ? (count + 1) / 2 : count;
}
char const* refused(Choice const& choice) {
    auto const is = [&](std::size_t factor, std::size_t level) {
        return toy::together::is(choice, factor, level);
    };
    auto const known = [&](std::size_t factor) { return toy::together::known(choice, factor); };
    bool const several = known(replicas) && choice[replicas] > 0;
    bool const keeps = is(graphs, 1) || is(graphs, 2);
    if (is(where, 0) && (several || is(shards, 1))) return "replicas are in one process, or ranks";
    if (is(where, 1) && is(replicas, 0)) return "one replica is none";
    if (is(where, 1) && keeps) return "no graph waits for events of another replica's";
    if (is(where, 2) && (is(gpus, 0) || is(gpus, 1))) return "each rank has a GPU of its own";
    if (is(where, 2) && (is(link, 0) || is(link, 1)))
        return "to another rank's GPU there are messages, no link";
    if (known(devices) && known(replicas)) {
        std::size_t const all = (choice[devices] + 1) * (choice[replicas] + 1);
        if (is(where, 2) && all == 1) return "one device is one rank";
        if (known(gpus) && choice[gpus] > 0 && count_gpus(choice, all) == 1)
            return "as many devices have one GPU";
    }
    if (is(gpus, 0) && (is(link, 1) || is(link, 2)))
        return "devices of one GPU hand tensors over in place";
    if (keeps && is(fails, 1)) return "a graph that is launched calls no layer";
    if (is(tap, 1) && is(overlap, 1)) return "there is one room for what the tap gives";
    if (is(update, 1) && (is(where, 1) || is(shards, 1)))
        return "not compiled: see local_gpus.cpp and nccl.cpp";
    if (is(update, 1) && is(gradients, 2) && (is(where, 2) || several))
        return "some would have updated before other ranks know of gradients";
    return toy::together::refused(choice);
}

// What the tap gives is in the host's memory, where any GPU can write it.
struct OnGpus {
    gpipe::cuda::PinnedBuffer room;
    Shared shared;

    explicit OnGpus(Choice const& choice)
        : room(toy::together::flown_elements(choice) * sizeof(float)), shared(choice) {
        shared.flown = reinterpret_cast<float*>(room.data());
        shared.reads = cuda_double::host_reads;
        shared.writes = cuda_double::host_writes;
    }
};
template <class T> std::vector<double> run_in_process(Choice const& choice, Steps& steps) {
    auto o = toy::together::all_options<T>(choice);
    std::size_t const all = o.cells * (choice[replicas] + 1);
    for (std::size_t d = 0; d < all; ++d)
        o.device.gpus.push_back(static_cast<int>(d % count_gpus(choice, all)));
    o.device.graphs = counts_of_graphs[choice[graphs]];
    if (choice[link] == 1) o.device.link = gpipe::Link::copied;
    OnGpus on(choice);
    T train(on.shared.net<Net>(), {}, toy::together::optimizer(choice), o);
    return run(train, choice, on.shared, steps);
}
template <class T> std::vector<double> run_on_ranks(Choice const& choice, Steps& steps) {
    auto const o = toy::together::all_options<T>(choice);
    OnGpus on(choice);
    toy::NcclCrew<T> crew(o.cells * o.replicas, 60, [&](std::size_t r, toy::NcclRanks& own) {
        auto of_rank = o;
        of_rank.device.device.gpus = {static_cast<int>(r)};
        of_rank.device.device.graphs = counts_of_graphs[choice[graphs]];
        of_rank.device.transport = &own;
        return std::make_unique<T>(on.shared.net<Net>(), Loss{}, toy::together::optimizer(choice),
                                   of_rank);
    });
    crew.rethrow();
    return run(crew, choice, on.shared, steps);
}
std::vector<double> trained(Choice const& choice, Steps& steps) {
    using gpipe::update::Immediate;
    bool const whole = choice[shards] == 0, at_once = choice[update] == 1;
    if (choice[where] == 0)
        return at_once ? run_in_process<TrainOf<Immediate>>(choice, steps)
                       : run_in_process<TrainOf<>>(choice, steps);
    if (choice[where] == 1)
        return whole ? run_in_process<InOneProcess<Nothing>>(choice, steps)
                     : run_in_process<InOneProcess<OptimizerState>>(choice, steps);
    if (at_once) return run_on_ranks<OfRanks<Nothing, Immediate>>(choice, steps);
    return whole ? run_on_ranks<OfRanks<Nothing>>(choice, steps)
                 : run_on_ranks<OfRanks<OptimizerState>>(choice, steps);
}
std::vector<double> found(Choice const& choice, Steps& steps) {
    std::size_t const devices_in_all = (choice[devices] + 1) * (choice[replicas] + 1);
    cuda_double::Session const doubles(
        {.devices = static_cast<int>(count_gpus(choice, devices_in_all)),
         .seed = choice[order],
         .peers = [peers = choice[link] != 2](int, int) { return peers; }});
    steps.overlap = choice[overlap] == 1;
    auto seen = trained(choice, steps);
    CHECK(cuda_double::complaints() == "");
    return seen;
}

} // namespace

TEST_CASE("P1 P3 P5 P6 a sample of 120 trainings on GPUs in which each choice stands with each "
          "other, and nothing races") {
    std::size_t const trainings = toy::long_tests() ? 5000 : toy::sanitized ? 30 : 120;
    toy::together::check_sample({toy::together::levels({3, 3, 3, 3, 4, 2}), refused, 9}, refused,
                                trainings, {.count = 4}, found);
}
