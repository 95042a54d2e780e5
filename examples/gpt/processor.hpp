#pragma once

namespace gpt {

/// What this program was compiled for and this processor does not have; null if nothing is missing.
/// Release builds are made for the processor of the machine that compiles.
inline char const* missing_instructions() {
#if defined(__AVX512F__)
    if (!__builtin_cpu_supports("avx512f")) return "AVX-512";
#endif
#if defined(__AVX2__)
    if (!__builtin_cpu_supports("avx2")) return "AVX2";
#endif
#if defined(__FMA__)
    if (!__builtin_cpu_supports("fma")) return "FMA";
#endif
    return nullptr;
}

} // namespace gpt
