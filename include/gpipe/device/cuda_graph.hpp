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

/// The graphs of the steps over the mini-batch sizes that were used last, at most `sizes` of them.
class Graphs {
  public:
    explicit Graphs(std::size_t sizes) : sizes_(sizes) {}

    /// Whether any is kept.
    explicit operator bool() const { return sizes_ > 0; }
    std::size_t size() const { return kept_.size(); }

    /// Null if it is not there.
    Graph const* find(GraphKey const& key) {
        for (Kept& kept : kept_)
            if (kept.key == key) {
                kept.used = ++uses_;
                return &kept.graph;
            }
        return nullptr;
    }
    /// Whether a new size would take the place of another.
    bool is_full(std::size_t samples) const { return !has(samples) && distinct() >= sizes_; }
    /// Forgets the size that was not used for longest. None of its graphs may run.
    void make_room() {
        auto const oldest =
            std::min_element(kept_.begin(), kept_.end(), [&](Kept const& a, Kept const& b) {
                return last_use(a) < last_use(b);
            });
        std::size_t const samples = oldest->key.samples;
        std::erase_if(kept_, [&](Kept const& kept) { return kept.key.samples == samples; });
    }
    Graph const& add(GraphKey const& key, Graph graph) {
        kept_.push_back({key, std::move(graph), ++uses_});
        return kept_.back().graph;
    }

  private:
    struct Kept {
        GraphKey key;
        Graph graph;
        std::uint64_t used = 0;
    };
    bool has(std::size_t samples) const {
        return std::any_of(kept_.begin(), kept_.end(),
                           [&](Kept const& kept) { return kept.key.samples == samples; });
    }
    // Of any graph of the same size.
    std::uint64_t last_use(Kept const& of) const {
        std::uint64_t last = 0;
        for (Kept const& kept : kept_)
            if (kept.key.samples == of.key.samples) last = std::max(last, kept.used);
        return last;
    }
    std::size_t distinct() const {
        std::size_t count = 0;
        for (std::size_t i = 0; i < kept_.size(); ++i)
            count += std::none_of(
                kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(i),
                [&](Kept const& kept) { return kept.key.samples == kept_[i].key.samples; });
        return count;
    }

    std::size_t sizes_;
    std::vector<Kept> kept_;
    std::uint64_t uses_ = 0;
};

} // namespace gpipe::cuda
