#pragma once

#include <cstddef>

namespace gpt {

/// A factor of a product: row-major, `stride` elements from one row to the next.
template <class T> struct Factor {
    T const* data = nullptr;
    std::size_t stride = 0;
    bool transposed = false;
};

template <class T> Factor<T> rows_of(T const* data, std::size_t stride) {
    return {data, stride, false};
}
template <class T> Factor<T> transpose_of(T const* data, std::size_t stride) {
    return {data, stride, true};
}

/// The extents of a product: (rows x inner) times (inner x columns).
struct Extents {
    std::size_t rows = 0;
    std::size_t columns = 0;
    std::size_t inner = 0;
};

/// Elements from one matrix to the next.
struct Steps {
    std::size_t sample = 0;
    std::size_t head = 0;
};

/// One product for each head of each sample, and where the next one's factors and result are.
struct Products {
    std::size_t samples = 1;
    std::size_t heads = 1;
    Steps a, b, c;
};

} // namespace gpt
