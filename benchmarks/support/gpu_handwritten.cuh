#pragma once

#include "gpu_model.cuh"
#include "quiet.hpp"

#include <cstddef>
#include <vector>

namespace benchmark {

namespace kernel {

/// Sums the loss over micro-batches: sum, weight, and one over the weight.
static __global__ void commit(double const* values, int micro_batches, double* totals) {
    double sum = 0;
    double weight = 0;
    for (int m = 0; m < micro_batches; ++m) {
        sum += values[2 * m];
        weight += values[2 * m + 1];
    }
    totals[0] = sum;
    totals[1] = weight;
    totals[2] = 1 / weight;
}
static __global__ void update(float const* rate, float momentum, double const* totals, float* w,
                              float* dw, float* velocity) {
    int const n = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    float const g = dw[n] * static_cast<float>(totals[2]);
    dw[n] = g;
    velocity[n] = momentum * velocity[n] + g;
    w[n] -= *rate * velocity[n];
}

} // namespace kernel

/// GPipe without checkpointing as one would write it by hand for K layers on streams of one GPU:
/// events between neighbours, every tensor of every micro-batch in a place of its own, one copy
/// each of mini-batch, learning rate and loss. Or all of that captured once in graphs. Up to two
/// steps may be under way.
class GpuHandwritten {
  public:
    /// `samples` of each micro-batch. Inputs and targets lie in pinned memory and stay there.
    GpuHandwritten(std::size_t cells, std::size_t micro_batches, std::size_t samples, Work work,
                   gpipe::SGD optimizer, float const* inputs, float const* targets,
                   Probe* probe = nullptr)
        : cells_(cells), micro_batches_(micro_batches), samples_(samples), work_(work),
          optimizer_(optimizer), inputs_(inputs), targets_(targets), probe_(probe),
          tensors_(0, (2 * cells + 2) * micro_batches * samples * bytes),
          parameters_(0, 3 * cells * bytes), values_(0, (2 * micro_batches + 4) * sizeof(double)),
          host_(slots * host_bytes) {
        for (std::size_t c = 0; c < cells; ++c)
            streams_.emplace_back(0, gpipe::cuda::Priority::high);
        for (std::size_t i = 0; i < 2 * cells * micro_batches; ++i) done_.emplace_back(0);
        for (std::size_t c = 0; c <= cells; ++c) ends_.emplace_back(0);
        for (std::size_t i = 0; i < slots * cells; ++i) finished_.emplace_back(0);
        std::vector<float> const ones(kernel::width, 1);
        for (std::size_t c = 0; c < cells; ++c) copy(parameter(c), ones.data(), bytes, c);
        synchronize();
    }
    GpuHandwritten(GpuHandwritten const&) = delete;
    GpuHandwritten& operator=(GpuHandwritten const&) = delete;
    ~GpuHandwritten() {
        synchronize();
        for (cudaGraphExec_t graph : graphs_)
            if (graph) gpipe::cuda::detail::forget(cudaGraphExecDestroy(graph));
    }

    /// From now on a step is one launch.
    void capture() {
        using gpipe::cuda::check;
        for (std::size_t slot = 0; slot < slots; ++slot) {
            check("cudaStreamBeginCapture",
                  cudaStreamBeginCapture(streams_[0].get(), cudaStreamCaptureModeThreadLocal));
            ends_[0].record(streams_[0]);
            for (std::size_t c = 1; c < cells_; ++c) streams_[c].wait(ends_[0]);
            enqueue(slot);
            for (std::size_t c = 1; c < cells_; ++c) {
                ends_[c].record(streams_[c]);
                streams_[0].wait(ends_[c]);
            }
            cudaGraph_t captured = nullptr;
            check("cudaStreamEndCapture", cudaStreamEndCapture(streams_[0].get(), &captured));
            cudaError_t const status = cudaGraphInstantiate(&graphs_[slot], captured, 0);
            gpipe::cuda::detail::forget(cudaGraphDestroy(captured));
            check("cudaGraphInstantiate", status);
            check("cudaGraphUpload", cudaGraphUpload(graphs_[slot], streams_[0].get()));
        }
        synchronize();
    }

    void set_learning_rate(float rate) { optimizer_.learning_rate = rate; }
    /// Enqueues a step; finish() of the one before the last must have been called.
    void start() {
        std::size_t const slot = started_++ % slots;
        *rate(slot) = optimizer_.learning_rate;
        if (graphs_[slot])
            gpipe::cuda::check("cudaGraphLaunch",
                               cudaGraphLaunch(graphs_[slot], streams_[0].get()));
        else
            enqueue(slot);
        for (std::size_t c = 0; c < marks(slot); ++c)
            finished_[slot * cells_ + c].record(streams_[c]);
    }
    /// Waits for the oldest step that was not waited for; returns its mean loss.
    double finish() {
        std::size_t const slot = waited_++ % slots;
        for (std::size_t c = 0; c < marks(slot); ++c) finished_[slot * cells_ + c].synchronize();
        return totals(slot)[0] / totals(slot)[1];
    }
    /// Trains once; returns the mean loss.
    double step() {
        start();
        return finish();
    }
    /// What the host took to enqueue all forwards and backwards of the last step.
    double enqueue_seconds() const { return enqueue_seconds_; }
    std::vector<float> parameters(std::size_t c) const {
        std::vector<float> values(kernel::width);
        copy(values.data(), parameter(c), bytes, c);
        streams_[c].synchronize();
        return values;
    }

  private:
    static constexpr std::size_t bytes = kernel::width * sizeof(float); ///< of a sample
    static constexpr std::size_t slots = 2;                             ///< steps under way
    /// Of pinned memory for a step: totals, then the learning rate.
    static constexpr std::size_t host_bytes = 4 * sizeof(double);

    void copy(void* to, void const* from, std::size_t size, std::size_t c) const {
        gpipe::cuda::check("cudaMemcpyAsync",
                           cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, streams_[c].get()));
    }
    void enqueue(std::size_t slot) {
        using gpipe::cuda::check, gpipe::cuda::launch;
        std::size_t const last = cells_ - 1;
        std::size_t const all = micro_batches_ * samples_ * bytes;
        for (std::size_t c = 0; c < cells_; ++c)
            check("cudaMemsetAsync", cudaMemsetAsync(gradient(c), 0, bytes, streams_[c].get()));
        copy(tensor(0, 0), inputs_, all, 0);
        copy(tensor(2 * cells_ + 1, 0), targets_, all, last);

        double const begin = seconds();
        for (std::size_t m = 0; m < micro_batches_; ++m)
            for (std::size_t c = 0; c < cells_; ++c) {
                if (c > 0) streams_[c].wait(forward_done(c - 1, m));
                if (probe_ && c == 0 && m == 0) probe_->begin.record(streams_[0].get());
                launch(streams_[c].get(), kernel::blocks, kernel::threads, 0, kernel::forward,
                       work_, samples(), parameter(c), tensor(c, m), tensor(c + 1, m));
                if (c < last) forward_done(c, m).record(streams_[c]);
            }
        for (std::size_t m = micro_batches_; m-- > 0;)
            for (std::size_t c = cells_; c-- > 0;) {
                if (c == last) {
                    launch(streams_[c].get(), 1, kernel::threads, 0, kernel::loss, samples(),
                           tensor(cells_, m), tensor(2 * cells_ + 1, m), output_gradient(c, m),
                           values() + 2 * m);
                } else {
                    streams_[c].wait(backward_done(c + 1, m));
                }
                launch(streams_[c].get(), kernel::blocks, kernel::threads, 0, kernel::backward,
                       work_, samples(), parameter(c), tensor(c, m), output_gradient(c, m),
                       gradient(c), c > 0 ? output_gradient(c - 1, m) : nullptr);
                if (probe_ && c == 0 && m == 0) probe_->end.record(streams_[0].get());
                if (c > 0) backward_done(c, m).record(streams_[c]);
            }
        enqueue_seconds_ = seconds() - begin;

        // By now no update of the step before still reads the rate.
        copy(rate_on_gpu(), rate(slot), sizeof(float), last);
        launch(streams_[last].get(), 1, 1, 0, kernel::commit, values(),
               static_cast<int>(micro_batches_), values() + 2 * micro_batches_);
        ends_[cells_].record(streams_[last]);
        for (std::size_t c = 0; c < cells_; ++c) {
            if (c != last) streams_[c].wait(ends_[cells_]);
            launch(streams_[c].get(), kernel::blocks, kernel::threads, 0, kernel::update,
                   rate_on_gpu(), optimizer_.momentum, values() + 2 * micro_batches_, parameter(c),
                   gradient(c), velocity(c));
        }
        copy(totals(slot), values() + 2 * micro_batches_, 3 * sizeof(double), last);
    }
    void synchronize() const {
        for (gpipe::cuda::Stream const& stream : streams_) stream.synchronize();
    }

    // A graph ends on its first stream.
    std::size_t marks(std::size_t slot) const { return graphs_[slot] ? 1 : cells_; }
    double* totals(std::size_t slot) const {
        return reinterpret_cast<double*>(host_.data() + slot * host_bytes);
    }
    float* rate(std::size_t slot) const { return reinterpret_cast<float*>(totals(slot) + 3); }
    float* rate_on_gpu() const {
        return reinterpret_cast<float*>(values() + 2 * micro_batches_ + 3);
    }
    int samples() const { return static_cast<int>(samples_); }
    // Inputs, then the outputs of each cell, then the gradients of these, then the targets.
    float* tensor(std::size_t n, std::size_t m) const {
        return reinterpret_cast<float*>(tensors_.data()) +
               (n * micro_batches_ + m) * samples_ * kernel::width;
    }
    float* output_gradient(std::size_t c, std::size_t m) const { return tensor(cells_ + 1 + c, m); }
    float* array(std::size_t n) const {
        return reinterpret_cast<float*>(parameters_.data()) + n * kernel::width;
    }
    float* parameter(std::size_t c) const { return array(c); }
    float* gradient(std::size_t c) const { return array(cells_ + c); }
    float* velocity(std::size_t c) const { return array(2 * cells_ + c); }
    double* values() const { return reinterpret_cast<double*>(values_.data()); }
    gpipe::cuda::Event& forward_done(std::size_t c, std::size_t m) {
        return done_[c * micro_batches_ + m];
    }
    gpipe::cuda::Event& backward_done(std::size_t c, std::size_t m) {
        return done_[(cells_ + c) * micro_batches_ + m];
    }

    std::size_t cells_, micro_batches_, samples_;
    Work work_;
    gpipe::SGD optimizer_;
    float const* inputs_;
    float const* targets_;
    Probe* probe_;
    gpipe::cuda::Buffer tensors_, parameters_, values_;
    gpipe::cuda::PinnedBuffer host_;
    std::vector<gpipe::cuda::Stream> streams_;
    std::vector<gpipe::cuda::Event> done_, ends_, finished_;
    cudaGraphExec_t graphs_[slots] = {}; ///< by slot
    std::size_t started_ = 0, waited_ = 0;
    double enqueue_seconds_ = 0;
};

} // namespace benchmark
