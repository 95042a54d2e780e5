// A Training or an Inference that a function returns from braces, with the compilers' defaults for
// what they do not name. Nothing comes before: what is asked elsewhere hides g++'s error.
#include <gpipe/gpipe.hpp>
#include <gpipe/inference.hpp>

#include <cstddef>

struct Pass {
    using Input = gpipe::Tensor<float>;
    using Output = Input;
    void forward(auto&, auto x, auto y) const {
        for (std::size_t s = 0; s < x.samples(); ++s) y(s) = x(s);
    }
    void backward(auto&, auto, auto dy, auto dx) const {
        for (std::size_t s = 0; s < dy.samples(); ++s) dx(s) = dy(s);
    }
};
struct Sum {
    using Target = gpipe::Tensor<float>;
    gpipe::LossValue<> operator()(auto&, auto y, auto, auto dy) const {
        gpipe::LossValue<> value;
        for (std::size_t s = 0; s < y.samples(); ++s) {
            dy(s) = 1;
            value.sum += y(s);
            value.weight += 1;
        }
        return value;
    }
};
using Net = gpipe::Pipeline<Pass, Pass>;
using Train = gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::Loss<Sum>>;
using Infer = gpipe::Inference<Net, gpipe::Cells<gpipe::dynamic>>;

[[maybe_unused]] static Train trained(std::size_t cells) {
    return {Net{}, {}, {}, {.samples = 8, .cells = cells}};
}
[[maybe_unused]] static Infer inferred(std::size_t cells) {
    return {Net{}, {.samples = 8, .cells = cells}};
}
