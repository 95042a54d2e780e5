#pragma once

// What every device promises, concept by concept: queue, memory, executor. `put(device, stream, to,
// value)` is work that writes a number, late if it can.

#include <gpipe/core/bytes.hpp>
#include <gpipe/device/device.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <doctest/doctest.h>
#include <exception>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

namespace toy {

/// A device of so many pipeline devices, each with a stream, and one more, if streams are its own,
/// that transfers; a mini-batch has one tensor.
template <class Device> struct Devices {
    explicit Devices(std::size_t count, typename Device::Options options = {})
        : device(std::move(options), count), streams(Device::streams(device.lanes(), count + 1)) {
        gpipe::Array<std::size_t> of_streams(streams);
        for (std::size_t s = 0; s < streams; ++s) of_streams[s] = std::min(s, count - 1);
        device.prepare(of_streams, most, gpipe::Array<std::size_t>(1));
    }

    static constexpr std::size_t most = 64; // marks of a stream
    Device device;
    std::size_t streams;
};
template <class Memory> int* numbers(Memory const& memory) {
    return reinterpret_cast<int*>(memory.data());
}
inline std::byte* bytes(int* at) { return reinterpret_cast<std::byte*>(at); }

/// A number passes from stream to stream, and everybody but its reader overwrites it behind a mark.
template <class Device, class Put> void check_queue(Devices<Device>& all, Put put) {
    Device& device = all.device;
    std::size_t const streams = all.streams;
    auto const there = device.allocate(0, streams * sizeof(int));
    auto const here = device.allocate_host(2 * streams * sizeof(int));
    std::uint64_t base = 0;
    for (int round = 1; round <= 5; ++round, base += all.most) {
        std::fill_n(numbers(here), 2 * streams, -1);
        device.run([&] {
            put(device, 0, numbers(there), 100 * round);
            device.record(0, base + 1);
            for (std::size_t s = 1; s < streams; ++s) {
                CHECK(device.wait(s, s - 1, base + 1));
                device.copy(s, bytes(numbers(there) + s), bytes(numbers(there) + s - 1),
                            sizeof(int));
                device.record(s, base + 1);
                CHECK(device.wait(s - 1, s, base + 1));
                device.copy(s - 1, bytes(numbers(here) + s - 1), bytes(numbers(there) + s - 1),
                            sizeof(int));
                device.fill(s - 1, bytes(numbers(there) + s - 1), sizeof(int));
                device.copy(s - 1, bytes(numbers(here) + streams + s - 1),
                            bytes(numbers(there) + s - 1), sizeof(int));
            }
            device.copy(streams - 1, bytes(numbers(here) + streams - 1),
                        bytes(numbers(there) + streams - 1), sizeof(int));
        });
        for (std::size_t s = 0; s < streams; ++s) CHECK(numbers(here)[s] == 100 * round);
        for (std::size_t s = 0; s + 1 < streams; ++s) CHECK(numbers(here)[streams + s] == 0);
    }
}

/// Memory is zero and aligned; what is put in a mailbox is found there, and back; what is fed
/// arrives although the caller changes it then.
template <class Device, class Put>
void check_memory(Devices<Device>& all, std::size_t count, Put put) {
    Device& device = all.device;
    for (std::size_t bytes : {1, 255, 256, 100000}) {
        auto const host = device.allocate_host(bytes);
        auto fresh = device.allocate(count - 1, bytes);
        auto const there = std::move(fresh);
        device.run([&] { device.copy(0, host.data(), there.data(), bytes); });
        CHECK(there.size() == bytes);
        CHECK(reinterpret_cast<std::uintptr_t>(host.data()) % gpipe::slot_alignment == 0);
        CHECK(reinterpret_cast<std::uintptr_t>(there.data()) % gpipe::slot_alignment == 0);
        CHECK(std::all_of(host.data(), host.data() + bytes,
                          [](std::byte b) { return b == std::byte{}; }));
        fresh = device.allocate(0, 1);
        CHECK(fresh.size() == 1);
    }
    CHECK(device.allocate(0, 0).size() == 0);
    for (std::size_t a = 0; a < count; ++a)
        for (std::size_t b = 0; b < count; ++b) {
            CHECK(device.link(a, b) == device.link(b, a));
            CHECK((a != b || device.link(a, b) == gpipe::Link::shared));
        }

    auto const host = device.allocate_host(3 * sizeof(int));
    auto const own = device.allocate(0, 3 * sizeof(int));
    bool const apart = Device::staged([] { return true; });
    gpipe::Mailbox<int> const box{numbers(host), apart ? numbers(own) : numbers(host), 3};
    for (int i = 0; i < 3; ++i) box.here[i] = 7 + i;
    device.run([&] {
        box.put(device, 0);
        put(device, 0, box.there + 1, 50);
        box.get(device, 0);
    });
    CHECK(std::vector<int>(box.here, box.here + 3) == std::vector<int>{7, 50, 9});
    if constexpr (gpipe::HostReadable<Device>)
        CHECK(*reinterpret_cast<int const*>(Device::host_view(bytes(box.there + 1))) == 50);

    device.await_writers(host.data());
}

/// How a run is walked: what happened, in order, and what each lane does.
struct SomeWalk {
    struct Log {
        int fed = 0, begun = 0;
        std::atomic<int> lanes{0};
        bool good = true;
        std::function<void()> feed;
        std::function<void(std::size_t lane)> walk;
        std::function<bool(std::size_t lane, std::size_t& at)> go_on; // where waits are refused
    };
    Log* log;

    void feed() const {
        CHECK(log->begun == 0);
        ++log->fed;
        if (log->feed) log->feed();
    }
    void begin(bool) const {
        CHECK(log->fed == 1);
        ++log->begun;
    }
    bool operator()(std::size_t lane) const noexcept {
        ++log->lanes;
        if (log->walk) log->walk(lane);
        return log->good;
    }
    template <class Copy> void deliver(Copy) const {}
    std::exception_ptr error() const { return std::make_exception_ptr(0); }
    bool go_on(std::size_t lane, gpipe::Progress& progress) const noexcept {
        if (log->go_on) return log->go_on(lane, progress.at);
        (*this)(lane);
        return true;
    }
};

/// Runs follow each other, as many under way as there may be, each fed and walked once, whatever
/// became of the one before.
template <class Device, class Put> void check_executor(Devices<Device>& all, Put put) {
    Device& device = all.device;
    constexpr std::size_t depth = Device::depth;
    std::size_t const lanes = device.lanes();
    auto const there = device.allocate(0, depth * (lanes + 1) * sizeof(int));
    auto const here = device.allocate_host(depth * (lanes + 1) * sizeof(int));
    int given = 0;
    auto const waiting = device.allocate_host(depth * sizeof(int));
    int const work = 0;
    bool under_way[depth] = {};
    for (int n = 0; n < 12; ++n) {
        std::size_t const slot = static_cast<std::size_t>(n) % depth;
        std::size_t const first = slot * (lanes + 1);
        if (std::exchange(under_way[slot], false)) {
            device.finish(slot);
            for (std::size_t i = 0; i < lanes; ++i)
                CHECK(numbers(here)[first + i] == n - static_cast<int>(depth));
            CHECK(numbers(here)[first + lanes] == 1000 + n - static_cast<int>(depth));
        }
        SomeWalk::Log log;
        log.good = n % 5 != 4;
        given = 1000 + n;
        log.feed = [&] {
            device.feed(0, bytes(numbers(there) + first + lanes), bytes(&given), sizeof(int),
                        bytes(numbers(waiting) + slot));
        };
        log.walk = [&](std::size_t lane) {
            put(device, lane, numbers(there) + first + lane, n);
            device.copy(lane, bytes(numbers(here) + first + lane),
                        bytes(numbers(there) + first + lane), sizeof(int));
            if (lane == 0)
                device.copy(0, bytes(numbers(here) + first + lanes),
                            bytes(numbers(there) + first + lanes), sizeof(int));
        };
        bool done = false;
        {
            auto feeding = device.feeding();
            gpipe::Ticket ticket;
            ticket.slot = slot;
            ticket.lanes = lanes;
            ticket.work = &work;
            done = device.submit(ticket, SomeWalk{&log});
            feeding.end();
        }
        given = -1;
        CHECK(log.fed == 1);
        CHECK(log.begun == 1);
        CHECK(log.lanes == static_cast<int>(lanes));
        CHECK(!device.spoilt());
        CHECK((log.good || device.launched()));
        if (log.good) {
            under_way[slot] = true;
            if (done) CHECK(numbers(here)[first] == n);
        } else {
            CHECK((done || depth > 1));
        }
    }
    device.forget();
    device.abort();
    for (std::size_t slot = 0; slot < depth; ++slot)
        if (under_way[slot]) device.finish(slot);
}

/// All of it.
template <class Device, class Put>
void check_device(std::size_t count, typename Device::Options options, Put put) {
    static_assert(gpipe::DeviceQueue<Device>);
    static_assert(gpipe::DeviceMemory<Device>);
    static_assert(gpipe::DeviceExecutor<Device>);
    static_assert(gpipe::DeviceRuntime<Device>);
    Devices<Device> all(count, options);
    check_queue(all, put);
    check_memory(all, count, put);
    check_executor(all, put);
}

} // namespace toy
