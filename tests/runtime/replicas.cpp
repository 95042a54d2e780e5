// Replicas: the chain several times over, trained as one.
#include "support/replicas.hpp"
#include "support/buffer_layers.hpp"
#include "support/counting.hpp"
#include "support/folder.hpp"
#include "support/fragile.hpp"
#include "support/net.hpp"
#include "support/ranks.hpp"
#include "support/skip_layers.hpp"
#include "support/timeline_entries.hpp"

#include <gpipe/check_gradients.hpp>
#include <gpipe/replicas.hpp>
#include <gpipe/state/state.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

using namespace toy::replicas;

TEST_CASE(
    "P1 O8 replicas train as a plain loop does that adds their gradients up in order, in every "
    "bit, with empty parts, under every schedule and checkpointing") {
    toy::Watch watch;
    for (std::size_t const replicas : {2, 3, 4})
        train_alike<toy::Net<Real>, gpipe::shard::Nothing>(
            replicas, 59, [&] { return toy::make_net<Real>(watch); });
}

TEST_CASE("P1 replicas in one process are those on ranks, in every bit") {
    toy::Watch watch;
    auto const make = [&] { return toy::make_net<Real>(watch); };
    train_in_one_process<toy::Net<Real>, gpipe::shard::Nothing>(1, 193, make);
    train_in_one_process<toy::Net<Real>, gpipe::shard::Nothing>(2, 89, make);
    train_in_one_process<toy::Net<Real>, OptimizerState>(3, 89, make);
}

namespace {

// Passes on what it gets, beside parameters that it does not use.
struct Idle : toy::Scale<Real, 5> {
    using Parameters = gpipe::Tensor<Real, 4>;
    void initialize(auto& ctx) const {
        for (Real& v : ctx.parameters()) v = 0.5f;
    }
};

} // namespace

TEST_CASE(
    "P1 O8 O9 parameters that nobody uses have gradients of zero, and stay, in all replicas") {
    using Net = gpipe::Pipeline<toy::Linear<Real, 5, 5>, Idle, toy::Linear<Real, 5, 3>>;
    train_in_one_process<Net, gpipe::shard::Nothing>(2, 83, [] { return Net{}; });
    using T = OfThreads<Net, gpipe::shard::Nothing>;
    auto o = options<T>(3, 2);
    o.replicas = 2;
    T train(Net{}, Loss{}, Adam{1e-2f}, o);
    toy::Data<Real> const data(14);
    for (int step = 0; step < 3; ++step) train.step(data.inputs, data.targets);
    for (std::size_t i = 0; i < 4; ++i) {
        CHECK(train.parameter<Real>(1, 0)[i] == 0.5f);
        CHECK(train.gradient<Real>(1, 0)[i] == 0);
    }
    CHECK(train.gradient<Real>(0, 0)[0] != 0);
}

namespace {

// Begins with other numbers in other threads.
struct Willful : toy::Linear<Real, 5, 3> {
    static inline std::thread::id const main = std::this_thread::get_id();
    void initialize(auto& ctx) const {
        auto const [weights, biases] = ctx.parameters();
        for (Real& v : weights) v = std::this_thread::get_id() == main ? 0.25f : 0.75f;
        for (Real& v : biases) v = 0;
    }
};

} // namespace

TEST_CASE("replicas in one process begin with what the first begins with") {
    using T = OfThreads<gpipe::Pipeline<Willful>, OptimizerState>;
    toy::Data<Real> const data(14);
    std::vector<double> losses;
    for (std::size_t const replicas : {1, 2}) {
        auto o = options<T>(2, 1);
        o.replicas = replicas;
        o.cells = 1;
        o.samples = 14;
        T train({}, Loss{}, Adam{1e-2f}, o);
        for (int step = 0; step < 2; ++step)
            losses.push_back(train.step(data.inputs, data.targets).loss);
    }
    CHECK(losses[2] == doctest::Approx(losses[0]).epsilon(1e-6));
    CHECK(losses[3] == doctest::Approx(losses[1]).epsilon(1e-6));
}

TEST_CASE("gradients of replicas in one process are checked in the first") {
    using T = OfThreads<gpipe::Pipeline<Willful>, OptimizerState>;
    auto o = options<T>(2, 1);
    o.replicas = 2;
    o.cells = 1;
    T train({}, Loss{}, Adam{1e-2f}, o);
    toy::Data<Real> const data(7);
    CHECK(gpipe::check_gradients(train, data.inputs, data.targets).passed());
}

TEST_CASE("P1 with the optimizer's state sharded all parameters are those without, in every bit") {
    toy::Watch watch;
    for (std::size_t const replicas : {2, 3})
        train_alike<toy::Net<Real>, OptimizerState>(replicas, 59,
                                                    [&] { return toy::make_net<Real>(watch); });
}

TEST_CASE("P1 buffers are the same on all, by the statistics of all replicas in their order") {
    auto const make = [] { return toy::BufferNet<Real>{}; };
    train_alike<toy::BufferNet<Real>, gpipe::shard::Nothing>(3, 59, make);
}

TEST_CASE("P1 H9 O8 skips and ties, too") {
    auto const make = [] { return toy::SkipNet<Real>{}; };
    train_alike<toy::SkipNet<Real>, gpipe::shard::Nothing>(2, 59, make);
    train_alike<toy::SkipNet<Real>, OptimizerState>(3, 59, make);
}

namespace {

// Tensors of several slots, which parts begin and end in.
using WideNet = gpipe::Pipeline<toy::Linear<Real, 5, 60>, toy::Tanh<Real, 60>,
                                toy::Linear<Real, 60, 33>, toy::Linear<Real, 33, 3>>;

} // namespace

TEST_CASE("P1 what clip_norm clips is the same whatever the cut, the parts, and what is sharded") {
    auto const make = [] { return WideNet{}; };
    train_alike<WideNet, gpipe::shard::Nothing>(2, 37, make);
    train_alike<WideNet, OptimizerState>(3, 37, make);
}

namespace {

template <class Shard> using Watched = Train<toy::Net<Real>, Shard>;

template <class Crew> std::vector<std::byte> parameters(Crew& crew, std::size_t replicas) {
    std::vector<std::byte> all;
    for (crew.first = 0; crew.first < crew.ranks(); crew.first += crew.ranks() / replicas)
        for (std::size_t layer = 0; layer < Crew::layer_count; ++layer)
            for (std::size_t t = 0; t < crew.tensors(layer); ++t) {
                auto const bytes = crew.of(layer).template parameter<std::byte>(layer, t);
                all.insert(all.end(), bytes.begin(), bytes.end());
            }
    crew.first = 0;
    return all;
}

} // namespace

TEST_CASE("the norm of gradients is that over all replicas, the same whatever is sharded; the mean "
          "gradients are whole everywhere, and near those of one replica") {
    toy::Watch watch;
    auto const make = [&] { return toy::make_net<Real>(watch); };
    toy::Data<Real> const data(13);
    for (Sizes const& devices : {Sizes{2}, Sizes{1, 1}}) {
        auto o = options<Watched<gpipe::shard::Nothing>>(2, 2);
        auto sharded = options<Watched<OptimizerState>>(2, 2);
        auto alone = options<OfThreads<toy::Net<Real>, gpipe::shard::Nothing>>(2, 4);
        o.clip_norm = sharded.clip_norm = alone.clip_norm = 0.5;
        alone.samples = 13;
        alone.replicas = 1;
        auto plain = crew<Watched<gpipe::shard::Nothing>>(2, devices, true, 1, o, make);
        auto parts = crew<Watched<OptimizerState>>(2, devices, false, 2, sharded, make);
        OfThreads<toy::Net<Real>, gpipe::shard::Nothing> one(make(), Loss{}, Adam{1e-2f}, alone);
        for (int n = 0; n < 3; ++n) {
            auto const a = plain.step(data.inputs, data.targets);
            auto const b = parts.step(data.inputs, data.targets);
            auto const c = one.step(data.inputs, data.targets);
            CHECK(a.loss == b.loss);
            CHECK(a.gradient_norm == b.gradient_norm);
            CHECK(a.gradient_norm > 0.5);
            CHECK(a.loss == doctest::Approx(c.loss).epsilon(1e-5));
            CHECK(a.gradient_norm == doctest::Approx(c.gradient_norm).epsilon(1e-5));
            CHECK(a.weight == c.weight);
        }
        CHECK(parameters(plain, 2) == parameters(parts, 2));
        auto const means = [&](auto& train) {
            return train.compute_gradients(data.inputs, data.targets);
        };
        CHECK(plain.all(means).gradient_norm == parts.all(means).gradient_norm);
        for (std::size_t first = 0; first < plain.ranks(); first += plain.ranks() / 2)
            for (std::size_t layer = 0; layer < toy::layers<Real>; ++layer)
                for (std::size_t t = 0; t < plain.tensors(layer); ++t) {
                    plain.first = parts.first = first;
                    auto const a = plain.of(layer).gradient<Real>(layer, t);
                    auto const b = parts.of(layer).gradient<Real>(layer, t);
                    CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
                }
    }
}

TEST_CASE("P6 what throws in any replica is told in all, changes nothing, and training goes on") {
    toy::Data<Real> const data(12);
    std::size_t point = 0, faults = 0;
    for (std::size_t const replicas : {2, 3})
        for (Sizes const& devices : {Sizes{2}, Sizes{1, 1}}) {
            toy::Watch watch, other;
            auto o = options<Watched<OptimizerState>>(2, 3);
            o.schedule = gpipe::schedule::OneForwardOneBackward{};
            auto all =
                crew<Watched<OptimizerState>>(replicas, devices, point % 2 == 0, 1 + point % 2, o,
                                              [&] { return toy::make_net<Real>(watch); });
            toy::Reference<toy::Net<Real>, Loss, Adam> plain(toy::make_net<Real>(other), {},
                                                             Adam{1e-2f}, 7, 3,
                                                             toy::Backward::ascending, replicas);
            watch.logs = true;
            CHECK(all.step(data.inputs, data.targets).loss ==
                  plain.step(data.inputs, data.targets));
            watch.logs = false;
            auto const calls = watch.log();
            auto const before = parameters(all, replicas);
            for (toy::Call const& call : calls) {
                if (point++ % 3 != 0) continue;
                watch.faults = {{call.layer, call.first_sample, call.phase}};
                all.each([&](std::size_t r) { all[r].step(data.inputs, data.targets); });
                CHECK((thrown_as<toy::Thrown>(all, call.layer) == 1));
                CHECK(all.wire->fault() == "");
                CHECK(parameters(all, replicas) == before);
                ++faults;
            }
            watch.faults.clear();
            CHECK(all.step(data.inputs, data.targets).loss ==
                  plain.step(data.inputs, data.targets));
            for (std::size_t r = 0; r < all.ranks(); ++r) CHECK(all[r].steps() == 2);
        }
    MESSAGE(faults << " faults");
}

TEST_CASE(
    "P6 where a layer cannot merge or move its buffers on one rank, all hear, and nothing has "
    "moved anywhere") {
    using Net = toy::BufferNet<Real>;
    using T = Train<Net, gpipe::shard::Nothing>;
    constexpr std::size_t counter = 3;
    toy::Data<Real> const data(12);
    auto const make = [] { return Net{}; };
    for (std::size_t const replicas : {1, 2})
        for (Sizes const& devices : {Sizes{1, 1}, Sizes{1, 1, 1}})
            for (std::size_t const replica : {std::size_t{0}, replicas - 1})
                for (auto const function : {toy::Counting::merge, toy::Counting::update}) {
                    CAPTURE(replicas);
                    CAPTURE(devices.size());
                    CAPTURE(replica);
                    auto o = options<T>(devices.size(), 3);
                    o.samples = 12;
                    o.schedule = gpipe::schedule::OneForwardOneBackward{};
                    auto all = crew<T>(replicas, devices, replica == 0, 1, o, make);
                    toy::Reference<Net, Loss, Adam> plain(Net{}, {}, Adam{1e-2f}, 7, 3,
                                                          toy::Backward::ascending, replicas);
                    toy::Counting counting;
                    for (std::size_t d = 0; d < devices.size(); ++d)
                        all[replica * devices.size() + d].change_layer<counter>(
                            [&](auto& layer) { layer.counting = &counting; });
                    for (int step = 0; step < 3; ++step) {
                        if (step == 1) {
                            counting.throws = function;
                            all.each(
                                [&](std::size_t r) { all[r].step(data.inputs, data.targets); });
                            counting.throws = toy::Counting::nothing;
                            CHECK((thrown_as<std::range_error>(all, counter) == 1));
                        }
                        CHECK(all.step(data.inputs, data.targets).loss ==
                              plain.step(data.inputs, data.targets));
                    }
                    CHECK(differs(all, plain, replicas, false) == "");
                }
}

TEST_CASE("what is not finite is named with its replica, everywhere; a weight of one replica is "
          "enough") {
    toy::Watch watch;
    auto o = options<Watched<gpipe::shard::Nothing>>(2, 2);
    auto all = crew<Watched<gpipe::shard::Nothing>>(3, {1, 1}, true, 1, o,
                                                    [&] { return toy::make_net<Real>(watch); });
    toy::Data<Real> data(9);
    auto const before = parameters(all, 3);
    data.targets[3 * 5] = std::numeric_limits<Real>::infinity(); // of the second replica
    all.each([&](std::size_t r) { all[r].step(data.inputs, data.targets); });
    for (std::exception_ptr const& error : all.errors) {
        REQUIRE(error);
        CHECK_THROWS_WITH_AS(std::rethrow_exception(error),
                             "gpipe: the loss of micro-batch 1 of replica 1 is inf",
                             std::domain_error);
    }
    CHECK(parameters(all, 3) == before);
    CHECK(all.step(toy::Data<Real>(1).inputs, toy::Data<Real>(1).targets).weight == 1);
    CHECK(parameters(all, 3) != before);
}

TEST_CASE("P3 planned are the bytes that are used: with sharded state a part of it, and room for "
          "the parts of others") {
    toy::Watch watch;
    auto const make = [&] { return toy::make_net<Real>(watch); };
    for (std::size_t const replicas : {1, 2, 3, 5}) {
        auto plain = crew<Watched<gpipe::shard::Nothing>>(
            replicas, {1, 1}, true, 1, options<Watched<gpipe::shard::Nothing>>(2, 2), make);
        auto parts = crew<Watched<OptimizerState>>(replicas, {1, 1}, true, 1,
                                                   options<Watched<OptimizerState>>(2, 2), make);
        for (std::size_t r = 0; r < parts.ranks(); ++r) {
            std::size_t const d = r % 2;
            auto const& whole = plain[r].plan().devices[d];
            auto const& part = parts[r].plan().devices[d];
            std::size_t const slots = whole.parameters / 256;
            std::size_t const most = (slots + replicas - 1) / replicas;
            CHECK(whole.optimizer == 2 * whole.parameters);
            CHECK(part.optimizer == 2 * 256 * most);
            CHECK(part.staging == whole.staging);
            CHECK(part.staging == (replicas - 1) * 256 * most);
            CHECK(parts[r].arena(d).size() == part.total());
            CHECK(plain[r].arena(d).size() == whole.total());
        }
    }
}

namespace {

// Its gradients take several messages.
using Wide = gpipe::Pipeline<toy::Linear<Real, 5, 40000>, toy::Linear<Real, 40000, 3>>;

} // namespace

TEST_CASE("P1 gradients of any size") {
    for (std::size_t const replicas : {2, 3}) {
        using T = Train<Wide, OptimizerState>;
        auto all = crew<T>(replicas, {2}, true, 1, options<T>(2, 2), [] { return Wide{}; });
        toy::Reference<Wide, Loss, Adam> plain(Wide{}, {}, Adam{1e-2f}, 7, 2,
                                               toy::Backward::descending, replicas);
        toy::Data<Real> const data(5);
        for (int n = 0; n < 2; ++n)
            CHECK(all.step(data.inputs, data.targets).loss ==
                  plain.step(data.inputs, data.targets));
        std::vector<std::byte> own(plain.parameter(0, 0).size());
        all[replicas - 1].read_parameter(0, 0, std::span(own));
        CHECK(own == plain.parameter(0, 0));
    }
}

namespace {

bool has_parameters(auto& train, std::size_t layer) {
    try {
        static_cast<void>(train.template parameter<Real>(layer, 0));
        return true;
    } catch (std::exception const&) {
        return false;
    }
}

template <class Shard> void show_sums(bool sharded) {
    using T = OfThreads<toy::Net<Real>, Shard>;
    toy::Watch watch;
    toy::Data<Real> const data(14);
    for (std::size_t const k : {1u, 2u, 3u})
        for (gpipe::schedule::Dynamic const& schedule : gpipe::schedule::catalogue(0)) {
            auto o = options<T>(k, 4);
            o.replicas = 2;
            o.schedule = schedule;
            if (schedule.cells_per_device() * k > toy::Net<Real>::size ||
                schedule.least_micro_batches(k) > 4)
                continue;
            T train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
            train.time_actions();
            train.step(data.inputs, data.targets);
            gpipe::Timeline const timeline = train.timeline();
            auto const sums = toy::entries_of(timeline, sharded ? gpipe::Kind::reduce_scatter
                                                                : gpipe::Kind::all_reduce);
            std::vector<bool> learns(train.cells()), gathers(k);
            std::size_t cells = 0, devices = 0;
            for (std::size_t c = 0; c < train.cells(); ++c)
                for (std::size_t l = train.plan().first[c]; l < train.plan().first[c + 1]; ++l)
                    if (has_parameters(train, l)) {
                        learns[c] = true;
                        gathers[train.programs().device_of(c)] = true;
                    }
            for (bool const one : learns) cells += one;
            for (bool const one : gathers) devices += one;
            CHECK(sums.size() == cells);
            double last = 0;
            for (auto const& sum : sums) {
                CHECK(learns[sum.action.cell]);
                learns[sum.action.cell] = false;
                for (auto const& entry : timeline)
                    if (entry.action.cell == sum.action.cell && computes(entry.action.kind))
                        CHECK(entry.end <= sum.start);
                last = std::max(last, sum.end);
            }
            auto const commits = toy::entries_of(timeline, gpipe::Kind::commit);
            REQUIRE(commits.size() == 1);
            CHECK(last <= commits[0].start);
            CHECK(toy::entries_of(timeline, gpipe::Kind::update).size() == devices);
            CHECK(toy::entries_of(timeline, gpipe::Kind::all_gather).size() ==
                  (sharded ? devices : 0));
        }
}

} // namespace

TEST_CASE("the timeline of a replica has what it adds up with others, behind what that is of") {
    show_sums<gpipe::shard::Nothing>(false);
    show_sums<OptimizerState>(true);
}

TEST_CASE("outputs are written by the replica that sees their samples") {
    toy::Watch watch;
    auto all = crew<Watched<gpipe::shard::Nothing>>(2, {1, 1}, true, 1,
                                                    options<Watched<gpipe::shard::Nothing>>(2, 2),
                                                    [&] { return toy::make_net<Real>(watch); });
    toy::Reference<toy::Net<Real>, Loss, Adam> plain(toy::make_net<Real>(watch), {}, Adam{1e-2f}, 7,
                                                     2, toy::Backward::ascending, 2);
    std::size_t const samples = 14 + 5; // two mini-batches: 7, 7, then 3, 2
    toy::Data<Real> const data(samples);
    std::vector<std::vector<Real>> outputs(4, std::vector<Real>(3 * samples));
    all.each([&](std::size_t r) { all[r].predict(data.inputs, outputs[r]); });
    for (std::exception_ptr const& error : all.errors) CHECK(!error);
    auto const bytes = plain.predict(data.inputs);
    auto const* const expected = reinterpret_cast<Real const*>(bytes.data());
    for (std::size_t s = 0; s < samples; ++s) {
        bool const second = s < 14 ? s >= 7 : s >= 17;
        for (std::size_t i = 0; i < 3; ++i) {
            CHECK(outputs[1][3 * s + i] == (second ? 0 : expected[3 * s + i]));
            CHECK(outputs[3][3 * s + i] == (second ? expected[3 * s + i] : 0));
        }
    }
}

TEST_CASE("ranks that are not those of replicas are refused") {
    toy::Watch watch;
    auto const make = [&] { return toy::make_net<Real>(watch); };
    using T = Watched<gpipe::shard::Nothing>;
    std::size_t (*threads)(std::size_t) = [](std::size_t) { return std::size_t{1}; };
    std::size_t more = 0; // replicas, says the last rank
    auto const refused = [&](std::size_t replicas, Sizes const& devices, char const* words) {
        CHECK_THROWS_WITH_AS(
            (toy::Crew<T>{devices, true, 1,
                          [&](std::size_t r, toy::Rank::Options device) {
                              auto o = options<T>(2, 2);
                              o.replicas = replicas + (r + 1 == devices.size() ? more : 0);
                              o.device = device;
                              o.device.device.threads = threads(r);
                              return std::make_unique<T>(make(), Loss{}, Adam{1e-2f}, o);
                          }}),
            doctest::Contains(words), std::invalid_argument);
    };
    refused(2, {1, 1}, "gpipe: 4 devices are to be those of 2 ranks, which have 2, each at");
    refused(3, {2, 2}, "gpipe: 6 devices are to be those of 2 ranks, which have 4, each at");
    for (Sizes const& devices : {Sizes{1, 1, 2}, Sizes{1, 2, 1}, Sizes{2, 1, 1}, Sizes{3, 1}})
        refused(2, devices, "gpipe: each of 2 replicas has 2 devices on ranks of its own");
    refused(5, {5, 5}, "gpipe: each of 5 replicas has 2 devices on ranks of its own");
    threads = [](std::size_t rank) { return std::size_t{rank == 1 ? 1u : 2u}; };
    refused(2, {2, 2}, "gpipe: a rank of one replica has as many threads to walk its devices as");
    more = 1;
    refused(1, {1, 1}, "gpipe: rank 1 has other Options::replicas than rank 0");
}

namespace {

using Local = OfThreads<toy::Net<Real>, gpipe::shard::Nothing>;

Local::Options of_two() {
    auto o = options<Local>(2, 2);
    o.replicas = 2;
    return o;
}

} // namespace

TEST_CASE("P6 what throws in a replica of this process surfaces as it was thrown, wherever that "
          "was, changes nothing, and training goes on") {
    toy::Watch watch;
    Local train(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, of_two());
    Local other(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, of_two());
    toy::Data<Real> const data(13);
    for (std::size_t const sample : {0, 4, 7, 10}) // of the second replica the last two
        for (auto const phase : {toy::Phase::forward, toy::Phase::backward}) {
            watch.faults = {{3, sample, phase}};
            CHECK_THROWS_AS(train.step(data.inputs, data.targets), toy::Thrown);
            REQUIRE(train.failure());
            CHECK(train.failure()->layer == 3);
            watch.faults.clear();
            CHECK(train.step(data.inputs, data.targets).loss ==
                  other.step(data.inputs, data.targets).loss);
        }
    CHECK(train.steps() == 8);
}

TEST_CASE("what is written in the first replica is given to all, and what is predicted is whole") {
    toy::Watch watch;
    toy::Data<Real> const data(13);
    auto const train = [&] {
        return std::make_unique<Local>(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, of_two());
    };
    auto written = train(), lent = train(), named = train(), loaded = train(), plain = train();
    std::vector<Real> values(plain->parameter<Real>(0, 0).size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<Real>(i);
    plain->step(data.inputs, data.targets);
    double const before = plain->evaluate(data.inputs, data.targets).loss;
    auto const differs = [&](Local& one) {
        std::vector<Real> outputs(3 * 13);
        one.predict(data.inputs, outputs);
        CHECK(std::all_of(outputs.begin(), outputs.end(), [](Real x) { return x != 0; }));
        double const loss = one.evaluate(data.inputs, data.targets).loss;
        CHECK(loss != before);
        return loss + one.step(data.inputs, data.targets).loss +
               one.step(data.inputs, data.targets).loss;
    };
    for (Local* const one : {&*written, &*lent, &*named}) one->step(data.inputs, data.targets);
    written->write_parameter(0, 0, std::span<Real const>(values));
    auto const [weights, bias] = lent->parameters<0>();
    std::copy(values.begin(), values.end(), weights.data());
    std::copy(values.begin(), values.end(), named->parameter<Real>(0, 0).begin());
    toy::Folder const folder;
    std::string const path = folder / "state";
    gpipe::save(*written, path);
    CHECK(gpipe::load(*loaded, path).steps == 1);
    double const expected = differs(*written);
    CHECK(differs(*lent) == expected);
    CHECK(differs(*named) == expected);
    CHECK(differs(*loaded) == expected);
}

TEST_CASE("buffers and frozen parameters that are written in the first replica are given to all") {
    using T = OfThreads<toy::BufferNet<Real>, gpipe::shard::Nothing>;
    auto const values = toy::numbers<Real>(30, 5);
    std::vector<std::int32_t> const steps{90};
    toy::Data<Real> const data(12);
    auto const evaluated = [&](auto&& train) {
        double const before = train.evaluate(data.inputs, data.targets).loss;
        train.write_buffer(6, 0, std::span<std::int32_t const>(steps));
        double const between = train.evaluate(data.inputs, data.targets).loss;
        train.write_parameter(0, 0, std::span<Real const>(values));
        double const after = train.evaluate(data.inputs, data.targets).loss;
        CHECK(std::abs(before - between) > 1e-3);
        CHECK(std::abs(between - after) > 1e-3);
        return std::vector<double>{before, between, after};
    };
    auto o = options<T>(2, 2);
    o.replicas = 2;
    auto one = options<T>(1, 4);
    one.samples = 12;
    one.replicas = 1;
    auto const expected = evaluated(T(toy::BufferNet<Real>{}, Loss{}, Adam{}, one));
    for (bool const layer : {true, false}) {
        o.frozen = layer ? std::vector<std::size_t>{0} : std::vector<std::size_t>{};
        o.frozen_parameters = {{0, 0}};
        auto const two = evaluated(T(toy::BufferNet<Real>{}, Loss{}, Adam{}, o));
        for (std::size_t i = 0; i < 3; ++i)
            CHECK(two[i] == doctest::Approx(expected[i]).epsilon(1e-6));
    }
}

namespace {

// Throws when it is initialized for the second time.
struct Second {
    using Input = gpipe::Tensor<Real, 1>;
    using Output = Input;
    using Parameters = Input;
    std::shared_ptr<std::atomic<int>> times = std::make_shared<std::atomic<int>>(0);

    void initialize(auto&) const {
        if (times->fetch_add(1) == 1) throw std::runtime_error("the second time");
    }
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};

} // namespace

TEST_CASE("P7 nobody waits for a replica that could not be made") {
    using Net = gpipe::Pipeline<Second>;
    using T = gpipe::Training<Net, gpipe::Loss<toy::MeanSquare<Real, 1>>, Replicas<3>>;
    for (int n = 0; n < 20; ++n)
        CHECK_THROWS_WITH_AS((T{Net{}, {}, gpipe::SGD{}, {.samples = 2}}), "the second time",
                             std::runtime_error);
}

#ifdef GPIPE_COUNTS_ALLOCATIONS
TEST_CASE("P7 replicas end where there is no memory, made or not") {
    using T = gpipe::Training<gpipe::Pipeline<toy::Linear<Real, 1, 1>>,
                              gpipe::Loss<toy::MeanSquare<Real, 1>>, Replicas<2>>;
    long allocations = 0;
    for (bool made = false; !made; allocations += toy::long_tests() ? 1 : 11) {
        toy::allocations_left = allocations;
        try {
            T const train{{}, {}, gpipe::SGD{}, {.samples = 2}};
            made = true;
            toy::allocations_left = 0; // and so none for the end
        } catch (std::bad_alloc const&) {
        }
        toy::allocations_left = -1;
    }
    CHECK(allocations > 100);
}
#endif

TEST_CASE("P3 a step of replicas allocates nothing") {
    toy::Watch watch;
    auto o = options<OfThreads<toy::Net<Real>, OptimizerState>>(2, 2);
    o.replicas = 3;
    o.clip_norm = 1;
    OfThreads<toy::Net<Real>, OptimizerState> train(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f},
                                                    o);
    toy::Data<Real> const data(13);
    train.step(data.inputs, data.targets);
    std::size_t const before = toy::allocations;
    train.step(data.inputs, data.targets);
    CHECK(toy::allocations == before);
}

TEST_CASE("elements that cannot be added up are refused, with their layer") {
    using T = gpipe::Training<gpipe::Pipeline<toy::Factor>, gpipe::Loss<toy::MeanSquare<float, 2>>,
                              gpipe::Optimizer<toy::Descend>, Replicas<2>>;
    CHECK_THROWS_WITH_AS((T{{}, {}, {}, {.samples = 2}}),
                         "gpipe: replicas add gradients up, and the elements of parameter tensor 0 "
                         "of layer 0 have no += for that",
                         std::invalid_argument);
}
