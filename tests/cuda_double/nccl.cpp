// Ranks with a GPU each, whose tensors go by NCCL, on doubles of both: what they compute, and what
// becomes of them when something fails.
#include "support/enqueued_net.hpp"
#include "support/enqueued_norm.hpp"
#include "support/folder.hpp"
#include "support/gpu_replicas.hpp"
#include "support/gpu_times.hpp"
#include "support/long_tests.hpp"
#include "support/nccl_crew.hpp"
#include "support/nccl_double/nccl_double.hpp"
#include "support/optional_layers.hpp"
#include "support/overlap_layers.hpp"
#include "support/skip_layers.hpp"

#include <gpipe/device/cuda_memory.hpp>
#include <gpipe/inference.hpp>
#include <gpipe/plan/messages.hpp>
#include <gpipe/plan/simulate_lowered.hpp>
#include <gpipe/replicas.hpp>
#include <gpipe/state/state.hpp>
#include <gpipe/trace/text.hpp>
#include <gpipe/transport/local_ranks.hpp>
#include <gpipe/transport/nccl.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::LocalRanks;
using gpipe::device::Cuda;
using toy::Fault;
using toy::Phase;

using Real = float;
using Net = toy::EnqueuedNet<Real>;
Net make_net(toy::Watch& watch) { return toy::make_enqueued_net<Real>(watch); }
using Ranks = toy::NcclRanks;
using Loss = toy::EnqueuedLoss<toy::MeanSquare<Real, 3>>;
template <class Shard, class OnGpu = Net, class... Policies>
using TrainOf = gpipe::Training<
    OnGpu, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>, gpipe::Loss<Loss>,
    gpipe::Optimizer<Adam>, Cuda, gpipe::transport::Nccl<LocalRanks>, gpipe::schedule::Dynamic,
    gpipe::checkpoint::Dynamic, gpipe::Replicas<gpipe::dynamic, Shard>, Policies...>;
using Train = TrainOf<gpipe::shard::Nothing>;
using Immediately = TrainOf<gpipe::shard::Nothing, Net, gpipe::update::Immediate>;
static_assert(gpipe::joins_ranks<gpipe::Joined<Cuda, Ranks>>);
static_assert(gpipe::calls_enqueue<gpipe::Joined<Cuda, Ranks>>);

// Ranks with a GPU each: K, as many times as there are replicas.
template <class Train, auto make_net> class CrewOf final : public toy::NcclCrew<Train> {
    using Base = toy::NcclCrew<Train>;
    using Base::members_;

  public:
    using Net = decltype(make_net(std::declval<toy::Watch&>()));
    using Options = typename Train::Options;
    using Base::errors, Base::each, Base::rethrow, Base::ranks;

    CrewOf(std::size_t cells, toy::Watch& watch, typename Train::Options const& options,
           double deadline = 60, std::size_t replicas = 1)
        : Base(cells * replicas, deadline, [&](std::size_t r, Ranks& own) {
              auto o = options;
              o.cells = cells;
              if (o.device.device.gpus.empty()) o.device.device.gpus = {static_cast<int>(r)};
              o.device.transport = &own;
              if constexpr (requires { o.replicas; }) {
                  o.replicas = replicas;
                  return std::make_unique<Train>(make_net(watch), Loss{}, Adam{1e-2f}, o);
              } else {
                  return std::make_unique<Train>(make_net(watch), o);
              }
          }) {}

    Ranks& nccl(std::size_t rank) { return *members_[rank].ranks; }
    void destroy_training(std::size_t rank) { members_[rank].train.reset(); }
    bool good() const {
        return std::all_of(errors.begin(), errors.end(), [](auto const& e) { return !e; });
    }
    // The loss, the same on all; two steps at a time if `together`.
    // Before those of odd sizes a part of the mini-batch.
    std::vector<double> steps(std::vector<std::size_t> const& sizes, bool together) {
        std::vector<std::vector<double>> all(ranks());
        each([&](std::size_t r) {
            std::vector<typename Train::Pending> pending;
            for (std::size_t const size : sizes) {
                toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
                if (size % 2 == 1) (*this)[r].accumulate(data.inputs, data.targets);
                pending.push_back((*this)[r].start(data.inputs, data.targets));
                if (!together) static_cast<void>(pending.back().result());
            }
            for (auto& step : pending) all[r].push_back(step.result().loss);
        });
        rethrow();
        for (auto const& losses : all)
            if (losses != all[0]) throw std::logic_error("other losses on other ranks");
        return all[0];
    }
};

using Crew = CrewOf<Train, &make_net>;
using ImmediateCrew = CrewOf<Immediately, &make_net>;

using Inference =
    gpipe::Inference<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>, Cuda,
                     gpipe::transport::Nccl<LocalRanks>>;

// What a crew has trained other than the host; nothing if it is empty.
template <class Crew, class Host>
std::string differs(Crew& crew, Host& host, bool looks_at_gradients) {
    auto const layers = Crew::Net::layers();
    for (std::size_t l = 0; l < layers.size(); ++l) {
        for (std::size_t t = 0; t < layers[l].buffers.count; ++t) {
            std::vector<std::byte> a(layers[l].buffers.bytes[t]), b(a.size());
            crew.read_buffer(l, t, std::span(a));
            host.read_buffer(l, t, std::span(b));
            if (a != b) return "buffer " + std::to_string(t) + " of layer " + std::to_string(l);
        }
        for (std::size_t t = 0; t < crew.tensors(l); ++t) {
            std::string const where = " " + std::to_string(t) + " of layer " + std::to_string(l) +
                                      ", rank " + std::to_string(crew.rank_of(l));
            std::vector<std::byte> a(host.template parameter<std::byte>(l, t).size()), b(a.size());
            crew.read_parameter(l, t, std::span(a));
            host.read_parameter(l, t, std::span(b));
            if (a != b) return "parameter" + where;
            crew.read_gradient(l, t, std::span(a));
            host.read_gradient(l, t, std::span(b));
            if (a != b && looks_at_gradients) return "gradient" + where;
        }
    }
    return "";
}

cuda_double::Options session(std::size_t ranks, std::uint64_t order) {
    return {
        .devices = static_cast<int>(ranks), .seed = order, .peers = [](int, int) { return false; }};
}
// With three micro-batches gradients are clipped, where they can be.
template <class Options = Train::Options> Options options(std::size_t micro_batches) {
    Options o;
    o.samples = 8;
    o.seed = 7;
    o.micro_batches = micro_batches;
    if (micro_batches == 3 && !std::is_same_v<Options, Immediately::Options>) o.clip_norm = 0.05;
    return o;
}

// Of one device there, in the same order of backwards.
template <class Host>
typename Host::Options on_host(gpipe::schedule::Dynamic const& schedule,
                               std::size_t micro_batches) {
    typename Host::Options o;
    o.samples = 8;
    o.seed = 7;
    o.cells = 1;
    o.micro_batches = micro_batches;
    if (schedule.name() == "GPipe")
        o.schedule = gpipe::schedule::GPipe{};
    else
        o.schedule = gpipe::schedule::GPipeAscending{};
    return o;
}

template <class Crew> void train_as_host(std::size_t points) {

    std::size_t point = 0, trained = 0;
    std::vector<std::size_t> const sizes{8, 8, 8, 8, 5, 8, 1, 8};
    for (std::size_t micro_batches : {1, 3, 8}) {
        toy::each_of_catalogue(
            4, Net::size, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
                for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing()) {
                    if (point++ % toy::one_of(points) != 0) continue;
                    auto own = options<typename Crew::Options>(micro_batches);
                    using Host = toy::Train<Real, gpipe::device::Host>;
                    auto o = on_host<Host>(schedule, micro_batches);
                    o.clip_norm = own.clip_norm;
                    toy::Watch watch;
                    Host host(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
                    std::vector<double> expected;
                    for (std::size_t const size : sizes) {
                        toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
                        if (size % 2 == 1) host.accumulate(data.inputs, data.targets);
                        expected.push_back(host.step(data.inputs, data.targets).loss);
                    }
                    toy::Data<Real> const held_out(8, 9);
                    double const evaluated = host.evaluate(held_out.inputs, held_out.targets).loss;

                    std::uint64_t const order = trained % 5;
                    bool const together = trained % 2 == 1;
                    INFO(schedule.name(), " of ", schedule.cells_per_device(), ", ",
                         checkpointing.name, ", K = ", k, ", M = ", micro_batches, ", order ",
                         order, ", graphs ", trained / 2 % 2 * 2, together ? ", together" : "");
                    cuda_double::Session const doubles(session(k, order));
                    own.schedule = schedule;
                    own.checkpointing = checkpointing.policy;
                    own.device.device.graphs = trained / 2 % 2 * 2;
                    own.debug = trained % 3 == 1;
                    {
                        Crew crew(k, watch, own);
                        CHECK_NOTHROW(crew.rethrow());
                        if (!crew.good()) continue;
                        CHECK((crew.steps(sizes, together) == expected));
                        CHECK(crew.evaluate(held_out.inputs, held_out.targets).loss == evaluated);
                        CHECK(differs(crew, host, true) == "");
                    }
                    CHECK(cuda_double::complaints() == "");
                    ++trained;
                }
            });
    }
    CHECK(trained > 0);
    MESSAGE(trained << " trainings");
}

} // namespace

TEST_CASE("P1 over NCCL ranks with a GPU each train as one process on the host, in every bit, in "
          "any order that streams allow, eager and as graphs, and nothing races") {
    train_as_host<Crew>(149);
}

TEST_CASE("P1 so they do where each updates at once") { train_as_host<ImmediateCrew>(149); }

namespace {

using SkipNet = toy::SkipNetOf<Real, toy::Enqueued>;
SkipNet make_skip_net(toy::Watch&) { return {}; }

} // namespace

TEST_CASE_TEMPLATE("P1 and with skips and ties between them", Update, gpipe::update::AfterCommit,
                   gpipe::update::Immediate) {
    using Host =
        toy::Training<toy::SkipNet<Real>, toy::MeanSquare<Real, 3>, Adam, gpipe::device::Host>;
    using T = TrainOf<gpipe::shard::Nothing, SkipNet, Update>;
    std::vector<std::size_t> const sizes{8, 8, 5, 8, 1, 8};
    std::size_t point = 0, trained = 0;
    toy::each_of_catalogue(
        4, SkipNet::size, 3, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing()) {
                if (k < 2 || point++ % toy::one_of(59) != 0) continue;
                INFO(schedule.name(), ", ", checkpointing.name, ", K = ", k);
                auto o = on_host<Host>(schedule, 3);
                Host host({}, {}, Adam{1e-2f}, o);
                std::vector<double> expected;
                for (std::size_t const size : sizes) {
                    toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
                    if (size % 2 == 1) host.accumulate(data.inputs, data.targets);
                    expected.push_back(host.step(data.inputs, data.targets).loss);
                }
                cuda_double::Session const doubles(session(k, trained % 5));
                typename T::Options own;
                own.samples = 8;
                own.seed = 7;
                own.micro_batches = 3;
                own.schedule = schedule;
                own.checkpointing = checkpointing.policy;
                own.device.device.graphs = trained / 2 % 2 * 2;
                toy::Watch watch;
                {
                    CrewOf<T, &make_skip_net> crew(k, watch, own);
                    crew.rethrow();
                    CHECK((crew.steps(sizes, trained++ % 2 == 1) == expected));
                    CHECK(differs(crew, host, false) == "");
                }
                CHECK(cuda_double::complaints() == "");
            }
        });
    CHECK(trained > 0);
    MESSAGE(trained << " trainings");
}

namespace {

// Parameters and optimizer state of all ranks, every byte.
template <class Crew> std::vector<std::byte> state_of(Crew& crew) {
    std::vector<std::byte> all;
    for (std::size_t r = 0; r < crew.ranks(); ++r) {
        std::size_t const device = r % crew[r].devices();
        auto const arena = crew[r].arena(device);
        auto const& plan = crew[r].plan().devices[device];
        std::vector<std::byte> bytes(plan.parameters + plan.gradients + plan.optimizer);
        if (bytes.empty()) continue; // nothing learns there
        cuda_double::peek(bytes.data(), arena.data(), bytes.size());
        auto const gradients = bytes.begin() + static_cast<std::ptrdiff_t>(plan.parameters);
        all.insert(all.end(), bytes.begin(), gradients);
        all.insert(all.end(), gradients + static_cast<std::ptrdiff_t>(plan.gradients), bytes.end());
    }
    return all;
}

// That a step throws what the watch was told to on the rank that has the layer, and there what it
// is on all others; or one that has a part before it, which throws.
template <class Crew>
std::string fails_rightly(Crew& crew, toy::Watch const& watch, toy::Data<Real> const& data,
                          Fault const& fault, bool in_part = false) {
    crew.each([&](std::size_t r) {
        if (in_part) crew[r].accumulate(data.inputs, data.targets);
        crew[r].step(data.inputs, data.targets);
    });
    std::size_t const owner = crew.rank_of(fault.layer);
    for (std::size_t r = 0; r < crew.ranks(); ++r) {
        if (!crew.errors[r]) return "nothing was thrown on rank " + std::to_string(r);
        if (!crew[r].failure() || crew[r].failure()->layer != fault.layer) return "another layer";
        try {
            std::rethrow_exception(crew.errors[r]);
        } catch (toy::Thrown const& thrown) {
            if (r != owner || thrown.token != watch.token) return "thrown elsewhere";
        } catch (gpipe::RankError const& error) {
            if (r == owner) return "not what was thrown";
            if (std::string(error.what()).find("on rank " + std::to_string(owner)) ==
                std::string::npos)
                return error.what();
        } catch (std::exception const& error) {
            return error.what();
        }
    }
    return "";
}

} // namespace

namespace {

// Against replicas on the host, in one process and of one device.
template <class Shard, auto on_gpu = &make_net, auto on_host = &toy::make_net<Real>,
          class... Policies>
void replicas_train_alike(std::size_t points) {
    using OnGpu = decltype(on_gpu(std::declval<toy::Watch&>()));
    using T = TrainOf<Shard, OnGpu, Policies...>;
    constexpr bool shards = std::is_same_v<Shard, gpipe::shard::OptimizerState>;
    toy::each_replica_case<Shard, toy::MeanSquare<Real, 3>, on_host>(
        points, sizeof...(Policies) == 0,
        [](toy::ReplicaCase const& of, auto& host, toy::Watch& watch) {
            std::size_t const k = of.cells;
            cuda_double::Session const doubles(session(k * of.replicas, of.number % 5));
            auto o = of.on_gpus<typename T::Options>();
            o.device.device.graphs = of.number / 2 % 2 * 2;
            o.debug = of.number % 3 == 1;
            {
                CrewOf<T, on_gpu> crew(k, watch, o, 60, of.replicas);
                CHECK_NOTHROW(crew.rethrow());
                if (!crew.good()) return;
                CHECK((crew.steps(of.sizes, of.number % 2 == 1) == of.losses));
                auto const held_out = of.held_out();
                CHECK(crew.evaluate(held_out.inputs, held_out.targets).loss ==
                      host.evaluate(held_out.inputs, held_out.targets).loss);
                for (crew.first = 0; crew.first < crew.ranks(); crew.first += k)
                    CHECK(differs(crew, host, !shards) == "");
            }
            CHECK(cuda_double::complaints() == "");
        });
}

} // namespace

TEST_CASE(
    "P1 O9 replicas over NCCL train as those of one process on the host, in every bit, in any "
    "order that streams allow, eager and as graphs") {
    replicas_train_alike<gpipe::shard::Nothing>(79);
}

TEST_CASE("P1 and so they do where each has a part of the optimizer's state") {
    replicas_train_alike<gpipe::shard::OptimizerState>(109);
}

TEST_CASE_TEMPLATE("P1 and where each device updates at once", Shard, gpipe::shard::Nothing,
                   gpipe::shard::OptimizerState) {
    replicas_train_alike<Shard, &make_net, &toy::make_net<Real>, gpipe::update::Immediate>(139);
}

namespace {

using ExchangeNet = toy::ExchangeNetOf<Real, toy::WatchedEnqueued>;
using ExchangeCrew =
    CrewOf<TrainOf<gpipe::shard::Nothing, ExchangeNet>, &toy::made_with<ExchangeNet>>;
toy::ExchangeNet<Real> make_exchange_net_on_host(toy::Watch&) { return {}; }

} // namespace

TEST_CASE("P1 and where they tell each other something within a micro-batch") {
    replicas_train_alike<gpipe::shard::Nothing, &toy::made_with<ExchangeNet>,
                         &make_exchange_net_on_host>(127);
}

namespace {

using HintedNet = toy::HintedNetOf<Real, toy::Maybe<Real>, toy::Enqueued>;
HintedNet make_hinted_net(toy::Watch&) { return {}; }
using HintedCrew = CrewOf<TrainOf<gpipe::shard::Nothing, HintedNet>, &make_hinted_net>;

} // namespace

TEST_CASE("P1 and where tensors are absent in some mini-batches, which all ranks are told") {
    using HostNet = toy::HintedNet<Real, toy::Maybe<Real>>;
    using Host = toy::Training<HostNet, toy::MeanSquare<Real, 3>, Adam, gpipe::device::Host>;
    std::vector<std::size_t> const sizes{8, 8, 8, 5, 8, 8, 8, 8};
    std::size_t point = 0, trained = 0;
    toy::each_of_catalogue(
        4, HintedNet::size, 3, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            if (k < 2 || point++ % toy::one_of(7) != 0) return;
            INFO(schedule.name(), ", K = ", k);
            auto o = on_host<Host>(schedule, 3);
            Host host({}, {}, Adam{1e-2f}, o);
            auto const run = [&](auto& train) {
                std::vector<double> losses;
                std::uint32_t number = 0;
                for (std::size_t const size : sizes) {
                    toy::HintedData<Real> const data(size, ++number);
                    bool const with = number % 3 != 0;
                    auto const batch = data.batch<std::remove_reference_t<decltype(train)>>(with);
                    losses.push_back(train.step(batch, data.targets).loss);
                }
                return losses;
            };
            auto const expected = run(host);
            cuda_double::Session const doubles(session(k, point));
            toy::Watch watch;
            TrainOf<gpipe::shard::Nothing, HintedNet>::Options own;
            own.samples = 8;
            own.seed = 7;
            own.micro_batches = 3;
            own.schedule = schedule;
            own.device.device.graphs = 2 * (trained++ % 2);
            {
                HintedCrew crew(k, watch, own);
                crew.rethrow();
                std::vector<std::vector<double>> losses(crew.ranks());
                crew.each([&](std::size_t r) { losses[r] = run(crew[r]); });
                crew.rethrow();
                for (auto const& on_rank : losses) CHECK((on_rank == expected));
                CHECK(differs(crew, host, true) == "");
            }
            CHECK(cuda_double::complaints() == "");
        });
    CHECK(trained > 0);
}

namespace {

// Of more tensors, and with more micro-batches, than what is padded to slots has room for anyway.
template <template <class> class Kind>
using LongNet = gpipe::Pipeline<gpipe::Repeat<20, Kind<toy::Linear<Real, 5, 5>>>,
                                Kind<toy::StrictLinear<Real, 5, 3>>>;
template <class L> using Plain = L;
using LongOnGpu = LongNet<toy::Enqueued>;
LongOnGpu make_long_net(toy::Watch&) { return {}; }
template <class Net, class Loss, class... Where>
using LongTrain =
    gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<32>, gpipe::Loss<Loss>,
                    gpipe::Optimizer<Adam>, gpipe::Replicas<gpipe::dynamic>, Where...>;

} // namespace

TEST_CASE("P3 there is room for the losses and the squares of all replicas") {
    using Host = LongTrain<LongNet<Plain>, toy::MeanSquare<Real, 3>>;
    Host::Options o;
    o.samples = 32;
    o.cells = 1;
    o.replicas = 2;
    o.clip_norm = 0.05;
    Host host(LongNet<Plain>{}, {}, Adam{1e-2f}, o);
    std::vector<double> expected;
    for (int i = 0; i < 3; ++i) {
        toy::Data<Real> const data(64, 64);
        expected.push_back(host.step(data.inputs, data.targets).loss);
    }
    cuda_double::Session const doubles(session(2, 0));
    toy::Watch watch;
    using OnGpu = LongTrain<LongOnGpu, Loss, Cuda, gpipe::transport::Nccl<LocalRanks>>;
    OnGpu::Options own;
    own.samples = o.samples;
    own.clip_norm = o.clip_norm;
    {
        CrewOf<OnGpu, &make_long_net> crew(1, watch, own, 60, 2);
        crew.rethrow();
        CHECK((crew.steps({64, 64, 64}, false) == expected));
    }
    CHECK(cuda_double::complaints() == "");
}

namespace {

// Wherever a layer may throw, but few places: eager and as graphs, from `first` 2 on of two
// replicas.
template <class Crew> void throw_everywhere(std::size_t first, std::size_t one_of) {
    std::size_t faults = 0;
    for (toy::NamedSchedule const& schedule : toy::schedules)
        for (std::size_t n = first; n < 4; ++n) {
            std::size_t const graphs = n % 2, replicas = 1 + n / 2, cells = 3 - n / 2;
            INFO(schedule.name, ", graphs ", graphs, ", replicas ", replicas);
            cuda_double::Session const doubles(session(cells * replicas, faults % 4));
            toy::Watch watch;
            auto o = options(3);
            o.schedule = schedule.policy;
            o.device.device.graphs = graphs;
            toy::Data<Real> const data(8, 8);
            std::vector<double> expected;
            {
                Crew undisturbed(cells, watch, o, 60, replicas);
                undisturbed.rethrow();
                expected = undisturbed.steps({8, 8, 8, 8}, false);
            }
            o.debug = faults % 3 == 2;
            Crew crew(cells, watch, o, 60, replicas);
            crew.rethrow();
            watch.logs = true;
            CHECK(crew.steps({8}, false)[0] == expected[0]);
            watch.logs = false;
            auto const before = state_of(crew);
            auto const calls = watch.log();
            std::size_t at = 0;
            for (toy::Call const& call : calls) {
                if (call.layer >= Crew::Net::size || at++ % toy::one_of(one_of) != 0) continue;
                crew.first = call.first_sample * replicas / 8 * cells;
                Fault const fault{call.layer, call.first_sample, call.phase};
                watch.faults = {fault};
                INFO("layer ", fault.layer, ", first sample ", fault.first_sample, ", phase ",
                     static_cast<int>(fault.phase));
                CHECK(fails_rightly(crew, watch, data, fault, faults % 3 == 1) == "");
                CHECK((state_of(crew) == before));
                ++faults;
            }
            watch.faults.clear();
            std::vector<double> const rest = crew.steps({8, 8, 8}, false);
            CHECK((rest == std::vector<double>(expected.begin() + 1, expected.end())));
        }
    CHECK(faults > 0);
    MESSAGE(faults << " faults");
}

} // namespace

TEST_CASE(
    "P6 over NCCL whatever throws on a rank arrives there as it was thrown, on the others with "
    "its place, in eager steps and in those that are captured; nothing has changed, and "
    "training goes on") {
    throw_everywhere<Crew>(0, 7);
}

TEST_CASE("P6 and where replicas tell each other something") {
    throw_everywhere<ExchangeCrew>(2, 7);
}

TEST_CASE("P6 where each updates at once so it is; then nothing has changed, or none is of use any "
          "more, nor is the step that has begun behind") {
    std::size_t faults = 0, whole = 0;
    for (toy::NamedSchedule const& schedule : toy::schedules)
        for (std::size_t n = 0; n < 8; ++n) {
            // Of several ranks and replicas, of one, and where the last rank alone learns.
            std::size_t const graphs = n % 2, replicas = 1 + (n / 2 == 1);
            std::size_t const cells = std::vector<std::size_t>{3, 2, 1, 2}[n / 2];
            INFO(schedule.name, ", graphs ", graphs, ", replicas ", replicas, ", cells ", cells);
            auto o = options<Immediately::Options>(3);
            o.schedule = schedule.policy;
            o.device.device.graphs = graphs;
            for (std::size_t l = 0; n / 2 == 3 && l + 1 < Net::size; ++l) o.frozen.push_back(l);
            toy::Data<Real> const data(8, 8);
            std::vector<double> expected;
            {
                cuda_double::Session const doubles(session(cells * replicas, 0));
                toy::Watch watch;
                ImmediateCrew undisturbed(cells, watch, o, 60, replicas);
                undisturbed.rethrow();
                expected = undisturbed.steps({8, 8, 8}, false);
            }
            std::vector<toy::Call> calls;
            for (std::size_t at = 0; at == 0 || at < calls.size();
                 at += toy::one_of(23), ++faults) {
                cuda_double::Session const doubles(session(cells * replicas, faults % 4));
                toy::Watch watch;
                ImmediateCrew crew(cells, watch, o, 60, replicas);
                crew.rethrow();
                watch.logs = calls.empty();
                static_cast<void>(crew.steps({8}, false));
                watch.logs = false;
                if (calls.empty()) calls = watch.log();
                toy::Call const& call = calls[at];
                if (call.layer >= Net::size) continue;
                auto const before = state_of(crew);
                crew.first = call.first_sample * replicas / 8 * cells;
                Fault const fault{call.layer, call.first_sample, call.phase};
                INFO("layer ", fault.layer, ", first sample ", fault.first_sample, ", phase ",
                     static_cast<int>(fault.phase));
                // Whether they are of no use any more, all of them or none.
                auto const refuse = [&](auto f) {
                    crew.each(f);
                    std::size_t count = 0;
                    for (std::exception_ptr const& error : crew.errors) {
                        if (!error) continue;
                        ++count;
                        CHECK_THROWS_WITH_AS(std::rethrow_exception(error),
                                             doctest::Contains("of no use"), std::runtime_error);
                    }
                    CHECK((count == 0 || count == crew.ranks()));
                    return count > 0;
                };
                auto const step = [&](std::size_t r) { crew[r].step(data.inputs, data.targets); };
                // As if nothing had been wrong.
                auto const goes_on = [&] {
                    CHECK((crew.steps({8, 8}, false) ==
                           std::vector<double>(expected.begin() + 1, expected.end())));
                    CHECK(crew[0].steps() == 3);
                };
                watch.faults = {fault};
                if (faults % 2 == 0) {
                    CHECK(fails_rightly(crew, watch, data, fault, faults % 3 == 1) == "");
                    watch.faults.clear();
                    bool const as_before = state_of(crew) == before;
                    if (as_before)
                        goes_on();
                    else
                        CHECK(refuse(step));
                    whole += as_before;
                } else {
                    std::vector<std::vector<Immediately::Pending>> begun(crew.ranks());
                    auto const start = [&](std::size_t r) {
                        begun[r].push_back(crew[r].start(data.inputs, data.targets));
                    };
                    crew.each(start);
                    watch.faults.clear();
                    if (!crew.good()) { // nothing runs of a step that cannot be captured
                        goes_on();
                        continue;
                    }
                    crew.each(start);
                    crew.each([&](std::size_t r) { CHECK_THROWS(begun[r][0].result()); });
                    bool const ends = refuse([&](std::size_t r) {
                        double const loss = begun[r][1].result().loss;
                        CHECK(loss == expected[1]);
                    });
                    CHECK(refuse(step) == ends);
                }
            }
        }
    CHECK(faults > 0);
    MESSAGE(faults << " faults, behind " << whole << " nothing had changed");
}

namespace {

// Whether the first rank, if it is quick, runs the next step's first forward before the last has
// the last weight gradient of this one.
template <class Update> bool overlaps() {
    using Meeting =
        gpipe::Pipeline<toy::Enqueued<toy::FirstToMeet>, toy::Enqueued<toy::SecondToMeet>>;
    using T = gpipe::Training<Meeting, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<4>,
                              gpipe::Loss<toy::EnqueuedLoss<toy::MeanSquare<Real, 2>>>,
                              gpipe::Optimizer<Adam>, Cuda, gpipe::transport::Nccl<LocalRanks>,
                              gpipe::schedule::ZeroBubbleH2, gpipe::checkpoint::Never, Update>;
    auto quick = session(2, 0);
    quick.first_device = true;
    cuda_double::Session const doubles(quick);
    gpipe::LocalWire wire(2);
    toy::Overlap meeting{.samples = 8, .seconds = 0};
    std::barrier both_begun(2);
    toy::FirstToMeet first;
    toy::SecondToMeet second;
    first.meeting = second.meeting = &meeting;
    auto const train_two_steps = [&](std::size_t r) {
        LocalRanks control(wire, r, 60);
        Ranks ranks(control, static_cast<int>(r));
        typename T::Options o;
        o.samples = 8;
        o.cells = 2;
        o.device = {.device = {.gpus = {static_cast<int>(r)}}, .transport = &ranks};
        T train(Meeting(toy::Enqueued<toy::FirstToMeet>(first),
                        toy::Enqueued<toy::SecondToMeet>(second)),
                {}, Adam{}, o);
        std::vector<Real> const data(16, 0.5f);
        auto one = train.start(data, data), two = train.start(data, data);
        both_begun.arrive_and_wait(); // nothing runs before somebody waits for it
        one.result();
        two.result();
    };
    std::thread other(train_two_steps, 1);
    train_two_steps(0);
    other.join();
    CHECK(cuda_double::complaints() == "");
    return meeting.met;
}

} // namespace

TEST_CASE("where each updates at once the first rank begins the next step while the last is not "
          "done with this one") {
    CHECK(overlaps<gpipe::update::Immediate>());
    CHECK_FALSE(overlaps<gpipe::update::AfterCommit>());
}

TEST_CASE("where each updates at once on its own nobody knows all gradients: that is refused") {
    cuda_double::Session const doubles(session(2, 0));
    toy::Watch watch;
    auto o = options<Immediately::Options>(3);
    o.finite_gradients = true;
    ImmediateCrew crew(2, watch, o);
    for (std::exception_ptr const& error : crew.errors) {
        REQUIRE(error);
        CHECK_THROWS_WITH_AS(std::rethrow_exception(error),
                             doctest::Contains("finite_gradients is not for update::Immediate"),
                             std::exception);
    }
}

TEST_CASE("P1 a message that is left out, or comes behind the next one of its rank, is noticed by "
          "NCCL, as a race, by who waits for it, or by what is trained; or nothing depends on it") {
    toy::Data<Real> const data(8, 8);
    std::size_t point = 0, dropped = 0, swapped = 0, alike = 0, noticed = 0;
    for (std::size_t const replicas : {1, 2})
        for (std::size_t const graphs : {0, 2}) {
            std::size_t const cells = 4 - replicas, ranks = cells * replicas;
            auto o = options(3);
            o.schedule = gpipe::schedule::OneForwardOneBackward{};
            o.device.device.graphs = graphs; // the step behind the first is captured
            std::vector<double> expected;
            std::vector<std::byte> trained;
            // What tells of the n-th message of a rank behind the first step.
            auto const run = [&](std::size_t rank, std::size_t n, bool swaps) {
                cuda_double::Session const doubles(session(ranks, n % 4));
                toy::Watch watch;
                std::string told;
                {
                    bool const changes = !expected.empty();
                    Crew crew(cells, watch, o, changes ? 0.3 : 60, replicas);
                    try {
                        crew.rethrow();
                        static_cast<void>(crew.steps({8}, false));
                        if (changes)
                            (swaps ? nccl_double::swap_messages
                                   : nccl_double::drop_message)(static_cast<int>(rank), n);
                        auto const losses = crew.steps({8, 8, 8}, false);
                        auto const state = state_of(crew);
                        if (!changes) expected = losses, trained = state;
                        if (losses != expected || state != trained) told = "other numbers";
                    } catch (std::exception const& error) {
                        told = error.what();
                    }
                }
                return told + cuda_double::complaints();
            };
            REQUIRE(run(0, 0, false) == "");
            for (std::size_t rank = 0; rank < ranks; ++rank)
                for (std::size_t n = 0; n < 40; ++n)
                    for (bool const swaps : {false, true}) {
                        if (point++ % toy::one_of(17) != 0) continue;
                        bool const told = run(rank, n, swaps) != "";
                        auto const changed = nccl_double::changed();
                        if (changed.what.empty()) continue; // it has fewer, or was late before
                        INFO(replicas, " replicas, graphs ", graphs, ", rank ", rank, ", message ",
                             n, ": ", changed.what);
                        // Of two that go other ways either may come first, if nobody is in need.
                        CHECK((told || (swaps && !changed.alike)));
                        dropped += !swaps;
                        swapped += swaps;
                        alike += changed.alike;
                        noticed += swaps && told;
                    }
        }
    CHECK((dropped > 0 || toy::sanitized)); // there may be only one, and that be late
    CHECK((alike > 0 || toy::sanitized));
    MESSAGE(dropped << " left out, " << swapped << " swapped, " << alike << " of them of one way, "
                    << noticed << " noticed");
}

TEST_CASE("the double of NCCL refuses a rank that sends to itself what it does not receive, a "
          "second communicator of a GPU, and two threads in calls of one at once") {
    cuda_double::Session const doubles(session(1, 0));
    ncclUniqueId id{};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t ranks = nullptr, other = nullptr;
    auto const state = [&] {
        ncclResult_t result = ncclInProgress;
        CHECK(ncclCommGetAsyncError(ranks, &result) == ncclSuccess);
        return result;
    };
    auto const refused = [](char const* words) {
        return toy::has(cuda_double::complaints(), words);
    };
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    CHECK(ncclCommInitRankConfig(&ranks, 1, id, 0, &config) == ncclInProgress);
    CHECK(state() == ncclSuccess);
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    CHECK(ncclCommInitRankConfig(&other, 1, id, 0, &config) == ncclInvalidUsage);
    CHECK(refused("is of a GPU that has one already"));
    {
        gpipe::cuda::Stream const stream(0);
        gpipe::cuda::Buffer const from(0, 8), to(0, 8);
        std::uint64_t number = 42, found = 0;
        cuda_double::poke(from.data(), &number, sizeof number);
        auto const send = [&] {
            return ncclSend(from.data(), 8, ncclUint8, 0, ranks, stream.get());
        };
        CHECK(send() == ncclInvalidArgument);
        CHECK(refused("is to nobody else"));
        CHECK(ncclGroupStart() == ncclSuccess);
        CHECK(send() == ncclSuccess);
        CHECK(ncclGroupEnd() == ncclInvalidUsage);
        CHECK(refused("sends to itself what it does not receive"));
        CHECK(ncclGroupStart() == ncclSuccess);
        CHECK(send() == ncclSuccess);
        CHECK(ncclRecv(to.data(), 8, ncclUint8, 0, ranks, stream.get()) == ncclSuccess);
        CHECK(cuda_double::faults().empty());
        std::thread(state).join();
        CHECK(refused("while another thread has a group of this communicator"));
        CHECK(ncclGroupEnd() == ncclSuccess);
        stream.synchronize();
        cuda_double::peek(&found, to.data(), sizeof found);
        CHECK(found == number);
    }
    auto const ask = [&] {
        for (int n = 0; n < 1'000'000 && cuda_double::faults().empty(); ++n) state();
    };
    std::thread thread(ask);
    ask();
    thread.join();
    CHECK(refused("while another thread is in one of this communicator"));
    CHECK(ncclCommFinalize(ranks) == ncclSuccess);
    CHECK(ncclCommDestroy(ranks) == ncclSuccess);
    CHECK(cuda_double::complaints() == "");
}

namespace {

// Of any calls, with one replica, or two, at the least.
template <class Crew> void fail_calls(std::size_t least) {
    std::size_t failed = 0;
    for (bool const cuda : {false, true})
        for (std::size_t n = 0;; n += toy::one_of(cuda ? 197 : 13)) {
            INFO((cuda ? "CUDA" : "NCCL"), ", call ", n);
            cuda_double::Session const doubles(session(2, n % 4));
            toy::Watch watch;
            auto o = options(2);
            o.device.device.graphs = n % 2;
            o.debug = n % 3 == 1;
            std::size_t const replicas = n / 2 % 2 == 0 ? least : 2;
            cuda ? cuda_double::fail_call(n, cudaErrorInvalidValue) : nccl_double::fail_call(n);
            bool made = false, hit = false;
            {
                Crew crew(2 / replicas, watch, o, 60, replicas);
                made = crew.good();
                hit = !made;
                toy::Data<Real> const data(8, 8);
                for (int i = 0; i < 3 && made && !hit; ++i) {
                    crew.each([&](std::size_t r) { crew[r].step(data.inputs, data.targets); });
                    hit = !crew.good();
                    for (std::exception_ptr const& error : crew.errors) CHECK(!error == !hit);
                }
                for (std::exception_ptr const& error : crew.errors) {
                    if (!hit) continue;
                    REQUIRE(error);
                    CHECK_THROWS_AS(std::rethrow_exception(error), std::runtime_error);
                }
            }
            for (std::string const& leak : cuda_double::leaks()) CHECK(leak == "");
            for (std::string const& fault : cuda_double::faults()) CHECK(fault == "");
            static_cast<void>(cuda_double::complaints());
            if (!hit && n >= (cuda ? cuda_double::calls() : nccl_double::calls())) break;
            failed += hit;
        }
    CHECK(failed > 0);
    MESSAGE(failed << " failed calls");
}

} // namespace

TEST_CASE("whatever call of NCCL or CUDA fails on a rank, that rank says so, the others that it is "
          "lost, nobody waits for ever, and nothing is left behind") {
    fail_calls<Crew>(1);
}

TEST_CASE("and so it is where replicas tell each other something") { fail_calls<ExchangeCrew>(2); }

TEST_CASE(
    "where each updates at once no message of a later step follows a call of NCCL that failed") {
    std::size_t failed = 0;
    for (std::size_t n = 0;; n += toy::one_of(7)) {
        INFO("call ", n);
        cuda_double::Session const doubles(session(2, n % 4));
        toy::Watch watch;
        nccl_double::fail_call(n);
        bool hit = false;
        {
            ImmediateCrew crew(2, watch, options<Immediately::Options>(2));
            hit = !crew.good();
            toy::Data<Real> const data(8, 8);
            std::vector<std::vector<Immediately::Pending>> begun(crew.ranks());
            for (int i = 0; i < 4 && !hit; ++i) {
                // Whatever became of the step before.
                for (int ahead = 0; ahead < 2; ++ahead) {
                    crew.each([&](std::size_t r) {
                        begun[r].push_back(crew[r].start(data.inputs, data.targets));
                    });
                    hit = hit || !crew.good();
                }
                crew.each([&](std::size_t r) {
                    for (Immediately::Pending& one : begun[r]) one.result();
                    begun[r].clear();
                });
                hit = hit || !crew.good();
            }
        }
        CHECK(!toy::has(cuda_double::complaints(), "no use any more"));
        if (!hit && n >= nccl_double::calls()) break;
        failed += hit;
    }
    CHECK(failed > 0);
    MESSAGE(failed << " failed calls");
}

TEST_CASE(
    "where one rank cannot copy what is saved in the background all hear of it, nobody waits, "
    "and the next try saves") {
    toy::Folder const folder;
    toy::Data<Real> const data(8, 8);
    std::size_t failed = 0;
    for (std::size_t n = 0, last = 1; n < last; n += toy::one_of(5)) {
        CAPTURE(n);
        cuda_double::Session const doubles(session(2, n % 4));
        toy::Watch watch;
        auto o = options(2);
        o.snapshot = true;
        Crew crew(2, watch, o);
        crew.rethrow();
        crew.each([&](std::size_t r) { crew[r].step(data.inputs, data.targets); });
        crew.rethrow();
        auto const save = [&](std::size_t r) {
            gpipe::start_save(crew[r], folder / "state").wait();
        };
        std::size_t const before = cuda_double::calls();
        cuda_double::fail_call(n, cudaErrorInvalidValue);
        crew.each(save);
        last = cuda_double::calls() - before;
        std::size_t errors = 0;
        for (std::exception_ptr const& error : crew.errors) {
            if (!error) continue;
            ++errors;
            std::string const said = toy::thrown_by([&] { std::rethrow_exception(error); });
            CHECK_MESSAGE(
                (toy::has(said, "could not copy what it saves") || toy::has(said, "cuda")), said);
        }
        CHECK((errors == 0 || errors == crew.ranks()));
        failed += errors > 0;
        crew.each(save);
        CHECK_NOTHROW(crew.rethrow());
        CHECK(gpipe::saved_state(folder / "state").steps == 1);
    }
    CHECK(failed > 0);
    MESSAGE(failed << " failed calls");
}

TEST_CASE("what ranks save over NCCL one process on the host loads, and the reverse, and what they "
          "train behind is the same, in every bit") {
    using Host = toy::Train<Real, gpipe::device::Host>;
    std::vector<std::size_t> const before{8, 5, 8}, behind{8, 8, 5, 8, 1, 8};
    auto const host_steps = [](Host& host, std::vector<std::size_t> const& sizes) {
        std::vector<double> losses;
        for (std::size_t const size : sizes) {
            toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
            if (size % 2 == 1) host.accumulate(data.inputs, data.targets);
            losses.push_back(host.step(data.inputs, data.targets).loss);
        }
        return losses;
    };
    for (std::size_t const cells : {2, 3})
        for (std::size_t const graphs : {0, 2}) {
            CAPTURE(cells);
            CAPTURE(graphs);
            toy::Folder const folder;
            toy::Watch watch;
            auto of_ranks = options(3);
            of_ranks.schedule = gpipe::schedule::OneForwardOneBackward{};
            of_ranks.device.device.graphs = graphs;
            auto of_host = on_host<Host>(of_ranks.schedule, 3);
            of_host.clip_norm = of_ranks.clip_norm;
            of_host.seed = 9; // what it begins with is not what it loads
            Host host(toy::make_net<Real>(watch), {}, Adam{1e-2f}, of_host);
            {
                cuda_double::Session const doubles(session(cells, cells + graphs));
                {
                    Crew crew(cells, watch, of_ranks);
                    crew.rethrow();
                    static_cast<void>(crew.steps(before, false));
                    crew.each([&](std::size_t r) { gpipe::save(crew[r], folder / "ranks"); });
                    crew.rethrow();
                    CHECK(gpipe::load(host, folder / "ranks").steps == before.size());
                    CHECK((host_steps(host, behind) == crew.steps(behind, true)));
                    CHECK(differs(crew, host, true) == "");
                }
                CHECK(cuda_double::complaints() == "");
            }
            gpipe::save(host, folder / "host");
            of_ranks.seed = 9;
            std::size_t const others = 5 - cells;
            cuda_double::Session const doubles(session(others, cells + graphs));
            {
                Crew crew(others, watch, of_ranks);
                crew.rethrow();
                static_cast<void>(crew.steps({8}, false)); // of which nothing is left
                crew.each([&](std::size_t r) { gpipe::load(crew[r], folder / "host"); });
                crew.rethrow();
                CHECK((crew.steps(behind, true) == host_steps(host, behind)));
                CHECK(differs(crew, host, true) == "");
            }
            CHECK(cuda_double::complaints() == "");
        }
}

TEST_CASE("a rank that never comes is waited for no longer than the deadline") {
    cuda_double::Session const doubles(session(2, 0));
    for (bool const debug : {false, true}) {
        toy::Watch watch;
        auto o = options(2);
        o.debug = debug;
        Crew crew(2, watch, o, 0.3);
        crew.rethrow();
        for (std::size_t r : {0, 1}) CHECK(crew.nccl(r).used_bytes() == nccl_double::memory);
        toy::Data<Real> const data(8, 8);
        crew.each([&](std::size_t r) {
            if (r == 0) crew[r].step(data.inputs, data.targets);
        });
        REQUIRE(crew.errors[0]);
        CHECK_THROWS_WITH_AS(std::rethrow_exception(crew.errors[0]),
                             doctest::Contains("for longer than the deadline"), std::runtime_error);
        crew.each([&](std::size_t r) {
            if (r == 1) crew[r].step(data.inputs, data.targets);
        });
        CHECK(crew.errors[1]);
    }
}

TEST_CASE("and so it is where outputs go to pageable memory, in a copy that waits for the stream") {
    cuda_double::Session const doubles(session(2, 0));
    toy::Data<Real> const data(8, 8);
    std::vector<Real> outputs(8 * 3);
    auto const alone = [&](auto& crew) {
        crew.each([&](std::size_t r) {
            if (r == 1) crew[r].predict(data.inputs, outputs);
        });
        REQUIRE(crew.errors[1]);
        CHECK_THROWS_WITH_AS(std::rethrow_exception(crew.errors[1]),
                             doctest::Contains("for longer than the deadline"), std::runtime_error);
    };
    toy::Watch watch;
    {
        Crew crew(2, watch, options(2), 0.3);
        crew.rethrow();
        alone(crew);
    }
    for (std::size_t const graphs : {0, 1}) {
        Inference::Options o;
        o.samples = 8;
        o.micro_batches = 2;
        o.device.device.graphs = graphs;
        CrewOf<Inference, &make_net> crew(2, watch, o, 0.3);
        crew.rethrow();
        alone(crew);
    }
    CHECK(cuda_double::complaints() == "");
}

namespace {

// Writes nothing when it is told so.
struct Forgetful : toy::Linear<Real, 5, 5> {
    std::atomic<bool>* forgets = nullptr;
    void forward(auto& ctx, auto x, auto y) const {
        if (!*forgets) toy::Linear<Real, 5, 5>::forward(ctx, x, y);
    }
};
std::atomic<bool> forgets{false};
auto make_forgetful(toy::Watch&) {
    using Middle = toy::Enqueued<Forgetful>;
    return gpipe::Pipeline<toy::Enqueued<toy::Linear<Real, 5, 5>>, Middle,
                           toy::Enqueued<toy::StrictLinear<Real, 5, 3>>>(
        {}, Middle{Forgetful{{}, &forgets}}, {});
}

} // namespace

TEST_CASE("with debug what a layer leaves unwritten is said on its rank, and on the others that it "
          "was there; nothing has changed, and training goes on") {
    using Forgetting =
        TrainOf<gpipe::shard::Nothing, decltype(make_forgetful(std::declval<toy::Watch&>()))>;
    for (std::size_t const replicas : {1, 2})
        for (bool const graphs : {false, true}) {
            cuda_double::Session const doubles(session(3 * replicas, 3));
            toy::Watch watch;
            Forgetting::Options o;
            o.samples = 8;
            o.micro_batches = 2;
            o.debug = true;
            o.device.device.graphs = graphs;
            {
                CrewOf<Forgetting, &make_forgetful> crew(3, watch, o, 60, replicas);
                crew.rethrow();
                toy::Data<Real> const data(8, 8);
                auto const before = state_of(crew);
                forgets = true;
                crew.each([&](std::size_t r) { crew[r].step(data.inputs, data.targets); });
                forgets = false;
                char const* const words =
                    "output 0 is left unwritten, first at element 0 of sample";
                for (std::size_t r = 0; r < crew.ranks(); ++r) {
                    REQUIRE(crew.errors[r]);
                    std::string const said =
                        toy::thrown_by([&] { std::rethrow_exception(crew.errors[r]); });
                    CHECK_MESSAGE(toy::has(said, words), said);
                    CHECK_MESSAGE(toy::has(said, "on rank") == (r % 3 != 1), said);
                    CHECK(crew[r].failure()->layer == 1);
                }
                CHECK((state_of(crew) == before));
                crew.steps({8, 8, 8}, true);
            }
            CHECK(cuda_double::complaints() == "");
        }
}

TEST_CASE("a rank's GPU becomes its thread's, and is that of its device, or all ranks hear of it") {
    cuda_double::Session const doubles(session(2, 0));
    {
        gpipe::LocalWire wire(1);
        LocalRanks control(wire, 0);
        Ranks const alone(control, 1);
        int current = 0;
        gpipe::cuda::check("cudaGetDevice", cudaGetDevice(&current));
        CHECK(current == 1);
    }
    toy::Watch watch;
    auto o = options(2);
    o.device.devices = 2;
    o.device.device.gpus = {0, 1};
    {
        Crew crew(2, watch, o);
        for (std::size_t r : {0, 1}) {
            REQUIRE(crew.errors[r]);
            CHECK_THROWS_WITH_AS(
                std::rethrow_exception(crew.errors[r]),
                "gpipe: where messages go from GPU to GPU each rank has one device",
                std::invalid_argument);
        }
    }
    o.device.devices = 1;
    o.device.device.gpus = {0};
    Crew crew(2, watch, o);
    for (std::size_t r : {0, 1}) {
        REQUIRE(crew.errors[r]);
        CHECK_THROWS_WITH_AS(std::rethrow_exception(crew.errors[r]),
                             "gpipe: rank 1 trains on another GPU than that of its NcclRanks: give "
                             "both the same, see device::Cuda::Options::gpus",
                             std::invalid_argument);
    }
}

TEST_CASE("ranks with different versions of NCCL are refused, before any has a communicator") {
    cuda_double::Session const doubles(session(3, 0));
    gpipe::LocalWire wire(3);
    std::vector<std::string> said(3);
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < said.size(); ++r)
        threads.emplace_back([&, r] {
            nccl_double::version += r == 1;
            LocalRanks control(wire, r);
            try {
                Ranks const ranks(control, static_cast<int>(r));
            } catch (std::invalid_argument const& error) {
                said[r] = error.what();
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (std::string const& words : said)
        CHECK(words == "gpipe: rank 1 has another version of NCCL than rank 0");
    CHECK(nccl_double::calls() == 0);
}

TEST_CASE("ranks that are told different things hear of it, at the latest when they are to agree") {
    cuda_double::Session const doubles(session(2, 0));
    toy::Watch watch;
    Crew crew(2, watch, options(2));
    crew.rethrow();
    toy::Data<Real> const data(8, 8);
    CHECK(crew.steps({8}, false).size() == 1);
    crew.each([&](std::size_t r) {
        if (r == 0)
            crew[r].step(data.inputs, data.targets);
        else
            crew[r].compute_gradients(data.inputs, data.targets);
    });
    for (std::size_t r : {0, 1}) {
        REQUIRE(crew.errors[r]);
        CHECK_THROWS_WITH_AS(std::rethrow_exception(crew.errors[r]),
                             "gpipe: rank 0 is told to train on 8 samples after 1 steps of seed 7, "
                             "but rank 1 to compute the gradients of 8 samples after 1 steps of "
                             "seed 7: all have to be told the same",
                             std::invalid_argument);
    }
}

TEST_CASE(
    "a rank that asks for nothing, and destroys its training with steps under way, ends them in "
    "the order of the others") {
    for (std::size_t const steps : {1, 2, 3, 4}) {
        CAPTURE(steps);
        cuda_double::Session const doubles(session(2, 0));
        toy::Watch watch;
        Crew crew(2, watch, options(2));
        crew.rethrow();
        toy::Data<Real> const data(8, 8);
        crew.each([&](std::size_t r) {
            std::vector<Train::Pending> pending;
            for (std::size_t n = 0; n < steps; ++n)
                pending.push_back(crew[r].start(data.inputs, data.targets));
            if (r == 0) static_cast<void>(pending.back().result());
            pending.clear();
            if (r == 1) crew.destroy_training(r);
        });
        CHECK(crew.good());
        CHECK(crew[0].steps() == steps);
    }
}

TEST_CASE("what failed in an eager step does not fail those that are kept as graphs") {
    cuda_double::Session const doubles(session(2, 1));
    toy::Watch watch;
    auto o = options(2);
    o.device.device.graphs = 2;
    Crew crew(2, watch, o);
    crew.rethrow();
    CHECK(crew.steps({8, 8, 8, 8}, false).size() == 4); // one is met, one captured in each slot
    watch.faults = {{1, 0, Phase::forward}};
    toy::Data<Real> const data(5, 5);
    for (int n = 0; n < 2; ++n) { // in either slot
        CHECK(fails_rightly(crew, watch, data, watch.faults[0]) == "");
        watch.faults.clear();
        CHECK(crew.steps({8}, false).size() == 1);
        watch.faults = {{1, 0, Phase::forward}};
    }
}

namespace {

// What has come to it first, of the last micro-batch that it saw.
struct Sees : toy::Scale<Real, 6> {
    static inline std::atomic<Real> seen = 0;
    void forward(auto& context, auto x, auto y) const {
        seen = x(0, 0);
        toy::Scale<Real, 6>::forward(context, x, y);
    }
};
using ShortNet =
    gpipe::Pipeline<toy::WatchedEnqueued<toy::Linear<Real, 5, 6>>, toy::WatchedEnqueued<Sees>,
                    toy::WatchedEnqueued<toy::StrictLinear<Real, 6, 3>>>;
ShortNet make_short_net(toy::Watch& watch) {
    using First = toy::Linear<Real, 5, 6>;
    using Last = toy::StrictLinear<Real, 6, 3>;
    return ShortNet(toy::WatchedEnqueued<First>(watch, toy::Enqueued<First>()),
                    toy::WatchedEnqueued<Sees>(watch, toy::Enqueued<Sees>()),
                    toy::WatchedEnqueued<Last>(watch, toy::Enqueued<Last>()));
}
using ShortTrain = toy::Training<ShortNet, Loss, Adam, gpipe::Joined<Cuda, Ranks>>;

} // namespace

TEST_CASE("behind a throw others are sent zeros, not what lay there before") {
    cuda_double::Session const doubles(session(2, 0));
    toy::Watch watch;
    ShortTrain::Options o;
    o.samples = 8;
    o.micro_batches = 1;
    CrewOf<ShortTrain, &make_short_net> crew(2, watch, o);
    crew.rethrow();
    REQUIRE(crew.rank_of(0) == 0);
    REQUIRE(crew.rank_of(1) == 1);
    toy::Data<Real> const data(8, 8);
    CHECK(crew.steps({8}, false).size() == 1);
    CHECK(Sees::seen != 0);
    watch.faults = {{0, 0, Phase::forward}};
    crew.each([&](std::size_t r) { crew[r].step(data.inputs, data.targets); });
    CHECK(!crew.good());
    CHECK(Sees::seen == 0);
}

TEST_CASE("ranks with a GPU each infer what the host predicts, several under way, eager and as "
          "graphs, and hear of what throws on one") {
    toy::Data<Real> const whole(8, 9), few(5, 10), many(27, 11);
    std::vector<Real> of_whole(8 * 3), of_many(27 * 3);
    {
        toy::Watch watch;
        toy::Train<Real, gpipe::device::Host>::Options o;
        o.samples = 8;
        o.seed = 7;
        o.cells = 1;
        o.micro_batches = 4;
        toy::Train<Real, gpipe::device::Host> host(toy::make_net<Real>(watch), {}, Adam{}, o);
        host.predict(whole.inputs, of_whole);
        host.predict(many.inputs, of_many);
    }
    for (std::size_t const m : {1, 3, 8})
        for (std::size_t cells = 1; cells <= 3; ++cells) {
            bool const graphs = (m + cells) % 2 == 0;
            INFO("K = ", cells, ", M = ", m, graphs ? ", graphs" : "");
            cuda_double::Session session({.devices = static_cast<int>(cells), .seed = m % 4});
            {
                toy::Watch watch;
                Inference::Options o;
                o.samples = 8;
                o.seed = 7;
                o.micro_batches = m;
                o.device.device.graphs = graphs;
                CrewOf<Inference, &make_net> crew(cells, watch, o);
                gpipe::cuda::PinnedBuffer const pinned(cells * 43 * 3 * sizeof(Real));
                auto const outputs = [&](std::size_t r, std::size_t at, std::size_t samples) {
                    return std::span(reinterpret_cast<Real*>(pinned.data()) + (r * 43 + at) * 3,
                                     samples * 3);
                };
                auto const is = [&](std::size_t at, std::vector<Real> const& expected) {
                    auto const found = outputs(cells - 1, at, expected.size() / 3);
                    return std::equal(found.begin(), found.end(), expected.begin());
                };
                auto const predict = [&] {
                    crew.each([&](std::size_t r) {
                        auto one = crew[r].start(whole.inputs, outputs(r, 0, 8));
                        auto two = crew[r].start(whole.inputs, outputs(r, 8, 8));
                        one.wait();
                        two.wait();
                        crew[r].predict(many.inputs, outputs(r, 16, 27));
                    });
                };
                for (int round = 0; round < 2; ++round) {
                    std::fill_n(reinterpret_cast<Real*>(pinned.data()), cells * 43 * 3, Real(0));
                    predict();
                    crew.rethrow();
                    CHECK(is(0, of_whole));
                    CHECK(is(8, of_whole));
                    CHECK(is(16, of_many));
                }
                CHECK((cuda_double::count("cudaGraphLaunch") > 0) == graphs);
                watch.faults = {{4, 0, Phase::evaluate}};
                crew.each([&](std::size_t r) { crew[r].predict(few.inputs, outputs(r, 16, 5)); });
                for (std::size_t r = 0; r < cells; ++r) {
                    REQUIRE(crew.errors[r]);
                    REQUIRE(crew[r].failure());
                    CHECK(crew[r].failure()->layer == 4);
                }
                watch.faults.clear();
                predict();
                crew.rethrow();
                CHECK(is(16, of_many));
                // When actions ran all show alike, once nothing is under way.
                std::vector<gpipe::Timeline> shown(cells);
                crew.each([&](std::size_t r) {
                    crew[r].time_actions();
                    auto pending = crew[r].start(whole.inputs, outputs(r, 0, 8));
                    CHECK_THROWS_AS(static_cast<void>(crew[r].timeline()), std::logic_error);
                    pending.wait();
                    shown[r] = crew[r].timeline();
                });
                crew.rethrow();
                for (gpipe::Timeline const& timeline : shown) {
                    CHECK(timeline.size() == cells * m);
                    CHECK(gpipe::trace::text(timeline) == gpipe::trace::text(shown[0]));
                }
            }
            CHECK(cuda_double::races() == std::vector<std::string>{});
        }
}

TEST_CASE(
    "what ranks infer behind a stream of the caller's is written behind it, also where nothing "
    "is fed") {
    toy::Data<Real> const data(8, 9);
    for (std::size_t const graphs : {0, 1})
        for (std::size_t const cells : {1, 2})
            for (std::uint64_t order = 0; order < 4; ++order) {
                INFO("K = ", cells, ", order ", order, ", graphs ", graphs);
                cuda_double::Session session({.devices = static_cast<int>(cells), .seed = order});
                {
                    toy::Watch watch;
                    Inference::Options o;
                    o.samples = 8;
                    o.micro_batches = 2;
                    o.device.device.graphs = graphs;
                    CrewOf<Inference, &make_net> crew(cells, watch, o);
                    crew.rethrow();
                    gpipe::cuda::PinnedBuffer const pinned(8 * 5 * sizeof(Real));
                    std::span<Real> const inputs(reinterpret_cast<Real*>(pinned.data()), 8 * 5);
                    std::copy(data.inputs.begin(), data.inputs.end(), inputs.begin());
                    std::vector<std::size_t> read(cells);
                    crew.each([&](std::size_t r) {
                        int const gpu = static_cast<int>(r);
                        gpipe::cuda::Stream const stream(gpu);
                        gpipe::cuda::Buffer const there(gpu, 8 * 3 * sizeof(Real));
                        std::span<Real> const outputs(reinterpret_cast<Real*>(there.data()), 8 * 3);
                        for (int round = 0; round < 3; ++round) {
                            gpipe::cuda::DeviceGuard const guard(gpu);
                            gpipe::cuda::check("a kernel launch",
                                               cuda_double::launch(
                                                   stream.get(), [&read, r] { ++read[r]; },
                                                   {{outputs.data(), outputs.size_bytes()}}, {},
                                                   "the caller's kernel"));
                            crew[r].start(inputs, outputs, stream.get()).wait();
                        }
                        stream.synchronize();
                    });
                    crew.rethrow();
                    CHECK((read == std::vector<std::size_t>(cells, 3)));
                }
                CHECK(cuda_double::races() == std::vector<std::string>{});
            }
}

namespace {

// How long one step takes, and eight, and what the plan says of both, where messages take
// `between`.
template <class Crew>
void takes_what_its_plan_says(gpipe::schedule::Dynamic const& schedule, std::size_t cells,
                              std::size_t replicas, bool graphs, double between) {
    CAPTURE(schedule.name());
    CAPTURE(cells);
    CAPTURE(replicas);
    CAPTURE(graphs);
    CAPTURE(between);
    auto of = session(cells * replicas, 0);
    of.protects = false;
    of.lasts = toy::Takes{.alike = true, .between = between};
    cuda_double::Session const doubles(of);
    toy::Watch watch;
    typename Crew::Options o;
    o.samples = 6 * toy::timed_samples;
    o.micro_batches = 6;
    o.schedule = schedule;
    o.device.device.graphs = graphs;
    {
        Crew crew(cells, watch, o, 60, replicas);
        crew.rethrow();
        toy::Data<Real> const data(o.samples * replicas, 1);
        toy::Durations durations;
        std::mutex mutex;
        auto const steps = [&](std::size_t count) {
            double const begin = cuda_double::time();
            crew.each([&](std::size_t r) {
                std::vector<typename Crew::Train::Pending> pending;
                for (std::size_t n = 0; n < count; ++n)
                    pending.push_back(crew[r].start(data.inputs, data.targets));
                for (auto& step : pending) step.result();
            });
            crew.rethrow();
            return cuda_double::time() - begin;
        };
        crew.each([&](std::size_t r) {
            crew[r].on_action([&, before = 0.0](gpipe::ActionEvent const& event) mutable {
                double const now = cuda_double::enqueued();
                std::lock_guard const lock(mutex);
                if (event.begins)
                    before = now;
                else if (event.replica == 0)
                    durations.add(event.action, now - before);
            });
        });
        steps(1);
        crew.each([&](std::size_t r) { crew[r].on_action(nullptr); });
        gpipe::Lowered const& lowered = crew[0].plan().lowered;
        double const one = gpipe::detail::run_streams<double>(
                               lowered, gpipe::messages_of(lowered),
                               [&](std::size_t i, auto const& need) {
                                   for (std::size_t const needed : lowered.needs[i]) need(needed);
                               },
                               [&](gpipe::Action const& a) {
                                   return gpipe::is_transfer(a.kind) ? between : durations(a);
                               })
                               .makespan;
        steps(1); // with graphs, the one that is kept
        if (between == 0) {
            CHECK(steps(1) == one);
            CHECK(steps(8) == toy::repeated(lowered, durations, 8));
        } else { // on one stream of a rank they wait for each other, here and there
            CHECK(steps(1) <= 1.02 * one);
        }
    }
    CHECK(cuda_double::complaints() == "");
}

template <class First>
using SameEnds = gpipe::Pipeline<First, gpipe::Repeat<9, toy::Enqueued<toy::Linear<Real, 5, 5>>>,
                                 First, toy::Enqueued<toy::Linear<Real, 5, 3>>>;
using Untied = SameEnds<toy::Enqueued<toy::Linear<Real, 5, 5>>>;
using Tied = SameEnds<toy::Enqueued<toy::TiedTo<toy::Linear<Real, 5, 5>, struct Shared>>>;
template <class Net> Net make_ends(toy::Watch&) { return {}; }

template <class Net, class... Policies>
double time_of_a_step(gpipe::schedule::Dynamic const& schedule, std::size_t cells, bool graphs,
                      toy::Takes takes) {
    using OnGpu = TrainOf<gpipe::shard::Nothing, Net, Policies...>;
    auto of = session(cells, 0);
    of.protects = false;
    of.lasts = takes;
    cuda_double::Session const doubles(of);
    toy::Watch watch;
    typename OnGpu::Options o;
    o.samples = 6 * toy::timed_samples;
    o.micro_batches = 6;
    o.schedule = schedule;
    o.device.device.graphs = graphs;
    CrewOf<OnGpu, &make_ends<Net>> crew(cells, watch, o);
    crew.rethrow();
    toy::Data<Real> const data(o.samples, 1);
    double time = 0;
    for (int n = 0; n < 3; ++n) { // of which the second is kept as a graph
        double const begin = cuda_double::time();
        crew.each([&](std::size_t r) { crew[r].step(data.inputs, data.targets); });
        crew.rethrow();
        time = cuda_double::time() - begin;
    }
    return time;
}

} // namespace

TEST_CASE("on ranks with a GPU each steps take as long as their plan says") {
    using gpipe::schedule::Dynamic;
    std::size_t point = 0, left = 0;
    for (Dynamic const& schedule : std::initializer_list<Dynamic>{
             gpipe::schedule::GPipe{}, gpipe::schedule::ZeroBubbleH2{},
             gpipe::schedule::Interleaved1F1B<2>{}, gpipe::schedule::ZeroBubbleV{}})
        for (bool const graphs : {false, true})
            for (double const between : {0.0, 3.0}) {
                std::size_t const cells = 2 + point++ % 2;
                if (toy::left_out(left, 5)) continue;
                takes_what_its_plan_says<Crew>(schedule, cells, 1, graphs, between);
                takes_what_its_plan_says<Crew>(schedule, cells, 2, graphs, between);
                takes_what_its_plan_says<ImmediateCrew>(schedule, cells, 1, graphs, between);
            }
}

TEST_CASE("and of a sum of tied gradients no more shows than the way back") {
    std::size_t left = 0;
    for (char const* const name : {"GPipe", "OneForwardOneBackward", "Interleaved1F1B-2"})
        for (bool const graphs : {false, true})
            for (double const others : {1.0, 2.0}) {
                if (toy::left_out(left, 5)) continue;
                CAPTURE(name);
                CAPTURE(graphs);
                CAPTURE(others);
                auto const schedule = gpipe::schedule::find_schedule(name);
                toy::Takes const takes{.alike = true, .others = others};
                for (std::size_t const cells : {2u, 3u}) {
                    double const tied = time_of_a_step<Tied>(schedule, cells, graphs, takes);
                    double const untied = time_of_a_step<Untied>(schedule, cells, graphs, takes);
                    CHECK(tied - untied == others);
                    using Immediate = gpipe::update::Immediate;
                    CHECK(time_of_a_step<Tied, Immediate>(schedule, cells, graphs, takes) -
                              time_of_a_step<Untied, Immediate>(schedule, cells, graphs, takes) <=
                          others);
                }
            }
}
