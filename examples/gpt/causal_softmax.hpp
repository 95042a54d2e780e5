#pragma once

#include "gpt/math.hpp"

#include <gpipe/core/host_device.hpp>

#include <cmath>
#include <cstddef>

namespace gpt {

/// The rows of scores that are in memory at once: those of `rows` positions, from position `first`
/// on, for each head of each sample, of which one has room for `room` rows. Row `r` of them all is
/// that of one position: sample by sample, head by head.
struct Strip {
    std::size_t first, rows, room;

    /// The number of the row's head among those of all samples.
    GPIPE_HOST_DEVICE std::size_t head(std::size_t r) const { return r / rows; }
    GPIPE_HOST_DEVICE std::size_t position(std::size_t r) const { return first + r % rows; }
    /// The columns that the strip has: up to its last position.
    GPIPE_HOST_DEVICE std::size_t columns() const { return first + rows; }
    /// Where the row's scores are.
    template <std::size_t context> GPIPE_HOST_DEVICE std::size_t at(std::size_t r) const {
        return (r / rows * room + r % rows) * context;
    }
};

/// One row of scores to probabilities, in place: a position sees itself and those before it. Keeps
/// the logarithm of the row's sum.
template <std::size_t context, class T> struct CausalSoftmax {
    Strip strip;
    T* scores;
    Real<T>* log_sums;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        std::size_t const position = strip.position(row);
        std::size_t const seen = position + 1;
        using R = Real<T>;
        T* const p = scores + strip.at<context>(row);
        auto held = team.template hold<context>(seen, p);
        R const most = held.most();
        held.change([=](R score) { return exponential(score - most); });
        R const sum = held.sum();
        R const factor = R{1} / sum;
        held.change([=](R power) { return power * factor; });
        held.write(strip.columns(), p);
        R* const to = log_sums + strip.head(row) * context + position;
        team.once([=] { *to = most + std::log(sum); });
    }
};

/// One row of scores to probabilities by what forward kept, and of their gradients to those of the
/// products before they were scaled. The heads' results and the gradients of these, `size` elements
/// a head, stand in rows of all heads of a position.
template <std::size_t context, std::size_t heads, std::size_t size, class T>
struct CausalSoftmaxBackward {
    Strip strip;
    Real<T> scale;
    Real<T> const* log_sums;
    T const* out;
    T const* dout;
    T* scores;
    T* gradients;

    template <class Team>
    GPIPE_HOST_DEVICE void operator()(Team const& team, std::size_t row) const {
        std::size_t const position = strip.position(row);
        std::size_t const seen = position + 1;
        std::size_t const head = strip.head(row);
        std::size_t const at = ((head / heads * context + position) * heads + head % heads) * size;
        using R = Real<T>;
        R const dot = team.sum(
            size, [](std::size_t, R o, R d) { return o * d; }, out + at, dout + at);
        R const log_sum = log_sums[head * context + position];
        R const factor = scale;
        T* const p = scores + strip.at<context>(row);
        T* const ds = gradients + strip.at<context>(row);
        team.map_both(
            strip.columns(), p, ds,
            [=](std::size_t j, R score, R gradient) {
                if (j >= seen) return Two<R>{0, 0};
                R const probability = exponential(score - log_sum);
                return Two<R>{probability, probability * (gradient - dot) * factor};
            },
            p, ds);
    }
};

} // namespace gpt
