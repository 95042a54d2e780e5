// Trains a perceptron with layers of its own to tell digits apart. With g++ or, likewise, clang++:
//   g++ -std=c++20 -O3 -Iinclude -Iexamples examples/mlp.cpp examples/support/*.cpp -o mlp -pthread
// On MNIST's files: mlp --images t10k-images-idx3-ubyte --labels t10k-labels-idx1-ubyte
#include "support/digit_run.hpp"

#include <gpipe/gpipe.hpp>

void add(float a, float const* x, float* y, std::size_t n) { // y += a x; most pixels are 0
    for (std::size_t i = 0; a != 0 && i < n; ++i) y[i] += a * x[i];
}
template <std::size_t in, std::size_t out> struct Linear {
    using Input = gpipe::Tensor<float, in>;
    using Output = gpipe::Tensor<float, out>;
    using Parameters = gpipe::Tensors<gpipe::Tensor<float, in, out>, Output>;
    static constexpr bool accepts_none = true; // nobody wants dx of the first layer
    void initialize(auto& ctx) const {
        auto random = ctx.random(0); // the biases, tensor 1, begin as zeros
        for (float& w : get<0>(ctx.parameters())) w = float(random.normal(std::sqrt(2.0 / in)));
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const [w, b] = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s) {
            std::copy(b.begin(), b.end(), &y(s, 0));
            for (std::size_t i = 0; i < in; ++i) add(x(s, i), &w(i, 0), &y(s, 0), out);
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const { // adds to the gradients, writes dx
        auto const w = get<0>(ctx.parameters());
        auto const [dw, db] = ctx.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s) {
            add(1, &dy(s, 0), db.data(), out);
            for (std::size_t i = 0; i < in; ++i) add(x(s, i), &dy(s, 0), &dw(i, 0), out);
            if constexpr (!gpipe::is_none<decltype(dx)>)
                for (std::size_t i = 0; i < in; ++i)
                    dx(s, i) = std::inner_product(&w(i, 0), &w(i, 0) + out, &dy(s, 0), 0.f);
        }
    }
};
template <std::size_t n> struct Relu {
    using Input = gpipe::Tensor<float, n>;
    using Output = Input;
    void forward(auto&, auto x, auto y) const {
        std::transform(x.begin(), x.end(), y.begin(), [](float v) { return std::max(v, 0.f); });
    }
    void backward(auto&, auto x, auto dy, auto dx) const {
        auto const slope = [](float v, float d) { return v > 0 ? d : 0; };
        std::transform(x.begin(), x.end(), dy.begin(), dx.begin(), slope);
    }
};
struct CrossEntropy { // of softmax; its metric: how many are told right
    using Target = gpipe::Tensor<std::int32_t>;
    gpipe::LossValue<1> operator()(auto&, auto y, auto target, auto dy) const {
        gpipe::LossValue<1> value{.weight = double(y.samples())};
        for (std::size_t s = 0; s < y.samples(); ++s) {
            auto const right = static_cast<std::size_t>(target(s));
            auto const most = std::max_element(y[s].begin(), y[s].end());
            for (std::size_t c = 0; c < 10; ++c) dy(s, c) = std::exp(y(s, c) - *most);
            float const total = std::accumulate(dy[s].begin(), dy[s].end(), 0.f);
            for (std::size_t c = 0; c < 10; ++c) dy(s, c) = dy(s, c) / total - float(c == right);
            value.sum += std::log(total) - (y(s, right) - *most);
            value.metric[0] += most == &y(s, right);
        }
        return value;
    }
};
using Net = gpipe::Pipeline<Linear<784, 128>, Relu<128>, Linear<128, 10>>;
using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>,
                              gpipe::Loss<CrossEntropy>, gpipe::Optimizer<gpipe::AdamW>>;
int main(int count, char** arguments) {
    support::DigitRun run("mlp", "Trains a perceptron.", {.steps = 1200, .learning_rate = 2e-3});
    return run.main(count, arguments, [&] {
        Train train{Net{}, {}, {}, {.samples = run.batch(), .seed = run.seed()}};
        run.each_step(train, [&](auto const& batch, float rate) {
            train.optimizer().learning_rate = rate;
            return train.step(batch.inputs, batch.targets);
        });
        run.report(train, "adamw", train.evaluate(run.held_out().images, run.held_out().labels));
    });
}
