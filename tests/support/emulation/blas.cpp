// cuBLAS's products as loops, enqueued as kernels of the double of the CUDA runtime. Strides that
// cuBLAS would refuse are refused, so transposes and strides are what they must be on a GPU; the
// order of a sum is another.
#include "../cuda_double/cuda_double.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <cublas_v2.h>
#include <cuda_bf16.h>

struct cublasContext {
    cudaStream_t stream = nullptr;
    bool has_workspace = false;
};

namespace {

// A factor as cuBLAS takes it: by columns, `stride` elements from one to the next.
template <class T> struct Matrix {
    T const* data;
    std::size_t stride;
    bool transposed;

    T operator()(std::size_t row, std::size_t column) const {
        return transposed ? data[column + row * stride] : data[row + column * stride];
    }
};

/// As tensor cores read a float for TF32: 10 bits of mantissa, halves away from zero.
float tf32(float value) {
    if (!std::isfinite(value)) return value;
    return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000u) & ~0x1FFFu);
}

// Of elements of type T to such of type C, added as R.
template <class T, class C, class R, class Round>
void multiply(std::size_t m, std::size_t n, std::size_t k, R alpha, Matrix<T> a, Matrix<T> b,
              R beta, C* c, std::size_t stride, Round round) {
    std::vector<R> left(k * m), sums(m);
    for (std::size_t p = 0; p < k; ++p)
        for (std::size_t i = 0; i < m; ++i) left[p * m + i] = round(static_cast<R>(a(i, p)));
    for (std::size_t j = 0; j < n; ++j) {
        sums.assign(m, R{});
        for (std::size_t p = 0; p < k; ++p) {
            R const right = round(static_cast<R>(b(p, j)));
            R const* const column = left.data() + p * m;
            for (std::size_t i = 0; i < m; ++i) sums[i] += column[i] * right;
        }
        for (std::size_t i = 0; i < m; ++i) { // where beta is 0, c is not read
            C& to = c[i + j * stride];
            to = beta == R{} ? alpha * sums[i] : alpha * sums[i] + beta * static_cast<R>(to);
        }
    }
}

// A matrix of a call.
struct Form {
    cublasOperation_t operation;
    cudaDataType_t type;
    int stride;

    bool turned() const { return operation != CUBLAS_OP_N; }
};

// Where the matrices of one product are.
struct Places {
    void const* a;
    void const* b;
    void* c;
};

template <class PlacesOf>
cublasStatus_t enqueue_products(cublasContext const& handle, Form a, Form b, Form c, int m, int n,
                                int k, void const* alpha, void const* beta, int count,
                                cublasComputeType_t compute, PlacesOf places_of) {
    if (!handle.has_workspace) return CUBLAS_STATUS_ALLOC_FAILED; // it would take some of its own
    if (m < 0 || n < 0 || k < 0 || count < 0 || a.stride < std::max(1, a.turned() ? k : m) ||
        b.stride < std::max(1, b.turned() ? n : k) || c.stride < std::max(1, m))
        return CUBLAS_STATUS_INVALID_VALUE;
    auto const enqueue = [&]<class T, class C, class R>(T, C, R, auto round) {
        auto const size = [](auto number) { return static_cast<std::size_t>(number); };
        auto const work = [=, scale = *static_cast<R const*>(alpha),
                           keep = *static_cast<R const*>(beta)] {
            for (std::ptrdiff_t i = 0; i < count; ++i) {
                Places const at = places_of(i);
                multiply<T, C, R>(size(m), size(n), size(k), scale,
                                  {static_cast<T const*>(at.a), size(a.stride), a.turned()},
                                  {static_cast<T const*>(at.b), size(b.stride), b.turned()}, keep,
                                  static_cast<C*>(at.c), size(c.stride), round);
            }
        };
        return cuda_double::launch(handle.stream, work, {}, {}, "a product") == cudaSuccess
                   ? CUBLAS_STATUS_SUCCESS
                   : CUBLAS_STATUS_EXECUTION_FAILED;
    };
    auto const as_it_is = [](auto value) { return value; };
    auto const is = [&](cudaDataType_t factors, cudaDataType_t result, cublasComputeType_t how) {
        return a.type == factors && b.type == factors && c.type == result && compute == how;
    };
    if (is(CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F)) return enqueue(0.0, 0.0, 0.0, as_it_is);
    if (is(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F)) return enqueue(0.0f, 0.0f, 0.0f, as_it_is);
    if (is(CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32))
        return enqueue(0.0f, 0.0f, 0.0f, tf32);
    __nv_bfloat16 const bf16{};
    if (is(CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F))
        return enqueue(bf16, bf16, 0.0f, as_it_is);
    if (is(CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F)) return enqueue(bf16, 0.0f, 0.0f, as_it_is);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

} // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    *handle = new cublasContext;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    *handle = {stream, false};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* memory, std::size_t bytes) {
    handle->has_workspace = memory && bytes > 0;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
char const* cublasGetStatusName(cublasStatus_t) { return "a status"; }
char const* cublasGetStatusString(cublasStatus_t) { return "of the emulation"; }

// Where the matrices are stands in memory that is read when the product's turn comes. Tensor cores
// read 16 bytes at a time, which is refused here for any k: cuBLAS asks for it "ideally".
cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t a_form,
                                   cublasOperation_t b_form, int m, int n, int k, void const* alpha,
                                   void const* const a[], cudaDataType_t a_type, int a_stride,
                                   void const* const b[], cudaDataType_t b_type, int b_stride,
                                   void const* beta, void* const c[], cudaDataType_t c_type,
                                   int c_stride, int count, cublasComputeType_t compute,
                                   cublasGemmAlgo_t) {
    return enqueue_products(
        *handle, {a_form, a_type, a_stride}, {b_form, b_type, b_stride},
        {CUBLAS_OP_N, c_type, c_stride}, m, n, k, alpha, beta, count, compute,
        [=](std::ptrdiff_t i) {
            for (void const* at : {a[i], b[i], static_cast<void const*>(c[i])})
                if ((compute == CUBLAS_COMPUTE_32F_FAST_TF32 || a_type == CUDA_R_16BF) &&
                    reinterpret_cast<std::uintptr_t>(at) % 16 != 0)
                    throw std::runtime_error("a matrix is at no multiple of 16");
            return Places{a[i], b[i], c[i]};
        });
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t a_form,
                                          cublasOperation_t b_form, int m, int n, int k,
                                          void const* alpha, void const* a, cudaDataType_t type,
                                          int a_stride, long long a_step, void const* b,
                                          cudaDataType_t b_type, int b_stride, long long b_step,
                                          void const* beta, void* c, cudaDataType_t c_type,
                                          int c_stride, long long c_step, int count,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
    auto const at = [](void const* from, cudaDataType_t of, std::ptrdiff_t elements) {
        return static_cast<std::byte const*>(from) + elements * (of == CUDA_R_64F   ? 8
                                                                 : of == CUDA_R_32F ? 4
                                                                                    : 2);
    };
    return enqueue_products(*handle, {a_form, type, a_stride}, {b_form, b_type, b_stride},
                            {CUBLAS_OP_N, c_type, c_stride}, m, n, k, alpha, beta, count, compute,
                            [=](std::ptrdiff_t i) {
                                return Places{at(a, type, i * a_step), at(b, b_type, i * b_step),
                                              const_cast<std::byte*>(at(c, c_type, i * c_step))};
                            });
}
cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_form,
                            cublasOperation_t b_form, int m, int n, int k, void const* alpha,
                            void const* a, cudaDataType_t a_type, int a_stride, void const* b,
                            cudaDataType_t b_type, int b_stride, void const* beta, void* c,
                            cudaDataType_t c_type, int c_stride, cublasComputeType_t compute,
                            cublasGemmAlgo_t algorithm) {
    return cublasGemmStridedBatchedEx(handle, a_form, b_form, m, n, k, alpha, a, a_type, a_stride,
                                      0, b, b_type, b_stride, 0, beta, c, c_type, c_stride, 0, 1,
                                      compute, algorithm);
}

} // extern "C"
