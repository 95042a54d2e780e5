#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/core/preemptions.hpp>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <utility>

#include <sched.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace gpipe::detail {

/// Who waits for what others do looks for a while whether it is there, and then sleeps until it is
/// rung for. Ringing is one relaxed load while nobody sleeps: a sleeper pays for the order between
/// what was done before and that load, with a process-wide barrier between announcing itself and
/// its last look (membarrier(2)); where that is refused it sleeps for a short time at most.
class alignas(128) Bell {
  public:
    /// Of many who wait for each other's messages. Where others want their cores they sleep at
    /// once: who is woken comes next, and who yields waits for everybody's time slice.
    struct Many {};
    /// How often one looks before it sleeps: for some tens of microseconds, about 60 ns each on
    /// current x86; or, where each has a core, for a millisecond. To wake somebody can take 100
    /// microseconds, on virtual machines above all, which all behind him wait for, too. But where
    /// others want a core it is theirs sooner, or that of one of us who has lost his to them.
    static constexpr int brief = 1000, patient = 16384;

    explicit Bell(int looks = brief) : looks_(looks) {}
    explicit Bell(Many) : many_(true) {}

    /// Whoever sleeps looks again, and finds what this thread has done before by atomic stores.
    void ring() noexcept {
        if (sleepers_.load(std::memory_order_relaxed) != 0) wake();
    }

    /// Returns once there() says so, which is asked again and again.
    template <class There> void wait(There there) noexcept {
        for (int look = many_ && is_crowded() ? looks_ : 0; look < looks_; ++look) {
            if (there()) return;
            if (look == brief && lost_core()) break;
            if (look >= hot_looks) pause();
            // Two threads may share a core, woken there by each other: then only the one that waits
            // can let the other run, and both must look busy for the scheduler to part them.
            if (look % looks_per_yield == looks_per_yield - 1 && yields_for_long()) break;
        }
        while (!there()) sleep(there);
    }

  private:
    static constexpr int hot_looks = 16;
    static constexpr int looks_per_yield = 64;
    // A time slice of somebody else takes longer; some waits later it may be quiet again.
    static constexpr double long_yield = 500e-6;
    static constexpr int crowded_waits = 1000, crowded_long_waits = 2;

    bool is_crowded() {
        int const left = crowded_.load(std::memory_order_relaxed);
        if (left > 0) crowded_.store(left - 1, std::memory_order_relaxed);
        return left > 0;
    }
    // Whether this is no time to look for long: since it last asked this thread has lost its core
    // to others, or one has who asked just before.
    bool lost_core() {
        thread_local std::uint64_t known = 0;
        std::uint64_t const times = preemptions();
        if (times != std::exchange(known, times))
            crowded_.store(crowded_long_waits, std::memory_order_relaxed);
        return is_crowded();
    }
    bool yields_for_long() {
        if (!many_) {
            sched_yield();
            return false;
        }
        double const begin = seconds_now();
        sched_yield();
        if (seconds_now() - begin < long_yield) return false;
        crowded_.store(crowded_waits, std::memory_order_relaxed);
        return true;
    }
    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

#if defined(__linux__)
    template <class There> void sleep(There& there) {
        // Registering again does nothing, and a sleeper has the time: no state to keep.
        bool const barrier =
            syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
        timespec const nap{0, barrier ? 100'000'000 : 500'000};
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        if (barrier) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
        // A ring between the look and the call has changed the count, unless there were 2^32 of
        // them; then the nap ends.
        std::uint32_t const seen = rung_.load(std::memory_order_acquire);
        if (!there())
            syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&rung_), FUTEX_WAIT_PRIVATE, seen,
                    &nap, nullptr, 0);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
    [[gnu::noinline]] void wake() {
        rung_.fetch_add(1, std::memory_order_release);
        syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&rung_), FUTEX_WAKE_PRIVATE, 0x7FFFFFFF,
                nullptr, nullptr, 0);
    }
#else
    template <class There> void sleep(There&) {
        timespec const nap{0, 50'000};
        nanosleep(&nap, nullptr);
    }
    void wake() {}
#endif

    std::atomic<std::uint32_t> rung_{0};
    static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
    std::atomic<std::uint32_t> sleepers_{0};
    std::atomic<int> crowded_{0}; // so many waits more
    int looks_ = brief;
    bool many_ = false;
};

} // namespace gpipe::detail
