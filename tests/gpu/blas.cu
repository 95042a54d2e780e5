// cuBLAS as a handle of a layer: its products, on the layer's stream, and its errors.
#include "support/gpu_memory.hpp"

#include <gpipe/chain/chain.hpp>
#include <gpipe/cuda/blas.cuh>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace {

using Stream = gpipe::device::Cuda::Stream;
constexpr int N = 4;

// y = w x, for matrices with N columns as cuBLAS sees them.
struct Product {
    using Input = gpipe::Tensor<float, N>;
    using Output = gpipe::Tensor<float, N>;
    using Parameters = gpipe::Tensor<float, N, N>;
    using Handles = gpipe::cuda::Blas;

    void initialize(auto&) const {}
    void forward(auto& context, auto x, auto y) const {
        float const one = 1, zero = 0;
        gpipe::cuda::check_blas("cublasSgemm",
                                cublasSgemm(gpipe::cuda::blas(context), CUBLAS_OP_T, CUBLAS_OP_N, N,
                                            static_cast<int>(x.samples()), N, &one,
                                            context.parameters().data(), N, x.data(), N, &zero,
                                            y.data(), N));
    }
    void backward(auto&, auto, auto, auto) const {}
};

} // namespace

TEST_CASE("a layer multiplies by the cuBLAS handle of its stream") {
    gpipe::cuda::Stream const owner(0);
    Stream const stream(owner.get());
    gpipe::cuda::Buffer const workspace(0, gpipe::cuda::Blas::workspace);
    gpipe::cuda::Buffer const w(0, N * N * sizeof(float)), x(0, 2 * N * sizeof(float)),
        y(0, 2 * N * sizeof(float));
    std::vector<float> matrix(N * N), samples(2 * N);
    for (std::size_t i = 0; i < matrix.size(); ++i) matrix[i] = static_cast<float>(i);
    for (std::size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<float>(1 + i);
    toy::write(w, matrix);
    toy::write(x, samples);

    gpipe::HandleSet handles;
    auto const functions = gpipe::detail::layer_functions<Product, Stream>();
    handles.add(functions.handles, &stream, workspace.data());
    Product const layer;
    gpipe::Call call;
    call.layer = &layer;
    std::byte* const parameters[] = {w.data()};
    call.parameters = parameters;
    gpipe::StepFrame shared;
    shared.capacity = 2;
    shared.stream = &stream;
    shared.handles = &handles;
    gpipe::OwnFrame frame;
    frame.shared = &shared;
    frame.samples = 2;
    frame.set(gpipe::Region::input, x.data());
    frame.set(gpipe::Region::output, y.data());
    functions.forward(call, frame);
    stream.synchronize();
    std::vector<float> const result = toy::read<float>(y, 2 * N);
    for (std::size_t s = 0; s < 2; ++s)
        for (std::size_t i = 0; i < N; ++i) {
            float expected = 0; // small integers: exact in any order and precision
            for (std::size_t j = 0; j < N; ++j) expected += matrix[i * N + j] * samples[s * N + j];
            CHECK(result[s * N + i] == expected);
        }
}

TEST_CASE("what cuBLAS refuses is an exception with its words") {
    try {
        gpipe::cuda::check_blas("cublasSgemm", CUBLAS_STATUS_INVALID_VALUE);
        FAIL("nothing was thrown");
    } catch (gpipe::cuda::BlasError const& error) {
        CHECK(error.status() == CUBLAS_STATUS_INVALID_VALUE);
        std::string const text = error.what();
        CHECK(text.find("cublasSgemm failed with CUBLAS_STATUS_INVALID_VALUE: ") !=
              std::string::npos);
    }
}
