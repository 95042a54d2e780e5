// The double of the CUDA runtime: who may touch which memory, and what is reported of wrong use.
#include "support/cuda_double/cuda_double.hpp"

#include <gpipe/device/cuda_links.hpp>
#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

using cuda_double::Session;
using gpipe::cuda::Buffer;
using gpipe::cuda::PinnedBuffer;
using gpipe::cuda::Stream;

namespace {

// Whether a process that does this dies of it.
struct End {
    bool crashed = false;
    std::string words; ///< that it left
};
template <class Body> End end_of(Body body) {
    std::fflush(nullptr);
    int pipes[2];
    REQUIRE(pipe(pipes) == 0);
    pid_t const child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        dup2(pipes[1], 1); // others report crashes, too
        dup2(pipes[1], 2);
        signal(SIGABRT, SIG_DFL);
        alarm(60); // where a crash does not end it
        body();
        _exit(0);
    }
    close(pipes[1]);
    End end;
    char some[256];
    for (ssize_t n; (n = ::read(pipes[0], some, sizeof some)) > 0;)
        end.words.append(some, static_cast<std::size_t>(n));
    close(pipes[0]);
    int status = 0;
    waitpid(child, &status, 0);
    bool const alarmed = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
    end.crashed = !alarmed && !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return end;
}
template <class Body> bool crashes(Body body) { return end_of(body).crashed; }

std::byte read(std::byte const* data) { return *static_cast<std::byte const volatile*>(data); }
void write(std::byte* data) { *static_cast<std::byte volatile*>(data) = std::byte{1}; }

std::string only_fault() {
    auto const faults = cuda_double::faults();
    REQUIRE(faults.size() == 1);
    cuda_double::complaints();
    return faults[0];
}
bool says(std::string const& text, char const* words) {
    INFO(text);
    return text.find(words) != std::string::npos;
}

} // namespace

TEST_CASE("the host cannot touch memory of a device, and a kernel only what it said it would") {
    for (bool protects : {true, false}) {
        CAPTURE(protects);
        Session session({.protects = protects});
        {
            Buffer const buffer(0, 3 * 4096);
            Stream const stream(0);
            std::byte* const data = buffer.data();
            auto const kernel = [&](auto work, std::vector<cuda_double::Range> reads,
                                    std::vector<cuda_double::Range> writes) {
                cuda_double::launch(stream.get(), work, std::move(reads), std::move(writes));
                stream.synchronize();
            };
            CHECK(crashes([&] { read(data); }) == protects);
            CHECK(crashes([&] { write(data + 100); }) == protects);
            CHECK(crashes([&] { kernel([=] { read(data); }, {}, {}); }) == protects);
            CHECK(crashes([&] { kernel([=] { write(data); }, {{data, 64}}, {}); }) == protects);
            CHECK(crashes([&] {
                      kernel([=] { write(data + 4096); }, {}, {{data, 64}});
                  }) == protects);
            CHECK(!crashes([&] { kernel([=] { write(data + 8); }, {}, {{data, 64}}); }));
            CHECK(crashes([&] { // nor what only the work before it said
                      cuda_double::launch(stream.get(), [] {}, {}, {{data, 64}});
                      kernel([=] { write(data); }, {{data, 64}}, {});
                  }) == protects);
            kernel([=] { write(data + 8191); }, {{data, 64}}, {{data + 4096, 4096}});
            CHECK(crashes([&] { read(data + 8191); }) == protects);
            std::byte seen{};
            cuda_double::peek(&seen, data + 8191, 1);
            CHECK(seen == std::byte{1});
        }
        CHECK(cuda_double::complaints() == "");
    }
}

TEST_CASE("a crash says which memory was touched, and by whom") {
    Session session({.protects = true});
    {
        Buffer const buffer(0, 64);
        Stream const stream(0);
        std::byte* const data = buffer.data();
        CHECK(says(end_of([&] { read(data + 9); }).words,
                   "touched without leave: byte 9 of allocation 2 (device 0); by the host"));
        cuda_double::launch(
            stream.get(), [=] { read(data); }, {}, {}, "forward");
        CHECK(says(end_of([&] { stream.synchronize(); }).words,
                   "by cudaLaunchKernel of forward on stream 3"));
        cuda_double::reset(); // nothing can run that piece of work
    }
    cuda_double::complaints();
}

TEST_CASE("a crash ends the process where who reports crashes has been put back by somebody") {
    struct sigaction ours, before;
    {
        Session const session({.protects = true});
        sigaction(SIGSEGV, nullptr, &ours);
    }
    Session const unwatched({.protects = false});
    sigaction(SIGSEGV, &ours, &before);
    {
        Session const session({.protects = true});
        Buffer const buffer(0, 64);
        std::byte* const data = buffer.data();
        End const end = end_of([&] { read(data); });
        CHECK(end.crashed);
        CHECK(says(end.words, "touched without leave: byte 0"));
        CHECK(end.words.find("touched") == end.words.rfind("touched")); // once
    }
    sigaction(SIGSEGV, &before, nullptr);
    cuda_double::complaints();
}

TEST_CASE("memory that has been freed can be touched by nobody") {
    Session session;
    {
        std::byte* pinned = nullptr;
        {
            PinnedBuffer const buffer(64);
            pinned = buffer.data();
            CHECK(!crashes([&] { write(pinned); }));
        }
        CHECK(crashes([&] { read(pinned); }));
    }
    CHECK(cuda_double::complaints() == "");

    {
        Stream const stream(0);
        void* data = nullptr;
        cudaMalloc(&data, 64);
        cudaFree(data);
        cuda_double::launch(
            stream.get(), [] {}, {{data, 64}}, {}, "late");
        CHECK(cudaStreamSynchronize(stream.get()) == cudaErrorIllegalAddress);
        CHECK(
            says(only_fault(), "cudaLaunchKernel of late on stream 2, uses freed memory, byte 0"));
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("fresh memory is not zero") {
    Session session;
    void* data = nullptr;
    REQUIRE(cudaMalloc(&data, 64) == cudaSuccess);
    std::byte seen{};
    cuda_double::peek(&seen, data, 1);
    CHECK(seen != std::byte{0});
    cudaFree(data);
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("what is freed twice, never allocated, of the other kind, or in use is reported") {
    Session session;
    void* device = nullptr;
    void* pinned = nullptr;
    cudaMalloc(&device, 64);
    cudaHostAlloc(&pinned, 64, cudaHostAllocDefault);
    CHECK(cudaFree(pinned) == cudaErrorInvalidValue);
    CHECK(says(only_fault(), "cudaFree, of the other kind of memory"));
    CHECK(cudaFree(static_cast<std::byte*>(device) + 8) == cudaErrorInvalidValue);
    CHECK(says(only_fault(), "cudaFree, of what was never allocated"));
    CHECK(cudaFree(device) == cudaSuccess);
    CHECK(cudaFree(device) == cudaErrorInvalidValue);
    CHECK(says(only_fault(), "cudaFree, of what has been freed before"));
    CHECK(cudaFree(nullptr) == cudaSuccess);
    {
        Stream const stream(0);
        cudaMemsetAsync(pinned, 0, 64, stream.get());
        CHECK(cudaFreeHost(pinned) == cudaSuccess);
        CHECK(says(only_fault(), "cudaMemsetAsync on stream 3, has not run yet"));
        stream.synchronize();
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("writing behind an allocation is found when it is freed") {
    Session session({.protects = false});
    {
        PinnedBuffer const pinned(100);
        write(pinned.data() + 100);
    }
    CHECK(says(only_fault(), "somebody wrote behind allocation 1"));
    {
        Buffer const buffer(0, 100);
        write(buffer.data() + 127);
    }
    CHECK(says(only_fault(), "somebody wrote behind allocation"));
}

TEST_CASE("copies and fills stay within an allocation, and go where they say") {
    Session session({.devices = 2});
    {
        Buffer const here(0, 64);
        Buffer const there(1, 64);
        PinnedBuffer const pinned(64);
        Stream const stream(0);
        int pageable[16] = {};
        auto const copy = [&](void* to, void const* from, std::size_t n, cudaMemcpyKind kind) {
            return cudaMemcpyAsync(to, from, n, kind, stream.get());
        };
        CHECK(copy(here.data(), pinned.data(), 65, cudaMemcpyDefault) == cudaErrorInvalidValue);
        CHECK(says(only_fault(), "copies beyond an allocation"));
        CHECK(copy(here.data(), pinned.data(), 64, cudaMemcpyDeviceToHost) ==
              cudaErrorInvalidValue);
        CHECK(says(only_fault(), "copies in another direction than it says"));
        CHECK(copy(pageable, pinned.data(), 64, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
        CHECK(says(only_fault(), "copies in another direction"));
        CHECK(copy(here.data(), there.data(), 64, cudaMemcpyHostToHost) == cudaErrorInvalidValue);
        CHECK(says(only_fault(), "copies in another direction"));
        CHECK(cudaMemcpyPeerAsync(here.data(), 1, there.data(), 0, 64, stream.get()) ==
              cudaErrorInvalidValue);
        CHECK(says(only_fault(), "copies other memory than that of the devices it names"));
        CHECK(cudaMemsetAsync(pageable, 0, 64, stream.get()) == cudaErrorInvalidValue);
        CHECK(says(only_fault(), "fills what is neither"));
        CHECK(copy(pageable, here.data(), 64, cudaMemcpyDeviceToHost) == cudaSuccess);
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("a kernel reaches another device's memory only with peer access, a copy always does") {
    auto const one_way = [](int from, int to) { return from == 0 && to == 1; };
    for (bool enables : {false, true}) {
        Session session({.devices = 3, .peers = one_way});
        {
            Buffer const there(1, 64);
            Buffer const here(0, 64);
            Stream const stream(0);
            int can = -1;
            CHECK(cudaDeviceCanAccessPeer(&can, 0, 1) == cudaSuccess);
            CHECK(can == 1);
            CHECK(cudaDeviceCanAccessPeer(&can, 1, 0) == cudaSuccess);
            CHECK(can == 0);
            CHECK(cudaDeviceEnablePeerAccess(2, 0) == cudaErrorPeerAccessUnsupported);
            if (enables) {
                CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaSuccess);
                CHECK(cudaDeviceEnablePeerAccess(1, 0) == cudaErrorPeerAccessAlreadyEnabled);
            }
            CHECK(cudaMemcpyPeerAsync(here.data(), 0, there.data(), 1, 64, stream.get()) ==
                  cudaSuccess);
            CHECK(cudaStreamSynchronize(stream.get()) == cudaSuccess);
            std::byte* const data = there.data();
            cuda_double::launch(stream.get(), [=] { write(data); }, {}, {{data, 1}});
            CHECK(cudaStreamSynchronize(stream.get()) ==
                  (enables ? cudaSuccess : cudaErrorIllegalAddress));
            if (!enables) CHECK(says(only_fault(), "has no peer access to byte 0 of allocation"));
        }
        CHECK(cuda_double::complaints() == "");
    }
}

TEST_CASE("where a GPU has no room it is said which, for how much, and how much it has") {
    Session session({.devices = 2, .memory = 5000});
    Buffer const there(1, 2000);
    std::string said;
    try {
        Buffer const more(1, 4000);
    } catch (gpipe::cuda::Error const& error) {
        said = error.what();
        CHECK(error.code() == cudaErrorMemoryAllocation);
    }
    CHECK(
        said.find("gpipe: GPU 1 is to hold 4000 bytes more, and has 3000 of 5000 left: cudaMalloc "
                  "failed with cudaErrorMemoryAllocation") == 0);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK_NOTHROW(Buffer(0, 4000));
}

TEST_CASE("whatever is alive at the end is a leak") {
    Session session;
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    void* device = nullptr;
    void* pinned = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaMalloc(&device, 1);
    cudaHostAlloc(&pinned, 1, cudaHostAllocDefault);
    std::string const leaks = cuda_double::complaints();
    for (char const* leak : {"stream 1 is", "event 2 is", "allocation 3 is", "allocation 4 is"})
        CHECK(says(leaks, leak));
    cudaFree(device);
    cudaFreeHost(pinned);
    cudaStreamDestroy(stream);
    cudaEventDestroy(event);
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("a test that does not ask for complaints ends badly") {
    CHECK(crashes([] {
        Session session;
        void* pinned = nullptr;
        cudaHostAlloc(&pinned, 1, cudaHostAllocDefault);
    }));
    CHECK(!crashes([] { Session session; }));
}

TEST_CASE("where a GPU may have few peers neighbours are those") {
    Session session({.devices = 5, .most_peers = 2});
    gpipe::cuda::Links const links({}, 5, gpipe::Link::shared);
    CHECK_THROWS_AS(gpipe::cuda::Links({}, 99, gpipe::Link::shared), gpipe::cuda::TooFewDevices);
    CHECK_THROWS_WITH_AS(gpipe::cuda::Links({0, 1}, 3, gpipe::Link::shared),
                         "gpipe: Options::device.gpus has 2 entries for 3 devices: one for each, "
                         "and one GPU may be there twice",
                         std::invalid_argument);
    for (std::size_t d = 0; d < 4; ++d) CHECK(links.link(d, d + 1) == gpipe::Link::copied);
    CHECK(links.link(0, 4) == gpipe::Link::staged);
}
