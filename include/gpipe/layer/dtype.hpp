#pragma once

#include <gpipe/core/compiled.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace gpipe {

/// What the elements of a tensor are, where no type can say it: in files, and in what is said of
/// tensors. The names are those of safetensors.
enum class Dtype : std::uint8_t {
    other, ///< a type of the user's own
    F64,
    F32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    BOOL
};

/// The name of an element type, and its bytes.
struct DtypeInfo {
    std::string_view name; ///< as safetensors files have it
    std::size_t bytes = 0; ///< of one element
};
/// All of them, by Dtype.
inline constexpr std::array<DtypeInfo, 14> dtypes{{{"other", 0},
                                                   {"F64", 8},
                                                   {"F32", 4},
                                                   {"F16", 2},
                                                   {"BF16", 2},
                                                   {"I64", 8},
                                                   {"I32", 4},
                                                   {"I16", 2},
                                                   {"I8", 1},
                                                   {"U64", 8},
                                                   {"U32", 4},
                                                   {"U16", 2},
                                                   {"U8", 1},
                                                   {"BOOL", 1}}};
/// Of one of them.
GPIPE_INLINE constexpr DtypeInfo const& info(Dtype dtype) {
    return dtypes[static_cast<std::size_t>(dtype)];
}

namespace detail {

template <class T> consteval Dtype arithmetic_dtype() {
    constexpr bool whole = std::is_integral_v<T>;
    if (!std::is_arithmetic_v<T>) return Dtype::other;
    if (std::is_same_v<T, bool>) return Dtype::BOOL;
    switch (sizeof(T)) {
    case 8:
        return !whole ? Dtype::F64 : std::is_signed_v<T> ? Dtype::I64 : Dtype::U64;
    case 4:
        return !whole ? Dtype::F32 : std::is_signed_v<T> ? Dtype::I32 : Dtype::U32;
    case 2:
        return std::is_signed_v<T> ? Dtype::I16 : Dtype::U16;
    case 1:
        return std::is_signed_v<T> ? Dtype::I8 : Dtype::U8;
    default:
        return Dtype::other; // long double
    }
}

} // namespace detail

/// The Dtype of T. Specialise it for a type of your own that has the bits of one of these
/// (gpipe/cuda/half.cuh does so for those of CUDA).
template <class T> struct DtypeOf : std::integral_constant<Dtype, detail::arithmetic_dtype<T>()> {};

} // namespace gpipe
