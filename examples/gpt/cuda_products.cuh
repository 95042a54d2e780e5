#pragma once

#include "gpt/product.hpp"

#include <gpipe/cuda/blas.cuh>

#include <cstddef>

#include <cublas_v2.h>

namespace gpt {

/// How products of floats are calculated. fp32: as they stand. tf32: factors are rounded to 10 bits
/// of mantissa, for tensor cores, and products added as floats. Products of doubles have one way.
enum class Precision { fp32, tf32 };

/// How cuBLAS multiplies elements of a type. A specialisation for __nv_bfloat16 would name
/// CUDA_R_16BF, CUBLAS_COMPUTE_32F and float.
template <class T> struct BlasType;
template <> struct BlasType<float> {
    using Scale = float;
    static constexpr cudaDataType_t data = CUDA_R_32F;
    static constexpr cublasComputeType_t compute(Precision precision) {
        return precision == Precision::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    }
};
template <> struct BlasType<double> {
    using Scale = double;
    static constexpr cudaDataType_t data = CUDA_R_64F;
    static constexpr cublasComputeType_t compute(Precision) { return CUBLAS_COMPUTE_64F; }
};

/// Enqueues c = scale a b, or c += scale a b if `add`, for each product. Throws what
/// gpipe::cuda::check_blas throws.
template <class T>
void multiply(cublasHandle_t handle, Precision precision, Products products, Extents extents,
              Factor<T> a, Factor<T> b, T* c, std::size_t stride, bool add, T scale) {
    using Type = BlasType<T>;
    cublasComputeType_t const compute = Type::compute(precision);
    auto const whole = [](std::size_t n) { return static_cast<int>(n); };
    auto const step = [](std::size_t n) { return static_cast<long long>(n); };
    auto const form = [](Factor<T> f) { return f.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    auto const alpha = static_cast<typename Type::Scale>(scale);
    typename Type::Scale const beta = add ? 1 : 0;
    // cuBLAS goes by columns, so it sees every matrix transposed: c' = b' a'.
    if (products.count == 1)
        gpipe::cuda::check_blas("cublasGemmEx",
                                cublasGemmEx(handle, form(b), form(a), whole(extents.columns),
                                             whole(extents.rows), whole(extents.inner), &alpha,
                                             b.data, Type::data, whole(b.stride), a.data,
                                             Type::data, whole(a.stride), &beta, c, Type::data,
                                             whole(stride), compute, CUBLAS_GEMM_DEFAULT));
    else
        gpipe::cuda::check_blas(
            "cublasGemmStridedBatchedEx",
            cublasGemmStridedBatchedEx(handle, form(b), form(a), whole(extents.columns),
                                       whole(extents.rows), whole(extents.inner), &alpha, b.data,
                                       Type::data, whole(b.stride), step(products.b), a.data,
                                       Type::data, whole(a.stride), step(products.a), &beta, c,
                                       Type::data, whole(stride), step(products.c),
                                       whole(products.count), compute, CUBLAS_GEMM_DEFAULT));
}

} // namespace gpt
