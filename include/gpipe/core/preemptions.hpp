#pragma once

#include <gpipe/core/compiled.hpp>

#include <cstdint>

#if defined(__linux__)
#include <sys/resource.h>
#endif

namespace gpipe::detail {

// How often this thread wanted to go on and the system gave its core to another: involuntary
// context switches, getrusage(2), which takes a quarter of a microsecond. 0 where the system does
// not say.
GPIPE_INLINE std::uint64_t preemptions() noexcept {
#if defined(RUSAGE_THREAD)
    rusage usage{};
    if (getrusage(RUSAGE_THREAD, &usage) == 0) return static_cast<std::uint64_t>(usage.ru_nivcsw);
#endif
    return 0;
}

} // namespace gpipe::detail
