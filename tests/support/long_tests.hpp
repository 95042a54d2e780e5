#pragma once

#include <cstdlib>

namespace toy {

/// Whether sweeps are to be long.
inline bool long_tests() {
    char const* const value = std::getenv("GPIPE_LONG_TESTS");
    return value && *value && *value != '0';
}

} // namespace toy
