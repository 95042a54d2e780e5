// The two devices by themselves: the host's pool and what its threads wait at, and the device for
// tests.

#include "support/deferred.hpp"
#include "support/device_law.hpp"
#include "support/remote.hpp"

#include <gpipe/device/host.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <doctest/doctest.h>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sched.h>

using gpipe::detail::Bell;
using gpipe::device::Host;
using toy::Deferred;

// All devices that need no GPU.
TEST_CASE_TEMPLATE("F4 G2 a device keeps what queue, memory and executor promise", Device, Host,
                   Deferred, toy::Remote) {
    for (auto const& [count, apart] : {std::pair{1, false}, {3, false}, {1, true}, {3, true}}) {
        typename Device::Options options{};
        if constexpr (std::is_same_v<Device, Host>) options = {std::size_t(count), apart};
        if (apart && !std::is_same_v<Device, Host>) break;
        toy::check_device<Device>(count, options,
                                  [](Device& device, std::size_t stream, int* to, int value) {
                                      device.launch(stream, [=]() noexcept { *to = value; });
                                  });
    }
}

namespace {

// What lacks one thing is no device: each hides it from another.
struct NoPolicy : Deferred {
    using Deferred::Deferred;
    using policy_kind = void;
};
struct NoQueue : Deferred {
    using Deferred::Deferred;
    void wait();
};
struct NoMemory : Deferred {
    using Deferred::Deferred;
    void feeding();
};
struct NoExecutor : Deferred {
    using Deferred::Deferred;
    void submit();
};
static_assert(gpipe::DeviceQueue<NoPolicy> && !gpipe::DeviceRuntime<NoPolicy>);
static_assert(!gpipe::DeviceQueue<NoQueue> && gpipe::DeviceMemory<NoQueue>);
static_assert(!gpipe::DeviceMemory<NoMemory> && gpipe::DeviceExecutor<NoMemory>);
static_assert(!gpipe::DeviceExecutor<NoExecutor> && gpipe::DeviceQueue<NoExecutor>);

// A count that is waited for.
class Counter {
  public:
    Counter() = default;
    template <class How> explicit Counter(How how) : bell_(how) {}
    void publish(std::uint32_t value) {
        value_.store(value, std::memory_order_release);
        bell_.ring();
    }
    void wait(std::uint32_t value) {
        bell_.wait([&] { return value_.load(std::memory_order_acquire) >= value; });
    }

  private:
    std::atomic<std::uint32_t> value_{0};
    Bell bell_;
};

// Has every lane of the host walk on until it has come to its end.
void go_on(Host& host, std::size_t lanes,
           std::function<bool(std::size_t lane, std::size_t& at)> each) {
    toy::SomeWalk::Log log;
    log.go_on = std::move(each);
    gpipe::Ticket ticket;
    ticket.lanes = lanes;
    CHECK(host.submit(ticket, toy::SomeWalk{&log}));
}
// The same of lanes that wait for nobody.
void walk(Host& host, std::size_t lanes, std::function<void(std::size_t)> each) {
    toy::SomeWalk::Log log;
    log.walk = std::move(each);
    gpipe::Ticket ticket;
    ticket.lanes = lanes;
    CHECK(host.submit(ticket, toy::SomeWalk{&log}));
}

} // namespace

TEST_CASE("a bell wakes every sleeper, however long it slept") {
    for (int round = 0; round < 5; ++round) {
        Counter counter;
        std::atomic<int> woken{0};
        std::vector<std::thread> sleepers;
        for (std::uint32_t i = 0; i < 6; ++i)
            sleepers.emplace_back([&, i] {
                counter.wait(1 + i / 2); // some for the first mark, some for later ones
                ++woken;
            });
        // Long enough for them to have given up polling.
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        CHECK(woken == 0);
        for (std::uint32_t value = 1; value <= 3; ++value) counter.publish(value);
        for (auto& sleeper : sleepers) sleeper.join();
        CHECK(woken == 6);
    }
}

namespace {

// Two threads take turns; whether each reads what the other wrote.
bool take_turns(Counter&& there, Counter&& back, std::uint32_t rounds) {
    std::uint32_t value = 0; // not atomic: the counters order the accesses
    std::thread other([&] {
        for (std::uint32_t i = 1; i <= rounds; ++i) {
            there.wait(i);
            value = 2 * value + i;
            back.publish(i);
        }
    });
    std::uint32_t expected = 0;
    bool right = true;
    for (std::uint32_t i = 1; i <= rounds; ++i) {
        value += 1;
        expected = 2 * (expected + 1) + i;
        there.publish(i);
        back.wait(i);
        right = right && value == expected;
    }
    other.join();
    return right;
}

} // namespace

TEST_CASE("who was rung for finds what was written before") {
    CHECK(take_turns({}, {}, 20000));
    CHECK(take_turns(Counter(Bell::patient), Counter(Bell::patient), 20000));
    CHECK(take_turns(Counter(Bell::Many{}), Counter(Bell::Many{}), 20000));
}

TEST_CASE("and so does he while others want the cores") {
    std::atomic<bool> ended{false};
    std::vector<std::thread> others;
    for (unsigned i = 0; i <= std::thread::hardware_concurrency(); ++i)
        others.emplace_back([&] {
            while (!ended) {
            }
        });
    CHECK(take_turns(Counter(Bell::patient), Counter(Bell::patient), 300));
    CHECK(take_turns(Counter(Bell::Many{}), Counter(Bell::Many{}), 5000));
    ended = true;
    for (auto& other : others) other.join();
}

TEST_CASE("the host walks every lane once per run, on as many threads as asked for at the most") {
    for (std::size_t threads : {1, 2, 3, 8})
        for (std::size_t lanes : {1, 2, 3, 8}) {
            Host host({threads}, lanes);
            std::set<std::thread::id> all;
            for (int run = 0; run < 50; ++run) {
                std::vector<std::thread::id> walked(host.lanes());
                std::vector<int> times(host.lanes());
                walk(host, host.lanes(), [&](std::size_t lane) {
                    walked[lane] = std::this_thread::get_id();
                    ++times[lane];
                });
                CHECK(times == std::vector<int>(host.lanes(), 1));
                all.insert(walked.begin(), walked.end());
            }
            CHECK(all.size() <= host.walkers());
            if (host.walkers() == 1) CHECK(*all.begin() == std::this_thread::get_id());
        }
}

TEST_CASE(
    "who walks nothing himself returns at once from a run that overlaps with the next, unless it "
    "reads his arrays: then when it has") {
    for (std::size_t lanes : {1, 3}) {
        Host host({lanes, true}, lanes);
        std::vector<std::atomic<int>> walked(lanes);
        std::atomic<bool> may = false, is_caller = false;
        toy::SomeWalk::Log logs[Host::depth + 2]; // of each run
        for (toy::SomeWalk::Log& log : logs)
            log.walk = [&, caller = std::this_thread::get_id()](std::size_t lane) {
                if (std::this_thread::get_id() == caller) is_caller = true;
                while (!may) std::this_thread::yield();
                ++walked[lane];
            };
        gpipe::Ticket ticket;
        ticket.lanes = lanes;
        ticket.work = &host;
        ticket.overlaps = true;
        ticket.reader = gpipe::Ticket::nobody;
        for (ticket.slot = 0; ticket.slot < Host::depth; ++ticket.slot)
            CHECK_FALSE(host.submit(ticket, toy::SomeWalk{&logs[ticket.slot]}));
        for (auto const& times : walked) CHECK(times == 0);
        may = true;
        for (std::size_t slot = 0; slot < Host::depth; ++slot) {
            host.finish(slot);
            for (auto const& times : walked) CHECK(times >= int(slot) + 1);
        }
        ticket.slot = 0;
        ticket.overlaps = false; // and this is done when it returns
        CHECK(host.submit(ticket, toy::SomeWalk{&logs[Host::depth]}));
        for (auto const& times : walked) CHECK(times == 3);
        ticket.overlaps = true;
        ticket.reader = lanes - 1;
        CHECK_FALSE(host.submit(ticket, toy::SomeWalk{&logs[Host::depth + 1]}));
        CHECK(walked[lanes - 1] == 4);
        host.finish(0);
        CHECK_FALSE(is_caller);
    }
}

TEST_CASE("a thread that does not come on holds up no lane but the one it is in") {
    // One lane ends when all others have: whoever is in it, the other thread walks these.
    for (std::size_t slow = 0; slow < 4; ++slow) {
        Host host({2}, 4);
        for (int run = 0; run < 20; ++run) {
            std::atomic<int> ended{0};
            walk(host, 4, [&](std::size_t lane) {
                while (lane == slow && ended < 3) std::this_thread::yield();
                ++ended;
            });
            CHECK(ended == 4);
        }
    }
}

TEST_CASE(
    "F6 the host has a lane for each device, and as many threads as cores that are left to it "
    "if it may choose, but no more than devices") {
    auto const has = [](Host const& host, std::size_t walkers, std::size_t lanes) {
        CHECK(host.walkers() == walkers);
        CHECK(host.lanes() == lanes);
    };
    has(Host({8}, 3), 3, 3);
    has(Host({2}, 3), 2, 3);
    has(Host({1}, 3), 1, 1); // all in one
    has(Host({0}, 1), 1, 1);
    // As a launcher leaves a process some of those that there are.
    cpu_set_t all, one;
    REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
    auto const cores = static_cast<std::size_t>(CPU_COUNT(&all));
    has(Host({0}, 64), std::min<std::size_t>(cores, 64), cores == 1 ? 1 : 64);
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    has(Host({0}, 64), 1, 1);
    REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
}

TEST_CASE("lanes of the host wait for each other's marks, with many more of them than threads, or "
          "of these than cores") {
    constexpr std::size_t lanes = 16;
    for (std::size_t const threads : {std::size_t{2}, lanes}) {
        Host host({threads}, lanes);
        std::uint64_t last = 0;
        std::uint32_t base = 0;
        for (int run = 0; run < 100; ++run) {
            // A value passes through all lanes in turn, twice.
            std::uint64_t value = static_cast<std::uint64_t>(run);
            go_on(host, lanes, [&](std::size_t lane, std::size_t& done) {
                for (; done < 2; ++done) {
                    std::uint32_t const round = static_cast<std::uint32_t>(done) + 1;
                    if (lane > 0 && !host.wait(lane, lane - 1, base + round)) return false;
                    if (lane == 0 && round > 1 && !host.wait(0, lanes - 1, base + round - 1))
                        return false;
                    host.launch(lane, [&]() noexcept { value = value * 3 + lane; });
                    host.record(lane, base + round);
                }
                if (lane + 1 == lanes) last = value; // the others may still see it change
                return true;
            });
            std::uint64_t expected = static_cast<std::uint64_t>(run);
            for (int round = 0; round < 2; ++round)
                for (std::size_t lane = 0; lane < lanes; ++lane) expected = expected * 3 + lane;
            CHECK(value == expected);
            CHECK(last == expected);
            base += 3;
        }
    }
}

TEST_CASE("a host that ran nothing, and one that just ran, are destroyed at once") {
    for (int i = 0; i < 200; ++i) {
        Host idle({4}, 4);
        Host busy({4}, 4);
        std::atomic<int> walks{0};
        walk(busy, 4, [&](std::size_t) { ++walks; });
        CHECK(walks == 4);
    }
}

TEST_CASE(
    "the deferred device runs nothing before run() drains, keeps streams and marks, and takes "
    "every order that they allow") {
    // Streams 0: a, mark 1, b; 1: wait for it, c; 2: d. So a before b, a before c.
    std::set<std::string> seen;
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        Deferred device({seed, nullptr}, 3);
        std::string log;
        device.run([&] {
            device.launch(0, [&] { log += 'a'; });
            device.record(0, 1);
            device.launch(0, [&] { log += 'b'; });
            device.wait(1, 0, 1);
            device.launch(1, [&] { log += 'c'; });
            device.launch(2, [&] { log += 'd'; });
            CHECK(log.empty());
        });
        CHECK(log.size() == 4);
        CHECK(log.find('a') < log.find('b'));
        CHECK(log.find('a') < log.find('c'));
        seen.insert(log);
    }
    // Of 24 orders, 8 have a before b and c.
    CHECK(seen.size() == 8);
}

TEST_CASE("the deferred device refuses a wait for a mark that nobody has recorded yet") {
    Deferred device({0, nullptr}, 2);
    CHECK_THROWS_AS(device.run([&] {
        device.wait(1, 0, 1);
        device.record(0, 1);
    }),
                    std::logic_error);
}

TEST_CASE("the deferred device notices who writes beside its memory") {
    Deferred device({0, nullptr}, 1);
    auto const buffer = device.allocate(0, 512);
    CHECK(buffer.intact());
    std::byte const old = buffer.data()[-1];
    buffer.data()[-1] = std::byte{0};
    CHECK(!buffer.intact());
    buffer.data()[-1] = old;
    buffer.data()[512] = std::byte{0};
    CHECK(!buffer.intact());
}

TEST_CASE("a Host for which the system has no thread says so, and the next one has them") {
    pthread_attr_t before, larger; // stacks for which there are no addresses
    REQUIRE(pthread_getattr_default_np(&before) == 0);
    REQUIRE(pthread_attr_init(&larger) == 0);
    REQUIRE(pthread_attr_setstacksize(&larger, std::size_t{1} << 47) == 0);
    REQUIRE(pthread_setattr_default_np(&larger) == 0);
    CHECK_THROWS_AS(Host({.threads = 3}, 3), std::system_error);
    REQUIRE(pthread_setattr_default_np(&before) == 0);
    CHECK_NOTHROW(Host({.threads = 3}, 3));
    pthread_attr_destroy(&larger);
    pthread_attr_destroy(&before);
}
