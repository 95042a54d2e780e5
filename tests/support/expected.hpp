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
/// after the last.
template <class T> struct Expected {
    Watch watch;
    Plain<T> plain;
    std::vector<std::size_t> sizes;
    std::vector<double> losses;

    Expected(std::size_t micro_batches, Backward order, std::vector<std::size_t> batches)
        : plain(make_net<T>(watch), {}, gpipe::Adam{1e-2f}, expected_seed, micro_batches, order),
          sizes(std::move(batches)) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            plain.optimizer().learning_rate = rate(i);
            Data<T> const data(sizes[i], static_cast<std::uint32_t>(i));
            losses.push_back(plain.step(data.inputs, data.targets));
        }
    }
    /// Each step has its own, changed as soon as the step has been started.
    static float rate(std::size_t i) { return 1e-2f / static_cast<float>(i + 1); }

    /// The first thing that a training does otherwise, with one step under way at a time or two;
    /// empty if nothing.
    template <class Train> std::string differs(Train& train, bool overlaps = false) const {
        std::vector<double> found;
        std::vector<typename Train::Pending> before;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            train.optimizer().learning_rate = rate(i);
            Data<T> data(sizes[i], static_cast<std::uint32_t>(i));
            auto step = train.start(data.inputs, data.targets);
            for (T& value : data.inputs) value = T(1e6); // they are the caller's again
            for (T& value : data.targets) value = T(1e6);
            train.optimizer().learning_rate = 1e6f;
            if (!before.empty()) found.push_back(before[0].result().loss);
            before.clear();
            if (overlaps)
                before.push_back(std::move(step));
            else
                found.push_back(step.result().loss);
        }
        if (overlaps) found.push_back(before[0].result().loss);
        for (std::size_t i = 0; i < sizes.size(); ++i)
            if (found[i] != losses[i])
                return "the loss of step " + std::to_string(i) + ": " + std::to_string(found[i]);
        if (train.steps() != sizes.size()) return "the number of steps";
        return difference(train, plain);
    }
};

} // namespace toy
