#pragma once

#include "convnet/convolution_shape.hpp"

#include <cstddef>
#include <memory>
#include <vector>

namespace convnet {

namespace detail {
class OneDnnConvolution;
} // namespace detail

/// oneDNN's convolutions for the layers of one device, each made at its first call, in a workspace
/// that they share: `using Handles = gpipe::Handles<OneDnn>`. In onednn.cpp, for nvcc 13 does not
/// compile oneDNN's header.
class OneDnn {
  public:
    /// Room for copies of a micro-batch of some hundred samples of the network of
    /// convnet/model.hpp; larger ones are not copied.
    static constexpr std::size_t workspace = std::size_t{8} << 20;

    template <class Stream> OneDnn(Stream const&, std::byte* memory) : OneDnn(memory, workspace) {}
    /// With a workspace of another size, aligned to 64 bytes.
    OneDnn(std::byte* memory, std::size_t bytes);
    OneDnn(OneDnn const&) = delete;
    OneDnn& operator=(OneDnn const&) = delete;
    ~OneDnn();

    /// Reads a and b (input and weights; weights and the output's gradient; input and the output's
    /// gradient), writes the result, adds to it if that is the weights' gradient. Runs on the
    /// calling thread alone; the same call gives the same bits on any thread. Throws
    /// std::runtime_error.
    void run(ConvolutionShape const& shape, std::size_t samples, ConvolutionPart part,
             float const* a, float const* b, float* result);

  private:
    std::byte* memory_;
    std::size_t bytes_;
    std::vector<std::unique_ptr<detail::OneDnnConvolution>> made_;
};

/// Whether the workspaces of layers are large enough.
struct OneDnnWorkspaceCheck {
    /// Throws std::runtime_error if a convolution of so many samples needs more than `bound` bytes.
    void operator()(ConvolutionShape const& shape, std::size_t samples,
                    std::size_t bound = OneDnn::workspace) const;
};

} // namespace convnet
