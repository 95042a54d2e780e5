#pragma once

#include <gpipe/core/version.hpp>

/// @file
/// The library's functions, in every program anew or compiled once: target gpipe::gpipe or
/// gpipe::compiled of CMake. A convention, so that a new function follows by itself:
/// tests/scripts/plain-functions finds those without the word.

/// @def GPIPE_INLINE
/// In place of `inline` before every function that is no template, constexpr or not; behind
/// `[[attributes]]`, and before its declaration, too, where that is apart. The compiler of a
/// program that links gpipe::compiled knows the body, and evaluates it in constants, but makes no
/// code of it; cmake/compiled.cpp holds the code of all.
/// @def GPIPE_INSTANTIATE
/// The same for a class template with these arguments, once all its members are defined:
/// GPIPE_INSTANTIATE(class Machine<device::Host>);
/// @def GPIPE_RUNS_ONCE_BEGIN
/// Around a header whose functions are large and run at construction: where programs compile them
/// anew, g++ optimises them as under -O1, and clang for size. That takes a fifth, or a tenth, off
/// the time that they need for a small program, and makes planning a tenth, or a third, slower.
/// @def GPIPE_RUNS_ONCE_END
/// See GPIPE_RUNS_ONCE_BEGIN.
#if defined GPIPE_COMPILED_SOURCE
#define GPIPE_INLINE __attribute__((used)) inline
#define GPIPE_INSTANTIATE(...) template __VA_ARGS__
#elif defined GPIPE_COMPILED
// gnu_inline makes no code, the rest keeps g++ and clang from inlining and thus from optimising
// bodies that go nowhere. (g++ knows no noinline beside gnu_inline.)
#ifdef __clang__
#pragma clang diagnostic ignored "-Wgnu-inline-cpp-without-extern" // members cannot be extern
#define GPIPE_INLINE __attribute__((gnu_inline, noinline)) inline
#else
#define GPIPE_INLINE __attribute__((gnu_inline, optimize("O0"))) inline
#endif
#define GPIPE_INSTANTIATE(...) extern template __VA_ARGS__
#else
#define GPIPE_INLINE inline
#define GPIPE_INSTANTIATE(...) static_assert(true)
#endif

#if !defined __OPTIMIZE__ || defined __OPTIMIZE_SIZE__ || defined GPIPE_COMPILED ||                \
    defined GPIPE_COMPILED_SOURCE || defined __CUDACC__
#define GPIPE_RUNS_ONCE_BEGIN
#define GPIPE_RUNS_ONCE_END
#elif defined __clang__
#define GPIPE_RUNS_ONCE_BEGIN                                                                      \
    _Pragma("clang attribute push(__attribute__((minsize)), apply_to = function)")
#define GPIPE_RUNS_ONCE_END _Pragma("clang attribute pop")
#else
#define GPIPE_RUNS_ONCE_BEGIN _Pragma("GCC push_options") _Pragma("GCC optimize(\"O1\")")
#define GPIPE_RUNS_ONCE_END _Pragma("GCC pop_options")
#endif
