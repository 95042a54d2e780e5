// Thrust's algorithms on the stream of a layer's call, in planned memory.
#include "support/gpu_memory.hpp"

#include <gpipe/cuda/thrust.cuh>
#include <gpipe/device/cuda.hpp>

#include <doctest/doctest.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using gpipe::cuda::ThrustMemory;
using gpipe::cuda::ThrustMemoryError;

struct Context {
    gpipe::device::Cuda::Stream on;
    gpipe::device::Cuda::Stream const& stream() const { return on; }
};
struct Twice {
    __host__ __device__ float operator()(float x) const { return 2 * x; }
};

} // namespace

TEST_CASE("Thrust's temporary memory is taken from one end, and given back") {
    alignas(gpipe::slot_alignment) char room[1000];
    ThrustMemory memory(room, sizeof room);
    char* const a = memory.allocate(1);
    char* const b = memory.allocate(300);
    CHECK(a == room);
    CHECK(b == room + 256);
    memory.deallocate(b, 300);
    CHECK(memory.allocate(700) == b);
    try {
        memory.allocate(100);
        FAIL("there is no such room");
    } catch (ThrustMemoryError const& error) {
        CHECK(error.needed() == 1000 + 100);
        CHECK(std::string(error.what())
                  .find("needs 1100 bytes of temporary memory, and was given "
                        "1000") != std::string::npos);
    }
    memory.deallocate(b, 700);
    memory.deallocate(a, 1);
    CHECK(memory.allocate(1000) == room);
    CHECK_THROWS_AS(ThrustMemory().allocate(1), ThrustMemoryError);
}

TEST_CASE("Thrust sorts and transforms on the stream of a call, and says what memory it needs") {
    gpipe::cuda::Stream const owner(0);
    Context const context{gpipe::device::Cuda::Stream(owner.get())};
    constexpr std::size_t count = 10000;
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i * 7919 % count);
    gpipe::cuda::Buffer const data(0, count * sizeof(float));
    auto* const first = reinterpret_cast<float*>(data.data());
    toy::write(data, values);

    thrust::transform(gpipe::cuda::par(context), first, first + count, first, Twice{});
    std::size_t needed = 0;
    try {
        thrust::sort(gpipe::cuda::par(context), first, first + count);
    } catch (ThrustMemoryError const& error) {
        needed = error.needed();
    }
    CHECK(needed >= count * sizeof(float));
    gpipe::cuda::Buffer const memory(0, needed);
    thrust::sort(gpipe::cuda::par(context, memory.data(), memory.size()), first, first + count);
    owner.synchronize();

    std::vector<float> const sorted = toy::read<float>(data, count);
    for (float& value : values) value *= 2;
    std::sort(values.begin(), values.end());
    CHECK(sorted == values);
}
