#pragma once

#include "gpt/math.hpp"

#include <gpipe/core/host_device.hpp>

#include <cstddef>
#include <cstdint>

namespace gpt {

/// One row of to[indices[row]] += from[row], for teams that work at the same time: the first row
/// with an index adds all of its rows, in their order, and the others do nothing. So no two add to
/// one number, and the order is that of a loop.
template <class T> struct ScatterRow {
    std::size_t rows, vocabulary, width;
    std::int32_t const* indices;
    T const* from;
    Real<T>* to;

    static constexpr std::size_t at_once = 256; ///< rows

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        std::int32_t const* const of = indices;
        std::int32_t const index = of[row];
        if (static_cast<std::size_t>(index) >= vocabulary) return;
        auto const is_same = [=](std::size_t r) { return of[r] == index ? 1u : 0u; };
        if (team.sum(row, is_same) > 0) return;
        std::size_t const stride = width;
        T const* const in = from;
        Real<T>* const entry = to + static_cast<std::size_t>(index) * stride;
        // Few rows have one index, so a team looks together where there is one to add.
        for (std::size_t begin = row; begin < rows; begin += at_once) {
            std::size_t const end = begin + at_once < rows ? begin + at_once : rows;
            if (team.sum(end - begin, [=](std::size_t i) { return is_same(begin + i); }) == 0)
                continue;
            team.each(stride, [=](std::size_t i) {
                Real<T> sum = entry[i];
                for (std::size_t r = begin; r < end; ++r)
                    if (of[r] == index) sum += real(in[r * stride + i]);
                entry[i] = sum;
            });
        }
    }
};

} // namespace gpt
