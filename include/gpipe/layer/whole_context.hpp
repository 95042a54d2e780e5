#pragma once

#include <gpipe/layer/random.hpp>
#include <gpipe/layer/traits.hpp>
#include <gpipe/layer/view.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// What a layer's initialize gets: called once for each layer, before the first step.
template <class Whole> class InitializeContext {
  public:
    /// Made by the engine for each layer.
    InitializeContext(std::byte* parameters, std::byte* buffers, std::uint64_t seed,
                      std::size_t layer, std::size_t layers)
        : parameters_(parameters), buffers_(buffers), seed_(seed), layer_(layer), layers_(layers) {}

    /// The parameters, all zero, to be written.
    auto parameters() const {
        return tensor_views<typename detail::PartsOf<Whole>::Parameters, detail::Access::write>(
            parameters_);
    }
    /// The buffers, likewise.
    auto buffers() const {
        return tensor_views<typename detail::PartsOf<Whole>::Buffers, detail::Access::write>(
            buffers_);
    }
    /// Random numbers for parameter tensor `tensor`; each call starts the sequence anew.
    InitialRandom random(std::size_t tensor) const {
        return {seed_, static_cast<std::uint32_t>(layer_), static_cast<std::uint32_t>(tensor)};
    }
    /// Position of the layer in the chain, and the length of the chain.
    std::size_t layer() const { return layer_; }
    /// Layers of the chain: L.
    std::size_t layers() const { return layers_; }

  private:
    std::byte* parameters_;
    std::byte* buffers_;
    std::uint64_t seed_;
    std::size_t layer_;
    std::size_t layers_;
};

/// What a layer's merge_statistics and update_buffers get as their first argument.
template <class Stream> class BufferContext {
  public:
    /// Made by the engine for each call.
    BufferContext(Stream const& stream, std::size_t layer) : stream_(stream), layer_(layer) {}

    /// The stream that the layer's work goes on.
    Stream const& stream() const { return stream_; }
    /// Position of the layer in the chain.
    std::size_t layer() const { return layer_; }

  private:
    Stream const& stream_;
    std::size_t layer_;
};

namespace detail {

template <class L> using InitializeContextOf = InitializeContext<typename WholeOf<L>::type>;

} // namespace detail

} // namespace gpipe
