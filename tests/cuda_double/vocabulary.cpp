// The library's types for the CUDA runtime, on the double: who owns what, on which device, and what
// errors say.
#include "support/cuda_double/cuda_double.hpp"

#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using cuda_double::Session;
using gpipe::cuda::Buffer;
using gpipe::cuda::DeviceGuard;
using gpipe::cuda::Event;
using gpipe::cuda::Memory;
using gpipe::cuda::PinnedBuffer;
using gpipe::cuda::pointer_kind;
using gpipe::cuda::PointerKind;
using gpipe::cuda::Priority;
using gpipe::cuda::Stream;
using gpipe::cuda::StreamRef;

static_assert(!std::is_constructible_v<StreamRef, int>);
static_assert(!std::is_constructible_v<StreamRef, std::nullptr_t>);
static_assert(std::is_convertible_v<cudaStream_t, StreamRef>);
template <class T>
constexpr bool moves_only =
    std::is_nothrow_move_constructible_v<T>&& std::is_nothrow_move_assignable_v<T> &&
    !std::is_copy_constructible_v<T>;
static_assert(moves_only<Stream> && moves_only<Event>);
static_assert(moves_only<Buffer> && moves_only<PinnedBuffer>);

namespace {

int current_device() {
    int device = -1;
    cudaGetDevice(&device);
    return device;
}

template <class Exception, class Body> std::string what_of(Body body) {
    try {
        body();
    } catch (Exception const& e) {
        return e.what();
    }
    return "nothing was thrown";
}

// Memory may be given back only when nothing on its way uses it, whatever has been thrown.
struct Drain {
    Stream const& stream;
    ~Drain() { gpipe::cuda::detail::forget(cudaStreamSynchronize(stream.get())); }
};

// A program that uses every type: device to device and on to pinned memory, on two streams.
std::vector<int> small_program() {
    std::vector<int> numbers{1, 2, 3, 4};
    std::size_t const bytes = numbers.size() * sizeof(int);
    Buffer const here(0, bytes);
    Buffer const there(1, bytes);
    PinnedBuffer const staging(bytes);
    Stream const first(0);
    Stream const second(1, Priority::high);
    Drain const first_ends{first};
    Drain const second_ends{second};
    Event copied(0);
    using gpipe::cuda::check;
    check("cudaMemcpyAsync",
          cudaMemcpyAsync(here.data(), numbers.data(), bytes, cudaMemcpyHostToDevice, first.get()));
    check("cudaMemcpyPeerAsync",
          cudaMemcpyPeerAsync(there.data(), 1, here.data(), 0, bytes, first.get()));
    copied.record(first);
    second.wait(copied);
    check("cudaMemcpyAsync", cudaMemcpyAsync(staging.data(), there.data(), bytes,
                                             cudaMemcpyDeviceToHost, second.get()));
    second.synchronize();
    std::memcpy(numbers.data(), staging.data(), bytes);
    return numbers;
}

} // namespace

TEST_CASE("a program leaves nothing behind, and the device that was current is current again") {
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
        Session session({.devices = 2, .seed = seed});
        CHECK(small_program() == std::vector{1, 2, 3, 4});
        CHECK(current_device() == 0);
        CHECK(cuda_double::complaints() == "");
    }
}

TEST_CASE("whichever call fails, the error names it, and nothing is left behind") {
    std::size_t calls = 0;
    {
        Session session({.devices = 2});
        small_program();
        calls = cuda_double::calls();
    }
    REQUIRE(calls > 30);
    std::size_t thrown = 0;
    for (cudaError_t error : {cudaErrorInvalidValue, cudaErrorMemoryAllocation,
                              cudaErrorIllegalAddress, cudaErrorLaunchFailure})
        for (std::size_t n = 0; n < calls; ++n) {
            CAPTURE(error);
            CAPTURE(n);
            Session session({.devices = 2});
            cuda_double::fail_call(n, error);
            try {
                small_program();
            } catch (gpipe::cuda::Error const& e) {
                ++thrown;
                CHECK(e.code() == error);
                // What fails in a destructor, and for good, is the error of the next call.
                auto const log = cuda_double::call_log();
                bool const for_good = error >= cudaErrorIllegalAddress;
                auto const at = log.begin() + static_cast<std::ptrdiff_t>(n);
                CHECK(std::any_of(at, for_good ? log.end() : at + 1, [&](std::string const& call) {
                    return call.find(e.call()) == 0;
                }));
                CHECK(std::string(e.what()).find(e.call()) != std::string::npos);
                CHECK(std::string(e.what()).find(cudaGetErrorName(error)) != std::string::npos);
                CHECK(std::string(e.what()).find(cudaGetErrorString(error)) != std::string::npos);
            }
            CHECK(cuda_double::complaints() == "");
            bool const recovers = error < cudaErrorIllegalAddress;
            CHECK((cudaPeekAtLastError() == cudaSuccess) == recovers);
        }
    // Only what destructors call has nobody to tell.
    CHECK(thrown > 4 * calls / 2);
}

TEST_CASE("work that fails is an error of the call that waits for it, and of all later ones") {
    Session session({.devices = 2});
    cuda_double::fail_work(3, cudaErrorIllegalAddress);
    CHECK(what_of<gpipe::cuda::Error>(small_program) ==
          "gpipe: cudaStreamSynchronize failed with cudaErrorIllegalAddress: "
          "an illegal memory access was encountered");
    CHECK(what_of<gpipe::cuda::Error>([] { Event event(0); }).find("cudaGetDevice failed") !=
          std::string::npos);
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("whichever piece of work fails, waiting for it throws, and nothing is left behind") {
    std::size_t works = 0;
    {
        Session session({.devices = 2});
        small_program();
        works = cuda_double::works();
    }
    REQUIRE(works == 5); // two buffers zeroed, three copies
    for (std::uint64_t seed = 0; seed < 3; ++seed)
        for (std::size_t n = 0; n < works; ++n) {
            CAPTURE(seed);
            CAPTURE(n);
            Session session({.devices = 2, .seed = seed});
            cuda_double::fail_work(n);
            CHECK(what_of<gpipe::cuda::Error>(small_program) ==
                  "gpipe: cudaStreamSynchronize failed with cudaErrorLaunchFailure: "
                  "unspecified launch failure");
            CHECK(cuda_double::works() == n + 1); // and nothing has run after it
            CHECK(cuda_double::complaints() == "");
        }
}

TEST_CASE("without a driver, without a GPU, or with too few, one sentence says so") {
    {
        Session session({.missing = cudaErrorInsufficientDriver});
        std::string const what = what_of<gpipe::cuda::NoDevice>(gpipe::cuda::device_count);
        CHECK(what.find("there is no NVIDIA driver here") != std::string::npos);
        CHECK(what.find("cudaErrorInsufficientDriver") != std::string::npos);
    }
    {
        Session session({.missing = cudaErrorNoDevice});
        std::string const what =
            what_of<gpipe::cuda::NoDevice>([] { gpipe::cuda::require_devices(1); });
        CHECK(what.find("there is no GPU here") != std::string::npos);
        CHECK(cudaPeekAtLastError() == cudaSuccess);
    }
    Session session({.devices = 3});
    CHECK(gpipe::cuda::device_count() == 3);
    gpipe::cuda::require_devices(3);
    CHECK(what_of<gpipe::cuda::TooFewDevices>([] { gpipe::cuda::require_devices(4); }) ==
          "gpipe: 4 GPUs are needed, but CUDA sees only 3: Options::device.gpus may name one for "
          "several devices");
    cuda_double::fail_call(0, cudaErrorInitializationError);
    CHECK(what_of<gpipe::cuda::Error>(gpipe::cuda::device_count).find("initialization error") !=
          std::string::npos);
}

TEST_CASE(
    "G1 a guard changes the device only for as long as it lives, and throws for one too many") {
    Session session({.devices = 2});
    {
        DeviceGuard const guard(1);
        CHECK(current_device() == 1);
        {
            DeviceGuard const inner(0);
            CHECK(current_device() == 0);
        }
        CHECK(current_device() == 1);
        CHECK_THROWS_AS(DeviceGuard(2), gpipe::cuda::Error);
        CHECK(current_device() == 1);
    }
    CHECK(current_device() == 0);
}

TEST_CASE("G1 a stream is of the device and the priority that it was made for") {
    Session session({.devices = 2});
    {
        Stream const low(1);
        Stream const high(1, Priority::high);
        int priority = 1;
        cudaStreamGetPriority(low.get(), &priority);
        CHECK(priority == 0);
        cudaStreamGetPriority(high.get(), &priority);
        CHECK(priority == -5);
        int device = 0;
        cudaStreamGetDevice(high.get(), &device);
        CHECK(device == 1);
        CHECK(high.device() == 1);
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("what is moved has one owner, and what is empty owns nothing") {
    Session session;
    {
        Stream stream(0);
        cudaStream_t const handle = stream.get();
        Stream other(std::move(stream));
        CHECK(other.get() == handle);
        CHECK(stream.get() != nullptr); // which would be the legacy stream
        CHECK(stream.get() != handle);
        stream = std::move(other);
        CHECK(stream == StreamRef(handle));

        Event event;
        CHECK(event.get() == nullptr);
        event = Event(0);
        Event const moved(std::move(event));
        CHECK(moved.get() != nullptr);
        CHECK(event.get() == nullptr);

        Buffer buffer(0, 100);
        std::byte* const data = buffer.data();
        Buffer taken(std::move(buffer));
        CHECK(taken.data() == data);
        CHECK(taken.size() == 100);
        CHECK(buffer.data() == nullptr);
        CHECK(buffer.size() == 0);
        buffer = std::move(taken);
        CHECK(buffer.data() == data);
        CHECK(Buffer().size() == 0);
        CHECK(Buffer(0, 0).data() == nullptr);

        PinnedBuffer pinned(100);
        std::byte* const host = pinned.data();
        PinnedBuffer const kept(std::move(pinned));
        CHECK(kept.data() == host);
        CHECK(pinned.data() == nullptr);
        CHECK(PinnedBuffer(0).data() == nullptr);
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("buffers are zero, and memory is of the kind that it is") {
    Session session({.devices = 2});
    {
        Buffer const buffer(1, 5000);
        std::vector<std::byte> seen(5000, std::byte{7});
        cuda_double::peek(seen.data(), buffer.data(), seen.size());
        CHECK(std::count(seen.begin(), seen.end(), std::byte{0}) == 5000);
        PinnedBuffer const pinned(5000);
        CHECK(std::count(pinned.data(), pinned.data() + 5000, std::byte{0}) == 5000);

        CHECK(pointer_kind(buffer.data() + 4999) == PointerKind{Memory::device, 1});
        CHECK(pointer_kind(pinned.data() + 1) == PointerKind{Memory::pinned, -1});
        CHECK(pointer_kind(seen.data()) == PointerKind{Memory::pageable, -1});
        CHECK(buffer.device() == 1);
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("a buffer beyond the device's memory is an error, and takes none of it") {
    Session session({.memory = 4096});
    CHECK(what_of<gpipe::cuda::Error>([] { Buffer(0, 4097); }) ==
          "gpipe: GPU 0 is to hold 4097 bytes more, and has 4096 of 4096 left: cudaMalloc failed "
          "with cudaErrorMemoryAllocation: out of memory");
    CHECK(Buffer(0, 4096).size() == 4096);
    CHECK(Buffer(0, 4096).size() == 4096); // the first one's have come back
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("asking and waiting for a stream or an event say what has run") {
    Session session;
    {
        Stream const stream(0);
        Event event(0);
        CHECK(event.query()); // never recorded
        int ran = 0;
        cuda_double::launch(stream.get(), [&] { ++ran; }, {}, {});
        cuda_double::launch(stream.get(), [&] { ++ran; }, {}, {});
        event.record(stream);
        cuda_double::launch(stream.get(), [&] { ++ran; }, {}, {});
        CHECK(!event.query());
        CHECK(!stream.query());
        CHECK(cudaPeekAtLastError() == cudaSuccess);
        event.synchronize();
        CHECK(ran == 2);
        CHECK(event.query());
        stream.synchronize();
        CHECK(ran == 3);
        CHECK(stream.query());
    }
    CHECK(cuda_double::complaints() == "");
}
