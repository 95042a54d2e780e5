#pragma once

#include <gpipe/plan/edge.hpp>

#include <cstddef>
#include <vector>

namespace gpipe::cuda {

/// Which GPUs, and how tensors pass between them.
struct Options {
    /// By device of the pipeline, at least as many as there are; of Replicas in one process
    /// those of one behind those of another. Empty: all GPUs that CUDA sees, in their order.
    std::vector<int> gpus{};
    /// The fastest way between devices that may be taken; slower ones are where needed. For
    /// measurements: Link::staged is a machine without a fast interconnect.
    Link link = Link::shared;
    /// Of how many sizes of mini-batches steps are kept as graphs, two each; 0: of none. A
    /// graph takes memory of the GPU that no plan counts, as CUDA's context and cuBLAS do, and
    /// how much CUDA does not say: leave a reserve beside what is planned. Where there is none
    /// left, or another thread spoils the capture (see cuda::Capture), steps of that size run
    /// on streams, with the same results. An Inference keeps what start() and the first part
    /// of predict() do: then its last device has room for a mini-batch's outputs, too, from
    /// where they are copied.
    std::size_t graphs = 0;
    /// Whether its streams and the default stream wait for each other, as Options::debug has
    /// it: a kernel there is in order, and an error in a capture, as is another GPU left
    /// current.
    bool blocking = false;
};

} // namespace gpipe::cuda
