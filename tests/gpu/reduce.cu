// Reductions on the GPU are bitwise those of the host, in one order or exactly.
#include "support/gpu_memory.hpp"
#include "support/long_tests.hpp"

#include <gpipe/cuda/reduce.cuh>
#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

std::size_t const counts[] = {0, 1, 255, 256, 257, 2048, 2049, 100003, 1048576, 3000017};

template <class T> std::size_t mistakes() {
    gpipe::cuda::Stream const stream(0);
    std::size_t const most = 3000017;
    std::mt19937 random(1);
    std::normal_distribution<double> normal;
    std::vector<T> values(most);
    for (T& value : values) value = static_cast<T>(static_cast<float>(normal(random)));
    gpipe::cuda::Buffer const data(0, most * sizeof(T));
    gpipe::cuda::Buffer const workspace(0, gpipe::cuda::reduction_workspace(most));
    gpipe::cuda::Buffer const results(0, 2 * sizeof(double));
    gpipe::cuda::Buffer const sums(0, gpipe::exact_words * sizeof(std::uint64_t));
    toy::write(data, values);
    auto const* const from = reinterpret_cast<T const*>(data.data());
    auto* const result = reinterpret_cast<double*>(results.data());
    auto* const words = reinterpret_cast<std::uint64_t*>(sums.data());
    std::vector<std::uint64_t> exact(gpipe::exact_words); // of all counts so far
    toy::write(sums, exact);
    std::size_t wrong = 0;
    for (std::size_t count : counts) {
        if (count > 200'000 && toy::one_of(1) > 1) continue;
        gpipe::cuda::sum(stream.get(), from, count, result, workspace.data());
        gpipe::cuda::sum_of_squares(stream.get(), from, count, result + 1, workspace.data());
        gpipe::cuda::add_squares_exactly(stream.get(), words, from, count);
        stream.synchronize();
        auto const got = toy::read<double>(results, 2);
        double const expected[] = {gpipe::ordered_sum(values.data(), count),
                                   gpipe::ordered_sum_of_squares(values.data(), count)};
        wrong += std::memcmp(got.data(), expected, sizeof expected) != 0;
        gpipe::add_squares_exactly(exact.data(), values.data(), count);
        wrong += toy::read<std::uint64_t>(sums, exact.size()) != exact;
    }
    return wrong;
}

} // namespace

TEST_CASE("sums and sums of squares are bitwise those of the host, for every type and count") {
    CHECK(mistakes<float>() == 0);
    CHECK(mistakes<double>() == 0);
    CHECK(mistakes<__half>() == 0);
    CHECK(mistakes<__nv_bfloat16>() == 0);
}
