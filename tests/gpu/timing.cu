// Streams and events while a GPU is busy. Under compute-sanitizer, which may make launches wait,
// the suite "timing" is left out.
#include <gpipe/cuda/launch.cuh>
#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <utility>

using gpipe::cuda::Buffer;
using gpipe::cuda::check;
using gpipe::cuda::Event;
using gpipe::cuda::PinnedBuffer;
using gpipe::cuda::Priority;
using gpipe::cuda::Stream;

namespace gpu_test {

/// Keeps a stream busy for so long.
__global__ void wait_kernel(unsigned long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < nanoseconds);
}
__global__ void write_kernel(int* to, int value) { *to = value; }

} // namespace gpu_test

namespace {

void keep_busy(Stream const& stream, unsigned long long nanoseconds = 50'000'000) {
    gpipe::cuda::launch(stream.get(), 1, 1, 0, gpu_test::wait_kernel, nanoseconds);
}
void copy(void* to, void const* from, std::size_t bytes, Stream const& stream) {
    check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()));
}

} // namespace

TEST_CASE("a stream waits for nobody, has its priority, and moves" *
          doctest::test_suite("timing")) {
    Stream low(0), high(0, Priority::high);
    unsigned flags = 0;
    check("cudaStreamGetFlags", cudaStreamGetFlags(low.get(), &flags));
    CHECK(flags == cudaStreamNonBlocking);
    int least = 0, greatest = 0, of_low = 0, of_high = 0;
    check("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&least, &greatest));
    check("cudaStreamGetPriority", cudaStreamGetPriority(low.get(), &of_low));
    check("cudaStreamGetPriority", cudaStreamGetPriority(high.get(), &of_high));
    CHECK(of_low == least);
    CHECK(of_high == greatest);
    keep_busy(low, 0); // a kernel's first launch may wait for everything
    low.synchronize();
    CHECK(low.query());
    keep_busy(low);
    CHECK_FALSE(low.query());
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    CHECK(high.query());
    Stream moved(std::move(low));
    moved.synchronize();
    CHECK(moved.query());
    high = std::move(moved);
    CHECK(high.query());
}

TEST_CASE("an event orders two streams, and says what has run" * doctest::test_suite("timing")) {
    Stream const first(0), second(0);
    Buffer const value(0, sizeof(int));
    PinnedBuffer const seen(2 * sizeof(int));
    int* const on_gpu = reinterpret_cast<int*>(value.data());
    Event event(0);
    CHECK(event.query()); // never recorded
    gpipe::cuda::launch(first.get(), 1, 1, 0, gpu_test::write_kernel, on_gpu, 0);
    keep_busy(first, 0);
    copy(seen.data(), on_gpu, sizeof(int), first);
    first.synchronize(); // a kernel's first launch may wait for everything
    keep_busy(first);
    gpipe::cuda::launch(first.get(), 1, 1, 0, gpu_test::write_kernel, on_gpu, 42);
    event.record(first);
    CHECK_FALSE(event.query());
    copy(seen.data(), on_gpu, sizeof(int), second); // before the wait: too early
    second.wait(event);
    copy(seen.data() + sizeof(int), on_gpu, sizeof(int), second);
    second.synchronize();
    CHECK(event.query());
    event.synchronize();
    CHECK(reinterpret_cast<int*>(seen.data())[0] == 0);
    CHECK(reinterpret_cast<int*>(seen.data())[1] == 42);
}
