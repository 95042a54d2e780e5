#pragma once

#include "convnet/classifier.hpp"
#include "convnet/convolution.hpp"
#include "convnet/norm.hpp"
#include "convnet/relu.hpp"
#include "convnet/residual.hpp"
#include "gpt/cross_entropy.hpp"

#include <gpipe/pipeline.hpp>

#include <cstddef>

namespace convnet {

struct Around; // tags: what goes around the main way of a block,
struct Aside;  // and what waits at its end for a shortcut

/// A residual network (He et al., 2016) for pictures of one channel, and its loss, as types: a
/// convolution that halves the side, a block of that many channels, two blocks that halve the side
/// and double the channels, the mean over all positions. `Operations` says what its devices are
/// made for; include that header, too (operations.hpp).
template <class T, std::size_t side, std::size_t channels, std::size_t classes,
          class Operations = HostOperations>
struct Model {
    template <std::size_t in, std::size_t at, std::size_t out, std::size_t kernel,
              std::size_t stride = 1>
    using Convolve = Convolution<T, in, at, out, kernel, stride, Operations>;
    template <std::size_t of, std::size_t at> using Shape = gpipe::Tensor<T, of, at, at>;
    template <std::size_t of, std::size_t at> using Rectify = Relu<Shape<of, at>, Operations>;
    static constexpr std::size_t half(std::size_t at) { return (at + 1) / 2; }

    /// y = relu(F(x) + x). Repeat<1, ...> makes its tags its own.
    template <std::size_t of, std::size_t at>
    using Block = gpipe::Repeat<1, Fork<Around, Shape<of, at>, Operations>, Convolve<of, at, of, 3>,
                                Norm<T, of, at>, Rectify<of, at>, Convolve<of, at, of, 3>,
                                Norm<T, of, at>, Join<Around, Shape<of, at>, Operations>>;
    /// The same with half the side and twice the channels, so that x needs a convolution and a
    /// norm, too: its main way first, then its shortcut.
    template <std::size_t of, std::size_t at, std::size_t out = 2 * of, std::size_t to = half(at)>
    using Halve = gpipe::Repeat<
        1, Fork<Around, Shape<of, at>, Operations>, Convolve<of, at, out, 3, 2>, Norm<T, out, to>,
        Rectify<out, to>, Convolve<out, to, out, 3>, Norm<T, out, to>,
        Exchange<Around, Aside, Shape<out, to>, Shape<of, at>, Operations>,
        Convolve<of, at, out, 1, 2>, Norm<T, out, to>, Join<Aside, Shape<out, to>, Operations>>;

    static constexpr std::size_t first = half(side), second = half(first), third = half(second);
    using Net =
        gpipe::Pipeline<Convolve<1, side, channels, 3, 2>, Norm<T, channels, first>,
                        Rectify<channels, first>, Block<channels, first>, Halve<channels, first>,
                        Halve<2 * channels, second>, MeanPool<T, 4 * channels, third, Operations>,
                        Classify<T, 4 * channels, classes, Operations>>;
    using Loss = gpt::CrossEntropy<T, 1, classes, Operations>;

    /// Throws std::runtime_error if a convolution of so many samples at most needs more room than
    /// is planned for it.
    static void check_workspaces(std::size_t samples) {
        typename Operations::WorkspaceCheck const check;
        for (ConvolutionShape const& shape : Net::template leaf_table<ShapeOf>())
            if (shape != ConvolutionShape{}) check(shape, samples);
    }

  private:
    struct ShapeOf {
        using Value = ConvolutionShape;
        template <class L> static constexpr ConvolutionShape of() {
            if constexpr (requires { L::shape.stride; })
                return L::shape;
            else
                return {};
        }
    };
};

/// The network of examples/convnet.
template <class Operations> using StandardOn = Model<float, 28, 16, 10, Operations>;

} // namespace convnet
