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
        auto const same = [=](std::size_t, std::int32_t at) { return at == index ? 1u : 0u; };
        if (team.sum(row, same, of) > 0) return;
        std::size_t const stride = width;
        Real<T>* const entry = to + static_cast<std::size_t>(index) * stride;
        auto const add = [](std::size_t, Real<T> sum, Real<T> in) { return sum + in; };
        team.map(stride, entry, add, entry, from + row * stride);
        // Few rows have one index, so a team looks together where there is one more to add.
        auto const later = [=](std::size_t begin, std::size_t end) {
            auto const is = [=](std::size_t i, std::int32_t at) {
                return begin + i > row && at == index ? 1u : 0u;
            };
            return team.sum(end - begin, is, of + begin);
        };
        unsigned left = later(0, rows);
        for (std::size_t begin = row / at_once * at_once; begin < rows && left > 0;
             begin += at_once) {
            std::size_t const end = begin + at_once < rows ? begin + at_once : rows;
            unsigned const here = later(begin, end);
            if (here == 0) continue;
            for (std::size_t r = row < begin ? begin : row + 1; r < end; ++r)
                if (of[r] == index) team.map(stride, entry, add, entry, from + r * stride);
            left -= here;
        }
    }
};

} // namespace gpt
