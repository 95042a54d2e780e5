// What a GPU can do at best, where a training step would have it: memory copied, and cuBLAS on the
// nine products of GPT-2's smallest shape, over 1,024 rows (a micro-batch of one sample) and 8,192.
// Rates are of all nine together, as a step does them one after the other. By default in FP32, TF32
// and bf16; cuBLAS may be asked for two ways more to multiply floats: each rounded to bf16, or as
// the sum of three bf16 (an H200 then has the rates of TF32 and of FP32).
#include "support/list.hpp"
#include "support/record.hpp"
#include "support/summary.hpp"

#include <gpipe/cuda/blas.cuh>
#include <gpipe/cuda/launch.cuh>
#include <gpipe/device/cuda_memory.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <cuda_bf16.h>

namespace benchmark {

/// Numbers in [-1, 1) that no power saving of the GPU sees through.
template <class T> __global__ void fill(T* to, std::size_t count) {
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < count;
         i += std::size_t{gridDim.x} * blockDim.x) {
        auto bits = static_cast<std::uint32_t>(i) * 2654435761u;
        bits ^= bits >> 15;
        to[i] = static_cast<T>(static_cast<float>(bits % 65536u) / 32768.0f - 1.0f);
    }
}

/// c[rows, columns] = a[rows, inner] b[inner, columns].
struct Extents {
    std::size_t rows, columns, inner;
};

/// Of the four layers with weights and of the head: forward; gradients of inputs and of weights
/// have the same numbers in other places.
inline std::vector<Extents> products(std::size_t rows) {
    constexpr std::size_t width = 768, words = 50304;
    std::vector<Extents> all;
    for (auto const& [out, in] : {std::pair{3 * width, width}, std::pair{width, width},
                                  std::pair{4 * width, width}, std::pair{width, 4 * width}}) {
        all.push_back({rows, out, in});
        all.push_back({out, in, rows}); // of the weights
    }
    all.push_back({rows, words, width});
    return all;
}

class TimedEvent {
  public:
    TimedEvent() { gpipe::cuda::check("cudaEventCreate", cudaEventCreate(&event_)); }
    TimedEvent(TimedEvent const&) = delete;
    TimedEvent& operator=(TimedEvent const&) = delete;
    ~TimedEvent() { gpipe::cuda::detail::forget(cudaEventDestroy(event_)); }
    void record(cudaStream_t stream) {
        gpipe::cuda::check("cudaEventRecord", cudaEventRecord(event_, stream));
    }
    double seconds_since(TimedEvent const& begin) const {
        float milliseconds = 0;
        gpipe::cuda::check("cudaEventElapsedTime",
                           cudaEventElapsedTime(&milliseconds, begin.event_, event_));
        return milliseconds * 1e-3;
    }

  private:
    cudaEvent_t event_ = nullptr;
};

/// The median over rounds of what `work` takes on the stream, in seconds.
template <class Work>
double timed(gpipe::cuda::Stream const& stream, std::size_t rounds, Work work) {
    TimedEvent begin, end;
    std::vector<double> seconds;
    work();
    for (std::size_t round = 0; round < rounds; ++round) {
        begin.record(stream.get());
        work();
        end.record(stream.get());
        stream.synchronize();
        seconds.push_back(end.seconds_since(begin));
    }
    return median(seconds);
}

/// TFLOP/s.
template <class T>
double rate(gpipe::cuda::Stream const& stream, std::size_t rows, std::size_t rounds,
            cudaDataType_t type, cublasComputeType_t compute) {
    std::vector<Extents> const all = products(rows);
    double flops = 0;
    std::size_t most = 0;
    for (Extents const& e : all) {
        flops += 2.0 * static_cast<double>(e.rows * e.columns) * static_cast<double>(e.inner);
        for (std::size_t size : {e.rows * e.inner, e.inner * e.columns, e.rows * e.columns})
            if (size > most) most = size;
    }
    gpipe::cuda::Buffer const memory(0, 3 * most * sizeof(T));
    gpipe::cuda::Buffer const workspace(0, gpipe::cuda::Blas::workspace);
    T* const a = reinterpret_cast<T*>(memory.data());
    gpipe::cuda::launch(stream.get(), 1024, 256, 0, &fill<T>, a, 2 * most);
    gpipe::cuda::Blas const blas(stream, workspace.data());
    float const one = 1, zero = 0;
    double const seconds = timed(stream, rounds, [&] {
        for (Extents const& e : all) {
            auto const whole = [](std::size_t n) { return static_cast<int>(n); };
            gpipe::cuda::check_blas("cublasGemmEx",
                                    cublasGemmEx(blas.get(), CUBLAS_OP_N, CUBLAS_OP_N,
                                                 whole(e.columns), whole(e.rows), whole(e.inner),
                                                 &one, a + most, type, whole(e.columns), a, type,
                                                 whole(e.inner), &zero, a + 2 * most, type,
                                                 whole(e.columns), compute, CUBLAS_GEMM_DEFAULT));
        }
    });
    return flops / seconds * 1e-12;
}

/// GB/s, read and written.
inline double copied(gpipe::cuda::Stream const& stream, std::size_t rounds) {
    constexpr std::size_t bytes = std::size_t{1} << 30;
    gpipe::cuda::Buffer const memory(0, 2 * bytes);
    double const seconds = timed(stream, rounds, [&] {
        gpipe::cuda::check("cudaMemcpyAsync",
                           cudaMemcpyAsync(memory.data() + bytes, memory.data(), bytes,
                                           cudaMemcpyDefault, stream.get()));
    });
    return 2.0 * bytes / seconds * 1e-9;
}

inline void print(bool json, Summary& summary, char const* what, std::size_t rows, double rate,
                  char const* unit) {
    summary.add(std::string(what) + ", " + unit, rate);
    if (json) {
        Record record("gpu_ceilings");
        record.add("what", what).add("rows", rows).add("rate", rate).add("unit", unit).print();
    } else {
        std::printf("%-12s %6zu %10.1f %s\n", what, rows, rate, unit);
        std::fflush(stdout);
    }
}

} // namespace benchmark

int main(int argc, char** argv) {
    using namespace benchmark;
    std::uint64_t rounds = 10;
    bool json = false, emulated = false;
    support::Options options("gpu_ceilings",
                             "What a GPU can do at best: a copy within its memory, and cuBLAS on "
                             "the products of GPT-2's\nsmallest shape in FP32, TF32 and bf16.");
    options.number("rounds", "how often each is done; their median is printed", rounds, 1, 100'000);
    options.flag("emulated", "what cuBLAS makes of floats in bf16, rounded and as three, instead",
                 emulated);
    options.flag("json", "one JSON object per line", json);
    if (auto const status = options.parse(argc, argv)) return *status;
    try {
        gpipe::cuda::device_count(); // or there is nothing to measure
        gpipe::cuda::Stream const stream(0);
        Summary summary("gpu_ceilings", json);
        print(json, summary, "copy", 0, copied(stream, rounds), "GB/s");
        for (std::size_t const rows : {1024, 8192}) {
            auto const floats = [&](char const* what, cublasComputeType_t compute) {
                print(json, summary, what, rows,
                      rate<float>(stream, rows, rounds, CUDA_R_32F, compute), "TFLOP/s");
            };
            if (emulated) {
                floats("FP32 in bf16", CUBLAS_COMPUTE_32F_FAST_16BF);
                floats("16BFX9", CUBLAS_COMPUTE_32F_EMULATED_16BFX9);
                continue;
            }
            floats("FP32", CUBLAS_COMPUTE_32F);
            floats("TF32", CUBLAS_COMPUTE_32F_FAST_TF32);
            print(json, summary, "BF16", rows,
                  rate<__nv_bfloat16>(stream, rows, rounds, CUDA_R_16BF, CUBLAS_COMPUTE_32F),
                  "TFLOP/s");
        }
        summary.print();
    } catch (std::exception const& error) {
        std::fprintf(stderr, "gpu_ceilings: %s\n", error.what());
        return 1;
    }
}
