#pragma once

#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/core/array.hpp>

#include <cstddef>

namespace gpipe::detail {

/// What is stored of the layers of a cell for one micro-batch, while its reversal is walked. A
/// layer's input is there if it is the boundary's, is stored, or is the output of a layer that is
/// kept whole. To keep a layer whole stores its input as well if it is not there: so whatever is
/// kept whole can be reversed, and gives its input to whoever runs it again.
class Kept {
  public:
    constexpr explicit Kept(std::size_t layers) : input_(layers), whole_(layers) {}

    constexpr bool has_input(std::size_t layer) const {
        return layer == 0 || input_[layer] || whole_[layer - 1];
    }
    constexpr bool has_all(std::size_t layer) const { return whole_[layer]; }
    constexpr bool has_any(std::size_t layer) const { return input_[layer] || whole_[layer]; }

    /// Whether to keep this would store the layer's input, and everything else of it.
    constexpr bool adds_input(std::size_t layer, Keep keep) const {
        return keep != Keep::nothing && !has_input(layer);
    }
    constexpr bool adds_all(std::size_t layer, Keep keep) const {
        return keep == Keep::all && !whole_[layer];
    }
    constexpr void keep(std::size_t layer, Keep keep) {
        if (adds_input(layer, keep)) input_[layer] = true;
        if (keep == Keep::all) whole_[layer] = true;
    }
    constexpr void release(std::size_t layer) { input_[layer] = whole_[layer] = false; }

  private:
    Array<bool> input_;
    Array<bool> whole_;
};

} // namespace gpipe::detail
