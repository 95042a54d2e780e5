#pragma once

// What the net of the runtime tests does over some mini-batches, by the plain loop.

#include "net.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace toy {

inline constexpr std::uint64_t expected_seed = 7;

/// What a training does over mini-batches of the given sizes: the loss of each step, and the state
/// after the last. Adam's rate is 1e-2, the seed expected_seed.
template <class T> struct Expected {
    Watch watch;
    Plain<T> plain;
    std::vector<std::size_t> sizes;
    std::vector<double> losses;

    Expected(std::size_t micro_batches, Backward order, std::vector<std::size_t> batches)
        : plain(make_net<T>(watch), {}, gpipe::Adam{1e-2f}, expected_seed, micro_batches, order),
          sizes(std::move(batches)) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            Data<T> const data(sizes[i], static_cast<std::uint32_t>(i));
            losses.push_back(plain.step(data.inputs, data.targets));
        }
    }

    /// The first thing that a training does otherwise; empty if nothing.
    template <class Train> std::string differs(Train& train) const {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            Data<T> const data(sizes[i], static_cast<std::uint32_t>(i));
            double const loss = train.step(data.inputs, data.targets).loss;
            if (loss != losses[i])
                return "the loss of step " + std::to_string(i) + ": " + std::to_string(loss);
        }
        return difference(train, plain);
    }
};

} // namespace toy
