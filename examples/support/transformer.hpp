#pragma once

#include <gpipe/memory/cell_use.hpp>

#include <cstddef>
#include <deque>
#include <vector>

namespace support {

/// The Transformer that the GPipe paper scales up (Huang et al., 2019, table 1): its layers have a
/// width of 2,048, a hidden layer of 8,192 and 32 heads; 1,024 tokens are a sample, of 32,000
/// words. Weights are 4 bytes each.
struct TransformerShape {
    std::size_t width = 2048;
    std::size_t hidden = 8192;
    std::size_t heads = 32;
    std::size_t context = 1024;
    std::size_t vocabulary = 32000;
    std::size_t activation_bytes = 2; ///< of each number that is kept for backward

    /// Four square products and two of the hidden layer, with their biases, and two norms.
    constexpr std::size_t layer_parameters() const {
        return 4 * width * width + 2 * width * hidden + 9 * width + hidden;
    }
    constexpr std::size_t embedding_parameters() const { return vocabulary * width; }
    constexpr std::size_t softmax_parameters() const { return vocabulary * (width + 1); }
    /// Operations of a sample's forward.
    constexpr double layer_cost() const {
        return 2.0 * double(context) *
               double(4 * width * width + 2 * width * hidden + 2 * context * width);
    }
    constexpr double softmax_cost() const { return 2.0 * double(context * width * vocabulary); }
    constexpr std::size_t parameters(std::size_t layers) const {
        return embedding_parameters() + layers * layer_parameters() + softmax_parameters();
    }
};

/// A chain of an embedding, so many Transformer layers and a softmax, as values: enough to cut,
/// plan and simulate it, nothing to train.
///
/// A layer's backward reads its input, and what its forward saved: queries, keys and values, the
/// attention matrices of all heads, what the heads give, the sum that the second half begins with,
/// and the hidden layer behind its ReLU. The norms are computed again from their inputs. While it
/// runs it has the gradient of the hidden layer and one norm beside that; that of attention
/// matrices is computed head by head. The softmax leaves the gradient of its logits in their place.
class TransformerChain {
  public:
    TransformerChain(TransformerShape const& shape, std::size_t layers) {
        std::size_t const tokens = shape.context;
        std::size_t const number = shape.activation_bytes;
        gpipe::GroupSizes const boundary = group(tokens * shape.width * number);
        gpipe::LayerInfo layer;
        layer.reads_input = layer.output_carries_gradient = layer.has_whole = true;

        layer.name = "embedding";
        layer.input = group(tokens * 4);
        layer.output = layer.output_gradient = boundary;
        layer.parameters = group(4 * shape.embedding_parameters());
        layer.accepts_none = true;
        layer.cost = double(tokens * shape.width);
        layers_.push_back(layer);

        layer.name = "layer";
        layer.input = layer.input_gradient = boundary;
        layer.parameters = group(4 * shape.layer_parameters());
        layer.saved =
            group(number * tokens * (5 * shape.width + shape.heads * shape.context + shape.hidden));
        layer.scratch = group(number * tokens * (shape.hidden + shape.width));
        layer.cost = shape.layer_cost();
        for (std::size_t l = 0; l < layers; ++l) layers_.push_back(layer);

        layer.name = "softmax";
        layer.output = layer.output_gradient = group(tokens * 4); // the losses of the tokens
        layer.parameters = group(4 * shape.softmax_parameters());
        layer.saved = group(number * tokens * shape.vocabulary);
        layer.scratch = {};
        layer.cost = shape.softmax_cost();
        layers_.push_back(layer);
    }
    TransformerChain(TransformerChain const&) = delete;

    gpipe::ChainShape shape() const { return {layers_.data(), layers_.size(), 0}; }
    std::vector<gpipe::LayerInfo> const& layers() const { return layers_; }

  private:
    gpipe::GroupSizes group(std::size_t bytes) {
        storage_.push_back(bytes);
        return {&storage_.back(), 1};
    }

    std::deque<std::size_t> storage_;
    std::vector<gpipe::LayerInfo> layers_;
};

} // namespace support
