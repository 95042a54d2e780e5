#pragma once

#include <gpipe/memory/cell_layout.hpp>

#include <cstddef>
#include <deque>
#include <random>
#include <utility>
#include <vector>

namespace toy {

using gpipe::ChainShape;
using gpipe::GroupSizes;
using gpipe::LayerInfo;

/// A chain of layers that exist as values only.
struct RandomChain {
    std::deque<std::vector<std::size_t>> storage;
    std::vector<LayerInfo> layers;
    GroupSizes loss_scratch;

    GroupSizes group(std::vector<std::size_t> bytes) {
        storage.push_back(std::move(bytes));
        return {storage.back().data(), storage.back().size()};
    }
    ChainShape shape() const {
        return {layers.data(), layers.size(), gpipe::lowest_learner(layers.data(), layers.size()),
                loss_scratch};
    }
};

/// How often a layer has what.
struct Sizes {
    std::size_t most_bytes = 4000;
    int percent_saved = 40;
    int percent_scratch = 40;
    int percent_integers = 6;
    int percent_parameters = 60;
};

inline RandomChain random_chain(std::mt19937_64& random, std::size_t length, Sizes sizes) {
    auto const below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    auto const happens = [&](int percent) { return static_cast<int>(below(100)) < percent; };
    RandomChain chain;
    auto const some = [&](std::size_t most) {
        std::vector<std::size_t> bytes(1 + below(most));
        for (std::size_t& b : bytes) b = 1 + below(sizes.most_bytes);
        return bytes;
    };
    std::vector<std::size_t> boundary = some(2);
    bool carries = happens(80);
    for (std::size_t i = 0; i < length; ++i) {
        LayerInfo layer;
        layer.name = "layer";
        layer.input = chain.group(boundary);
        layer.input_gradient =
            chain.group(carries ? boundary : std::vector<std::size_t>(boundary.size()));
        boundary = some(2);
        carries = !happens(sizes.percent_integers);
        layer.output = chain.group(boundary);
        layer.output_gradient =
            chain.group(carries ? boundary : std::vector<std::size_t>(boundary.size()));
        layer.output_carries_gradient = carries;
        if (happens(sizes.percent_saved)) layer.saved = chain.group(some(2));
        if (happens(sizes.percent_scratch)) layer.scratch = chain.group(some(2));
        if (happens(sizes.percent_parameters)) layer.parameters = chain.group(some(2));
        layer.reads_input = happens(60);
        layer.reads_output = happens(40);
        layer.accepts_none = happens(50);
        chain.layers.push_back(layer);
    }
    if (happens(50)) chain.loss_scratch = chain.group(some(2));
    return chain;
}

} // namespace toy
