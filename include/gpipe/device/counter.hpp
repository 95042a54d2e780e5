#pragma once

#include <gpipe/core/version.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#if defined(__linux__)
#include <ctime>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace gpipe::detail {

/// A count that only grows, with one writer. Whoever waits for it polls for a while and then
/// sleeps. Publishing is a plain release store and one relaxed load: the sleeper pays for the order
/// between them, with a process-wide barrier between announcing itself and its last look
/// (membarrier(2)); where that is refused it sleeps for a short time at most.
class alignas(128) Counter {
  public:
    std::uint32_t load() const { return value_.load(std::memory_order_acquire); }

    void publish(std::uint32_t value) {
        value_.store(value, std::memory_order_release);
        if (sleepers_.load(std::memory_order_relaxed) != 0) wake();
    }

    /// Returns when the count has reached `value` (modulo wrapping).
    void wait(std::uint32_t value) {
        for (int poll = 0; poll < polls; ++poll) {
            if (reached(value)) return;
            if (poll >= hot_polls) pause();
            // Two lanes may share a core, woken there by each other: then only the one that waits
            // can let the other run, and both must look busy for the scheduler to part them.
            if (poll % polls_per_yield == polls_per_yield - 1) std::this_thread::yield();
        }
        sleep(value);
    }

    bool reached(std::uint32_t value) const {
        return static_cast<std::int32_t>(load() - value) >= 0;
    }

  private:
    // About 60 ns each on current x86: a tenth of a millisecond before the first system call.
    static constexpr int polls = 2000;
    static constexpr int hot_polls = 16;
    static constexpr int polls_per_yield = 64;

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

#if defined(__linux__)
    std::uint32_t* address() { return reinterpret_cast<std::uint32_t*>(&value_); }

    void sleep(std::uint32_t value) {
        // Registering again does nothing, and a sleeper has the time: no state to keep.
        bool const barrier =
            syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
        timespec const nap{0, barrier ? 100'000'000 : 500'000};
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        if (barrier) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
        for (;;) {
            std::uint32_t const seen = load();
            if (static_cast<std::int32_t>(seen - value) >= 0) break;
            syscall(SYS_futex, address(), FUTEX_WAIT_PRIVATE, seen, &nap, nullptr, 0);
        }
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    void wake() {
        syscall(SYS_futex, address(), FUTEX_WAKE_PRIVATE, 0x7FFFFFFF, nullptr, nullptr, 0);
    }
#else
    void sleep(std::uint32_t value) {
        while (!reached(value)) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    void wake() {}
#endif

    std::atomic<std::uint32_t> value_{0};
    std::atomic<std::uint32_t> sleepers_{0};
};

} // namespace gpipe::detail
