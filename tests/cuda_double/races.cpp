// The double of the CUDA runtime: which accesses nothing orders, and what happens when a wait, a
// record, or a copy is left out.
#include "support/cuda_double/cuda_double.hpp"

#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

using cuda_double::Session;
using gpipe::cuda::Buffer;
using gpipe::cuda::DeviceGuard;
using gpipe::cuda::Event;
using gpipe::cuda::PinnedBuffer;
using gpipe::cuda::Stream;

namespace {

void kernel(Stream const& stream, std::vector<cuda_double::Range> reads,
            std::vector<cuda_double::Range> writes, char const* name) {
    DeviceGuard const on(stream.device());
    CHECK(cuda_double::launch(
              stream.get(), [] {}, reads, writes, name) == cudaSuccess);
}

bool found(char const* one, char const* other) {
    auto const races = cuda_double::races();
    cuda_double::progress();
    cuda_double::complaints();
    if (races.size() != 1) return false;
    INFO(races[0]);
    CHECK(races[0].find(one) != std::string::npos);
    CHECK(races[0].find(other) != std::string::npos);
    return true;
}

} // namespace

TEST_CASE("accesses that nothing orders are found, by the names of both calls") {
    for (std::uint64_t seed : {0U, 1U, 2U}) {
        Session session({.seed = seed});
        {
            Buffer const buffer(0, 64);
            std::byte* const data = buffer.data();
            Stream const first(0);
            Stream const second(0);
            kernel(first, {}, {{data, 64}}, "one");
            kernel(second, {{data, 64}}, {}, "other");
            CHECK(found("cudaLaunchKernel of one on stream 3, writes",
                        "cudaLaunchKernel of other on stream 4, reads byte 0 of allocation 2"));
            second.synchronize();
            first.synchronize();

            kernel(first, {{data, 32}}, {}, "one");
            kernel(second, {}, {{data + 31, 33}}, "other");
            CHECK(found("of one on stream 3, reads", "of other on stream 4, writes byte 31 of"));
            second.synchronize();
            first.synchronize();

            kernel(first, {}, {{data, 8}}, "one");
            kernel(second, {}, {{data + 7, 1}}, "other");
            CHECK(found("of one on stream 3, writes", "of other on stream 4, writes byte 7 of"));
        }
        CHECK(cuda_double::complaints() == "");
    }
}

TEST_CASE("two reads, accesses next to each other, and those on one stream are no race") {
    Session session;
    {
        Buffer const buffer(0, 64);
        std::byte* const data = buffer.data();
        Stream const first(0);
        Stream const second(0);
        kernel(first, {{data, 32}}, {{data + 32, 16}}, "one");
        kernel(second, {{data + 16, 16}}, {{data + 48, 16}}, "other");
        kernel(second, {{data + 48, 16}}, {{data + 48, 16}}, "again");
        CHECK(cudaMemsetAsync(data + 48, 1, 16, second.get()) == cudaSuccess);
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("events order accesses, also across a third stream, and only those recorded before") {
    Session session({.devices = 2});
    {
        Buffer const buffer(0, 64);
        std::byte* const data = buffer.data();
        Stream const first(0);
        Stream const second(0);
        Stream const third(0);
        Event mark(0);
        Event next(0);
        kernel(first, {}, {{data, 64}}, "one");
        mark.record(first);
        third.wait(mark);
        next.record(third);
        second.wait(next);
        kernel(second, {{data, 64}}, {}, "two");
        kernel(third, {{data, 64}}, {}, "three");
        CHECK(cuda_double::races().empty());

        // The event has moved on, but nobody has waited for it since.
        kernel(first, {}, {{data, 64}}, "four");
        CHECK(cuda_double::races().size() == 2); // with both readers
        mark.record(first);
        kernel(second, {{data, 64}}, {}, "five");
        CHECK(cuda_double::races().size() == 3);
        second.wait(mark);
        kernel(second, {{data, 64}}, {}, "six");
        CHECK(cuda_double::races().size() == 3);
        cuda_double::progress();
        cuda_double::complaints();
    }
    CHECK(cuda_double::complaints() == "");
}

TEST_CASE("what the host has waited for comes before all that it does next") {
    enum Way { nothing, stream, event, device, ask_stream, ask_event, give_back };
    for (Way way : {nothing, stream, event, device, ask_stream, ask_event, give_back}) {
        CAPTURE(way);
        Session session;
        {
            Buffer const buffer(0, 64);
            std::byte* const data = buffer.data();
            Stream const first(0);
            Stream const second(0);
            Event mark(0);
            kernel(first, {}, {{data, 64}}, "one");
            mark.record(first);
            if (way == stream) first.synchronize();
            if (way == event) mark.synchronize();
            if (way == device) CHECK(cudaDeviceSynchronize() == cudaSuccess);
            while (way == ask_stream && !first.query()) {
            }
            while (way == ask_event && !mark.query()) {
            }
            if (way == give_back) Buffer(0, 8);
            cuda_double::progress(); // that work has run does not mean that anybody knows
            kernel(second, {{data, 64}}, {}, "other");
            CHECK(cuda_double::races().empty() == (way != nothing));
            cuda_double::progress();
            cuda_double::complaints();
        }
        CHECK(cuda_double::complaints() == "");
    }
}

TEST_CASE("the host's own accesses to pinned memory are checked") {
    for (bool waits : {true, false}) {
        CAPTURE(waits);
        Session session;
        {
            PinnedBuffer const pinned(64);
            Buffer const buffer(0, 64);
            Stream const stream(0);
            cuda_double::host_writes(pinned.data(), 64);
            cudaMemcpyAsync(buffer.data(), pinned.data(), 64, cudaMemcpyDefault, stream.get());
            cuda_double::host_reads(pinned.data(), 64);
            CHECK(cuda_double::races().empty());
            if (waits) stream.synchronize();
            cuda_double::host_writes(pinned.data() + 8, 1);
            if (waits)
                CHECK(cuda_double::races().empty());
            else
                CHECK(found("cudaMemcpyAsync on stream 4 of 64 bytes, reads",
                            "the host writes byte 8"));
            cuda_double::progress();
        }
        CHECK(cuda_double::complaints() == "");
    }
}

namespace {

// Numbers go round a ring of devices, each adding one, in one slot on each. What there
// is of order is what it takes.
struct Ring {
    static constexpr int devices = 3;
    static constexpr int rounds = 4;

    std::vector<Buffer> slots;
    std::vector<Stream> streams;
    std::vector<Event> filled;
    PinnedBuffer start{sizeof(int)};
    PinnedBuffer end{sizeof(int)};

    Ring() {
        for (int d = 0; d < devices; ++d) {
            slots.emplace_back(d, sizeof(int));
            streams.emplace_back(d);
            filled.emplace_back(d);
        }
    }
    int* slot(std::size_t d) { return reinterpret_cast<int*>(slots[d].data()); }

    int run() {
        for (int r = 0; r < rounds; ++r) {
            for (std::size_t d = 0; d < devices; ++d) {
                Stream const& stream = streams[d];
                if (d == 0) {
                    if (r == 0) {
                        int const one = 1;
                        cuda_double::host_writes(start.data(), sizeof one);
                        std::memcpy(start.data(), &one, sizeof one);
                        copy(slot(0), start.data(), stream);
                    } else {
                        pull(0, devices - 1);
                    }
                } else {
                    pull(d, d - 1);
                }
                DeviceGuard const on(static_cast<int>(d));
                int* const number = slot(d);
                cuda_double::launch(
                    stream.get(), [number] { ++*number; }, {{number, sizeof(int)}},
                    {{number, sizeof(int)}}, "add one");
                filled[d].record(stream);
            }
        }
        copy(end.data(), slot(devices - 1), streams[devices - 1]);
        streams[devices - 1].synchronize();
        cuda_double::host_reads(end.data(), sizeof(int));
        int result = 0;
        std::memcpy(&result, end.data(), sizeof result);
        return result;
    }

  private:
    void copy(void* to, void const* from, Stream const& stream) {
        gpipe::cuda::check("cudaMemcpyAsync",
                           cudaMemcpyAsync(to, from, sizeof(int), cudaMemcpyDefault, stream.get()));
    }
    void pull(std::size_t to, std::size_t from) {
        streams[to].wait(filled[from]);
        gpipe::cuda::check("cudaMemcpyPeerAsync",
                           cudaMemcpyPeerAsync(slot(to), static_cast<int>(to), slot(from),
                                               static_cast<int>(from), sizeof(int),
                                               streams[to].get()));
    }
};

struct Outcome {
    int result = 0;
    bool races = false;
};

Outcome run_ring(std::uint64_t seed, std::size_t drop, bool synchronization = false) {
    Session session({.devices = Ring::devices, .seed = seed});
    Outcome outcome;
    {
        Ring ring;
        if (synchronization)
            cuda_double::drop_synchronization(drop);
        else
            cuda_double::drop_call(drop);
        outcome.result = ring.run();
        outcome.races = !cuda_double::races().empty();
        while (cuda_double::progress() > 0) {
        }
        cuda_double::complaints();
    }
    CHECK(cuda_double::complaints() == "");
    return outcome;
}

std::size_t droppable() {
    Session session({.devices = Ring::devices});
    Ring ring;
    std::size_t const before = cuda_double::droppable_calls();
    ring.run();
    std::size_t const after = cuda_double::droppable_calls();
    ring = Ring();
    cuda_double::complaints();
    return after - before;
}

} // namespace

TEST_CASE("every wait, record, and copy that is left out of a ring of devices is noticed") {
    int const right = 1 + Ring::devices * Ring::rounds;
    std::size_t const calls = droppable();
    REQUIRE(calls == 3 * Ring::devices * Ring::rounds);
    std::size_t caught = 0;
    std::size_t by_races = 0;
    std::size_t unnecessary = 0;
    for (std::uint64_t seed : {0U, 1U, 2U}) {
        Outcome const whole = run_ring(seed, SIZE_MAX / 2);
        CHECK(whole.result == right);
        CHECK(!whole.races);
    }
    for (std::size_t n = 0; n < calls; ++n) {
        // What is found does not depend on the order in which the work happened to run.
        Outcome const lowest = run_ring(0, n);
        Outcome const highest = run_ring(1, n);
        CHECK(lowest.races == highest.races);
        by_races += lowest.races;
        bool const noticed = lowest.races || lowest.result != right || highest.result != right;
        if (noticed)
            ++caught;
        else
            ++unnecessary;
    }
    // The last record is for a round that never comes.
    CHECK(unnecessary == 1);
    CHECK(caught == calls - 1);
    CHECK(by_races > calls / 2);
    CHECK(by_races < caught);
}

TEST_CASE("a wait of the host that is left out is noticed") {
    CHECK(run_ring(0, 0, true).races);
    CHECK(!run_ring(0, 1, true).races);
}

TEST_CASE("what was dropped is said") {
    Session session;
    {
        Stream const stream(0);
        Event mark(0);
        CHECK(cuda_double::dropped() == "");
        cuda_double::drop_call(1);
        mark.record(stream);
        CHECK(cuda_double::dropped() == "");
        stream.wait(mark);
        CHECK(cuda_double::dropped() ==
              "call 6, cudaStreamWaitEvent on stream 1 event 2 (dropped),");
        CHECK(cuda_double::droppable_calls() == 2);
    }
    CHECK(cuda_double::complaints() == "");
}
