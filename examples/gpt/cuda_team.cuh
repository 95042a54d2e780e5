#pragma once

#include "gpt/math.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gpt {

namespace detail {

/// Neighbouring elements, which a thread reads and writes at once: sixteen bytes of those of 16
/// bits. With one at a time a GPU waits for memory.
template <class T> struct alignas(16) Run {
    static constexpr std::size_t length = 8;
    static_assert(sizeof(T) % 2 == 0, "gpt: a run is no shorter than its alignment");
    T elements[length];
};

// Whether runs of all of them begin at multiples of what is read at once.
template <class... Ts> __device__ bool has_runs(Ts const*... of) {
    return ((reinterpret_cast<std::uintptr_t>(of) | ...) & 15) == 0;
}
template <class T> __device__ Run<T> const& run_at(T const* of) {
    return *reinterpret_cast<Run<T> const*>(of);
}

// to[i] = f(i, from[i]...) for the elements i < n of every `step`-th run, from run `rank` on.
template <class To, class F, class... From>
__device__ void map_runs(std::size_t rank, std::size_t step, std::size_t n, To* to, F const& f,
                         From const*... from) {
    constexpr std::size_t length = Run<To>::length;
    bool const at_once = has_runs<To, From...>(to, from...);
    for (std::size_t first = rank * length; first < n; first += step * length) {
        if (at_once && first + length <= n) {
            auto const apply = [&](Run<From> const... runs) {
                Run<To> result;
                for (std::size_t k = 0; k < length; ++k)
                    result.elements[k] = f(first + k, real(runs.elements[k])...);
                return result;
            };
            *reinterpret_cast<Run<To>*>(to + first) = apply(run_at(from + first)...);
        } else {
            for (std::size_t i = first; i < n && i < first + length; ++i)
                to[i] = f(i, real(from[i])...);
        }
    }
}
// first[i] and second[i] = f(i, from[i]...) likewise; both may be among `from`.
template <class To, class F, class... From>
__device__ void map_both_runs(std::size_t rank, std::size_t step, std::size_t n, To* first_to,
                              To* second_to, F const& f, From const*... from) {
    constexpr std::size_t length = Run<To>::length;
    bool const at_once = has_runs<To, To, From...>(first_to, second_to, from...);
    for (std::size_t first = rank * length; first < n; first += step * length) {
        if (at_once && first + length <= n) {
            Run<To> firsts, seconds;
            auto const apply = [&](Run<From> const... runs) {
                for (std::size_t k = 0; k < length; ++k) {
                    auto const both = f(first + k, real(runs.elements[k])...);
                    firsts.elements[k] = both.first, seconds.elements[k] = both.second;
                }
            };
            apply(run_at(from + first)...);
            *reinterpret_cast<Run<To>*>(first_to + first) = firsts;
            *reinterpret_cast<Run<To>*>(second_to + first) = seconds;
        } else {
            for (std::size_t i = first; i < n && i < first + length; ++i) {
                auto const both = f(i, real(from[i])...);
                first_to[i] = both.first, second_to[i] = both.second;
            }
        }
    }
}
// Likewise all f(i, from[i]...), put together by `combine`.
template <class R, class Combine, class F, class... From>
__device__ R fold_runs(std::size_t rank, std::size_t step, std::size_t n, R value, Combine combine,
                       F const& f, From const*... from) {
    constexpr std::size_t length = Run<R>::length;
    bool const at_once = has_runs<From...>(from...);
    for (std::size_t first = rank * length; first < n; first += step * length) {
        if (at_once && first + length <= n) {
            auto const add = [&](Run<From> const... runs) {
                for (std::size_t k = 0; k < length; ++k)
                    value = combine(value, f(first + k, real(runs.elements[k])...));
            };
            add(run_at(from + first)...);
        } else {
            for (std::size_t i = first; i < n && i < first + length; ++i)
                value = combine(value, f(i, real(from[i])...));
        }
    }
    return value;
}

// The elements i < n of a row, in the registers of its team's threads.
template <class Team, class R, std::size_t runs> class CudaHeldRow {
  public:
    template <class T> __device__ CudaHeldRow(std::size_t n, T const* from) : n_(n) {
        bool const at_once = has_runs<T>(from);
        for (std::size_t j = 0; j < runs; ++j) {
            std::size_t const first = at(j);
            if (at_once && first + length <= n_) {
                Run<T> const run = run_at(from + first);
                for (std::size_t k = 0; k < length; ++k) values_[j][k] = real(run.elements[k]);
            } else {
                for (std::size_t k = 0; k < length; ++k)
                    values_[j][k] = first + k < n_ ? real(from[first + k]) : R{0};
            }
        }
    }
    template <class F> __device__ void change(F f) {
        for (std::size_t j = 0; j < runs; ++j)
            if (at(j) < n_)
                for (R& value : values_[j]) value = f(value);
    }
    template <class Combine> __device__ R together(Combine combine, R value) const {
        for (std::size_t j = 0; j < runs; ++j)
            for (std::size_t k = 0; k < length; ++k)
                if (at(j) + k < n_) value = combine(value, values_[j][k]);
        return Team::together(value, combine);
    }
    __device__ R sum() const {
        return together([](R a, R b) { return a + b; }, R{0});
    }
    __device__ R most() const {
        return together([](R a, R b) { return b > a ? b : a; }, -static_cast<R>(INFINITY));
    }
    // What stands behind them becomes zero.
    template <class T> __device__ void write(std::size_t columns, T* to) const {
        bool const at_once = has_runs<T>(to);
        for (std::size_t j = 0; j < runs; ++j) {
            std::size_t const first = at(j);
            Run<T> run;
            for (std::size_t k = 0; k < length; ++k)
                run.elements[k] = first + k < n_ ? values_[j][k] : R{0};
            if (at_once && first + length <= columns)
                *reinterpret_cast<Run<T>*>(to + first) = run;
            else
                for (std::size_t k = 0; k < length; ++k)
                    if (first + k < columns) to[first + k] = run.elements[k];
        }
    }

  private:
    static constexpr std::size_t length = Run<R>::length;
    __device__ static std::size_t at(std::size_t j) {
        return (j * Team::size + Team::rank()) * length;
    }

    std::size_t n_;
    R values_[runs][length];
};

} // namespace detail

/// Of a row's work: `threads` neighbouring threads, one warp or a whole block.
template <unsigned threads> class CudaTeam {
    static constexpr unsigned warp = 32;
    static_assert(threads % warp == 0);

  public:
    static constexpr bool alone = false;
    static constexpr unsigned size = threads;

    template <class F> __device__ void each(std::size_t n, F f) const {
        for (std::size_t i = rank(); i < n; i += threads) f(i);
    }
    template <class F> __device__ void once(F f) const {
        if (rank() == 0) f();
    }
    template <class To, class F, class... From>
    __device__ void map(std::size_t n, To* to, F f, From const*... from) const {
        detail::map_runs(rank(), threads, n, to, f, from...);
    }
    template <class To, class F, class... From>
    __device__ void map_both(std::size_t n, To* first, To* second, F f, From const*... from) const {
        detail::map_both_runs(rank(), threads, n, first, second, f, from...);
    }
    template <std::size_t most, class T> __device__ auto hold(std::size_t n, T const* from) const {
        constexpr std::size_t of_team = threads * detail::Run<T>::length;
        return detail::CudaHeldRow<CudaTeam, Real<T>, (most + of_team - 1) / of_team>(n, from);
    }
    template <class F, class... From>
    __device__ auto sum(std::size_t n, F f, From const*... from) const {
        auto const add = [](auto a, auto b) { return a + b; };
        decltype(f(n, real(*from)...)) const none{};
        return together(detail::fold_runs(rank(), threads, n, none, add, f, from...), add);
    }
    template <class T> __device__ Real<T> most(T const* values, std::size_t n) const {
        auto const greater = [](Real<T> a, Real<T> b) { return b > a ? b : a; };
        auto const itself = [](std::size_t, Real<T> value) { return value; };
        return together(
            detail::fold_runs(rank(), threads, n, real(values[0]), greater, itself, values),
            greater);
    }

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
