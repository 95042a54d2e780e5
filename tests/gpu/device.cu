// The library's types for the CUDA runtime, and device::Cuda alone: what they promise.
#include "support/device_law.hpp"
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
                         doctest::Contains(" left: cudaMalloc failed with "
                                           "cudaErrorMemoryAllocation: out of memory"),
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

TEST_CASE(
    "G1 a guard changes the device only for as long as it lives, and throws for one too many") {
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

namespace device_on_gpu {

/// Writes a number late, so that who does not wait finds the old one.
struct Late {
    int* to;
    int value;

    GPIPE_HOST_DEVICE void operator()(std::size_t) const {
        std::uint32_t state = 1;
        for (int i = 0; i < 1'000'000; ++i) state = state * 1664525u + 1013904223u;
        *to = state == 0 ? 0 : value; // never 0, which the compiler does not know
    }
};

/// Through whatever lies between two GPUs, or a GPU and itself.
struct LatePut {
    void operator()(gpipe::device::Cuda& cuda, std::size_t stream, int* to, int value) const {
        cuda.launch(stream, [&] {
            toy::launch_on(cuda.stream(stream), 1, Late{to, value}, to, 1);
        });
    }
};

} // namespace device_on_gpu

TEST_CASE("G2 G3 device::Cuda keeps what queue, memory and executor promise") {
    using gpipe::Link;
    using gpipe::device::Cuda;
    int const last = gpipe::cuda::device_count() - 1;
    for (Link const link : {Link::shared, Link::copied, Link::staged})
        toy::check_device<Cuda>(2, {.gpus = gpipe::gpus(0, last), .link = link},
                                device_on_gpu::LatePut{});
    Cuda const cuda({.gpus = gpipe::gpus(0, last), .link = Link::copied}, 2);
    CHECK(cuda.link(0, 1) != Link::shared);
}
