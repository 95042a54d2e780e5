// What layers are given beside the tensors of the chain, read by kernels: constants of a step
// and side inputs, which may be absent. In steps that are kept as graphs, too, all is as on the
// host, in every bit.
#include "support/on_gpu.hpp"

#include <gpipe/check_gradients.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace given_on_gpu {

using namespace toy;
using body::launch;

struct Temperature {
    float value = 1;
};

/// y = w t x.
template <class T> struct HeatedForward {
    T const* w;
    Temperature const* t;
    T const* x;
    T* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const { y[i] = w[0] * T(t->value) * x[i]; }
};
/// Of one thread: the gradient of w.
template <class T> struct HeatedGradient {
    std::size_t size;
    Temperature const* t;
    T const *x, *dy;
    T* dw;
    GPIPE_HOST_DEVICE void operator()(std::size_t) const {
        for (std::size_t i = 0; i < size; ++i) dw[0] += T(t->value) * x[i] * dy[i];
    }
};

/// y = x times a mask of integers, one for each sample; null: there is none.
template <class T, std::size_t N> struct MaskedForward {
    std::int32_t const* mask;
    T const* x;
    T* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        y[i] = mask ? T(mask[i / N]) * x[i] : x[i];
    }
};

template <class T, std::size_t N> struct Heated {
    using Input = gpipe::Tensor<T, N>;
    using Output = Input;
    using Parameters = gpipe::Tensor<T>;
    using Constants = Temperature;

    void initialize(auto& ctx) const { ctx.parameters()[0] = T(0.75); }
    void forward(auto& ctx, auto x, auto y) const { scale(ctx, x.data(), y.data(), x.size()); }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        launch(ctx.stream(), 1,
               HeatedGradient<T>{x.size(), gpipe::constant<Temperature>(ctx), x.data(), dy.data(),
                                 ctx.gradients().data()});
        scale(ctx, dy.data(), dx.data(), dy.size());
    }

  private:
    static void scale(auto& ctx, T const* from, T* to, std::size_t size) {
        launch(
            ctx.stream(), size,
            HeatedForward<T>{ctx.parameters().data(), gpipe::constant<Temperature>(ctx), from, to});
    }
};

struct MaskTag;
template <class T, std::size_t N> struct Masked {
    using Input = gpipe::Tensor<T, N>;
    using Output = Input;
    using Side = gpipe::SideInput<MaskTag, gpipe::Optional<MaskTag, gpipe::Tensor<std::int32_t>>>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;

    void forward(auto& ctx, auto x, auto y) const { mask(ctx, x.data(), y.data(), x.size()); }
    void backward(auto& ctx, auto dy, auto dx) const { mask(ctx, dy.data(), dx.data(), dy.size()); }

  private:
    static void mask(auto& ctx, T const* from, T* to, std::size_t size) {
        launch(ctx.stream(), size, MaskedForward<T, N>{gpipe::side<MaskTag>(ctx).data(), from, to});
    }
};

template <class T, template <class> class On>
using GivenNet =
    gpipe::Pipeline<On<kernel::Linear<T, 5, 6>>, On<Heated<T, 6>>, On<Masked<T, 6>>,
                    On<kernel::Softsign<T, 6>>, On<Heated<T, 6>>, On<kernel::Linear<T, 6, 3>>>;
template <class L> using OnHost = L;

} // namespace given_on_gpu

namespace {

using Real = float;
using HostTrain = toy::Training<given_on_gpu::GivenNet<Real, given_on_gpu::OnHost>,
                                toy::MeanSquare<Real, 3>, gpipe::Adam, gpipe::device::Host>;
using Train = toy::Training<given_on_gpu::GivenNet<Real, toy::OnGpu>,
                            toy::LossOnGpu<toy::kernel::MeanSquare<Real, 3>>, gpipe::Adam,
                            gpipe::device::Cuda>;

template <class T> typename T::Options options() {
    typename T::Options result;
    result.samples = 8;
    result.seed = 7;
    result.cells = 2;
    result.micro_batches = 3;
    result.schedule = gpipe::schedule::OneForwardOneBackward{};
    return result;
}
std::vector<std::int32_t> mask_of(std::size_t samples) {
    std::vector<std::int32_t> mask(samples);
    for (std::size_t s = 0; s < samples; ++s) mask[s] = static_cast<std::int32_t>(s % 3);
    return mask;
}
// Steps, each with another temperature and some without a mask, that are begun before those before
// are done; and what is evaluated between.
template <class T> std::vector<double> run(T& train) {
    using Batch = gpipe::Batch<typename T::Input>;
    std::vector<double> result;
    std::vector<typename T::Pending> pending;
    for (std::size_t const samples : std::vector<std::size_t>{8, 8, 5, 8, 8, 8, 8, 8}) {
        toy::Data<Real> const data(samples, static_cast<std::uint32_t>(samples));
        auto const mask = mask_of(samples);
        train.template constant<given_on_gpu::Temperature>().value += 0.25f;
        bool const masked = pending.size() % 3 != 1;
        pending.push_back(train.start(
            masked ? Batch{data.inputs, mask} : Batch{data.inputs, gpipe::none}, data.targets));
        train.template constant<given_on_gpu::Temperature>().value += 0.125f;
        if (samples == 5) result.push_back(train.evaluate({data.inputs, mask}, data.targets).loss);
    }
    for (auto& step : pending) result.push_back(step.result().loss);
    for (std::size_t layer = 0; layer < T::layer_count; ++layer)
        for (std::size_t t = 0; t < train.tensors(layer); ++t) {
            std::vector<std::byte> bytes(
                given_on_gpu::GivenNet<Real, given_on_gpu::OnHost>::leaf_info[layer]
                    .parameters.bytes[t]);
            train.read_parameter(layer, t, std::span(bytes));
            for (std::byte const b : bytes) result.push_back(static_cast<double>(b));
        }
    return result;
}

} // namespace

TEST_CASE("P1 what kernels are given beside the chain's tensors is what loops are given") {
    HostTrain host({}, {}, gpipe::Adam{}, options<HostTrain>());
    auto const expected = run(host);
    for (std::size_t const graphs : std::vector<std::size_t>{0, 2}) {
        toy::Session session;
        auto o = options<Train>();
        o.device.gpus = {0, 0};
        o.device.graphs = graphs;
        Train train({}, {}, gpipe::Adam{}, o);
        CHECK((run(train) == expected));
        toy::Data<Real> const data(8);
        CHECK(gpipe::check_gradients(train, {data.inputs, mask_of(8)}, data.targets).passed());
        CHECK(gpipe::check_gradients(train, {data.inputs, gpipe::none}, data.targets).passed());
        CHECK(train.used_bytes() == train.planned_bytes());
    }
}
