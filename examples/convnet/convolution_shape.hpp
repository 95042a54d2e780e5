#pragma once

#include <cstddef>
#include <string>

namespace convnet {

/// A convolution of one sample: channels x side x side to outputs x result x result, by square
/// kernels, with so much padding of zeros that a stride of 1 keeps the side.
struct ConvolutionShape {
    std::size_t channels = 1;
    std::size_t side = 1;
    std::size_t outputs = 1;
    std::size_t kernel = 1; ///< odd
    std::size_t stride = 1;

    constexpr std::size_t padding() const { return kernel / 2; }
    constexpr std::size_t result() const { return (side - 1) / stride + 1; }
    /// Elements of a sample of the input, of one of the output, and of the weights.
    ///@{
    constexpr std::size_t input_size() const { return channels * side * side; }
    constexpr std::size_t output_size() const { return outputs * result() * result(); }
    constexpr std::size_t weights() const { return outputs * channels * kernel * kernel; }
    ///@}
    /// Multiplications and additions of a sample, those with padding counted, too.
    constexpr double operations() const {
        return 2.0 * static_cast<double>(weights()) * static_cast<double>(result() * result());
    }
    bool operator==(ConvolutionShape const&) const = default;

    std::string text() const {
        auto const square = [](std::size_t n) {
            return std::to_string(n) + 'x' + std::to_string(n);
        };
        return "convolution " + square(kernel) + " of " + std::to_string(channels) + 'x' +
               square(side) + " to " + std::to_string(outputs) + 'x' + square(result());
    }
};

/// The three functions of a convolution.
enum class ConvolutionPart { forward, input_gradient, weight_gradient };
inline constexpr ConvolutionPart every_part[] = {
    ConvolutionPart::forward, ConvolutionPart::input_gradient, ConvolutionPart::weight_gradient};

inline std::string describe(ConvolutionPart part, ConvolutionShape const& shape,
                            std::size_t samples) {
    static constexpr char const* words[] = {"a ", "the input's gradient of a ",
                                            "the weights' gradient of a "};
    return words[static_cast<std::size_t>(part)] + shape.text() + " with " +
           std::to_string(samples) + " samples";
}

} // namespace convnet
