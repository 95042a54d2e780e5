#pragma once

#include <gpipe/training.hpp>

#include <cstddef>
#include <vector>

namespace benchmark {

/// A layer with as little to do as a layer can have and still learn: 8 floats scaled by 8 others.
struct Tiny {
    static constexpr std::size_t width = 8;
    using Input = gpipe::Tensor<float, width>;
    using Output = gpipe::Tensor<float, width>;
    using Parameters = gpipe::Tensor<float, width>;
    static constexpr bool accepts_none = true;

    void initialize(auto& context) const {
        for (float& w : context.parameters()) w = 1;
    }
    void forward(auto& context, auto x, auto y) const {
        auto const w = context.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < width; ++i) y(s, i) = w[i] * x(s, i);
    }
    void backward(auto& context, auto x, auto dy, auto dx) const {
        auto const w = context.parameters();
        auto const dw = context.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < width; ++i) {
                dw[i] += x(s, i) * dy(s, i);
                if constexpr (!gpipe::is_none<decltype(dx)>) dx(s, i) = w[i] * dy(s, i);
            }
    }
};

/// Half the squared distance from the target.
struct TinyLoss {
    using Target = gpipe::Tensor<float, Tiny::width>;
    static constexpr bool accepts_none = true;
    gpipe::LossValue<> operator()(auto& context, auto y, auto target, auto dy) const {
        float sum = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
            float const d = y.data()[i] - target.data()[i];
            sum += d * d / 2;
            if constexpr (!gpipe::is_none<decltype(dy)>) dy.data()[i] = d;
        }
        return {sum, static_cast<double>(context.samples()), {}};
    }
};

/// K cells of one Tiny each without the library, for GPipe without checkpointing: memory, and the
/// two actions of a cell with everything inlined but the number of samples. Whoever calls them
/// brings the order and the threads.
template <std::size_t K> class TinyCells {
  public:
    using Read = gpipe::BatchView<float const, Tiny::width>;
    using Write = gpipe::BatchView<float, Tiny::width>;

    TinyCells(std::size_t samples, std::size_t micro_batches)
        : ranges_(micro_batches), losses_(micro_batches), weights_(micro_batches) {
        for (std::size_t m = 0; m < micro_batches; ++m)
            ranges_[m] = gpipe::Split(samples, micro_batches)[m];
        // Whole cache lines, so that neighbouring micro-batches do not share one.
        stride_ = (ranges_[0].count * Tiny::width + 15) / 16 * 16;
        outputs_.resize(K * micro_batches * stride_ + 16);
        gradients_.resize(K * micro_batches * stride_ + 16);
        for (Cell& cell : cells_)
            for (float& w : cell.parameter) w = 1;
    }

    void point_to(float const* inputs, float const* targets) {
        inputs_ = inputs;
        targets_ = targets;
    }
    std::size_t micro_batches() const { return ranges_.size(); }

    void zero_gradients(std::size_t c) {
        for (float& g : cells_[c].gradient) g = 0;
    }
    void forward(std::size_t c, std::size_t m) {
        Context context{cells_[c], ranges_[m].count};
        Tiny{}.forward(context, input(c, m), Write{output(c, m), ranges_[m].count});
    }
    void backward(std::size_t c, std::size_t m) {
        std::size_t const samples = ranges_[m].count;
        Context context{cells_[c], samples};
        Write const dy{gradient(c, m), samples};
        if (c + 1 == K) {
            auto const value =
                TinyLoss{}(context, Read{output(c, m), samples},
                           Read{targets_ + ranges_[m].first * Tiny::width, samples}, dy);
            losses_[m] = value.sum;
            weights_[m] = value.weight;
        }
        if (c == 0)
            Tiny{}.backward(context, input(c, m), Read{dy}, gpipe::none);
        else
            Tiny{}.backward(context, input(c, m), Read{dy}, Write{gradient(c - 1, m), samples});
    }

    /// The loss of the mini-batch; its weight is then known to update().
    double total() {
        double loss = 0;
        weight_ = 0;
        for (std::size_t m = 0; m < ranges_.size(); ++m) {
            loss += losses_[m];
            weight_ += weights_[m];
        }
        return loss / weight_;
    }
    void update(std::size_t c, gpipe::SGD const& optimizer) {
        Cell& cell = cells_[c];
        auto const scale = static_cast<float>(1 / weight_);
        for (float& g : cell.gradient) g *= scale;
        optimizer(gpipe::UpdateContext{},
                  gpipe::UpdateTensor<float, 1>{
                      cell.parameter, cell.gradient, {cell.momentum}, Tiny::width});
    }

    float const* parameters(std::size_t c) const { return cells_[c].parameter; }

  private:
    struct alignas(128) Cell {
        float parameter[Tiny::width] = {};
        float momentum[Tiny::width] = {};
        alignas(64) float gradient[Tiny::width] = {};
    };
    // What the layer asks its context for.
    struct Context {
        Cell& cell;
        std::size_t count;
        auto parameters() const {
            return gpipe::TensorView<float const, Tiny::width>{cell.parameter};
        }
        auto gradients() const { return gpipe::TensorView<float, Tiny::width>{cell.gradient}; }
        std::size_t samples() const { return count; }
    };

    static float* line(std::vector<float>& storage) {
        auto const address = reinterpret_cast<std::uintptr_t>(storage.data());
        return storage.data() + (64 - address % 64) % 64 / sizeof(float);
    }
    float* output(std::size_t c, std::size_t m) {
        return line(outputs_) + (c * ranges_.size() + m) * stride_;
    }
    float* gradient(std::size_t c, std::size_t m) {
        return line(gradients_) + (c * ranges_.size() + m) * stride_;
    }
    Read input(std::size_t c, std::size_t m) {
        return {c == 0 ? inputs_ + ranges_[m].first * Tiny::width : output(c - 1, m),
                ranges_[m].count};
    }

    Cell cells_[K];
    std::vector<gpipe::SampleRange> ranges_;
    std::vector<double> losses_;
    std::vector<double> weights_;
    std::vector<float> outputs_;
    std::vector<float> gradients_;
    std::size_t stride_ = 0;
    float const* inputs_ = nullptr;
    float const* targets_ = nullptr;
    double weight_ = 0;
};

} // namespace benchmark
