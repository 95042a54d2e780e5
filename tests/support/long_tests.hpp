#pragma once

#include <cstddef>
#include <cstdlib>

namespace toy {

/// Whether sweeps are to be long.
inline bool long_tests() {
    char const* const value = std::getenv("GPIPE_LONG_TESTS");
    return value && *value && *value != '0';
}

/// Of how many points of a large sweep one is enough: fewer under sanitizers, which take several
/// times as long.
inline std::size_t one_of(std::size_t points) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    points *= 15;
#endif
    return long_tests() ? 1 : points;
}

} // namespace toy
