// The library's types for the CUDA runtime and its own kernels, on a real GPU: what they promise,
// and the host's functions in every bit.
#include <gpipe/gpipe.cuh>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using gpipe::cuda::Buffer;
using gpipe::cuda::check;
using gpipe::cuda::DeviceGuard;
using gpipe::cuda::Event;
using gpipe::cuda::Memory;
using gpipe::cuda::PinnedBuffer;
using gpipe::cuda::pointer_kind;
using gpipe::cuda::PointerKind;
using gpipe::cuda::Priority;
using gpipe::cuda::Stream;
using CudaStream = gpipe::device::Cuda::Stream;

namespace gpu_test {

/// Keeps a stream busy for so long.
__global__ void wait_kernel(unsigned long long nanoseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < nanoseconds);
}
__global__ void write_kernel(int* to, int value) { *to = value; }

/// Adds one to each number, and what `*by` says when the kernel runs.
struct CountEach {
    unsigned* counts;
    unsigned by;
    __device__ void operator()(std::size_t i) const { counts[i] += 1 + by; }
};
struct Count {
    unsigned* counts;
    unsigned const* by;
    __device__ CountEach operator()() const { return {counts, *by}; }
};

} // namespace gpu_test

namespace {

constexpr unsigned long long long_time = 50'000'000; // nanoseconds

void keep_busy(Stream const& stream) {
    gpu_test::wait_kernel<<<1, 1, 0, stream.get()>>>(long_time);
    check("a kernel launch", cudaGetLastError());
}
void copy(void* to, void const* from, std::size_t bytes, Stream const& stream) {
    if (bytes == 0) return;
    check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()));
}
// Of memory of a GPU.
template <class T> void write(Buffer const& to, std::vector<T> const& values) {
    Stream const stream(to.device());
    copy(to.data(), values.data(), values.size() * sizeof(T), stream);
    stream.synchronize();
}
template <class T> std::vector<T> read(Buffer const& from, std::size_t count, std::size_t at = 0) {
    Stream const stream(from.device());
    std::vector<T> values(count);
    copy(values.data(), from.data() + at, count * sizeof(T), stream);
    stream.synchronize();
    return values;
}
// Comparing bits: -0 is not 0, and what is no number equals itself.
template <class T> bool same_bits(std::vector<T> const& a, std::vector<T> const& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
int current_device() {
    int device = -1;
    check("cudaGetDevice", cudaGetDevice(&device));
    return device;
}

} // namespace

// Under compute-sanitizer, which may make launches wait, the suite "timing" is left out.
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
    gpu_test::write_kernel<<<1, 1, 0, first.get()>>>(on_gpu, 0);
    first.synchronize(); // a kernel's first launch may wait for everything
    keep_busy(first);
    gpu_test::write_kernel<<<1, 1, 0, first.get()>>>(on_gpu, 42);
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

TEST_CASE("memory of a GPU is zero, aligned to slots, and known for what it is") {
    constexpr std::size_t bytes = 3'000'001;
    for (int again = 0; again < 3; ++again) {
        Buffer buffer(0, bytes);
        CHECK(read<std::uint8_t>(buffer, bytes) == std::vector<std::uint8_t>(bytes));
        CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % gpipe::slot_alignment == 0);
        CHECK(pointer_kind(buffer.data()) == PointerKind{Memory::device, 0});
        CHECK(pointer_kind(buffer.data() + 77) == PointerKind{Memory::device, 0});
        write(buffer, std::vector<std::uint8_t>(bytes, 0xAB)); // dirt for the next
        Buffer const moved(std::move(buffer));
        CHECK(read<std::uint8_t>(moved, bytes) == std::vector<std::uint8_t>(bytes, 0xAB));
    }
    CHECK(Buffer(0, 0).data() == nullptr);
    CHECK_THROWS_WITH_AS(Buffer(0, std::size_t{1} << 44),
                         "gpipe: cudaMalloc failed with cudaErrorMemoryAllocation: out of memory",
                         gpipe::cuda::Error);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    CHECK(Buffer(0, bytes).size() == bytes);
}

TEST_CASE("pinned memory is zero and known for what it is; pageable is neither") {
    PinnedBuffer const pinned(12'345);
    CHECK(std::all_of(pinned.data(), pinned.data() + pinned.size(),
                      [](std::byte b) { return b == std::byte{0}; }));
    CHECK(pointer_kind(pinned.data()) == PointerKind{Memory::pinned, -1});
    std::vector<int> const pageable(100);
    CHECK(pointer_kind(pageable.data()) == PointerKind{Memory::pageable, -1});
    CHECK(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("a guard changes the device only for as long as it lives, and throws for one too many") {
    int const count = gpipe::cuda::device_count();
    int const before = current_device();
    for (int device = 0; device < count; ++device) {
        {
            DeviceGuard const guard(device);
            CHECK(current_device() == device);
            CHECK(Buffer(count - 1 - device, 100).device() == count - 1 - device);
            CHECK(current_device() == device);
        }
        CHECK(current_device() == before);
    }
    CHECK_THROWS_AS(DeviceGuard{count}, gpipe::cuda::Error);
    CHECK(cudaPeekAtLastError() == cudaSuccess);
    CHECK(current_device() == before);
    CHECK_THROWS_AS(gpipe::cuda::require_devices(count + 1), gpipe::cuda::TooFewDevices);
}

TEST_CASE("for_each_index() meets each index once, and prepares when it runs") {
    Stream const stream(0);
    constexpr std::size_t most = 4096 * 256 * 2 + 3; // of more than one round
    Buffer const counts(0, most * sizeof(unsigned)), by(0, sizeof(unsigned));
    auto* const at = reinterpret_cast<unsigned*>(counts.data());
    unsigned expected = 0;
    for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{256},
                              std::size_t{257}, std::size_t{4096 * 256 + 1}, most}) {
        write(by, std::vector<unsigned>{expected});
        check("cudaMemsetAsync", cudaMemsetAsync(at, 0, most * sizeof(unsigned), stream.get()));
        gpipe::cuda::for_each_index(stream.get(), count,
                                    gpu_test::Count{at, reinterpret_cast<unsigned*>(by.data())});
        stream.synchronize();
        std::vector<unsigned> all(most);
        std::fill_n(all.begin(), count, 1 + expected++);
        CHECK(read<unsigned>(counts, most) == all);
    }
}

TEST_CASE("the commit on a GPU is the host's in every bit") {
    double const infinity = std::numeric_limits<double>::infinity();
    std::mt19937_64 random(3);
    std::uniform_real_distribution<double> numbers(-1, 1);
    Stream const stream(0);
    CudaStream const name(stream.get());
    for (double weight : {1.0, 0.3, 0.0, -1.0, infinity, std::nan("")})
        for (std::size_t micro_batches : {0, 1, 2, 7, 64})
            for (std::size_t count : {2, 3, 7}) {
                std::vector<double> sums(micro_batches * count + count); // totals at the end
                for (double& v : sums) v = numbers(random);
                for (std::size_t m = 0; m < micro_batches; ++m) sums[m * count + 1] = weight;
                gpipe::StepState const state{7, 3, 0.5, 1};
                Buffer const on_gpu(0, sums.size() * sizeof(double));
                Buffer const state_on_gpu(0, sizeof state);
                write(on_gpu, sums);
                write(state_on_gpu, std::vector{state});
                auto* const data = reinterpret_cast<double*>(on_gpu.data());
                gpipe::StepWork<gpipe::device::Cuda>::commit(
                    {data, micro_batches, count, data + micro_batches * count,
                     reinterpret_cast<gpipe::StepState*>(state_on_gpu.data()), &name});
                stream.synchronize();
                std::vector<gpipe::StepState> own{state};
                gpipe::detail::commit({sums.data(), micro_batches, count,
                                       sums.data() + micro_batches * count, own.data(), nullptr});
                INFO("weight ", weight, ", M = ", micro_batches, ", ", count, " numbers");
                if (!std::isnan(weight)) CHECK(same_bits(read<double>(on_gpu, sums.size()), sums));
                auto const theirs = read<gpipe::StepState>(state_on_gpu, 1)[0];
                CHECK(theirs.seed == 7);
                CHECK(theirs.step == 3);
                CHECK(theirs.scale == own[0].scale);
                CHECK(theirs.committed == own[0].committed);
                CHECK(own[0].committed == (micro_batches > 0 && weight > 0 && weight < infinity));
            }
}

namespace {

// A tensor with its gradient and its optimizer's states, one slot each.
template <class T, class Optimizer> struct Updated {
    std::size_t size;
    std::size_t slot = gpipe::slot_bytes(size * sizeof(T));
    std::vector<std::byte> memory = std::vector<std::byte>((2 + Optimizer::states) * slot);

    T* array(std::size_t n) { return reinterpret_cast<T*>(memory.data() + n * slot); }
    std::vector<T> values(std::size_t n) { return {array(n), array(n) + size}; }
    gpipe::UpdateRow row(std::byte* base) const {
        return {nullptr, base, base + slot, base + 2 * slot, size, 0.75f};
    }
};

// How far from the host's the change of a parameter may be, as a share of it. The two rates of
// Adam's rule come from pow(), in double, whose last bits differ; 1 - pow(beta2, t) loses up to ten
// more of them in the first steps. Then the rates are rounded to T.
template <class Optimizer>
constexpr bool calls_pow =
    std::is_same_v<Optimizer, gpipe::Adam> || std::is_same_v<Optimizer, gpipe::AdamW>;
template <class T>
constexpr T tolerance = static_cast<T>(4 * std::numeric_limits<T>::epsilon() +
                                       4096 * std::numeric_limits<double>::epsilon());

template <class T, class Optimizer> void compare_updates(Optimizer optimizer, std::size_t size) {
    Stream const stream(0);
    CudaStream const name(stream.get());
    Updated<T, Optimizer> host{size};
    std::mt19937 random(static_cast<unsigned>(size));
    std::normal_distribution<double> numbers(0, 1);
    for (std::size_t i = 0; i < size; ++i) host.array(0)[i] = static_cast<T>(numbers(random));
    Buffer const on_gpu(0, host.memory.size()), on_gpu_state(0, sizeof(gpipe::StepState)),
        on_gpu_optimizer(0, sizeof(Optimizer));
    for (std::uint64_t step = 0; step < 4; ++step) {
        optimizer.learning_rate /= static_cast<float>(1 + step);
        gpipe::StepState const state{1, step, 1.0 / 24, step != 2}; // not committed: the third
        for (std::size_t i = 0; i < size; ++i) host.array(1)[i] = static_cast<T>(numbers(random));
        std::vector<T> const before = host.values(0);
        write(on_gpu, host.memory);
        write(on_gpu_state, std::vector{state});
        write(on_gpu_optimizer, std::vector{optimizer});
        gpipe::StepWork<gpipe::device::Cuda>::update<T, Optimizer>(
            {on_gpu_optimizer.data(), reinterpret_cast<gpipe::StepState*>(on_gpu_state.data()),
             &name},
            host.row(on_gpu.data()));
        stream.synchronize();
        gpipe::detail::update_tensor<T, Optimizer>({&optimizer, &state, nullptr},
                                                   host.row(host.memory.data()));
        INFO(sizeof(T), " bytes, ", size, " elements, step ", step);
        for (std::size_t n = 1; n < 2 + Optimizer::states; ++n) // the gradient and the states
            CHECK(same_bits(read<T>(on_gpu, size, n * host.slot), host.values(n)));
        std::vector<T> const theirs = read<T>(on_gpu, size), ours = host.values(0);
        std::size_t far = 0;
        for (std::size_t i = 0; i < size; ++i) {
            // The parameter itself is rounded, too, and shrunk a little.
            T const change = std::abs(ours[i] - before[i]) + std::abs(before[i]) / 128;
            T const last_bit = std::numeric_limits<T>::epsilon() * std::abs(ours[i]);
            far += !(std::abs(theirs[i] - ours[i]) <= tolerance<T> * change + last_bit);
        }
        CHECK(far == 0);
        if (!calls_pow<Optimizer> || !state.committed) CHECK(same_bits(theirs, ours));
        if (state.committed && size > 0) CHECK(ours != before);
    }
}

} // namespace

TEST_CASE_TEMPLATE("updates on a GPU are the host's in every bit, but for Adam's pow()", T, float,
                   double) {
    for (std::size_t size : {0, 1, 64, 255, 1000, 70'000}) {
        compare_updates<T>(gpipe::SGD{1e-2f}, size);
        compare_updates<T>(gpipe::SGD{1e-2f, 0.9f, 1e-2f}, size);
        compare_updates<T>(gpipe::RMSProp{1e-2f, 0.9f, 0.5f, 1e-6f, 1e-2f}, size);
        compare_updates<T>(gpipe::Adam{.weight_decay = 1e-2f}, size);
        compare_updates<T>(gpipe::AdamW{}, size);
    }
}

TEST_CASE("device::Cuda orders streams by marks, copies, and fills") {
    using gpipe::device::Cuda;
    int const gpus = gpipe::cuda::device_count();
    Cuda cuda({gpipe::gpus(0, gpus - 1)}, 2); // on two GPUs where there are two
    cuda.reserve_marks(4);
    Buffer const here = cuda.allocate(0, 1024), there = cuda.allocate(1, 1024);
    PinnedBuffer const host = cuda.allocate_host(1024);
    for (std::uint32_t step = 0; step < 5; ++step) {
        int const value = static_cast<int>(step) + 100;
        cuda.run(1, [&](std::size_t) {
            std::uint32_t const base = step * 3;
            cuda.fill(0, here.data(), 1024);
            cuda.launch(0, [&] {
                gpu_test::wait_kernel<<<1, 1, 0, cuda.stream(0)>>>(long_time / 10);
                gpu_test::write_kernel<<<1, 1, 0, cuda.stream(0)>>>(
                    reinterpret_cast<int*>(here.data()) + 5, value);
            });
            cuda.record(0, base + 1);
            cuda.wait(1, 0, base + 1);
            cuda.copy(1, there.data(), here.data(), 1024);
            cuda.copy(1, host.data(), there.data(), 1024);
        });
        std::vector<int> expected(256);
        expected[5] = value;
        CHECK(std::memcmp(host.data(), expected.data(), 1024) == 0);
    }
}
