#pragma once

#include <cstddef>
#include <string>

namespace benchmark {

/// A generated Training.
struct ProgramShape {
    std::size_t cells = 4;
    std::size_t micro_batches = 32;
    bool loops = false; ///< element-wise work as loops in the layers; else all work is elsewhere
    bool plans = false; ///< memory is planned at compile time, too
    std::string schedule{}; ///< as a policy; empty: the default
};

/// Layers in a block of repeated_layers().
inline constexpr std::size_t repeat_group = 2;

namespace detail {

inline constexpr char preamble[] = R"(#include <gpipe/gpipe.hpp>

#include <cmath>
#include <cstddef>
#include <vector>

)";

// What layers call: a product as from a BLAS (c += a b, an inner extent of n, strides), and
// element-wise work as from a file of kernels.
inline constexpr char functions[] =
    R"(void multiply(std::size_t rows, std::size_t columns, std::size_t n,
              float const* a, std::size_t row_stride, std::size_t inner_stride, float const* b,
              std::size_t inner_stride_of_b, std::size_t column_stride, float* c);
void repeat_row(std::size_t rows, std::size_t columns, float const* row, float* out);
void add_rows(std::size_t rows, std::size_t columns, float const* in, float* row);
void fill(std::size_t size, float value, float* out);
void fill_normal(std::size_t size, double deviation, gpipe::InitialRandom random, float* out);
)";

// The bodies of a matrix product with bias, over pointers: the same in a layer and in a plain
// function.
struct Bodies {
    char const* initialize;
    char const* forward;
    char const* backward;
};
inline constexpr Bodies calls{
    R"(        fill_normal(Out * In, 1 / std::sqrt(1.0 * In), random, weights);
)",
    R"(        repeat_row(samples, Out, bias, y);
        multiply(samples, Out, In, x, In, 1, weights, 1, In, y);
)",
    R"(        add_rows(samples, Out, dy, dbias);
        multiply(Out, In, samples, dy, 1, Out, x, In, 1, dweights);
        fill(samples * In, 0, dx);
        multiply(samples, In, Out, dy, Out, 1, weights, In, 1, dx);
)"};
inline constexpr Bodies loops{
    R"(        for (std::size_t i = 0; i < Out * In; ++i)
            weights[i] = static_cast<float>(random.normal(1 / std::sqrt(1.0 * In)));
)",
    R"(        for (std::size_t s = 0; s < samples; ++s)
            for (std::size_t o = 0; o < Out; ++o) y[s * Out + o] = bias[o];
        multiply(samples, Out, In, x, In, 1, weights, 1, In, y);
)",
    R"(        for (std::size_t s = 0; s < samples; ++s)
            for (std::size_t o = 0; o < Out; ++o) dbias[o] += dy[s * Out + o];
        multiply(Out, In, samples, dy, 1, Out, x, In, 1, dweights);
        for (std::size_t i = 0; i < samples * In; ++i) dx[i] = 0;
        multiply(samples, In, Out, dy, Out, 1, weights, In, 1, dx);
)"};

inline std::string layers(Bodies const& bodies) {
    return std::string(R"(
// A matrix product and a bias. `number` makes distinct types, as in a list of different layers.
template <std::size_t number, std::size_t In, std::size_t Out> struct Linear {
    using Input = gpipe::Tensor<float, In>;
    using Output = gpipe::Tensor<float, Out>;
    using Parameters = gpipe::Tensors<gpipe::Tensor<float, Out, In>, gpipe::Tensor<float, Out>>;
    static constexpr double cost = 2.0 * In * Out;

    void initialize(auto& context) const {
        auto const [w, b] = context.parameters();
        auto random = context.random(0);
        float* const weights = w.data();
)") + bodies.initialize +
           R"(    }
    void forward(auto& context, auto input, auto output) const {
        auto const [w, b] = context.parameters();
        float const* const weights = w.data();
        float const* const bias = b.data();
        std::size_t const samples = input.samples();
        float const* const x = input.data();
        float* const y = output.data();
)" + bodies.forward +
           R"(    }
    void backward(auto& context, auto input, auto output_gradient,
                  auto input_gradient) const {
        auto const [w, b] = context.parameters();
        auto const [dw, db] = context.gradients();
        float const* const weights = w.data();
        float* const dweights = dw.data();
        float* const dbias = db.data();
        std::size_t const samples = input.samples();
        float const* const x = input.data();
        float const* const dy = output_gradient.data();
        float* const dx = input_gradient.data();
)" + bodies.backward +
           R"(    }
};

)";
}

// The same bodies with no library around them: three functions per layer behind a table.
inline std::string plain_layers(Bodies const& bodies) {
    return std::string(R"(
template <std::size_t number, std::size_t In, std::size_t Out> struct Linear {
    static void initialize(float* weights, gpipe::InitialRandom random) {
)") + bodies.initialize +
           R"(    }
    static void forward(float const* weights, std::size_t samples, float const* x, float* y) {
        float const* const bias = weights + Out * In;
)" + bodies.forward +
           R"(    }
    static void backward(float const* weights, float* dweights, std::size_t samples,
                         float const* x, float const* dy, float* dx) {
        float* const dbias = dweights + Out * In;
)" + bodies.backward +
           R"(    }
};
struct Functions {
    void (*initialize)(float*, gpipe::InitialRandom);
    void (*forward)(float const*, std::size_t, float const*, float*);
    void (*backward)(float const*, float*, std::size_t, float const*, float const*, float*);
};
template <class... Layers>
inline constexpr Functions table[] = {
    Functions{&Layers::initialize, &Layers::forward, &Layers::backward}...};

)";
}

inline constexpr char loss[] = R"(template <std::size_t size> struct MeanSquare {
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

inline Bodies const& bodies(ProgramShape shape) { return shape.loops ? loops : calls; }

inline std::string beginning(ProgramShape shape) {
    return std::string(preamble) + functions + layers(bodies(shape)) + loss;
}

inline std::string training(ProgramShape shape, std::size_t in, std::size_t out) {
    auto const text = [](std::size_t n) { return std::to_string(n); };
    return "using Train = gpipe::Training<Net, gpipe::Cells<" + text(shape.cells) +
           ">, gpipe::MicroBatches<" + text(shape.micro_batches) + ">, gpipe::Loss<MeanSquare<" +
           text(out) + ">>,\n                              gpipe::Optimizer<gpipe::Adam>" +
           (shape.schedule.empty() ? "" : ", " + shape.schedule) + ">;\n" +
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

namespace detail {

inline std::string list_of_layers(std::size_t layers) {
    std::string text;
    for (std::size_t i = 0; i < layers; ++i)
        text += std::string(i ? ",\n    " : "\n    ") + "Linear<" + std::to_string(i) + ", " +
                std::to_string(width(i)) + ", " + std::to_string(width(i + 1)) + ">";
    return text;
}

} // namespace detail

/// The source of a program that trains a chain of L layers, each of its own type.
inline std::string distinct_layers(std::size_t layers, ProgramShape shape) {
    return detail::beginning(shape) + "using Net = gpipe::Pipeline<" +
           detail::list_of_layers(layers) + ">;\n" +
           detail::training(shape, detail::width(0), detail::width(layers));
}

/// The source of the functions of such layers, and of nothing around them.
inline std::string plain_functions(std::size_t layers, ProgramShape shape) {
    return std::string(detail::preamble) + detail::functions +
           detail::plain_layers(detail::bodies(shape)) +
           "Functions const* functions() {\n    return table<" + detail::list_of_layers(layers) +
           ">;\n}\n";
}

/// The source of a program that trains `times` equal blocks of repeat_group layers.
inline std::string repeated_layers(std::size_t times, ProgramShape shape) {
    return detail::beginning(shape) +
           ("using Net = gpipe::Pipeline<gpipe::Repeat<" + std::to_string(times) +
            ", Linear<0, 8, 12>, Linear<1, 12, 8>>>;\n") +
           detail::training(shape, 8, 8);
}

} // namespace benchmark
