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

/// Keeps a stream busy until the host opens the gate.
__global__ void wait_kernel(int volatile* gate) {
    while (*gate == 0) {
    }
}
__global__ void write_kernel(int* to, int value) { *to = value; }

} // namespace gpu_test

namespace {

// In pinned memory, which kernels can read while the host writes it. Opens at the end, so that a
// test that throws hangs nobody.
class Gate {
  public:
    Gate() = default;
    Gate(Gate const&) = delete;
    Gate& operator=(Gate const&) = delete;
    ~Gate() { open(); }

    void open() const { *at() = 1; }
    void close() const { *at() = 0; }
    /// What comes next on the stream runs when it is open.
    void hold(Stream const& stream) const {
        gpipe::cuda::launch(stream.get(), 1, 1, 0, gpu_test::wait_kernel, at());
    }

  private:
    int volatile* at() const { return reinterpret_cast<int*>(memory_.data()); }
    PinnedBuffer memory_{sizeof(int)};
};
void copy(void* to, void const* from, std::size_t bytes, Stream const& stream) {
    check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()));
}

} // namespace

TEST_CASE("a stream waits for nobody, has its priority, and moves" *
          doctest::test_suite("timing")) {
    Stream low(0), high(0, Priority::high);
    Gate const gate;
    unsigned flags = 0;
    check("cudaStreamGetFlags", cudaStreamGetFlags(low.get(), &flags));
    CHECK(flags == cudaStreamNonBlocking);
    int least = 0, greatest = 0, of_low = 0, of_high = 0;
    check("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&least, &greatest));
    check("cudaStreamGetPriority", cudaStreamGetPriority(low.get(), &of_low));
    check("cudaStreamGetPriority", cudaStreamGetPriority(high.get(), &of_high));
    CHECK(of_low == least);
    CHECK(of_high == greatest);
    gate.open();
    gate.hold(low); // a kernel's first launch may wait for everything
    low.synchronize();
    CHECK(low.query());
    gate.close();
    gate.hold(low);
    CHECK_FALSE(low.query());
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    CHECK(high.query());
    Stream moved(std::move(low));
    gate.open();
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
    Gate const gate;
    Event event(0);
    CHECK(event.query()); // never recorded
    gpipe::cuda::launch(first.get(), 1, 1, 0, gpu_test::write_kernel, on_gpu, 0);
    gate.open();
    gate.hold(first);
    copy(seen.data(), on_gpu, sizeof(int), first);
    first.synchronize(); // a kernel's first launch may wait for everything
    gate.close();
    gate.hold(first);
    gpipe::cuda::launch(first.get(), 1, 1, 0, gpu_test::write_kernel, on_gpu, 42);
    event.record(first);
    CHECK_FALSE(event.query());
    copy(seen.data(), on_gpu, sizeof(int), second); // before the wait: too early
    second.synchronize();
    CHECK_FALSE(event.query());
    second.wait(event);
    gate.open();
    copy(seen.data() + sizeof(int), on_gpu, sizeof(int), second);
    second.synchronize();
    CHECK(event.query());
    event.synchronize();
    CHECK(reinterpret_cast<int*>(seen.data())[0] == 0);
    CHECK(reinterpret_cast<int*>(seen.data())[1] == 42);
}
