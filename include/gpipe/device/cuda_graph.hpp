#pragma once

#include <gpipe/device/cuda_stream.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gpipe::cuda {

/// Something that a graph cannot hold was done while work was captured for one.
class CannotCapture : public Error {
  public:
    explicit CannotCapture(char const* call, cudaError_t code = cudaErrorStreamCaptureInvalidated)
        : Error(call, code,
                "what a layer did cannot be part of a CUDA graph (it waited for the device, "
                "allocated, or used another stream): train without graphs, or leave it out; ") {}
};

/// Throws CannotCapture if work is captured on a stream and something has spoilt that.
inline void check_capture(StreamRef stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check("cudaStreamIsCapturing", cudaStreamIsCapturing(stream.get(), &status));
    if (status == cudaStreamCaptureStatusInvalidated) {
        static_cast<void>(cudaGetLastError()); // of calls that failed for that
        throw CannotCapture("a capture");
    }
    // Not every call that is refused spoils the capture: then the graph would lack what it does.
    if (cudaPeekAtLastError() == cudaErrorStreamCaptureUnsupported)
        throw CannotCapture("a call", cudaGetLastError());
}

/// Work that can be launched again and again. Default constructed, it is none.
class Graph {
  public:
    Graph() = default;
    Graph(Graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
    Graph& operator=(Graph&& other) noexcept {
        std::swap(executable_, other.executable_);
        return *this;
    }
    /// It must not run any more.
    ~Graph() {
        if (executable_) detail::forget(cudaGraphExecDestroy(executable_));
    }

    void launch(StreamRef stream) const {
        check("cudaGraphLaunch", cudaGraphLaunch(executable_, stream.get()));
    }

  private:
    friend class Capture;
    cudaGraphExec_t executable_ = nullptr;
};

/// From here on nothing that is put on a stream, and on those that come to wait for it, runs: it is
/// noted for a graph. Other threads of the program are not disturbed.
class Capture {
  public:
    explicit Capture(StreamRef stream) : stream_(stream) {
        check("cudaStreamBeginCapture",
              cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    }
    Capture(Capture const&) = delete;
    Capture& operator=(Capture const&) = delete;
    /// Drops what was noted.
    ~Capture() {
        cudaGraph_t graph = nullptr;
        if (!ended_) detail::forget(cudaStreamEndCapture(stream_.get(), &graph));
        if (graph) detail::forget(cudaGraphDestroy(graph));
    }

    /// The graph of it all. Throws Error, CannotCapture if the capture was spoilt.
    Graph end() {
        cudaGraph_t graph = nullptr;
        ended_ = true;
        cudaError_t const status = cudaStreamEndCapture(stream_.get(), &graph);
        if (status == cudaErrorStreamCaptureInvalidated) {
            detail::forget(status);
            throw CannotCapture("cudaStreamEndCapture");
        }
        check("cudaStreamEndCapture", status);
        Graph result;
        cudaError_t const made = cudaGraphInstantiate(&result.executable_, graph, 0);
        if (made != cudaSuccess) result.executable_ = nullptr;
        detail::forget(cudaGraphDestroy(graph));
        check("cudaGraphInstantiate", made);
        return result;
    }

  private:
    StreamRef stream_;
    bool ended_ = false;
};

/// Which step a graph is of: the same numbers mean the very same calls.
struct GraphKey {
    void const* work = nullptr;
    std::size_t samples = 0;
    std::size_t slot = 0;

    friend bool operator==(GraphKey const&, GraphKey const&) = default;
};

/// The graphs of the steps over the mini-batch sizes that were used last, at most `most` of them.
class Graphs {
  public:
    explicit Graphs(std::size_t most) : most_(most) {}

    /// Whether any is kept.
    explicit operator bool() const { return most_ > 0; }

    /// Null if it is not there.
    Graph const* find(GraphKey const& key) {
        Size* const size = find(key.samples);
        if (!size) return nullptr;
        for (auto const& [of, graph] : size->graphs)
            if (of == key) return &graph;
        return nullptr;
    }
    /// Whether a step over so many samples has run before. The first one of a size is not captured:
    /// whatever its work still has to load or to choose, it may do then.
    bool has_met(std::size_t samples) { return find(samples) != nullptr; }
    /// Whether to meet a new size is to forget another.
    bool is_full() const { return sizes_.size() == most_; }
    /// Takes note of a size; forgets the one that was not used for longest if there are too many.
    /// None of its graphs may run.
    void meet(std::size_t samples) {
        if (is_full())
            sizes_.erase(
                std::min_element(sizes_.begin(), sizes_.end(),
                                 [](Size const& a, Size const& b) { return a.used < b.used; }));
        sizes_.push_back({samples, ++uses_, {}});
    }
    /// Of a size that it has met.
    Graph const& add(GraphKey const& key, Graph graph) {
        return find(key.samples)->graphs.emplace_back(key, std::move(graph)).second;
    }

  private:
    struct Size {
        std::size_t samples = 0;
        std::uint64_t used = 0;
        std::vector<std::pair<GraphKey, Graph>> graphs;
    };
    Size* find(std::size_t samples) {
        for (Size& size : sizes_)
            if (size.samples == samples) {
                size.used = ++uses_;
                return &size;
            }
        return nullptr;
    }

    std::size_t most_;
    std::vector<Size> sizes_;
    std::uint64_t uses_ = 0;
};

} // namespace gpipe::cuda
