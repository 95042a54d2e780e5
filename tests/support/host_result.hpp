#pragma once

// What the plain layers give on the host in a few steps, an evaluation and a prediction, and how
// the same layers as kernels differ from it.

#include "kernels.hpp"
#include "losses.hpp"
#include "net.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace toy {

/// Parameters and mean gradients, tensor by tensor.
template <class T, class Train> std::vector<T> state_of(Train& train) {
    std::vector<T> all;
    auto const layers = PlainNet<T, true>::layers();
    for (std::size_t layer = 0; layer < layers.size(); ++layer)
        for (std::size_t t = 0; t < train.tensors(layer); ++t) {
            std::vector<T> values(layers[layer].parameters.bytes[t] / sizeof(T));
            train.read_parameter(layer, t, std::span(values));
            all.insert(all.end(), values.begin(), values.end());
            train.read_gradient(layer, t, std::span(values));
            all.insert(all.end(), values.begin(), values.end());
        }
    return all;
}

template <class T, bool dropout, class Optimizer, class Device>
using KernelTrain = Training<kernel::Net<T, dropout>, kernel::MeanSquare<T, 3>, Optimizer, Device>;

template <class T, bool dropout, class Optimizer> class HostResult {
    using Train = Training<PlainNet<T, dropout>, MeanSquare<T, 3>, Optimizer, gpipe::device::Host>;

  public:
    static constexpr std::size_t most = 8; ///< samples that a training has room for
    static constexpr std::uint64_t seed = 7;
    /// More than there is room for at once.
    static constexpr std::size_t evaluated_samples = 19;

    std::vector<double> losses;
    std::vector<T> state;

    /// Steps of `sizes` samples, each with another learning rate.
    HostResult(Optimizer optimizer, std::size_t micro_batches, gpipe::schedule::Dynamic schedule,
               std::vector<std::size_t> sizes)
        : optimizer_(optimizer), sizes_(std::move(sizes)) {
        typename Train::Options options;
        options.samples = most;
        options.seed = seed;
        options.cells = 1;
        options.micro_batches = micro_batches;
        options.schedule = schedule;
        Watch watch;
        Train train(watched(PlainNet<T, dropout>{}, watch), {}, optimizer, options);
        for (std::size_t i = 0; i < sizes_.size(); ++i) losses.push_back(step(train, i));
        state = state_of<T>(train);
        evaluated_ = evaluate(train);
        predicted_ = predict(train);
    }

    /// Step `i` of a training, with the data and the learning rate that belong to it.
    template <class Other> double step(Other& train, std::size_t i) const {
        Data<T> const data(sizes_[i], static_cast<std::uint32_t>(i));
        train.optimizer().learning_rate = optimizer_.learning_rate / static_cast<float>(i + 1);
        return train.step(data.inputs, data.targets).loss;
    }
    /// The first thing that a new training does otherwise in any bit; empty if nothing.
    template <class Other> std::string differs(Other& train) const {
        for (std::size_t i = 0; i < sizes_.size(); ++i) {
            double const loss = step(train, i);
            if (loss != losses[i])
                return "the loss of step " + std::to_string(i) + ": " + std::to_string(loss);
        }
        if (train.steps() != sizes_.size()) return "the number of steps";
        if (state_of<T>(train) != state) return "parameters or gradients";
        if (evaluate(train) != evaluated_) return "an evaluation";
        return predict(train) == predicted_ ? "" : "a prediction";
    }

  private:
    template <class Other> static std::pair<double, double> evaluate(Other& train) {
        Data<T> const data(evaluated_samples, 9);
        auto const result = train.evaluate(data.inputs, data.targets);
        return {result.loss, result.metric[0]};
    }
    template <class Other> static std::vector<T> predict(Other& train) {
        Data<T> const data(evaluated_samples, 10);
        std::vector<T> outputs(evaluated_samples * 3);
        train.predict(data.inputs, outputs);
        return outputs;
    }

    Optimizer optimizer_;
    std::vector<std::size_t> sizes_;
    std::pair<double, double> evaluated_;
    std::vector<T> predicted_;
};

} // namespace toy
