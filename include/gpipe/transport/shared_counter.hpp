#pragma once

#include <gpipe/core/version.hpp>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpipe::detail {

/// A number that one process counts up, and others on the same host wait for, in memory that they
/// share. (std::atomic::wait() is for the threads of one process.) Whoever waits sleeps in the
/// kernel, and who counts calls that only where somebody does.
class SharedCounter {
  public:
    /// What it is. What was written before it became that is seen.
    std::uint64_t get() const { return count_.load(std::memory_order_acquire); }
    /// Sets it, and wakes those who wait.
    void set(std::uint64_t count) {
        // Either this sees who sleeps, or he sees the count: both are in one order.
        count_.store(count, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
        rings_.fetch_add(1, std::memory_order_seq_cst);
        call(FUTEX_WAKE, INT_MAX, nullptr);
    }
    /// Sleeps until ready(), which looks at the count, may be true, or for so many nanoseconds.
    template <class Ready> void sleep(Ready ready, long nanoseconds) {
        timespec const most{0, nanoseconds};
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        std::uint32_t const rings = rings_.load(std::memory_order_seq_cst);
        if (!ready()) call(FUTEX_WAIT, static_cast<int>(rings), &most);
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }

  private:
    // Not FUTEX_PRIVATE: of whoever has mapped the memory.
    void call(int what, int value, timespec const* most) {
        ::syscall(SYS_futex, &rings_, what, value, most, nullptr, 0);
    }

    std::atomic<std::uint64_t> count_{0};
    std::atomic<std::uint32_t> sleepers_{0}, rings_{0};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free &&
              sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

} // namespace gpipe::detail
