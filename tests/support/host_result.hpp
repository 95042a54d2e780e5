#pragma once

// What a net gives on the host in a few steps, evaluations and a prediction, and how the same net
// differs from it elsewhere.

#include "net.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace toy {

/// With three micro-batches gradients are clipped.
constexpr double clip_of(std::size_t micro_batches) { return micro_batches == 3 ? 0.05 : 0; }

template <class Net, class Loss, class Optimizer> class HostResult {
    using T = typename Net::Input::Element;
    using OnHost = Training<Net, Loss, Optimizer, gpipe::device::Host>;

  public:
    static constexpr std::size_t most = 8; ///< samples that a training has room for
    static constexpr std::uint64_t seed = 7;
    /// More than there is room for at once.
    static constexpr std::size_t evaluated_samples = 11;

    std::vector<double> losses;
    std::vector<T> state;

    /// Steps of `sizes` samples, each with another learning rate. `make` makes the net that reports
    /// to a watch.
    HostResult(Net (*make)(Watch&), Optimizer optimizer, std::size_t micro_batches,
               gpipe::schedule::Dynamic schedule, std::vector<std::size_t> sizes)
        : optimizer_(optimizer), sizes_(std::move(sizes)) {
        typename OnHost::Options options;
        options.samples = most;
        options.seed = seed;
        options.cells = 1;
        options.micro_batches = micro_batches;
        options.clip_norm = clip_of(micro_batches);
        options.schedule = schedule;
        Watch watch;
        OnHost train(make(watch), {}, optimizer, options);
        for (std::size_t i = 0; i < sizes_.size(); ++i) {
            losses.push_back(step(train, i));
            if (i == between) between_ = evaluate(train);
        }
        state = state_of(train);
        evaluated_ = evaluate(train);
        predicted_ = std::vector<T>(evaluated_samples * 3);
        predict(train, predicted_);
    }

    /// Parameters and mean gradients, tensor by tensor.
    template <class Other> static std::vector<T> state_of(Other& train) {
        std::vector<T> all;
        auto const layers = Net::layers();
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

    /// Sets the learning rate of step `i`; returns the data.
    template <class Other> Data<T> prepare(Other& train, std::size_t i) const {
        train.optimizer().learning_rate = optimizer_.learning_rate / static_cast<float>(i + 1);
        return Data<T>(sizes_[i], static_cast<std::uint32_t>(i));
    }
    /// Step `i`.
    template <class Other> auto start(Other& train, std::size_t i) const {
        Data<T> const data = prepare(train, i);
        return train.start(data.inputs, data.targets);
    }
    template <class Other> double step(Other& train, std::size_t i) const {
        return start(train, i).result().loss;
    }
    /// The first thing that a new training does otherwise in any bit; empty if nothing. `together`:
    /// a step is started before the one before is waited for. `memory(bytes)` is where predictions
    /// are to go.
    template <class Other, class Allocate>
    std::string differs(Other& train, bool together, Allocate memory) const {
        std::vector<typename Other::Pending> pending;
        for (std::size_t i = 0; i < sizes_.size(); ++i) {
            pending.push_back(start(train, i));
            if (!together) static_cast<void>(pending[i].result());
            if (i == between && evaluate(train) != between_) return "an evaluation between steps";
        }
        for (std::size_t i = 0; i < sizes_.size(); ++i) {
            double const loss = pending[i].result().loss;
            if (loss != losses[i])
                return "the loss of step " + std::to_string(i) + ": " + std::to_string(loss);
        }
        if (state_of(train) != state) return "parameters or gradients";
        if (train.steps() != sizes_.size()) return "the number of steps";
        if (evaluate(train) != evaluated_) return "an evaluation";
        auto const outputs = memory(predicted_.size() * sizeof(T));
        std::span const predicted{reinterpret_cast<T*>(outputs.data()), predicted_.size()};
        predict(train, predicted);
        return std::equal(predicted.begin(), predicted.end(), predicted_.begin()) ? ""
                                                                                  : "a prediction";
    }
    template <class Other> std::string differs(Other& train, bool together = false) const {
        return differs(train, together,
                       [](std::size_t bytes) { return gpipe::device::HostBuffer(bytes); });
    }

  private:
    /// The step after which there is an evaluation, which changes nothing.
    static constexpr std::size_t between = 1;

    template <class Other> static std::pair<double, double> evaluate(Other& train) {
        Data<T> const data(evaluated_samples, 9);
        auto const result = train.evaluate(data.inputs, data.targets);
        return {result.loss, result.metric[0]};
    }
    template <class Other> static void predict(Other& train, std::span<T> outputs) {
        Data<T> const data(evaluated_samples, 10);
        train.predict(data.inputs, outputs);
    }

    Optimizer optimizer_;
    std::vector<std::size_t> sizes_;
    std::pair<double, double> between_;
    std::pair<double, double> evaluated_;
    std::vector<T> predicted_;
};

} // namespace toy
