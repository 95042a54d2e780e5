#pragma once

#include <chrono>
#include <ctime>
#include <thread>

namespace benchmark {

inline double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/// Seconds that all threads of this process have run.
inline double processor_seconds() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Returns when no thread of this process spins any more: pools that wait for work would falsify
/// whatever is timed next. False if one still does after a tenth of a second.
inline bool wait_until_quiet() {
    using namespace std::chrono_literals;
    for (int wait = 0; wait < 100; ++wait) {
        double const begin = processor_seconds();
        std::this_thread::sleep_for(1ms);
        if (processor_seconds() - begin < 1e-4) return true;
    }
    return false;
}

} // namespace benchmark
