// The double of the CUDA runtime: when work runs, and in which order.
#include "support/cuda_double/cuda_double.hpp"

#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

using cuda_double::Session;
using gpipe::cuda::Buffer;
using gpipe::cuda::Event;
using gpipe::cuda::PinnedBuffer;
using gpipe::cuda::Stream;

namespace {

// Leaves its letter when it runs.
struct Trail {
    std::string letters;

    void put(Stream const& stream, char letter) {
        cuda_double::launch(stream.get(), [this, letter] { letters += letter; }, {}, {});
    }
    bool before(char a, char b) const { return letters.find(a) < letters.find(b); }
};

std::uint64_t const seeds = 64;

// What a body leaves on two streams, by seed, when everything has run.
template <class Body> std::set<std::string> trails(Body body) {
    std::set<std::string> all;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        CAPTURE(seed);
        Session session({.devices = 2, .seed = seed});
        {
            Trail trail;
            Stream first(0);
            Stream second(0);
            body(trail, first, second);
            while (cuda_double::progress() > 0) {
            }
            all.insert(trail.letters);
        }
        CHECK(cuda_double::complaints() == "");
    }
    return all;
}

} // namespace

TEST_CASE("nothing runs before somebody synchronizes") {
    Session session;
    {
        Trail trail;
        Stream const stream(0);
        for (char letter : {'a', 'b', 'c'}) trail.put(stream, letter);
        CHECK(trail.letters == "");
        CHECK(cuda_double::progress(2) == 2);
        CHECK(trail.letters == "ab");
        stream.synchronize();
        CHECK(trail.letters == "abc");
        CHECK(cuda_double::progress() == 0);
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("a stream keeps its order, and streams mix in every way") {
    auto const all = trails([](Trail& trail, Stream& first, Stream& second) {
        trail.put(first, 'a');
        trail.put(second, 'x');
        trail.put(first, 'b');
        trail.put(second, 'y');
    });
    CHECK(all == std::set<std::string>{"abxy", "axby", "axyb", "xaby", "xayb", "xyab"});
}

TEST_CASE("seed 0 lets the lowest stream go as far as it can, seed 1 the highest") {
    for (std::uint64_t seed : {0U, 1U}) {
        Session session({.seed = seed});
        Trail trail;
        Stream const first(0);
        Stream const second(0);
        Event mark(0);
        trail.put(first, 'a');
        trail.put(second, 'x');
        mark.record(second);
        first.wait(mark);
        trail.put(first, 'b');
        trail.put(second, 'y');
        cuda_double::progress();
        CHECK(trail.letters == (seed == 0 ? "axby" : "xyab"));
    }
}

TEST_CASE("synchronizing with one stream may leave the others where they are") {
    Session session;
    Trail trail;
    Stream const first(0);
    Stream const second(0);
    trail.put(second, 'x');
    trail.put(first, 'a');
    first.synchronize();
    CHECK(trail.letters == "a");
}

TEST_CASE("what waits for an event comes after all that was recorded, and nothing else does") {
    auto const all = trails([](Trail& trail, Stream& first, Stream& second) {
        Event mark(0);
        trail.put(first, 'a');
        mark.record(first);
        trail.put(first, 'b');
        trail.put(second, 'x');
        second.wait(mark);
        trail.put(second, 'y'); // and the event is gone before this runs
    });
    CHECK(all == std::set<std::string>{"abxy", "axby", "axyb", "xaby", "xayb"});
}

TEST_CASE("a wait for an event that was never recorded waits for nothing") {
    auto const all = trails([](Trail& trail, Stream& first, Stream& second) {
        Event mark(0);
        trail.put(first, 'a');
        second.wait(mark);
        trail.put(second, 'x');
        mark.record(first);
    });
    CHECK(all == std::set<std::string>{"ax", "xa"});
}

TEST_CASE("an event recorded again stands for more, but not for those who wait already") {
    auto const all = trails([](Trail& trail, Stream& first, Stream& second) {
        Event mark(0);
        trail.put(first, 'a');
        mark.record(first);
        second.wait(mark);
        trail.put(second, 'x');
        trail.put(first, 'b');
        mark.record(first);
        second.wait(mark);
        trail.put(second, 'y');
    });
    CHECK(all == std::set<std::string>{"abxy", "axby"});
}

TEST_CASE("events order streams of different devices") {
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
        Session session({.devices = 3, .seed = seed});
        {
            Trail trail;
            Stream const here(2);
            Stream const there(0);
            Event mark(2);
            gpipe::cuda::DeviceGuard const on(2);
            trail.put(here, 'a');
            mark.record(here);
            there.wait(mark);
            gpipe::cuda::DeviceGuard const other(0);
            trail.put(there, 'x');
            there.synchronize();
            CHECK(trail.letters == "ax");
        }
        CHECK(cuda_double::complaints() == "");
    }
}

TEST_CASE("a stream that is destroyed lets its work come to an end") {
    Session session;
    Trail trail;
    {
        Stream const stream(0);
        trail.put(stream, 'a');
    }
    CHECK(trail.letters == "");
    cuda_double::progress();
    CHECK(trail.letters == "a");
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("giving memory of a device back waits for all of its streams") {
    Session session({.devices = 2});
    {
        Trail trail;
        Stream const first(0);
        Stream const second(1);
        Buffer buffer(1, 64);
        Event mark(0);
        trail.put(first, 'a');
        mark.record(first);
        trail.put(first, 'b');
        gpipe::cuda::DeviceGuard const on(1);
        second.wait(mark);
        trail.put(second, 'x');
        buffer = Buffer(1, 0); // the memory goes with the temporary
        CHECK(trail.letters.find('x') != std::string::npos);
        CHECK(trail.before('a', 'x'));
        cuda_double::progress();
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("whoever asks again and again comes to an end") {
    for (std::uint64_t seed : {0U, 1U, 2U}) {
        Session session({.seed = seed});
        Trail trail;
        Stream const first(0);
        Stream const second(0);
        Event mark(0);
        for (char letter : {'a', 'b', 'c'}) trail.put(first, letter);
        for (char letter : {'x', 'y'}) trail.put(second, letter);
        mark.record(first);
        int asked = 0;
        while (!mark.query()) ++asked;
        CHECK(asked > 0);
        CHECK(trail.before('b', 'c'));
        while (!second.query()) ++asked;
        CHECK(trail.before('x', 'y'));
    }
}

TEST_CASE("pageable memory is read during the call and written before it returns, pinned is not") {
    Session session;
    {
        Buffer const buffer(0, 4);
        PinnedBuffer const pinned(4);
        Stream const stream(0);
        auto& host = *reinterpret_cast<int*>(pinned.data());
        int pageable = 1;
        auto const copy = [&](void* to, void const* from) {
            CHECK(cudaMemcpyAsync(to, from, 4, cudaMemcpyDefault, stream.get()) == cudaSuccess);
        };
        copy(buffer.data(), &pageable);
        pageable = 2;
        copy(pinned.data(), buffer.data());
        CHECK(host == 0);
        stream.synchronize();
        CHECK(host == 1);
        copy(buffer.data(), pinned.data());
        host = 3;
        copy(&pageable, buffer.data());
        CHECK(pageable == 3);
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("threads may use the double at once, each with its own current device") {
    Session session({.devices = 4, .seed = 5});
    std::vector<std::string> trails(4);
    {
        gpipe::cuda::DeviceGuard const here(3);
        int current = -1;
        std::thread([&] { cudaGetDevice(&current); }).join();
        CHECK(current == 0);
        std::vector<std::thread> threads;
        for (int d = 0; d < 4; ++d)
            threads.emplace_back([d, &letters = trails[static_cast<std::size_t>(d)]] {
                gpipe::cuda::DeviceGuard const on(d);
                Trail trail;
                Stream const stream(d);
                Event mark(d);
                for (int round = 0; round < 20; ++round) {
                    trail.put(stream, static_cast<char>('a' + round));
                    mark.record(stream);
                    mark.synchronize();
                }
                letters = trail.letters;
            });
        for (std::thread& thread : threads) thread.join();
    }
    for (std::string const& letters : trails) CHECK(letters == "abcdefghijklmnopqrst");
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("when one piece of work fails for good, nothing else runs on any stream") {
    Session session;
    {
        Trail trail;
        Stream const first(0);
        Stream const second(0);
        for (char letter : {'a', 'b'}) trail.put(first, letter);
        for (char letter : {'x', 'y'}) trail.put(second, letter);
        cuda_double::fail_work(1);
        CHECK(cudaStreamSynchronize(first.get()) == cudaErrorLaunchFailure);
        CHECK(cuda_double::progress() == 0);
        CHECK(cuda_double::launch(second.get(), [] {}, {}, {}) == cudaErrorLaunchFailure);
        CHECK(trail.letters == "a");
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("functions of the host run in stream order, and must not call CUDA") {
    Session session;
    {
        Trail trail;
        Stream const stream(0);
        trail.put(stream, 'a');
        auto const put_b = [](void* argument) { static_cast<Trail*>(argument)->letters += 'b'; };
        CHECK(cudaLaunchHostFunc(stream.get(), put_b, &trail) == cudaSuccess);
        trail.put(stream, 'c');
        stream.synchronize();
        CHECK(trail.letters == "abc");
        CHECK(cuda_double::faults().empty());

        cudaError_t answer = cudaSuccess;
        cuda_double::launch(stream.get(), [&] { answer = cudaDeviceSynchronize(); }, {}, {});
        stream.synchronize();
        CHECK(answer == cudaErrorNotPermitted);
        CHECK(cuda_double::faults().at(0).find("calls cudaDeviceSynchronize while it runs") !=
              std::string::npos);
    }
    CHECK(cuda_double::complaints() != "");
}

TEST_CASE("where they may be used, the legacy stream and those that were not made to do without "
          "wait for each other, on one device") {
    // Of three pieces of work, on three streams, which can come in the end before which.
    std::set<std::string> both, apart, other_device;
    for (std::uint64_t seed = 0; seed < 64; ++seed) {
        auto const trail_of = [&](unsigned flags, int device, bool threads) {
            Session session({.devices = 2, .seed = seed, .default_streams = true});
            Trail trail;
            gpipe::cuda::check("cudaSetDevice", cudaSetDevice(device));
            cudaStream_t mine = cudaStreamPerThread;
            if (!threads)
                gpipe::cuda::check("cudaStreamCreate", cudaStreamCreateWithFlags(&mine, flags));
            auto const put = [&](cudaStream_t stream, char letter) {
                gpipe::cuda::check(
                    "launch", cuda_double::launch(
                                  stream, [&trail, letter] { trail.letters += letter; }, {}, {}));
            };
            put(mine, 'a');
            gpipe::cuda::check("cudaSetDevice", cudaSetDevice(0));
            put(nullptr, 'b');
            gpipe::cuda::check("cudaSetDevice", cudaSetDevice(device));
            put(mine, 'c');
            gpipe::cuda::check("cudaSetDevice", cudaSetDevice(0));
            CHECK(cudaStreamSynchronize(cudaStreamLegacy) == cudaSuccess);
            if (flags == cudaStreamDefault && device == 0) CHECK(trail.letters == "abc");
            cuda_double::progress();
            if (!threads) static_cast<void>(cudaStreamDestroy(mine));
            CHECK(cuda_double::complaints() == "");
            return trail.letters;
        };
        both.insert(trail_of(cudaStreamDefault, 0, false));
        both.insert(trail_of(cudaStreamDefault, 0, true));
        apart.insert(trail_of(cudaStreamNonBlocking, 0, false));
        other_device.insert(trail_of(cudaStreamDefault, 1, false));
    }
    CHECK(both == std::set<std::string>{"abc"});
    CHECK(apart == std::set<std::string>{"abc", "acb", "bac"});
    CHECK(other_device == apart);
}

TEST_CASE("what belongs to another device, is stale, or is the default stream is refused") {
    Session session({.devices = 2});
    Stream stream(1);
    Event const event(0);
    auto const refused = [](cudaError_t status, char const* why) {
        CAPTURE(why);
        CHECK(status == cudaErrorInvalidResourceHandle);
        CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
        CHECK(cudaGetLastError() == cudaSuccess);
        REQUIRE(cuda_double::faults().size() == 1);
        CHECK(cuda_double::faults()[0].find(why) != std::string::npos);
        cuda_double::complaints();
    };
    refused(cuda_double::launch(stream.get(), [] {}, {}, {}), "device is not the current one");
    refused(cudaEventRecord(event.get(), stream.get()), "is of two devices");
    refused(cudaStreamSynchronize(nullptr), "uses a default stream");
    cudaStream_t const stale = stream.get();
    stream = Stream();
    refused(cudaStreamSynchronize(stale), "has no such stream");
    refused(cudaStreamDestroy(stale), "has no such stream");
    refused(cudaEventSynchronize(nullptr), "has no such event");
    CHECK(cuda_double::complaints() != ""); // the event is alive
}
