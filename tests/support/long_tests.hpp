#pragma once

#include <cstddef>
#include <cstdlib>

namespace toy {

/// Whether sweeps are to be long.
inline bool long_tests() {
    char const* const value = std::getenv("GPIPE_LONG_TESTS");
    return value && *value && *value != '0';
}

/// Whether a sanitizer watches. (Each compiler has a macro of its own.)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
inline constexpr bool sanitized =
    __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool sanitized = false;
#endif

/// Of how many points of a large sweep one is enough: fewer under sanitizers, which take several
/// times as long. A prime, so that no loop within the sweep keeps step with it.
inline std::size_t one_of(std::size_t points) {
    return long_tests() ? 1 : points * (sanitized ? 37 : 1);
}
/// Whether a sweep leaves this point out, which it counts: all but one of so many, under
/// sanitizers.
inline bool left_out(std::size_t& point, std::size_t points) {
    return sanitized && !long_tests() && point++ % points != 0;
}
/// How many of so many random cases are tried: half of them, and of those a tenth under sanitizers,
/// which find what they can in them.
inline std::size_t cases(std::size_t count) {
    std::size_t const share = long_tests() ? 1 : sanitized ? 20 : 2;
    return (count + share - 1) / share;
}

} // namespace toy
