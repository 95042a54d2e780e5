#pragma once

#include "gpt/product.hpp"

#include <dnnl.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>

// oneDNN's threads are OpenMP's. Declared here because clang comes without omp.h.
extern "C" void omp_set_num_threads(int);

/// The products that the GPT's layers are made of. The library behind them is oneDNN: of the BLAS
/// libraries that Debian 12 packages it was the fastest for these shapes, and the only one that
/// chooses its kernels by what the processor can do instead of by its model number. OpenBLAS 0.3.21
/// falls back to SSE3 on every model that is newer than itself.
namespace gpt {

/// For what the calling thread asks of oneDNN from now on: without this each device would start a
/// team of its own.
inline void use_calling_thread_alone() {
    [[maybe_unused]] static thread_local bool const alone = (omp_set_num_threads(1), true);
}

/// c = scale a b, or c += scale a b if `add`; c is row-major and not read unless `add`. Runs on the
/// calling thread alone, any number of threads may call at once, and the same sizes and elements
/// give the same bits on each of them. float goes to oneDNN; other types, which only tests use, to
/// plain loops.
template <class T>
void multiply(Extents extents, Factor<T> a, Factor<T> b, T* c, std::size_t stride, bool add = false,
              T scale = T{1}) {
    auto const [rows, columns, inner] = extents;
    if constexpr (std::is_same_v<T, float>) {
        use_calling_thread_alone();
        auto const size = [](std::size_t n) { return static_cast<dnnl_dim_t>(n); };
        auto const status =
            dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', size(rows),
                       size(columns), size(inner), scale, a.data, size(a.stride), b.data,
                       size(b.stride), add ? 1.0f : 0.0f, c, size(stride));
        if (status != dnnl_success)
            throw std::runtime_error("gpt: oneDNN refuses a product, status " +
                                     std::to_string(static_cast<int>(status)));
    } else {
        auto const at = [](Factor<T> m, std::size_t i, std::size_t j) {
            return m.transposed ? m.data[j * m.stride + i] : m.data[i * m.stride + j];
        };
        for (std::size_t i = 0; i < rows; ++i)
            for (std::size_t j = 0; j < columns; ++j) {
                T sum{};
                for (std::size_t k = 0; k < inner; ++k) sum += at(a, i, k) * at(b, k, j);
                T& element = c[i * stride + j];
                element = add ? element + scale * sum : scale * sum;
            }
    }
}

/// The library and the instruction set of its kernels, for the user to read.
inline std::string kernels() {
    dnnl_version_t const& version = *dnnl_version();
    auto const isa = [] {
        switch (dnnl_get_effective_cpu_isa()) {
        case dnnl_cpu_isa_sse41:
            return "SSE4.1";
        case dnnl_cpu_isa_avx:
            return "AVX";
        case dnnl_cpu_isa_avx2:
        case dnnl_cpu_isa_avx2_vnni:
            return "AVX2";
        case dnnl_cpu_isa_avx512_core:
        case dnnl_cpu_isa_avx512_core_vnni:
        case dnnl_cpu_isa_avx512_core_bf16:
        case dnnl_cpu_isa_avx512_core_amx:
            return "AVX-512";
        default:
            return "generic";
        }
    }();
    return "oneDNN " + std::to_string(version.major) + '.' + std::to_string(version.minor) + '.' +
           std::to_string(version.patch) + ", " + isa + " kernels";
}

} // namespace gpt
