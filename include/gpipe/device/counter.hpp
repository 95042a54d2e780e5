#pragma once

#include <gpipe/core/version.hpp>

#include <atomic>
#include <bit>
#include <cstdint>
#include <thread>

#if defined(__linux__)
#include <ctime>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <chrono>
#endif

namespace gpipe::detail {

/// A count that only grows, with one writer. It has 64 bits: a thousand million marks a second take
/// 584 years to use them up, so no mark can be so old that it is taken for one ahead. Whoever waits
/// for it polls for a while and then sleeps. Publishing is a plain release store and one relaxed
/// load: the sleeper pays for the order between them, with a process-wide barrier between
/// announcing itself and its last look (membarrier(2)); where that is refused it sleeps for a short
/// time at most.
class alignas(128) Counter {
  public:
    std::uint64_t load() const noexcept { return value_.load(std::memory_order_acquire); }

    void publish(std::uint64_t value) noexcept {
        value_.store(value, std::memory_order_release);
        if (sleepers_.load(std::memory_order_relaxed) != 0) wake();
    }

    /// Returns when the count has reached `value`.
    void wait(std::uint64_t value) noexcept {
        if (!reached(value)) poll_and_sleep(value);
    }

    bool reached(std::uint64_t value) const { return load() >= value; }

  private:
    // Not inline, as wake(): whoever waits would hold both.
    [[gnu::cold, gnu::noinline]] void poll_and_sleep(std::uint64_t value) noexcept {
        for (int poll = 0; poll < polls; ++poll) {
            if (reached(value)) return;
            if (poll >= hot_polls) pause();
            // Two lanes may share a core, woken there by each other: then only the one that waits
            // can let the other run, and both must look busy for the scheduler to part them.
            if (poll % polls_per_yield == polls_per_yield - 1) std::this_thread::yield();
        }
        sleep(value);
    }

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
    // A futex has 32 bits: the half of the count that changes with every mark. One that comes
    // between the last look and the call has changed it, unless it is 2^32 marks ahead; then the
    // nap ends.
    std::uint32_t* low_half() {
        return reinterpret_cast<std::uint32_t*>(&value_) +
               (std::endian::native == std::endian::big);
    }

    void sleep(std::uint64_t value) {
        // Registering again does nothing, and a sleeper has the time: no state to keep.
        bool const barrier =
            syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
        timespec const nap{0, barrier ? 100'000'000 : 500'000};
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        if (barrier) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
        for (;;) {
            std::uint64_t const seen = load();
            if (seen >= value) break;
            syscall(SYS_futex, low_half(), FUTEX_WAIT_PRIVATE, static_cast<std::uint32_t>(seen),
                    &nap, nullptr, 0);
        }
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    [[gnu::cold, gnu::noinline]] void wake() {
        syscall(SYS_futex, low_half(), FUTEX_WAKE_PRIVATE, 0x7FFFFFFF, nullptr, nullptr, 0);
    }
#else
    void sleep(std::uint64_t value) {
        while (!reached(value)) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    void wake() {}
#endif

    std::atomic<std::uint64_t> value_{0};
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
    std::atomic<std::uint32_t> sleepers_{0};
};

} // namespace gpipe::detail
