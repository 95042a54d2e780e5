// The library's types for the CUDA runtime, and device::Cuda alone: what they promise.
#include "support/gpu_memory.hpp"
#include "support/on_gpu.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

using gpipe::cuda::Buffer;
using gpipe::cuda::check;
using gpipe::cuda::DeviceGuard;
using gpipe::cuda::Memory;
using gpipe::cuda::PinnedBuffer;
using gpipe::cuda::pointer_kind;
using gpipe::cuda::PointerKind;
using toy::read;
using toy::write;

namespace {

int current_device() {
    int device = -1;
    check("cudaGetDevice", cudaGetDevice(&device));
    return device;
}

} // namespace

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

namespace toy::body {

/// Writes numbers late, so that who does not wait finds the old ones.
struct Late {
    int* to;
    int value;

    GPIPE_HOST_DEVICE static int after(int value) {
        auto state = static_cast<std::uint32_t>(value);
        for (int i = 0; i < 1'000'000; ++i) state = state * 1664525u + 1013904223u;
        return static_cast<int>(state >> 1);
    }
    GPIPE_HOST_DEVICE void operator()(std::size_t i) const {
        to[i] = after(value) + static_cast<int>(i);
    }
};

} // namespace toy::body

TEST_CASE("device::Cuda orders streams by marks, copies, sends and fills") {
    using gpipe::Link;
    using gpipe::device::Cuda;
    constexpr std::size_t count = 8, bytes = count * sizeof(int);
    int const gpus = gpipe::cuda::device_count();
    Cuda cuda({.gpus = gpipe::gpus(0, gpus - 1), .link = Link::copied}, 2);
    CHECK(cuda.link(0, 0) == Link::shared);
    CHECK(cuda.link(0, 1) != Link::shared);
    gpipe::Array<std::size_t> devices(3); // of two streams that compute, and one that transfers
    devices[1] = 1;
    cuda.prepare(devices, 4);
    Buffer const here = cuda.allocate(0, bytes), there = cuda.allocate(1, bytes);
    PinnedBuffer const host = cuda.allocate_host(2 * bytes);
    for (std::uint32_t step = 0; step < 5; ++step) {
        int const value = static_cast<int>(step) + 100;
        auto* const numbers = reinterpret_cast<int*>(here.data());
        cuda.run(1, [&](std::size_t) {
            std::uint32_t const base = step * 3;
            cuda.fill(0, here.data(), bytes);
            cuda.launch(0, [&] {
                toy::launch_on(cuda.stream(0), count - 1, toy::body::Late{numbers, value}, numbers,
                               count - 1);
            });
            cuda.record(0, base + 1);
            cuda.wait(2, 0, base + 1);
            cuda.copy(2, there.data(), here.data(), bytes);
            cuda.record(2, base + 2);
            cuda.wait(1, 2, base + 2);
            cuda.copy(1, host.data(), there.data(), bytes);
            cuda.fill(1, there.data(), bytes);
            cuda.copy(1, host.data() + bytes, there.data(), bytes);
            return true;
        });
        std::vector<int> expected(2 * count);
        int const late = toy::body::Late::after(value);
        for (std::size_t i = 0; i + 1 < count; ++i) expected[i] = late + static_cast<int>(i);
        CHECK(std::memcmp(host.data(), expected.data(), 2 * bytes) == 0);
    }
}
