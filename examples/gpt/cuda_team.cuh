#pragma once

#include "gpt/math.hpp"

#include <cstddef>

namespace gpt {

/// Of a row's work: `threads` neighbouring threads, one warp or a whole block.
template <unsigned threads> class CudaTeam {
    static constexpr unsigned warp = 32;
    static_assert(threads % warp == 0);

  public:
    static constexpr bool alone = false;

    template <class F> __device__ void each(std::size_t n, F f) const {
        for (std::size_t i = rank(); i < n; i += threads) f(i);
    }
    template <class F> __device__ void at(std::size_t i, F f) const {
        if (i % threads == rank()) f();
    }
    template <class F> __device__ auto sum(std::size_t n, F f) const {
        decltype(f(n)) own{};
        for (std::size_t i = rank(); i < n; i += threads) own += f(i);
        return together(own, [](auto a, auto b) { return a + b; });
    }
    template <class T> __device__ Real<T> most(T const* values, std::size_t n) const {
        auto const greater = [](Real<T> a, Real<T> b) { return a > b ? a : b; };
        Real<T> own = real(values[0]);
        for (std::size_t i = rank(); i < n; i += threads) own = greater(real(values[i]), own);
        return together(own, greater);
    }

  private:
    __device__ static unsigned rank() { return threadIdx.x % threads; }

    // The same for every thread: pairs of equal distance exchange what they have, so the tree has
    // one shape; then the warps in their order.
    template <class T, class Combine> __device__ static T together(T value, Combine combine) {
        for (unsigned distance = warp / 2; distance > 0; distance /= 2)
            value = combine(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
        if constexpr (threads > warp) {
            __shared__ T of_warp[threads / warp];
            if (threadIdx.x % warp == 0) of_warp[threadIdx.x / warp] = value;
            __syncthreads();
            value = of_warp[0];
            for (unsigned w = 1; w < threads / warp; ++w) value = combine(value, of_warp[w]);
            __syncthreads(); // until all have read it: it will be written again
        }
        return value;
    }
};

} // namespace gpt
