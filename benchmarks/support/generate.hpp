#pragma once

#include <cstddef>
#include <string>

namespace benchmark {

/// A generated Training.
struct ProgramShape {
    std::size_t cells = 4;
    std::size_t micro_batches = 32;
    bool loops = false; ///< products as loops, where they are; else behind a function elsewhere
    bool plans = false; ///< memory is planned at compile time, too
};

/// Layers in a block of repeated_layers().
inline constexpr std::size_t repeat_group = 2;

namespace detail {

inline constexpr char preamble[] = R"(#include <gpipe/gpipe.hpp>

#include <cmath>
#include <cstddef>
#include <vector>

)";

// c += a b, as from a library: an inner extent of n, strides as in BLAS.
inline constexpr char calls[] =
    R"(void multiply(std::size_t rows, std::size_t columns, std::size_t n,
              float const* a, std::size_t row_stride, std::size_t inner_stride, float const* b,
              std::size_t inner_stride_of_b, std::size_t column_stride, float* c);
)";
inline constexpr char loops[] = R"(inline void multiply(
    std::size_t rows, std::size_t columns, std::size_t n, float const* a, std::size_t row_stride,
    std::size_t inner_stride, float const* b, std::size_t inner_stride_of_b,
    std::size_t column_stride, float* c) {
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < columns; ++j) {
            float sum = 0;
            for (std::size_t k = 0; k < n; ++k)
                sum += a[i * row_stride + k * inner_stride] *
                       b[k * inner_stride_of_b + j * column_stride];
            c[i * columns + j] += sum;
        }
}
)";

inline constexpr char layers[] = R"(
// A matrix product and a bias. `number` makes distinct types, as in a list of different layers.
template <std::size_t number, std::size_t In, std::size_t Out> struct Linear {
    using Input = gpipe::Tensor<float, In>;
    using Output = gpipe::Tensor<float, Out>;
    using Parameters = gpipe::Tensors<gpipe::Tensor<float, Out, In>, gpipe::Tensor<float, Out>>;
    static constexpr double cost = 2.0 * In * Out;

    void initialize(auto& context) const {
        auto const [weights, bias] = context.parameters();
        auto random = context.random(0);
        for (float& w : weights) w = static_cast<float>(random.normal(1 / std::sqrt(1.0 * In)));
    }
    void forward(auto& context, auto x, auto y) const {
        auto const [weights, bias] = context.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t o = 0; o < Out; ++o) y(s, o) = bias(o);
        multiply(x.samples(), Out, In, x.data(), In, 1, weights.data(), 1, In, y.data());
    }
    void backward(auto& context, auto x, auto dy, auto dx) const {
        auto const [weights, bias] = context.parameters();
        auto const [dweights, dbias] = context.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t o = 0; o < Out; ++o) dbias(o) += dy(s, o);
        multiply(Out, In, x.samples(), dy.data(), 1, Out, x.data(), In, 1, dweights.data());
        for (float& d : dx) d = 0;
        multiply(x.samples(), In, Out, dy.data(), Out, 1, weights.data(), In, 1, dx.data());
    }
};

template <std::size_t size> struct MeanSquare {
    using Target = gpipe::Tensor<float, size>;
    gpipe::LossValue<> operator()(auto& context, auto y, auto target, auto dy) const {
        gpipe::LossValue<> value;
        for (std::size_t i = 0; i < y.size(); ++i) {
            float const d = y.data()[i] - target.data()[i];
            value.sum += d * d;
            dy.data()[i] = 2 * d;
        }
        value.weight = static_cast<double>(context.samples());
        return value;
    }
};

)";

inline std::string beginning(ProgramShape shape) {
    return std::string(preamble) + (shape.loops ? loops : calls) + layers;
}

inline std::string training(ProgramShape shape, std::size_t in, std::size_t out) {
    auto const text = [](std::size_t n) { return std::to_string(n); };
    return "using Train = gpipe::Training<Net, gpipe::Cells<" + text(shape.cells) +
           ">, gpipe::MicroBatches<" + text(shape.micro_batches) + ">, gpipe::Loss<MeanSquare<" +
           text(out) + ">>,\n                              gpipe::Optimizer<gpipe::Adam>>;\n" +
           (shape.plans ? "static_assert(Train::peak_bytes(0, 8) > 0);\n" : "") +
           "\nint main() {\n"
           "    std::vector<float> inputs(64 * " +
           text(in) + ", 1.0f), targets(64 * " + text(out) +
           ", 1.0f);\n"
           "    Train train{Net{}, {}, gpipe::Adam{}, {.samples = 64, .seed = 1}};\n"
           "    return train.step(inputs, targets).loss > 0 ? 0 : 1;\n"
           "}\n";
}

// Widths go round: 8, 12, ..., 36.
inline std::size_t width(std::size_t boundary) { return 8 + 4 * (boundary % 8); }

} // namespace detail

/// The source of a program that trains a chain of L layers, each of its own type.
inline std::string distinct_layers(std::size_t layers, ProgramShape shape) {
    std::string text = detail::beginning(shape);
    text += "using Net = gpipe::Pipeline<";
    for (std::size_t i = 0; i < layers; ++i)
        text += std::string(i ? ",\n    " : "\n    ") + "Linear<" + std::to_string(i) + ", " +
                std::to_string(detail::width(i)) + ", " + std::to_string(detail::width(i + 1)) +
                ">";
    return text + ">;\n" + detail::training(shape, detail::width(0), detail::width(layers));
}

/// The source of a program that trains `times` equal blocks of repeat_group layers.
inline std::string repeated_layers(std::size_t times, ProgramShape shape) {
    return detail::beginning(shape) +
           ("using Net = gpipe::Pipeline<gpipe::Repeat<" + std::to_string(times) +
            ", Linear<0, 8, 12>, Linear<1, 12, 8>>>;\n") +
           detail::training(shape, 8, 8);
}

} // namespace benchmark
