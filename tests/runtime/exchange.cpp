// Layers whose replicas tell each other something within a micro-batch, and SyncBatchNorm.
#include "support/exchange_layers.hpp"
#include "support/replicas.hpp"

#include <gpipe/check_gradients.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <span>
#include <stdexcept>
#include <vector>

using namespace toy::replicas;
using Net = toy::ExchangeNet<Real>;
using gpipe::shard::Nothing;

TEST_CASE("P1 replicas that tell each other something train as a plain loop over all of them, in "
          "every bit, with empty parts, under every schedule and checkpointing") {
    auto const make = [] { return Net{}; };
    train_alike<Net, Nothing>(2, 59, make);
    train_alike<Net, OptimizerState>(3, 59, make);
    train_alike<Net, Nothing>(4, 83, make);
}

TEST_CASE("P1 and so they do in one process, and where there is one replica") {
    auto const make = [] { return Net{}; };
    train_in_one_process<Net, Nothing>(1, 89, make);
    train_in_one_process<Net, Nothing>(2, 89, make);
}

namespace {

constexpr std::size_t channels = 6;
template <class Norm>
using Normed =
    gpipe::Pipeline<toy::Linear<double, 5, channels>, Norm, toy::Linear<double, channels, 3>>;
using Channels = gpipe::Tensor<double, channels>;
template <gpipe::RunningStatistics running>
using Plain = Normed<toy::OfOne<gpipe::BatchNorm<Channels, running>>>;
template <gpipe::RunningStatistics running>
using Sync = Normed<toy::OfOne<gpipe::SyncBatchNorm<Channels, running>>>;
template <class Net>
using DoubleTrain =
    gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>,
                    gpipe::Loss<toy::MeanSquare<double, 3>>, gpipe::Optimizer<gpipe::SGD>,
                    gpipe::schedule::OneForwardOneBackward, Replicas<dynamic>>;
template <class Net> DoubleTrain<Net> make(std::size_t replicas, std::size_t samples) {
    typename DoubleTrain<Net>::Options o;
    o.samples = samples;
    o.cells = 2;
    o.micro_batches = 3;
    o.replicas = replicas;
    return {Net{}, {}, gpipe::SGD{0.05f}, o};
}
// Parameters, gradients and buffers.
template <class Train> std::vector<double> state_of(Train& train) {
    std::vector<double> all;
    for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t t = 0; t < train.tensors(i); ++t)
            for (auto const& values :
                 {train.template parameter<double>(i, t), train.template gradient<double>(i, t)})
                all.insert(all.end(), values.begin(), values.end());
    for (std::size_t t = 0; t < 2; ++t) {
        std::vector<double> running(channels);
        train.read_buffer(1, t, std::span(running));
        all.insert(all.end(), running.begin(), running.end());
    }
    return all;
}

} // namespace

TEST_CASE("SyncBatchNorm with one replica is BatchNorm, in every bit") {
    auto const check = [](auto plain, auto sync) {
        toy::Data<double> const data(9), few(2);
        for (auto const* part : {&data, &few, &data}) {
            CHECK(plain.step(part->inputs, part->targets).loss ==
                  sync.step(part->inputs, part->targets).loss);
            CHECK(plain.evaluate(part->inputs, part->targets).loss ==
                  sync.evaluate(part->inputs, part->targets).loss);
            CHECK(state_of(plain) == state_of(sync));
        }
    };
    using gpipe::RunningStatistics;
    check(make<Plain<RunningStatistics::mini_batch>>(1, 9),
          make<Sync<RunningStatistics::mini_batch>>(1, 9));
    check(make<Plain<RunningStatistics::micro_batch>>(1, 9),
          make<Sync<RunningStatistics::micro_batch>>(1, 9));
}

namespace {

template <gpipe::RunningStatistics running> void check_synchronised() {
    constexpr std::size_t micro_batches = 3, samples = 2; // of a micro-batch in a replica
    for (std::size_t const replicas : {2, 3, 4}) {
        CAPTURE(replicas);
        std::size_t const all = replicas * micro_batches * samples;
        auto sync = make<Sync<running>>(replicas, all / replicas);
        auto plain = make<Plain<running>>(1, all);
        auto apart = make<Plain<running>>(replicas, all / replicas);
        double most = 0, most_apart = 0;
        for (std::uint32_t step = 0; step < 3; ++step) {
            toy::Data<double> const data(all, 5 + step);
            toy::Data<double> sorted = data; // by micro-batch, then by replica
            for (std::size_t s = 0; s < all; ++s) {
                std::size_t const m = s / samples % micro_batches;
                std::size_t const r = s / (samples * micro_batches);
                std::size_t const to = (m * replicas + r) * samples + s % samples;
                for (std::size_t i = 0; i < 5; ++i)
                    sorted.inputs[5 * to + i] = data.inputs[5 * s + i];
                for (std::size_t i = 0; i < 3; ++i)
                    sorted.targets[3 * to + i] = data.targets[3 * s + i];
            }
            double const loss = plain.step(sorted.inputs, sorted.targets).loss;
            CHECK(sync.step(data.inputs, data.targets).loss == doctest::Approx(loss));
            apart.step(data.inputs, data.targets);
            auto const a = state_of(plain), b = state_of(sync), c = state_of(apart);
            for (std::size_t i = 0; i < a.size(); ++i) {
                most = std::max(most, std::abs(a[i] - b[i]));
                most_apart = std::max(most_apart, std::abs(a[i] - c[i]));
            }
        }
        CHECK(sync.used_bytes() == sync.planned_bytes());
        CHECK(most < 1e-12);
        CHECK(most_apart > 1e-3); // normalised apart they do not
    }
}

} // namespace

TEST_CASE("replicas with SyncBatchNorm train as one whose micro-batches are those of all") {
    check_synchronised<gpipe::RunningStatistics::mini_batch>();
    check_synchronised<gpipe::RunningStatistics::micro_batch>();
}

TEST_CASE("the gradients of layers that tell each other something are those of differences") {
    auto train = make<toy::ExchangeNet<double>>(1, 9);
    toy::Data<double> const data(9);
    auto const found = gpipe::check_gradients(train, data.inputs, data.targets);
    CHECK_MESSAGE(found.passed(), found);
}

namespace {

// The first of the micro-batch, of three in each replica, that has sample s of 14.
std::size_t first_sample(std::size_t s, std::size_t replicas) {
    std::size_t first = 0;
    for (std::size_t const part : toy::deal(14, replicas))
        for (std::size_t const size : toy::deal(part, 3)) {
            if (s < first + size) return first;
            first += size;
        }
    return first;
}

} // namespace

TEST_CASE(
    "P6 what throws while replicas tell each other something is told in all, changes nothing, "
    "and training goes on") {
    using T = Train<Net, Nothing>;
    using Function = toy::Meetings::Function;
    using gpipe::checkpoint::Dynamic;
    toy::Data<Real> const data(14);
    std::size_t point = 0, faults = 0;
    for (std::size_t const replicas : {2, 3})
        for (Sizes const& devices : {Sizes{2}, Sizes{1, 1}})
            for (std::size_t const at : {0, 3}) {
                bool const again = point++ % 2 == 0;
                auto o = options<T>(2, 3);
                o.schedule = gpipe::schedule::OneForwardOneBackward{};
                o.checkpointing = again ? Dynamic{gpipe::checkpoint::Always{}}
                                        : Dynamic{gpipe::checkpoint::Never{}};
                auto all =
                    crew<T>(replicas, devices, again, 1 + point % 3, o, [] { return Net{}; });
                toy::Reference<Net, Loss, Adam> plain(Net{}, {}, Adam{1e-2f}, 7, 3,
                                                      toy::Backward::ascending, replicas);
                toy::Meetings meetings;
                for (std::size_t r = 0; r < all.ranks(); ++r) {
                    auto const give = [&](auto& layer) { layer.meetings = &meetings; };
                    if (at == 0)
                        all[r].change_layer<0>(give);
                    else
                        all[r].change_layer<3>(give);
                }
                for (auto const function : {Function::exchange, Function::forward,
                                            Function::exchange_gradient, Function::backward})
                    for (std::size_t const sample : {0, 4, 9}) {
                        bool const lowest = at == 0 && function == Function::backward;
                        if (lowest) continue; // nobody wants its input's gradient
                        meetings.sample = first_sample(sample, replicas);
                        meetings.throws = function;
                        all.each([&](std::size_t r) { all[r].step(data.inputs, data.targets); });
                        meetings.throws = Function::nothing;
                        CHECK(meetings.strays == 0);
                        meetings.thrower = toy::Meetings::nobody;
                        CHECK((thrown_as<std::range_error>(all, at) == 1));
                        ++faults;
                    }
                for (int step = 0; step < 2; ++step)
                    CHECK(all.step(data.inputs, data.targets).loss ==
                          plain.step(data.inputs, data.targets));
                CHECK(differs(all, plain, replicas, false) == "");
            }
    MESSAGE(faults << " faults");
}
