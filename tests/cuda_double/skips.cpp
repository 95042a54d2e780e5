// Skip connections on streams, over the double of the CUDA runtime. J6: what goes to another GPU is
// copied there.
#include "support/cuda_ways.hpp"
#include "support/enqueued.hpp"
#include "support/net.hpp"
#include "support/skip_layers.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Cuda;
using gpipe::device::Host;

using Real = float;
using HostNet = toy::SkipNet<Real>;
using Net = toy::SkipNetOf<Real, toy::Enqueued>;
using Loss = toy::MeanSquare<Real, 3>;
using Train = toy::Training<Net, toy::EnqueuedLoss<Loss>, Adam, Cuda>;
using Immediately =
    gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<toy::EnqueuedLoss<Loss>>, gpipe::Optimizer<Adam>,
                    gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic, gpipe::update::Immediate,
                    Cuda>;
constexpr std::size_t micro_batches = 6;

// What the losses of some steps, the last begun before those before are done, an evaluation between
// and the parameters are.
template <class T> std::vector<double> run(T& train) {
    std::vector<double> result;
    std::vector<typename T::Pending> pending;
    for (std::size_t const samples : std::vector<std::size_t>{8, 5, 8, 1, 8}) {
        toy::Data<Real> const data(samples, static_cast<std::uint32_t>(samples));
        pending.push_back(train.start(data.inputs, data.targets));
        if (samples > 5) continue;
        result.push_back(train.evaluate(data.inputs, data.targets).loss);
    }
    for (auto& step : pending) result.push_back(step.result().loss);
    for (std::size_t layer = 0; layer < Net::size; ++layer) {
        auto const& sizes = Net::leaf_info[Net::leaf_of(layer)].parameters;
        for (std::size_t t = 0; t < sizes.count; ++t) {
            std::vector<Real> values(sizes.bytes[t] / sizeof(Real));
            train.read_parameter(layer, t, std::span(values));
            result.insert(result.end(), values.begin(), values.end());
        }
    }
    return result;
}
template <class T>
typename T::Options options(std::size_t cells, gpipe::schedule::Dynamic schedule,
                            gpipe::checkpoint::Dynamic checkpointing = {}) {
    typename T::Options o;
    o.samples = 8;
    o.seed = 7;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.schedule = schedule;
    o.checkpointing = checkpointing;
    return o;
}
std::vector<double> expected_of(gpipe::schedule::Dynamic schedule) {
    using T = toy::Training<HostNet, Loss, Adam, Host>;
    T train(HostNet{}, {}, Adam{1e-2f}, options<T>(1, schedule));
    return run(train);
}

template <class T> void check(std::size_t one_of) {
    auto const descending = expected_of(gpipe::schedule::GPipe{});
    auto const ascending = expected_of(gpipe::schedule::GPipeAscending{});
    REQUIRE(descending != ascending);
    toy::each_way_on_streams(6, Net::size, micro_batches, one_of,
                             {gpipe::Link::shared, gpipe::Link::copied, gpipe::Link::staged},
                             [&](toy::CudaWay const& way) {
                                 auto o = options<T>(way.cells, way.schedule);
                                 way.choose(o);
                                 T train(Net{}, {}, Adam{1e-2f}, o);
                                 CHECK(run(train) == (way.descends() ? descending : ascending));
                             });
}

} // namespace

TEST_CASE("P1 J6 skips give on streams of any GPUs what they give on the host, and nothing races") {
    check<Train>(127);
}

TEST_CASE("P1 so they do where updates are immediate") { check<Immediately>(199); }

namespace {

// (a, b), b a parameter for every sample, to (a, 2 b, 3 b).
constexpr std::size_t fan_samples = 32;
struct Fan {
    using Input = gpipe::Tensor<Real, 3>;
    using Output = gpipe::Tensors<Input, Input, Input>;
    using Parameters = gpipe::Tensor<Real, fan_samples, 3>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    static constexpr bool accepts_none = true;
    void initialize(auto& ctx) const {
        auto numbers = ctx.random(0);
        for (Real& b : ctx.parameters()) b = static_cast<Real>(numbers.normal());
    }
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 3; ++i) {
                Real const b = ctx.parameters()(ctx.first_sample() + s, i);
                gpipe::get<0>(y)(s, i) = x(s, i);
                gpipe::get<1>(y)(s, i) = 2 * b;
                gpipe::get<2>(y)(s, i) = 3 * b;
            }
    }
    void backward(auto& ctx, auto dy, auto) const {
        auto const& twice = gpipe::get<1>(dy);
        for (std::size_t s = 0; s < twice.samples(); ++s)
            for (std::size_t i = 0; i < 3; ++i)
                ctx.gradients()(ctx.first_sample() + s, i) +=
                    2 * twice(s, i) + 3 * gpipe::get<2>(dy)(s, i);
    }
};
struct SumOfThree {
    using Input = Fan::Output;
    using Output = gpipe::Tensor<Real, 3>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < y.size(); ++i)
            y.data()[i] = gpipe::get<0>(x).data()[i] + gpipe::get<1>(x).data()[i] +
                          gpipe::get<2>(x).data()[i];
    }
    void backward(auto&, auto dy, auto dx) const {
        for (std::size_t i = 0; i < dy.size(); ++i)
            gpipe::get<0>(dx).data()[i] = gpipe::get<1>(dx).data()[i] =
                gpipe::get<2>(dx).data()[i] = dy.data()[i];
    }
};

} // namespace

TEST_CASE(
    "G6 of a + 2 b + 3 b on two GPUs in 32 micro-batches b has five times the gradient of the "
    "sum, in any order that streams allow") {
    // The squares' gradient is twice the sum: its norm, in units of twice the sum's, is 5.
    using Fans = gpipe::Pipeline<toy::Enqueued<Fan>, toy::Enqueued<SumOfThree>>;
    using T = toy::Training<Fans, toy::EnqueuedLoss<Loss>, gpipe::SGD, Cuda>;
    for (std::uint64_t order : {0, 1, 2, 3}) {
        cuda_double::Session session({.devices = 2, .seed = order});
        auto o = options<T>(2, gpipe::schedule::GPipe{}, gpipe::checkpoint::Never{});
        o.samples = o.micro_batches = fan_samples;
        o.device.gpus = {0, 1};
        T train(Fans{}, {}, gpipe::SGD{0}, o);
        auto const a = toy::numbers<Real>(3 * fan_samples, 1);
        std::vector<Real> const zeros(3 * fan_samples);
        std::vector<Real> b(3 * fan_samples), gradient(3 * fan_samples);
        train.step(a, zeros);
        train.read_parameter(0, 0, std::span(b));
        train.read_gradient(0, 0, std::span(gradient));
        double of_b = 0, of_sum = 0;
        for (std::size_t i = 0; i < b.size(); ++i) {
            double const sum = a[i] + 5.0 * b[i], mean = gradient[i] * double(fan_samples) / 2;
            of_sum += sum * sum;
            of_b += mean * mean;
        }
        CHECK(of_b / of_sum == doctest::Approx(25).epsilon(1e-6));
        CHECK(cuda_double::races() == std::vector<std::string>{});
    }
}
