// Skips and ties between kernels: one skip in the other, one that crosses both, over the cells'
// ends, and one table that an embedding and a head share. With any number of devices, links and
// graphs all is as on the host, in every bit.
#include "support/bodies.hpp"
#include "support/on_gpu.hpp"

#include <gpipe/check_gradients.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace skips_on_gpu {

using toy::body::launch;
using Real = float;
constexpr std::size_t tokens = 2, classes = 5, width = 4, numbers = tokens * width;
using Row = gpipe::Tensor<Real, numbers>;
using Table = gpipe::Tensor<Real, classes, width>;
using Targets = gpipe::Tensor<Real, tokens * classes>;

template <int number> struct Around; // tags of skips
struct Vocabulary;                   // of the tie

struct Looked {
    std::int32_t const* token;
    Real const* table;
    Real* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        y[i] = table[static_cast<std::size_t>(token[i / width]) * width + i % width];
    }
};
/// By number of the table.
struct LookedGradient {
    std::size_t count; // of tokens
    std::int32_t const* token;
    Real const* dy;
    Real* dtable;
    GPIPE_HOST_DEVICE void operator()(std::size_t at) const {
        for (std::size_t t = 0; t < count; ++t)
            if (static_cast<std::size_t>(token[t]) == at / width)
                dtable[at] += dy[t * width + at % width];
    }
};
struct Embedding {
    using Input = gpipe::Tensor<std::int32_t, tokens>;
    using Output = Row;
    using Parameters = Table;
    using Tied = gpipe::Tie<Vocabulary>;
    static constexpr bool accepts_none = true;

    void initialize(auto& ctx) const {
        auto random = ctx.random(0);
        for (Real& v : ctx.parameters()) v = static_cast<Real>(random.uniform(-1, 1));
    }
    void forward(auto& ctx, auto x, auto y) const {
        launch(ctx.stream(), y.size(), Looked{x.data(), ctx.parameters().data(), y.data()});
    }
    void backward(auto& ctx, auto x, auto dy, auto) const {
        launch(ctx.stream(), classes * width,
               LookedGradient{x.size(), x.data(), dy.data(), ctx.gradients().data()});
    }
};

/// A token's scores: its row times each of the table's, and a bias, which is not tied.
struct Head {
    using Input = Row;
    using Output = Targets;
    using Parameters = gpipe::Tensors<Table, gpipe::Tensor<Real, classes>>;
    using Tied = gpipe::Tie<Vocabulary, 0>;

    void initialize(auto& ctx) const {
        for (Real& b : gpipe::get<1>(ctx.parameters())) b = Real(0.25);
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto [table, bias] = ctx.parameters();
        launch(ctx.stream(), y.size(),
               toy::body::LinearForward<Real, width, classes>{table.data(), bias.data(), x.data(),
                                                              y.data()});
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        weight_gradient(ctx, x, dy);
        input_gradient(ctx, x, dy, dx);
    }
    void input_gradient(auto& ctx, auto, auto dy, auto dx) const {
        launch(ctx.stream(), dx.size(),
               toy::body::LinearBackward<Real, width, classes>{
                   gpipe::get<0>(ctx.parameters()).data(), dy.data(), dx.data()});
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        auto [dtable, dbias] = ctx.gradients();
        using Body = toy::body::LinearGradients<Real, width, classes>;
        launch(ctx.stream(), Body::count,
               Body{x.size() / width, x.data(), dy.data(), dtable.data(), dbias.data()});
    }
};

/// y = x, and x goes to a later layer.
struct Copied {
    Real const* x;
    Real *y, *later;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { later[i] = y[i] = x[i]; }
};
struct Sum {
    Real const *a, *b;
    Real* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { y[i] = a[i] + b[i]; }
};
template <int tag> struct Give {
    using Input = Row;
    using Output = Row;
    using Stash = gpipe::Skip<Around<tag>, Row>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;

    void forward(auto& ctx, auto x, auto y) const {
        launch(ctx.stream(), x.size(),
               Copied{x.data(), y.data(), gpipe::stash<Around<tag>>(ctx).data()});
    }
    void backward(auto& ctx, auto dy, auto dx) const {
        launch(ctx.stream(), dy.size(),
               Sum{dy.data(), gpipe::stash_gradient<Around<tag>>(ctx).data(), dx.data()});
    }
};

/// y = x + a x z, z what it pops: which its backward reads.
struct Gated {
    Real const *a, *x, *z;
    Real* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        y[i] = x[i] + a[i % numbers] * x[i] * z[i];
    }
};
struct GatedInput {
    Real const *a, *x, *z, *dy;
    Real *dx, *dz;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        dx[i] = dy[i] + a[i % numbers] * z[i] * dy[i];
        dz[i] = a[i % numbers] * x[i] * dy[i];
    }
};
struct GatedGradient {
    std::size_t samples;
    Real const *x, *z, *dy;
    Real* da;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        for (std::size_t at = i; at < samples * numbers; at += numbers)
            da[i] += x[at] * z[at] * dy[at];
    }
};
template <int tag> struct Take {
    using Input = Row;
    using Output = Row;
    using Parameters = Row;
    using Pop = gpipe::Skip<Around<tag>, Row>;

    void initialize(auto& ctx) const {
        auto random = ctx.random(0);
        for (Real& v : ctx.parameters()) v = static_cast<Real>(random.uniform(-1, 1));
    }
    void forward(auto& ctx, auto x, auto y) const {
        launch(ctx.stream(), x.size(),
               Gated{ctx.parameters().data(), x.data(), gpipe::pop<Around<tag>>(ctx).data(),
                     y.data()});
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        weight_gradient(ctx, x, dy);
        input_gradient(ctx, x, dy, dx);
    }
    void input_gradient(auto& ctx, auto x, auto dy, auto dx) const {
        launch(ctx.stream(), x.size(),
               GatedInput{ctx.parameters().data(), x.data(), gpipe::pop<Around<tag>>(ctx).data(),
                          dy.data(), dx.data(), gpipe::pop_gradient<Around<tag>>(ctx).data()});
    }
    void weight_gradient(auto& ctx, auto x, auto dy) const {
        launch(ctx.stream(), numbers,
               GatedGradient{x.samples(), x.data(), gpipe::pop<Around<tag>>(ctx).data(), dy.data(),
                             ctx.gradients().data()});
    }
};

using Linear = toy::kernel::Linear<Real, numbers, numbers>;
using Softsign = toy::kernel::Softsign<Real, numbers>;
using Net = gpipe::Pipeline<Embedding, Give<0>, Linear, Give<1>, Softsign, Give<2>, Linear, Take<1>,
                            Take<0>, Linear, Take<2>, Head>;
template <class Device>
using Train =
    toy::Training<Net, toy::kernel::MeanSquare<Real, tokens * classes>, gpipe::RMSProp, Device>;
using OnHost = Train<gpipe::device::Host>;
using OnGpus = Train<gpipe::device::Cuda>;

template <class T>
typename T::Options options(gpipe::schedule::Dynamic schedule, std::size_t cells) {
    typename T::Options result;
    result.samples = 8;
    result.seed = 7;
    result.cells = cells;
    result.micro_batches = 4;
    result.schedule = schedule;
    return result;
}
inline std::vector<std::int32_t> tokens_of(std::size_t samples) {
    std::vector<std::int32_t> result(samples * tokens);
    for (std::size_t i = 0; i < result.size(); ++i)
        result[i] = static_cast<std::int32_t>((3 * i + i / classes + samples) % classes);
    return result;
}
inline std::vector<Real> targets_of(std::size_t samples) {
    return toy::numbers<Real>(samples * tokens * classes, static_cast<std::uint32_t>(samples));
}
// Its update has one right result in every bit.
constexpr gpipe::RMSProp optimizer{1e-2f, 0.9f, 0.5f, 1e-6f, 1e-2f};

// Steps, begun before those before are done, and what is evaluated between; then what was learnt.
template <class T> std::vector<double> run(T& train) {
    std::vector<double> result;
    std::vector<typename T::Pending> pending;
    for (std::size_t const samples : std::vector<std::size_t>{8, 8, 5, 8, 1, 8}) {
        pending.push_back(train.start(tokens_of(samples), targets_of(samples)));
        if (samples == 5)
            result.push_back(train.evaluate(tokens_of(samples), targets_of(samples)).loss);
    }
    for (auto& step : pending) result.push_back(step.result().loss);
    toy::add_state<Net>(train, result);
    return result;
}
template <class T> std::vector<Real> table_of(T& train, std::size_t layer) {
    std::vector<Real> result(classes * width);
    train.read_parameter(layer, 0, std::span(result));
    return result;
}

} // namespace skips_on_gpu

TEST_CASE("P1 skips between kernels and a table that two of them share give what loops give, in "
          "every bit") {
    using namespace skips_on_gpu;
    constexpr gpipe::Link links[] = {gpipe::Link::shared, gpipe::Link::copied, gpipe::Link::staged};
    gpipe::schedule::Dynamic const schedules[] = {gpipe::schedule::GPipe{},
                                                  gpipe::schedule::ZeroBubbleH1{}};
    std::vector<std::vector<double>> expected;
    for (auto const& schedule : schedules) {
        OnHost host({}, {}, optimizer, options<OnHost>(schedule, 1));
        auto const before = table_of(host, 0);
        expected.push_back(run(host));
        CHECK(table_of(host, 0) != before);
        for (std::size_t const cells : {1, 2, 4})
            for (std::size_t const graphs : {0, 2}) {
                toy::Session const session(cells + graphs);
                auto o = options<OnGpus>(schedule, cells);
                for (std::size_t k = 0; k < cells; ++k)
                    o.device.gpus.push_back(static_cast<int>(k) % gpipe::cuda::device_count());
                o.device.graphs = graphs;
                o.device.link = links[(cells + graphs + expected.size()) % 3];
                OnGpus train({}, {}, optimizer, o);
                INFO(schedule.name(), ", K = ", cells, ", ", graphs, " graphs, link ",
                     static_cast<int>(o.device.link));
                CHECK((run(train) == expected.back()));
                CHECK(table_of(train, 0) == table_of(train, Net::size - 1));
                CHECK(train.used_bytes() == train.planned_bytes());
                CHECK(gpipe::check_gradients(train, tokens_of(8), targets_of(8)).passed());
            }
    }
    CHECK(expected[0] != expected[1]);
}
