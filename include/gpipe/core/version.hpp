#pragma once

// First of all that is included, by every header: an older language would otherwise be met by a
// hundred errors about it. The #include has the compiler stop here.
#if __cplusplus < 202002L
#error gpipe needs C++20: compile with -std=c++20 (or later; nvcc, too, has to be told)
#include <gpipe_needs_-std=c++20>
#endif
// Likewise without exceptions, by which all is said that goes wrong.
#ifndef __cpp_exceptions
#error gpipe needs exceptions: compile without -fno-exceptions
#include <gpipe_needs_-fexceptions>
#endif

/// The version of the library. What may change between versions is in CONTRIBUTING.md.
///@{
#define GPIPE_VERSION_MAJOR 0
#define GPIPE_VERSION_MINOR 1
#define GPIPE_VERSION_PATCH 0
///@}

/// As one number that can be compared in \#if: 100 for 0.1.0, 10203 for 1.2.3.
#define GPIPE_VERSION                                                                              \
    (GPIPE_VERSION_MAJOR * 10000 + GPIPE_VERSION_MINOR * 100 + GPIPE_VERSION_PATCH)
