#pragma once

#include <gpt/cuda_operations.cuh>
#include <gpt/host_operations.hpp>
#include <gpt/math.hpp>

#include <gpipe/gpipe.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

// A layer of the GPT on a GPU beside the same on the host. It stands behind one that adds its
// parameters to the input, so that the gradient of the layer's input can be read, too.
namespace gpu_test {

template <class T> struct AddAt {
    std::size_t size;
    T const* x;
    gpt::Real<T> const* offset;
    T* y;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        y[i] = gpt::real(x[i]) + offset[i % size];
    }
};

// y = x + parameters.
template <class Shape, class Operations> struct Offset;
template <class T, std::size_t... extents, class Operations>
struct Offset<gpipe::Tensor<T, extents...>, Operations> {
    using Shape = gpipe::Tensor<T, extents...>;
    using Input = Shape;
    using Output = Shape;
    using Parameters = gpipe::Tensor<gpt::Real<T>, extents...>;
    static constexpr bool accepts_none = true;
    static constexpr double cost = 1;

    void initialize(auto&) const {}
    void forward(auto& ctx, auto x, auto y) const {
        Operations::on(ctx).for_each_index(
            x.size(), AddAt<T>{Shape::size, x.data(), ctx.parameters().data(), y.data()});
    }
    void backward(auto& ctx, auto, auto dy, auto) const {
        Operations::on(ctx).sum_columns(dy.samples(), Shape::size, ctx.gradients().data(), true,
                                        gpt::Itself{}, dy.data());
    }
};

template <class T> struct DotAt {
    T const* y;
    T const* target;
    T* dy;
    double* terms;
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        terms[i] = static_cast<double>(gpt::real(y[i])) * static_cast<double>(gpt::real(target[i]));
        if (dy) dy[i] = target[i];
    }
};
struct Write {
    double* to;
    double value;
    GPIPE_HOST_DEVICE void operator()(std::size_t) const { *to = value; }
};

// The sum of y times the target: its gradient is the target.
template <class T, class Shape, class Operations> struct Dot {
    using Target = Shape;
    using Scratch = gpipe::Tensor<double, Shape::size>;

    void operator()(auto& ctx, auto y, auto target, auto dy) const {
        auto const on = Operations::on(ctx);
        double* const terms = ctx.scratch().data();
        double* const value = ctx.value().data();
        on.for_each_index(y.size(), DotAt<T>{y.data(), target.data(),
                                             ctx.training() ? dy.data() : nullptr, terms});
        on.sum_columns(y.size(), 1, value, false, gpt::Itself{}, terms);
        on.for_each_index(1, Write{value + 1, static_cast<double>(y.samples())});
    }
};

using gpipe::device::Cuda;
using gpipe::device::Host;

constexpr std::size_t samples = 3;
constexpr std::size_t micro_batches = 2; // of two samples and one

// L<T, Operations> is the layer; the embedding, whose input is no number, stands alone.
template <template <class, class> class L, class T, class Operations, class Device> struct Around {
    using Layer = L<T, Operations>;
    using R = gpt::Real<T>;
    using Before = Offset<typename Layer::Input, Operations>;
    static constexpr bool reads_tokens = !std::is_same_v<typename Layer::Input::Element, T>;
    template <bool alone, class = void> struct NetOf {
        using type = gpipe::Pipeline<Before, Layer>;
    };
    template <class Unused> struct NetOf<true, Unused> { using type = gpipe::Pipeline<Layer>; };
    using Net = typename NetOf<reads_tokens>::type;
    using Loss = Dot<T, typename Layer::Output, Operations>;
    using Train = gpipe::Training<Net, gpipe::Cells<1>, gpipe::MicroBatches<micro_batches>,
                                  gpipe::Loss<Loss>, gpipe::Optimizer<gpipe::SGD>, Device>;

    static typename Device::Options device() {
        if constexpr (std::is_same_v<Device, Cuda>)
            return {.gpus = {0}};
        else
            return {};
    }
    static Net net(Layer const& layer) {
        if constexpr (reads_tokens)
            return Net{layer};
        else
            return Net{Before{}, layer};
    }
    // Nothing learns, so that every step sees the same parameters. Inputs and targets are numbers
    // of type Short.
    template <class Short>
    explicit Around(Layer const& layer, Short)
        : train(net(layer), Loss{}, gpipe::SGD{.learning_rate = 0},
                {.samples = samples, .seed = 1, .device = device()}),
          x(samples * Layer::Input::size), target(samples * Layer::Output::size), y(target.size()) {
        std::mt19937 random{5};
        std::normal_distribution<double> normal;
        auto const short_number = [](double number) {
            return static_cast<float>(static_cast<Short>(static_cast<float>(number)));
        };
        for (auto& element : x)
            if constexpr (reads_tokens)
                element = static_cast<std::int32_t>(random() % Layer::vocabulary_size);
            else
                element = static_cast<T>(short_number(normal(random)));
        for (T& element : target) element = static_cast<T>(short_number(normal(random)));
        each_tensor([&](std::size_t l, std::size_t t, std::size_t size) {
            auto values = parameter(l, t, size);
            for (R& value : values)
                value = static_cast<float>(static_cast<double>(value) + 0.3 * normal(random));
            write(l, t, values);
        });
    }

    template <class F> void each_tensor(F f) {
        auto const layers = Net::layers();
        for (std::size_t l = 0; l < Net::size; ++l)
            for (std::size_t t = 0; t < layers[l].parameters.count; ++t)
                f(l, t, layers[l].parameters.bytes[t] / sizeof(R));
    }
    std::vector<R> parameter(std::size_t l, std::size_t t, std::size_t size) {
        std::vector<R> values(size);
        train.read_parameter(l, t, std::span<R>(values));
        return values;
    }
    std::vector<R> gradient(std::size_t l, std::size_t t, std::size_t size) {
        std::vector<R> values(size);
        train.read_gradient(l, t, std::span<R>(values));
        return values;
    }
    void write(std::size_t l, std::size_t t, std::vector<R> const& values) {
        train.write_parameter(l, t, std::span<R const>(values));
    }
    std::vector<T> const& predict() {
        train.predict(x, y);
        return y;
    }
    double step() { return train.step(x, target).loss; }
    double value() { return train.evaluate(x, target).loss; }

    Train train;
    std::vector<typename Layer::Input::Element> x;
    std::vector<T> target;
    std::vector<T> y;
};

// Beside the greatest number of its tensor.
template <class A, class B>
void close(std::vector<A> const& a, std::vector<B> const& b, double tolerance) {
    double most = 1e-3;
    for (B const& value : b) most = std::max(most, std::abs(static_cast<double>(value)));
    std::size_t far = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        double const difference =
            std::abs(static_cast<double>(gpt::real(a[i])) - static_cast<double>(b[i]));
        far += !(difference <= tolerance * most); // also where it is no number
    }
    CHECK(a.size() == b.size());
    CHECK(far == 0);
}

// The layer on a GPU with elements T, and on the host in double.
template <template <class, class> class L, class T = float, class Make>
void compare_with_host(Make make) {
    constexpr double tolerance = sizeof(T) == 2 ? 4e-2 : 1e-4;
    auto const layer = make.template operator()<L<T, gpt::CudaOperations>>();
    Around<L, T, gpt::CudaOperations, Cuda> gpu(layer, T{});
    Around<L, double, gpt::HostOperations, Host> host(
        make.template operator()<L<double, gpt::HostOperations>>(), T{});
    close(gpu.predict(), host.predict(), tolerance);
    CHECK(gpu.step() == doctest::Approx(host.step()).epsilon(tolerance));
    gpu.each_tensor([&](std::size_t l, std::size_t t, std::size_t size) {
        CAPTURE(l);
        CAPTURE(t);
        close(gpu.parameter(l, t, size), host.parameter(l, t, size), 1e-6);
        close(gpu.gradient(l, t, size), host.gradient(l, t, size), tolerance);
    });

    // The same bits once more.
    auto const y = gpu.predict();
    std::vector<std::vector<float>> first;
    gpu.each_tensor([&](std::size_t l, std::size_t t, std::size_t size) {
        first.push_back(gpu.gradient(l, t, size));
    });
    Around<L, T, gpt::CudaOperations, Cuda> again(layer, T{});
    CHECK(again.predict() == y);
    again.step();
    std::size_t next = 0;
    again.each_tensor([&](std::size_t l, std::size_t t, std::size_t size) {
        CHECK(again.gradient(l, t, size) == first[next++]);
    });
}

struct Default {
    template <class L> L operator()() const { return {}; }
};
struct WithDropout {
    template <class L> L operator()() const { return {{0.25f}}; }
};
struct Bounded {
    template <class L> L operator()() const {
        return {.classes = L::Output::extents[1] - 5, .bound = 0.75f};
    }
};

} // namespace gpu_test
