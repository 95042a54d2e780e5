#pragma once

#include <gpipe/layer/loss.hpp>

#include <cstddef>

namespace blank {

/// A loss over n floats per sample that measures nothing.
template <std::size_t n> struct Loss {
    using Target = gpipe::Tensor<float, n>;
    gpipe::LossValue<> operator()(auto&, auto, auto, auto) const { return {}; }
};

} // namespace blank
