#pragma once

#include "gpt/math.hpp"

#include <gpipe/core/host_device.hpp>

#include <cmath>
#include <cstddef>

namespace gpt {

/// The heads whose scores are in memory at once: `count` of each sample, from head `first` of its
/// `all`. A row is that of one position: sample by sample, head by head.
struct HeadGroup {
    std::size_t first, count, all;

    /// The number of the row's head among those of all samples.
    template <std::size_t context> GPIPE_HOST_DEVICE std::size_t head(std::size_t row) const {
        std::size_t const head = row / context;
        return head / count * all + first + head % count;
    }
};

/// One row of scores to probabilities, in place: a position sees itself and those before it. Keeps
/// the logarithm of the row's sum.
template <std::size_t context, class T> struct CausalSoftmax {
    HeadGroup group;
    T* scores;
    T* log_sums;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        std::size_t const position = row % context;
        std::size_t const seen = position + 1;
        T* const p = scores + row * context;
        T const most = team.most(p, seen);
        T const sum = team.sum(seen, [=](std::size_t j) { return exponential(p[j] - most); });
        T const factor = T{1} / sum;
        team.each(context, [=](std::size_t j) {
            p[j] = j < seen ? exponential(p[j] - most) * factor : T{0};
        });
        T* const to = log_sums + group.head<context>(row) * context + position;
        team.at(0, [=] { *to = most + std::log(sum); });
    }
};

/// One row of scores to probabilities by what forward kept, and of their gradients to those of the
/// products before they were scaled. The heads' results and the gradients of these, `size` elements
/// a head, stand in rows of all heads of a position.
template <std::size_t context, std::size_t size, class T> struct CausalSoftmaxBackward {
    HeadGroup group;
    T scale;
    T const* log_sums;
    T const* out;
    T const* dout;
    T* scores;
    T* gradients;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        std::size_t const position = row % context;
        std::size_t const seen = position + 1;
        std::size_t const head = group.head<context>(row);
        std::size_t const at =
            ((head / group.all * context + position) * group.all + head % group.all) * size;
        T const* const o = out + at;
        T const* const d = dout + at;
        T const dot = team.sum(size, [=](std::size_t i) { return o[i] * d[i]; });
        T const log_sum = log_sums[head * context + position];
        T const factor = scale;
        T* const p = scores + row * context;
        T* const ds = gradients + row * context;
        team.each(context, [=](std::size_t j) {
            p[j] = j < seen ? exponential(p[j] - log_sum) : T{0};
            ds[j] = j < seen ? p[j] * (ds[j] - dot) * factor : T{0};
        });
    }
};

} // namespace gpt
