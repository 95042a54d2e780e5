#pragma once

// Trainings of several replicas, on ranks that are threads and in one process, beside the plain
// loop.

#include "crew.hpp"
#include "net.hpp"
#include "ranks.hpp"

#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace toy::replicas {

using gpipe::Adam;
using gpipe::dynamic;
using gpipe::Replicas;
using gpipe::shard::OptimizerState;

using Real = float;
using Loss = toy::MeanSquare<Real, 3>;
using Sizes = std::vector<std::size_t>;

/// On ranks that are threads.
template <class Net, class Shard, class Update = gpipe::update::AfterCommit>
using Train =
    gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>, gpipe::Loss<Loss>,
                    gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic,
                    Replicas<dynamic, Shard>, Update, toy::Wired>;

/// `devices`: of the ranks of each replica.
template <class T, class Make>
toy::Crew<T> crew(std::size_t replicas, Sizes devices, bool meets, std::size_t threads,
                  typename T::Options const& o, Make make) {
    Sizes all;
    for (std::size_t r = 0; r < replicas; ++r)
        all.insert(all.end(), devices.begin(), devices.end());
    return {all, meets, threads, [&](std::size_t, toy::Rank::Options device) {
                auto own = o;
                own.replicas = replicas;
                own.device = device;
                return std::make_unique<T>(make(), Loss{}, Adam{1e-2f}, own);
            }};
}
template <class T> typename T::Options options(std::size_t k, std::size_t m) {
    typename T::Options o;
    o.samples = 7;
    o.seed = 7;
    o.cells = k;
    o.micro_batches = m;
    return o;
}

/// What a crew has trained other than the plain loop, on any replica; where state is sharded they
// have parts of the gradients.
template <class Crew, class Plain>
std::string differs(Crew& crew, Plain const& plain, std::size_t replicas, bool shards) {
    for (crew.first = 0; crew.first < crew.ranks(); crew.first += crew.ranks() / replicas)
        for (std::size_t layer = 0; layer < Crew::layer_count; ++layer) {
            std::size_t buffer = 0;
            for (std::vector<std::byte> const& expected : plain.buffers(layer)) {
                std::vector<std::byte> own(expected.size());
                crew.read_buffer(layer, buffer++, std::span(own));
                if (own != expected)
                    return "buffer " + std::to_string(buffer - 1) + " of layer " +
                           std::to_string(layer) + ", rank " + std::to_string(crew.first);
            }
            for (std::size_t t = 0; t < crew.tensors(layer); ++t) {
                std::string const where = " " + std::to_string(t) + " of layer " +
                                          std::to_string(layer) + ", rank " +
                                          std::to_string(crew.first);
                std::vector<std::byte> own(plain.parameter(layer, t).size());
                crew.read_parameter(layer, t, std::span(own));
                if (own != plain.parameter(layer, t)) return "parameter" + where;
                crew.read_gradient(layer, t, std::span(own));
                if (!shards && own != plain.gradient(layer, t)) return "gradient" + where;
            }
        }
    crew.first = 0;
    return "";
}

/// On how many ranks an E surfaced as it was thrown, in this layer; on all others it has been told.
template <class E, class Crew> std::size_t thrown_as(Crew& crew, std::size_t layer) {
    std::size_t thrown = 0;
    for (std::size_t r = 0; r < crew.ranks(); ++r) {
        REQUIRE(crew.errors[r]);
        REQUIRE(crew[r].failure());
        CHECK(crew[r].failure()->layer == layer);
        try {
            std::rethrow_exception(crew.errors[r]);
        } catch (E const&) {
            ++thrown;
        } catch (gpipe::RankError const&) {
        }
    }
    return thrown;
}

/// One of `points` trainings of Net out of all, against the plain loop.
template <class Net, class Shard, class Make>
void train_alike(std::size_t replicas, std::size_t points, Make make) {
    using T = Train<Net, Shard>;
    constexpr bool shards = std::is_same_v<Shard, OptimizerState>;
    std::size_t point = 0, trained = 0;
    std::size_t const most = 7 * replicas;
    toy::each_of_catalogue(3, Net::size, 4, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
            for (Sizes const& devices : std::vector<Sizes>{Sizes(k, 1), Sizes{k}}) {
                if (point++ % toy::one_of(points) != 0) continue;
                auto o = options<T>(k, 4);
                o.schedule = schedule;
                o.checkpointing = checkpointing.policy;
                o.debug = trained % 4 == 0;
                o.clip_norm = trained % 3 == 1 ? 0.05 : 0;
                INFO(replicas, " replicas, ", schedule.name(), ", ", checkpointing.name,
                     ", K = ", k, " on ", devices.size());
                auto all = crew<T>(replicas, devices, point % 2 == 0, 1 + point % 3, o, make);
                toy::Reference<Net, Loss, Adam> plain(
                    make(), {}, Adam{1e-2f}, 7, 4,
                    schedule.name() == "GPipe" ? Backward::descending : Backward::ascending,
                    replicas);
                plain.clip_norm = o.clip_norm;
                // All that there is room for; not as many everywhere; none in the last replica.
                for (std::size_t const size : {most, most - replicas - 1, replicas - 1, most}) {
                    toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
                    if (size < replicas) { // a part of the next step's mini-batch
                        all.accumulate(data.inputs, data.targets);
                        plain.accumulate(data.inputs, data.targets);
                        continue;
                    }
                    auto const step = all.step(data.inputs, data.targets);
                    CHECK(step.loss == plain.step(data.inputs, data.targets));
                    if (o.clip_norm > 0) CHECK(step.gradient_norm == plain.gradient_norm());
                    CHECK(all.evaluate(data.inputs, data.targets).loss ==
                          plain.evaluate(data.inputs, data.targets));
                    CHECK(differs(all, plain, replicas, shards) == "");
                }
                ++trained;
            }
    });
    MESSAGE(trained << " trainings");
}

/// In one process.
template <class Net, class Shard, class Update = gpipe::update::AfterCommit>
using OfThreads =
    gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>, gpipe::Loss<Loss>,
                    gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic,
                    Replicas<dynamic, Shard>, Update>;

/// Those of the first replica are those of the plain loop.
template <class T, class Plain> void check_parameters(T& train, Plain const& plain) {
    for (std::size_t layer = 0; layer < T::layer_count; ++layer)
        for (std::size_t t = 0; t < train.tensors(layer); ++t) {
            std::vector<std::byte> own(plain.parameter(layer, t).size());
            train.read_parameter(layer, t, std::span(own));
            CHECK(own == plain.parameter(layer, t));
        }
}

/// Likewise, in one process.
template <class Net, class Shard, class Make>
void train_in_one_process(std::size_t replicas, std::size_t points, Make make) {
    using T = OfThreads<Net, Shard>;
    std::size_t point = 0, trained = 0;
    std::size_t const most = 7 * replicas;
    toy::each_of_catalogue(3, Net::size, 4, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing()) {
            if (point++ % toy::one_of(points) != 0) continue;
            auto o = options<T>(k, 4);
            o.schedule = schedule;
            o.checkpointing = checkpointing.policy;
            o.debug = trained % 4 == 0;
            o.replicas = replicas;
            o.device.threads = point % 4;
            INFO(replicas, " replicas, ", schedule.name(), ", ", checkpointing.name, ", K = ", k);
            T train(make(), Loss{}, Adam{1e-2f}, o);
            toy::Reference<Net, Loss, Adam> plain(
                make(), {}, Adam{1e-2f}, 7, 4,
                schedule.name() == "GPipe" ? Backward::descending : Backward::ascending, replicas);
            for (std::size_t const size :
                 {most, most - replicas - 1, std::max<std::size_t>(replicas, 2) - 1}) {
                toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
                for (int part = 0; part < 2; ++part) {
                    train.accumulate(data.inputs, data.targets);
                    plain.accumulate(data.inputs, data.targets);
                }
                CHECK(train.step(data.inputs, data.targets).loss ==
                      plain.step(data.inputs, data.targets));
                CHECK(train.evaluate(data.inputs, data.targets).loss ==
                      plain.evaluate(data.inputs, data.targets));
            }
            check_parameters(train, plain);
            CHECK(train.used_bytes() == train.planned_bytes());
            ++trained;
        }
    });
    MESSAGE(trained << " trainings");
}

} // namespace toy::replicas
