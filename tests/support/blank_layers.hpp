#pragma once

#include <gpipe/layer/tensor.hpp>
#include <gpipe/layer/traits.hpp>

#include <cstddef>

// Layers that do nothing: tests of what follows from types need no more.
namespace blank {

template <std::size_t n> using Floats = gpipe::Tensor<float, n>;

/// From n floats to m, without parameters.
template <std::size_t n, std::size_t m = n> struct Map {
    using Input = Floats<n>;
    using Output = Floats<m>;
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};

/// The same with a matrix and a bias, as a linear layer has them.
template <std::size_t n, std::size_t m = n> struct Linear : Map<n, m> {
    using Parameters = gpipe::Tensors<gpipe::Tensor<float, m, n>, Floats<m>>;
    void initialize(auto&) const {}
};

/// The same with a cost.
template <std::size_t n, std::size_t m = n> struct Costly : Linear<n, m> {
    static constexpr double cost = 2.0 * n * m;
};

/// From n integers to m floats, with a table.
template <std::size_t n, std::size_t m> struct Embedding {
    using Input = gpipe::Tensor<int, n>;
    using Output = Floats<m>;
    using Parameters = gpipe::Tensor<float, 10, m>;
    void initialize(auto&) const {}
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};

} // namespace blank
