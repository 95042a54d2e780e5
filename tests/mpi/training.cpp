// Ranks that are processes: each runs this program under mpirun, and all do the same.
#include "support/net.hpp"
#include "support/optional_layers.hpp"
#include "support/skip_layers.hpp"
#include "support/together_net.hpp"

#include <gpipe/inference.hpp>
#include <gpipe/replicas.hpp>
#include <gpipe/transport/mpi.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::MpiRanks;
using toy::Backward;

using Real = float;
using Loss = toy::MeanSquare<Real, 3>;
using Rank = gpipe::transport::Mpi::Of<gpipe::device::Host>;
static_assert(gpipe::RankTransport<MpiRanks>);
static_assert(gpipe::DeviceRuntime<Rank>);

// MPI is under way as long as there are any.
MpiRanks const& world() {
    static MpiRanks const ranks;
    return ranks;
}
[[maybe_unused]] std::size_t const begun = world().ranks();

// Every way that messages may take.
MpiRanks::Options way(std::size_t number) {
    MpiRanks::Options o;
    o.deadline = 60;
    o.shares = number % 2 == 0;
    o.ahead = 1 + number % 3;
    return o;
}

// The part of a Training that this rank has.
template <class Net, class T = toy::Training<Net, Loss, Adam, Rank>> struct Part {
    using Train = T;
    MpiRanks ranks;
    Train train;

    Part(Net net, std::size_t number, typename Train::Options o)
        : ranks(way(number)), train(std::move(net), Loss{}, Adam{1e-2f}, with(o)) {}

    bool has(std::size_t layer) const {
        auto const& plan = train.plan();
        std::size_t cell = 0;
        while (plan.first[cell + 1] <= layer) ++cell;
        return !const_cast<Train&>(train).arena(plan.lowered.programs.device_of(cell)).empty();
    }
    // As far as it is here: what it trains other than the plain loop; nothing if it is empty.
    template <class Plain> std::string differs(Plain const& plain) {
        for (std::size_t layer = 0; layer < Train::layer_count; ++layer)
            for (std::size_t t = 0; t < train.tensors(layer) && has(layer); ++t) {
                std::vector<std::byte> own(plain.parameter(layer, t).size());
                train.read_gradient(layer, t, std::span(own));
                if (own != plain.gradient(layer, t)) return "a gradient";
                train.read_parameter(layer, t, std::span(own));
                if (own != plain.parameter(layer, t)) return "parameters";
            }
        return "";
    }

  private:
    typename Train::Options with(typename Train::Options o) {
        o.device.transport = &ranks;
        return o;
    }
};

template <class Net> typename Part<Net>::Train::Options options(std::size_t k, std::size_t m) {
    typename Part<Net>::Train::Options o;
    o.samples = 13;
    o.seed = 7;
    o.cells = k;
    o.micro_batches = m;
    return o;
}

// One rank has all devices but one of each other.
std::size_t devices_of(std::size_t rank, std::size_t k, std::size_t most) {
    return rank == most % world().ranks() ? k - world().ranks() + 1 : 1;
}

template <class Net, class Make> void train_alike(std::size_t points, Make make) {
    std::size_t const sizes[] = {13, 7, 13}; // of 7 samples one micro-batch stays empty
    using Plain = toy::Reference<Net, Loss, Adam>;
    std::vector<std::unique_ptr<Plain>> plain;
    std::vector<double> losses[2];
    for (Backward const order : {Backward::descending, Backward::ascending}) {
        plain.push_back(std::make_unique<Plain>(make(), Loss{}, Adam{1e-2f}, 7, 8, order));
        for (std::size_t const size : sizes) {
            toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
            if (size == sizes[1]) plain.back()->accumulate(data.inputs, data.targets);
            losses[plain.size() - 1].push_back(plain.back()->step(data.inputs, data.targets));
        }
    }
    std::size_t point = 0, trained = 0;
    toy::each_of_catalogue(4, Net::size, 8, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        if (k < world().ranks()) return;
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing()) {
            if (point++ % toy::one_of(points) != 0) continue;
            auto o = options<Net>(k, 8);
            o.schedule = schedule;
            o.checkpointing = checkpointing.policy;
            o.device.device.threads = 1 + point % 3;
            o.device.devices = devices_of(world().rank(), k, point);
            INFO(schedule.name(), ", K = ", k, ", ", checkpointing.name);
            Part<Net> part(make(), point, o);
            std::size_t const order = schedule.name() == "GPipe" ? 0 : 1;
            for (std::size_t i = 0; i < 3; ++i) {
                toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(sizes[i]));
                if (sizes[i] == sizes[1]) part.train.accumulate(data.inputs, data.targets);
                (void)part.train.evaluate(data.inputs, data.targets);
                CHECK(part.train.step(data.inputs, data.targets).loss == losses[order][i]);
            }
            toy::Data<Real> const data(5, 99);
            CHECK(part.train.evaluate(data.inputs, data.targets).loss ==
                  plain[order]->evaluate(data.inputs, data.targets));
            CHECK(part.differs(*plain[order]) == "");
            ++trained;
        }
    });
    MESSAGE(trained << " trainings on " << world().ranks() << " ranks");
    CHECK(trained > (toy::sanitized ? 0 : 5));
}

} // namespace

TEST_CASE("P1 M3 O5 processes train as the plain loop, in every bit, under every schedule and "
          "checkpointing, through shared windows and by messages") {
    toy::Watch watch;
    train_alike<toy::Net<Real>>(23, [&] { return toy::make_net<Real>(watch); });
}

TEST_CASE("P1 skips and ties across processes, too") {
    train_alike<toy::SkipNet<Real>>(23, [] { return toy::SkipNet<Real>{}; });
}

namespace {

using Net = toy::Net<Real>;
std::size_t const cells = 4;

typename Part<Net>::Train::Options four(std::size_t threads) {
    auto o = options<Net>(cells, 3);
    o.schedule = gpipe::schedule::OneForwardOneBackward{};
    o.device.device.threads = threads;
    o.device.devices = devices_of(world().rank(), cells, 1);
    return o;
}

} // namespace

TEST_CASE("P1 processes that update at once train as the plain loop, in every bit, under every "
          "schedule and checkpointing, with two steps under way") {
    using Train =
        gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                        gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                        gpipe::checkpoint::Dynamic, gpipe::update::Immediate, Rank>;
    toy::Watch watch;
    std::size_t const sizes[] = {13, 7, 13, 1, 13};
    using Plain = toy::Reference<Net, Loss, Adam>;
    std::vector<std::unique_ptr<Plain>> plain;
    std::vector<double> losses[2];
    for (Backward const order : {Backward::descending, Backward::ascending}) {
        plain.push_back(
            std::make_unique<Plain>(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, 7, 8, order));
        for (std::size_t const size : sizes) {
            toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
            losses[plain.size() - 1].push_back(plain.back()->step(data.inputs, data.targets));
        }
    }
    std::size_t point = 0, trained = 0;
    toy::each_of_catalogue(4, Net::size, 8, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        if (k < world().ranks()) return;
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing()) {
            if (point++ % toy::one_of(97) != 0) continue;
            Train::Options o;
            o.samples = 13;
            o.seed = 7;
            o.cells = k;
            o.micro_batches = 8;
            o.schedule = schedule;
            o.checkpointing = checkpointing.policy;
            o.device.device.threads = 1 + point % 3;
            o.device.devices = devices_of(world().rank(), k, point);
            INFO(schedule.name(), ", K = ", k, ", ", checkpointing.name);
            Part<Net, Train> part(toy::make_net<Real>(watch), point, o);
            std::vector<double> found;
            std::vector<Train::Pending> before;
            for (std::size_t const size : sizes) {
                toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
                before.push_back(part.train.start(data.inputs, data.targets));
                if (before.size() < 2) continue;
                found.push_back(before[0].result().loss);
                before.erase(before.begin());
            }
            found.push_back(before[0].result().loss);
            std::size_t const order = schedule.name() == "GPipe" ? 0 : 1;
            CHECK(found == losses[order]);
            CHECK(part.differs(*plain[order]) == "");
            ++trained;
        }
    });
    MESSAGE(trained << " trainings on " << world().ranks() << " ranks");
    CHECK(trained > (toy::sanitized ? 0 : 2));
}

TEST_CASE("P6 O6 what throws in a process is told in all, changes nothing, and training goes on") {
    toy::Data<Real> const data(7);
    for (std::size_t number = 0; number < 6; ++number) {
        toy::Watch watch, other;
        Part<Net> part(toy::make_net<Real>(watch), number, four(1 + number % 2));
        toy::Plain<Real> plain(toy::make_net<Real>(other), {}, Adam{1e-2f}, 7, 3,
                               Backward::ascending);
        CHECK(part.train.step(data.inputs, data.targets).loss ==
              plain.step(data.inputs, data.targets));
        for (std::size_t layer = 0; layer < Net::size; layer += 3) {
            watch.faults = {{layer, 3, toy::Phase::forward}};
            bool thrown = false;
            try {
                part.train.step(data.inputs, data.targets);
            } catch (toy::Thrown const&) {
                thrown = part.has(layer);
            } catch (gpipe::RankError const&) {
                thrown = !part.has(layer);
            }
            CHECK(thrown);
            REQUIRE(part.train.failure());
            CHECK(part.train.failure()->layer == layer);
            watch.faults.clear();
            CHECK(part.train.step(data.inputs, data.targets).loss ==
                  plain.step(data.inputs, data.targets));
            CHECK(part.differs(plain) == "");
        }
    }
}

namespace {

// What a Net is trained on.
struct NetData : toy::Data<Real> {
    using toy::Data<Real>::Data;
    auto const& batch() const { return inputs; }
};

// As it is.
struct NoMore {
    void operator()(auto&, std::size_t) const {}
};
std::size_t skipped = 0; // steps

// The part that this rank has of a replica. change(training): before each step, of which two are
// under way where they overlap. more(options, point) of each.
template <class Shard, class Data, class Update = gpipe::update::AfterCommit, class Make,
          class Change, class More = NoMore>
void train_replicas(std::size_t replicas, Make make, Change change, More more = {}) {
    using Chain = decltype(make());
    using Train =
        gpipe::Training<Chain, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                        gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                        gpipe::checkpoint::Dynamic, gpipe::Replicas<gpipe::dynamic, Shard>, Update,
                        gpipe::transport::Mpi>;
    std::size_t const own = world().ranks() / replicas;
    std::size_t point = 0, trained = 0;
    toy::each_of_catalogue(
        4, Chain::size, 4, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            if (k < own) return;
            for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing()) {
                if (point++ % toy::one_of(89) != 0) continue;
                MpiRanks ranks(way(point));
                typename Train::Options o;
                o.samples = 7;
                o.seed = 7;
                o.cells = k;
                o.micro_batches = 4;
                o.replicas = replicas;
                o.schedule = schedule;
                o.checkpointing = checkpointing.policy;
                o.clip_norm = point % 2 && !Update::immediate ? 0.5 : 0;
                more(o, point);
                o.device.transport = &ranks;
                o.device.devices = world().rank() % own == 0 ? k - own + 1 : 1;
                o.device.device.threads = 1 + point % 2;
                INFO(replicas, " replicas, ", schedule.name(), ", K = ", k, ", ",
                     checkpointing.name);
                Train train(make(), Loss{}, Adam{1e-2f}, o);
                // The same in one process.
                using Local =
                    gpipe::Training<Chain, gpipe::Cells<gpipe::dynamic>,
                                    gpipe::MicroBatches<gpipe::dynamic>, gpipe::Loss<Loss>,
                                    gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                                    gpipe::Replicas<gpipe::dynamic>>;
                typename Local::Options whole;
                whole.samples = o.samples;
                whole.seed = o.seed;
                whole.cells = k;
                whole.micro_batches = 4;
                whole.replicas = replicas;
                whole.schedule = schedule;
                whole.clip_norm = o.clip_norm;
                more(whole, point);
                Local local(make(), Loss{}, Adam{1e-2f}, whole);
                std::vector<typename Train::Pending> before;
                std::vector<double> losses;
                auto const end_one = [&] {
                    auto const found = before.front().result();
                    CHECK(found.loss == losses.front());
                    before.erase(before.begin());
                    losses.erase(losses.begin());
                };
                for (std::size_t const size :
                     {7 * replicas, replicas + 1, std::size_t{1}, 7 * replicas}) {
                    Data const data(size, static_cast<std::uint32_t>(size));
                    change(train, size);
                    change(local, size);
                    auto const expected = local.step(data.batch(), data.targets);
                    before.push_back(train.start(data.batch(), data.targets));
                    losses.push_back(expected.loss);
                    if (Update::immediate) {
                        if (before.size() > 1) end_one();
                        continue;
                    }
                    auto const found = before.front().result();
                    CHECK(found.skipped() == expected.skipped());
                    CHECK((found.skipped() || found.gradient_norm == expected.gradient_norm));
                    skipped += found.skipped();
                    end_one();
                    CHECK(train.evaluate(data.batch(), data.targets).loss ==
                          local.evaluate(data.batch(), data.targets).loss);
                }
                while (!before.empty()) end_one();
                for (std::size_t layer = 0; layer < Chain::size; ++layer)
                    for (std::size_t t = 0; t < train.tensors(layer); ++t) {
                        std::size_t cell = 0;
                        while (train.plan().first[cell + 1] <= layer) ++cell;
                        if (train.arena(train.programs().device_of(cell)).empty())
                            continue; // elsewhere
                        auto const ours = train.template parameter<Real>(layer, t);
                        auto const theirs = local.template parameter<Real>(layer, t);
                        CHECK(std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end()));
                    }
                ++trained;
            }
        });
    CHECK(trained > 0);
    MESSAGE(trained << " trainings of " << replicas << " replicas on " << world().ranks()
                    << " ranks");
}

} // namespace

TEST_CASE("P1 replicas of one or several processes each are those in one process, in every bit") {
    for (std::size_t const replicas : {1, 2, 3, 4}) {
        if (world().ranks() % replicas != 0) continue;
        toy::Watch watch;
        auto const make = [&] { return toy::make_net<Real>(watch); };
        auto const nothing = [](auto&, std::size_t) {};
        train_replicas<gpipe::shard::Nothing, NetData>(replicas, make, nothing);
        train_replicas<gpipe::shard::OptimizerState, NetData>(replicas, make, nothing);
        if (replicas == 2)
            train_replicas<gpipe::shard::Nothing, NetData, gpipe::update::Immediate>(replicas, make,
                                                                                     nothing);
    }
}

TEST_CASE("P1 side inputs, constants, buffers and what replicas tell each other go over processes, "
          "too") {
    for (std::size_t const replicas : {1, 2, 3, 4}) {
        if (world().ranks() % replicas != 0) continue;
        auto const make = [] {
            toy::TogetherNet net;
            toy::layer_of<10>(net).most = 1e30f; // of one sample norms make large numbers
            return net;
        };
        train_replicas<gpipe::shard::Nothing, toy::TogetherData>(
            replicas, make, [](auto& train, std::size_t step) {
                train.template constant<toy::Heat>().value = 1 + static_cast<Real>(step) / 16;
            });
    }
}

namespace {

// Freezes layers at either end, and scales losses until gradients overflow.
struct FrozenAndScaled {
    void operator()(auto& options, std::size_t point) const {
        options.frozen = std::vector<std::vector<std::size_t>>{{0}, {8, 12}, {19}}[point % 3];
        options.frozen_parameters = {{8, 1}};
        options.loss_scale = gpipe::LossScale::dynamic(1 << 14, 4, 0.25, 2);
    }
};

} // namespace

TEST_CASE("P1 frozen layers, and steps that are skipped as gradients overflow, go over processes, "
          "too") {
    std::size_t const before = skipped;
    for (std::size_t const replicas : {1, 2, 3, 4}) {
        if (world().ranks() % replicas != 0) continue;
        train_replicas<gpipe::shard::Nothing, toy::TogetherData>(
            replicas, [] { return toy::TogetherNet{}; }, [](auto&, std::size_t) {},
            FrozenAndScaled{});
    }
    CHECK(skipped > before);
}

namespace {

// Every second time without those that may be absent.
struct SometimesHinted : toy::HintedData<Real> {
    using Input = gpipe::detail::inputs_of<toy::HintedNet<Real, toy::Maybe<Real>>>;
    bool with;
    SometimesHinted(std::size_t samples, std::uint32_t seed)
        : toy::HintedData<Real>(samples, seed), with(samples % 2 == 1) {}
    auto batch() const { return toy::HintedData<Real>::batch<SometimesHinted>(with); }
};

} // namespace

TEST_CASE("P1 tensors that are absent in some mini-batches go over processes, too") {
    for (std::size_t const replicas : {1, 2, 3, 4}) {
        if (world().ranks() % replicas != 0) continue;
        train_replicas<gpipe::shard::Nothing, SometimesHinted>(
            replicas, [] { return toy::HintedNet<Real, toy::Maybe<Real>>{}; },
            [](auto&, std::size_t) {});
    }
}

TEST_CASE("processes infer what a training of one predicts, in every bit") {
    using Skips = toy::SkipNet<Real>;
    using T = gpipe::Inference<Skips, gpipe::Cells<gpipe::dynamic>,
                               gpipe::MicroBatches<gpipe::dynamic>, gpipe::transport::Mpi>;
    using Whole = toy::Training<Skips, Loss, Adam, gpipe::device::Host>;
    Whole::Options whole;
    whole.samples = 13;
    whole.cells = 2;
    whole.micro_batches = 4;
    Whole train(Skips{}, {}, Adam{1e-2f}, whole); // each process has it
    toy::Data<Real> const data(13, 1), many(40, 2);
    train.step(data.inputs, data.targets);
    std::vector<Real> expected(40 * 3);
    train.predict(many.inputs, expected);
    for (std::size_t const m : {1, 3, 8})
        for (std::size_t k = world().ranks(); k <= 5; ++k) {
            MpiRanks ranks(way(k + m));
            T::Options o;
            o.samples = 13;
            o.cells = k;
            o.micro_batches = m;
            o.device.transport = &ranks;
            o.device.device.threads = 1 + k % 2;
            o.device.devices = devices_of(world().rank(), k, m);
            T inference(Skips{}, o);
            inference.copy_from(train);
            std::vector<Real> outputs(40 * 3);
            inference.predict(many.inputs, outputs);
            INFO("K = ", k, ", M = ", m);
            if (!inference.arena(k - 1).empty()) CHECK(outputs == expected);
        }
}

TEST_CASE("plans that differ are refused by all processes") {
    toy::Watch watch;
    auto o = four(1);
    o.seed += world().rank();
    if (world().ranks() == 1) return;
    CHECK_THROWS_WITH_AS(Part<Net>(toy::make_net<Real>(watch), 0, o),
                         "gpipe: rank 1 has another Options::seed than rank 0",
                         std::invalid_argument);
}

TEST_CASE("a second training on what joins one is refused, and the first goes on") {
    if (world().ranks() == 1) return;
    for (std::size_t const number : {0, 1}) { // in shared memory, and by messages
        toy::Watch watch;
        toy::Plain<Real> plain(toy::make_net<Real>(watch), {}, Adam{1e-2f}, 7, 3,
                               Backward::ascending);
        auto o = four(1);
        Part<Net> part(toy::make_net<Real>(watch), number, o);
        o.device.transport = &part.ranks;
        toy::Data<Real> const data(13);
        for (int step = 0; step < 2; ++step) {
            CHECK(part.train.step(data.inputs, data.targets).loss ==
                  plain.step(data.inputs, data.targets));
            CHECK_THROWS_WITH_AS(
                Part<Net>::Train(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, o),
                "gpipe: an MpiRanks joins the devices of one Training, be it a refused one",
                std::logic_error);
        }
        CHECK(part.differs(plain) == "");
    }
}

TEST_CASE("options that cannot be met are refused, and the others kept") {
    CHECK_THROWS_WITH_AS(MpiRanks(MpiRanks::Options{.communicator = MPI_COMM_NULL}),
                         doctest::Contains("communicator is MPI_COMM_NULL"), std::invalid_argument);
    MpiRanks::Options o;
    o.deadline = 71;
    CHECK(MpiRanks(o).deadline() == 71);
    o = {};
    char const* const words = "gpipe: MpiRanks::Options asks for a deadline, and for messages "
                              "ahead, of more than 0, and at most 65,536";
    for (std::size_t const ahead : {std::size_t{0}, std::size_t{65'537}, std::size_t{1} << 60}) {
        o.ahead = ahead;
        CHECK_THROWS_WITH_AS(MpiRanks{o}, words, std::invalid_argument);
    }
    o = {};
    o.deadline = 0;
    CHECK_THROWS_WITH_AS(MpiRanks{o}, words, std::invalid_argument);
}

TEST_CASE("options that are not the same on all ranks are refused by all, with the rank") {
    std::size_t const ranks = world().ranks(), self = world().rank();
    if (ranks < 2) return;
    for (bool const shares : {true, false}) {
        MpiRanks::Options o;
        if (shares)
            o.shares = self + 1 < ranks;
        else
            o.ahead = self + 1 < ranks ? 4 : 8;
        CHECK_THROWS_WITH_AS(MpiRanks{o},
                             ("gpipe: rank " + std::to_string(ranks - 1) +
                              " has other MpiRanks::Options (ahead, shares) than rank 0")
                                 .c_str(),
                             std::invalid_argument);
    }
}

TEST_CASE("a message of any length arrives as it was sent, in one piece or in many, with its word, "
          "whatever was sent before it") {
    std::size_t const self = world().rank();
    if (world().ranks() < 2) return;
    constexpr std::size_t piece = std::size_t{1} << 18, head = 64;
    for (std::size_t const most : {std::size_t{0}, std::size_t{700}, 3 * piece, 21 * piece + 5})
        for (std::size_t const number : {0, 1, 2, 3, 4, 5}) {
            CAPTURE(most);
            CAPTURE(number);
            MpiRanks::Options const o = way(number);
            MpiRanks ranks(o);
            gpipe::Array<gpipe::Channel> channels(2);
            channels[0] = {0, 1, most};
            channels[1] = {1, 0, most};
            ranks.open(channels);
            if (self > 1) continue;
            std::vector<std::byte> sent(most), received(most);
            std::uint32_t word = 0;
            // Of message n from a rank, another one of each.
            auto const at = [](std::size_t from, std::uint32_t n, std::size_t i) {
                return static_cast<std::byte>(31 * i + i / 251 + 7 * n + 101 * from);
            };
            for (std::size_t const length :
                 {most, std::size_t{0}, most / 2, std::size_t{1}, piece - head, piece - head + 1,
                  piece, 2 * piece - head, 2 * piece - head + 1, most - most / 7}) {
                std::size_t const bytes = std::min(length, most);
                auto const send = [&] {
                    for (std::size_t i = 0; i < bytes; ++i) sent[i] = at(self, word, i);
                    ranks.send(self, sent.data(), bytes, word);
                };
                auto const receive = [&] {
                    received.assign(most, std::byte{});
                    CHECK(ranks.receive(1 - self, received.data(), bytes) == word);
                    std::size_t wrong = 0;
                    for (std::size_t i = 0; i < most; ++i)
                        wrong += received[i] != (i < bytes ? at(1 - self, word, i) : std::byte{});
                    CHECK(wrong == 0);
                };
                // As many on their way as there is room for.
                for (std::size_t n = 0; n < o.ahead; ++n, ++word) send();
                word -= static_cast<std::uint32_t>(o.ahead);
                for (std::size_t n = 0; n < o.ahead; ++n, ++word) receive();
            }
        }
}

TEST_CASE("a message of which not all has come brings no word") {
    constexpr std::size_t bytes = std::size_t{1} << 20;
    std::vector<std::byte> message(bytes);
    gpipe::detail::MpiWay way({0, 1, bytes}, 0, 1);
    way.own_memory();
    way.write(
        message.data(), bytes, 7, [] { return true; }, [](int) {});
    for (std::size_t const come : {way.count(), std::size_t{1}, std::size_t{0}}) {
        way.next = 0;
        std::uint32_t word = 0;
        CHECK(way.read(
            message.data(), bytes, word, [&] { return way.next < come; }, [] {}));
        CHECK(word == (come == way.count() ? 7 : 0));
    }
}

TEST_CASE("the buffers of messages, which are beside the plan, are counted: of a window the "
          "sender's, else those of both ends") {
    if (world().ranks() < 2) return;
    gpipe::Array<gpipe::Channel> channels(2);
    channels[0] = {0, 1, 1000};
    channels[1] = {1, 0, 24};
    for (std::size_t const number : {0, 1, 2, 3, 4, 5}) {
        MpiRanks::Options const o = way(number);
        MpiRanks ranks(o);
        ranks.open(channels);
        std::size_t const self = world().rank();
        std::size_t expected = 0;
        for (gpipe::Channel const& channel : channels)
            if (channel.from == self || (!o.shares && channel.to == self))
                expected += gpipe::detail::MpiWay::ring_of(channel, o.ahead);
        CHECK(ranks.used_bytes() == expected);
    }
}
