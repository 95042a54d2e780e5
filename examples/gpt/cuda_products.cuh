#pragma once

#include "gpt/math.hpp"
#include "gpt/product.hpp"

#include <gpipe/cuda/blas.cuh>
#include <gpipe/cuda/for_each_index.cuh>

#include <cstddef>
#include <cstdint>

#include <cublas_v2.h>
#include <cuda_bf16.h>

namespace gpt {

namespace detail {

template <class Each> struct Prepared {
    Each each;

    __device__ Each operator()() const { return each; }
};

// Writes where the factors and the result of each product are: of all a, of all b, of all c.
template <class T> struct PlaceProduct {
    Products products;
    T const* a;
    T const* b;
    T* c;
    void const** places;

    __device__ void operator()(std::size_t i) const {
        std::size_t const count = products.samples * products.heads;
        places[i] = a + at(products.a, i);
        places[count + i] = b + at(products.b, i);
        places[2 * count + i] = c + at(products.c, i);
    }

  private:
    __device__ std::size_t at(Steps steps, std::size_t i) const {
        return i / products.heads * steps.sample + i % products.heads * steps.head;
    }
};

// Whether each matrix begins at a multiple of 16 bytes. That is what cuBLAS asks of those that it
// finds by places, where it uses tensor cores (documentation, cublasGemmBatchedEx).
template <class T>
bool may_be_placed(Products const& products, T const* a, T const* b, T const* c) {
    auto const aligned = [](T const* first, Steps steps) {
        return (reinterpret_cast<std::uintptr_t>(first) | steps.sample * sizeof(T) |
                steps.head * sizeof(T)) %
                   16 ==
               0;
    };
    return aligned(a, products.a) && aligned(b, products.b) && aligned(c, products.c);
}

} // namespace detail

/// How products of floats are calculated. fp32: as they stand. tf32: factors are rounded to 10 bits
/// of mantissa, for tensor cores, and products added as floats. Products of doubles have one way.
enum class Precision { fp32, tf32 };

/// How cuBLAS multiplies elements of a type.
template <class T> struct BlasType;
template <> struct BlasType<float> {
    static constexpr cudaDataType_t data = CUDA_R_32F;
    static constexpr cublasComputeType_t compute(Precision precision) {
        return precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    }
};
template <> struct BlasType<double> {
    static constexpr cudaDataType_t data = CUDA_R_64F;
    static constexpr cublasComputeType_t compute(Precision) { return CUBLAS_COMPUTE_64F; }
};
/// Products are added as floats.
template <> struct BlasType<__nv_bfloat16> {
    static constexpr cudaDataType_t data = CUDA_R_16BF;
    static constexpr cublasComputeType_t compute(Precision) { return CUBLAS_COMPUTE_32F; }
};

/// Enqueues c = scale a b, or c += scale a b if `add`, for each product; C is T or Real<T>. Those
/// of several samples are found by `places`, see multiply_each. Throws what
/// gpipe::cuda::check_blas throws.
template <class T, class C>
void multiply(cublasHandle_t handle, Precision precision, Products products, Extents extents,
              Factor<T> a, Factor<T> b, C* c, std::size_t stride, bool add, Real<T> alpha,
              void const* const* places = nullptr) {
    using Type = BlasType<T>;
    constexpr cudaDataType_t result = BlasType<C>::data;
    cublasComputeType_t const compute = Type::compute(precision);
    auto const whole = [](std::size_t n) { return static_cast<int>(n); };
    auto const step = [](Steps steps) { return static_cast<long long>(steps.head); };
    auto const form = [](Factor<T> f) { return f.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    Real<T> const beta = add ? 1 : 0;
    std::size_t const count = products.samples * products.heads;
    // cuBLAS goes by columns, so it sees every matrix transposed: c' = b' a'.
    if (count == 1)
        gpipe::cuda::check_blas("cublasGemmEx",
                                cublasGemmEx(handle, form(b), form(a), whole(extents.columns),
                                             whole(extents.rows), whole(extents.inner), &alpha,
                                             b.data, Type::data, whole(b.stride), a.data,
                                             Type::data, whole(a.stride), &beta, c, result,
                                             whole(stride), compute, CUBLAS_GEMM_DEFAULT));
    else if (products.samples == 1)
        gpipe::cuda::check_blas(
            "cublasGemmStridedBatchedEx",
            cublasGemmStridedBatchedEx(
                handle, form(b), form(a), whole(extents.columns), whole(extents.rows),
                whole(extents.inner), &alpha, b.data, Type::data, whole(b.stride), step(products.b),
                a.data, Type::data, whole(a.stride), step(products.a), &beta, c, result,
                whole(stride), step(products.c), whole(count), compute, CUBLAS_GEMM_DEFAULT));
    else
        gpipe::cuda::check_blas(
            "cublasGemmBatchedEx",
            cublasGemmBatchedEx(handle, form(b), form(a), whole(extents.columns),
                                whole(extents.rows), whole(extents.inner), &alpha, places + count,
                                Type::data, whole(b.stride), places, Type::data, whole(a.stride),
                                &beta, const_cast<void* const*>(places + 2 * count), result,
                                whole(stride), whole(count), compute, CUBLAS_GEMM_DEFAULT));
}

/// multiply() for several samples, all at once by `places`, which the stream writes: room for 3
/// pointers for each product. Sample by sample where that may not be.
template <class T>
void multiply_each(cublasHandle_t handle, cudaStream_t stream, Precision precision,
                   Products products, Extents extents, Factor<T> a, Factor<T> b, T* c,
                   std::size_t stride, bool add, Real<T> scale, void const** places) {
    if (products.samples > 1 && detail::may_be_placed(products, a.data, b.data, c)) {
        using Place = detail::PlaceProduct<T>;
        gpipe::cuda::for_each_index(
            stream, products.samples * products.heads,
            detail::Prepared<Place>{Place{products, a.data, b.data, c, places}});
        multiply(handle, precision, products, extents, a, b, c, stride, add, scale, places);
        return;
    }
    Products const heads{1, products.heads, products.a, products.b, products.c};
    for (std::size_t sample = 0; sample < products.samples; ++sample) {
        multiply(handle, precision, heads, extents, a, b, c, stride, add, scale);
        a.data += products.a.sample;
        b.data += products.b.sample;
        c += products.c.sample;
    }
}

} // namespace gpt
