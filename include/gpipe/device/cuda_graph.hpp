#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/device/cuda_peers.hpp>
#include <gpipe/device/cuda_stream.hpp>
#include <gpipe/device/executor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>

namespace gpipe::cuda {

/// Something that a graph cannot hold was done while work was captured for one.
class CannotCapture : public Error {
  public:
    /// `call` must outlive the error: a literal.
    CannotCapture(char const* call, cudaError_t code)
        : Error(call, code,
                "what a layer did cannot be part of a CUDA graph (it waited for the device, "
                "allocated, or used another stream): train without graphs, or leave it out; ") {}
};

/// Whose doing it is when a capture is spoilt. A call of the capturing thread that a graph cannot
/// hold leaves an error that says why; every later call leaves cudaErrorStreamCaptureInvalidated in
/// its place, and so do all calls once another thread has spoilt the capture. So the first of them
/// has to be looked for in between: whenever a layer asks for its stream.
class CaptureWatch {
  public:
    /// While a capture goes on. Nothing was refused yet when it begins.
    class While {
      public:
        /// Ends when it is destroyed.
        explicit While(CaptureWatch& watch) : on_(watch.on_) {
            on_ = true;
            watch.refused_ = cudaSuccess;
        }
        While(While const&) = delete;
        While& operator=(While const&) = delete;
        ~While() { on_ = false; }

      private:
        bool& on_;
    };
    /// Whether what is enqueued does not run, but is noted for a graph.
    bool on() const { return on_; }
    /// Whether a call of this thread was refused in it.
    bool refused() const { return refused_ != cudaSuccess; }

    /// Notes whether a call of this thread has been refused by now.
    void look() noexcept {
        if (!on_ || refused()) return;
        cudaError_t const last = cudaPeekAtLastError();
        if (last >= cudaErrorStreamCaptureUnsupported &&
            last <= cudaErrorStreamCaptureWrongThread && last != cudaErrorStreamCaptureInvalidated)
            refused_ = last;
    }
    /// Throws CannotCapture if a call was refused: not every one spoils the capture, but the graph
    /// would lack what it does. Throws an Error of cudaErrorStreamCaptureInvalidated if the capture
    /// is spoilt, by whomever.
    void check(StreamRef stream) {
        if (!on_) return;
        look();
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        cuda::check("cudaStreamIsCapturing", cudaStreamIsCapturing(stream.get(), &status));
        bool const spoilt = status == cudaStreamCaptureStatusInvalidated;
        if (refused() || spoilt) static_cast<void>(cudaGetLastError()); // of calls since
        if (refused()) throw CannotCapture("a call", refused_);
        if (spoilt) throw Error("a capture", cudaErrorStreamCaptureInvalidated);
    }

  private:
    bool on_ = false;
    cudaError_t refused_ = cudaSuccess;
};

/// A stream that a layer puts its work on: whenever it is asked for, its watch looks.
class WatchedStream : public StreamRef {
  public:
    /// Work may be run again in later steps without the layer's being called.
    static constexpr bool replays = true;

    /// Any; or one that a device captures, which has the watch. `looks`: whether its GPU is to be
    /// current behind each call of a layer; `peers`: whom its work meets, null if nobody.
    ///@{
    explicit WatchedStream(cudaStream_t stream) : StreamRef(stream) {}
    WatchedStream(Stream const& stream, CaptureWatch* capture, bool looks, Peers* peers)
        : StreamRef(stream), capture_(capture), gpu_(looks ? stream.device() : any_gpu),
          peers_(peers) {}
    ///@}
    /// For calls of CUDA. Notes, in a capture, whether one before was refused.
    operator cudaStream_t() const noexcept {
        if (capture_) capture_->look();
        return stream_;
    }
    /// Whether what is put on it is noted for a graph, and does not run.
    bool is_captured() const { return capture_ && capture_->on(); }
    /// See cuda::copy(). What is captured waits for nobody.
    void copy(std::byte* to, std::byte const* from, std::size_t bytes) const {
        cuda::copy(*this, is_captured() ? nullptr : peers_, to, from, bytes);
    }
    /// Returns when everything on it has run, in the midst of a step, too. Throws Error.
    void finish() const { cuda::finish(*this, peers_); }
    /// Behind a layer's call. Throws Error if a kernel could not be launched, CannotCapture, and
    /// std::logic_error if another GPU is current now, which whoever comes next would be blamed
    /// for.
    void check_launch() const {
        if (capture_) capture_->check(*this);
        int current = gpu_;
        if (gpu_ != any_gpu) cuda::check("cudaGetDevice", cudaGetDevice(&current));
        if (current != gpu_) leave(current);
        cuda::check("a kernel launch, or another call of CUDA,", last_error());
    }

  private:
    [[noreturn, gnu::cold]] void leave(int current) const {
        static_cast<void>(cudaGetLastError()); // of launches there since
        cuda::check("cudaSetDevice", cudaSetDevice(gpu_));
        gpipe::detail::throw_error<std::logic_error>(
            "gpipe: a layer on GPU %d has left GPU %d current: see cuda::DeviceGuard", gpu_,
            current);
    }

    static constexpr int any_gpu = -1;

    CaptureWatch* capture_ = nullptr;
    int gpu_ = any_gpu;
    Peers* peers_ = nullptr;
};

/// Whether this is the error of a call that failed because the capture had been spoilt before.
inline bool is_spoilt_capture(std::exception_ptr const& error) {
    try {
        std::rethrow_exception(error);
    } catch (Error const& e) {
        return e.code() == cudaErrorStreamCaptureInvalidated;
    } catch (...) {
        return false;
    }
}

/// Work that can be launched again and again. Default constructed, it is none. Where it goes, it
/// must not run any more.
class Graph {
  public:
    /// Puts all of it on a stream.
    void launch(StreamRef stream) const {
        check("cudaGraphLaunch", cudaGraphLaunch(executable_.get(), stream.get()));
    }

  private:
    friend class Capture;
    detail::Owned<cudaGraphExec_t, cudaGraphExecDestroy> executable_;
};

/// From here on nothing that is put on a stream, and on those that come to wait for it, runs: it is
/// noted for a graph. Other threads of the program may wait and allocate meanwhile; but whoever
/// waits for the whole device (cudaDeviceSynchronize) gets an error and spoils the capture.
class Capture {
  public:
    /// Throws cuda::Error if the stream captures already.
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

    /// The graph of it all. Throws CannotCapture if a stream was not brought back, and Error: of
    /// cudaErrorStreamCaptureInvalidated if the capture was spoilt, and where a graph takes memory
    /// that is not there.
    Graph end() {
        cudaGraph_t graph = nullptr;
        ended_ = true;
        cudaError_t const status = cudaStreamEndCapture(stream_.get(), &graph);
        if (status == cudaErrorStreamCaptureUnjoined) {
            detail::forget(status);
            throw CannotCapture("cudaStreamEndCapture", status);
        }
        check("cudaStreamEndCapture", status);
        cudaGraphExec_t executable = nullptr;
        cudaError_t const made = cudaGraphInstantiate(&executable, graph, 0);
        detail::forget(cudaGraphDestroy(graph));
        check("cudaGraphInstantiate", made);
        Graph result;
        result.executable_.reset(executable);
        return result;
    }

  private:
    StreamRef stream_;
    bool ended_ = false;
};

/// Which step a graph is of: the same numbers mean the very same calls.
struct GraphKey {
    void const* work = nullptr; ///< the table that it walks
    MiniBatchPart part{};       ///< what it sees
    std::size_t slot = 0;       ///< of the steps that may be under way

    friend bool operator==(GraphKey const&, GraphKey const&) = default;
};

/// The graphs of the steps over the mini-batch sizes, or parts of accumulated ones, that were used
/// last: at most `most` of these.
class Graphs {
  public:
    /// None is kept yet.
    explicit Graphs(std::size_t most) : most_(most) {}

    /// Whether any is kept.
    explicit operator bool() const { return most_ > 0; }

    /// How many there are.
    std::size_t count() const {
        std::size_t all = 0;
        for (Size const& size : sizes_) all += size.graphs.size();
        return all;
    }
    /// Null if it is not there.
    Graph const* find(GraphKey const& key) {
        Size* const size = find(key.part);
        if (!size) return nullptr;
        for (auto const& [of, graph] : size->graphs)
            if (of == key) return &graph;
        return nullptr;
    }
    /// Whether a step over such a part has run before. The first one of a size is not captured:
    /// whatever its work still has to load or to choose, it may do then.
    bool has_met(MiniBatchPart const& part) { return find(part) != nullptr; }
    /// Whether a step over such a part is to be captured.
    bool captures(MiniBatchPart const& part) {
        Size const* const size = find(part);
        return size && !size->given_up;
    }
    /// No further step over such a part is captured, as long as it knows of them, and this
    /// one's graph, which did not run, is dropped.
    void give_up(GraphKey const& key) {
        find(key.part)->given_up = true;
        drop(key);
    }
    /// This one's graph, which did not run, is dropped.
    void drop(GraphKey const& key) {
        std::erase_if(find(key.part)->graphs, [&](auto const& kept) { return kept.first == key; });
    }
    /// Whether to meet a new size is to forget another.
    bool is_full() const { return sizes_.size() == most_; }
    /// Takes note of a size; forgets the one that was not used for longest if there are too many.
    /// None of its graphs may run.
    void meet(MiniBatchPart const& part) {
        if (is_full())
            sizes_.erase(
                std::min_element(sizes_.begin(), sizes_.end(),
                                 [](Size const& a, Size const& b) { return a.used < b.used; }));
        sizes_.push_back({part, ++uses_, false, {}});
    }
    /// Of a size that it has met.
    Graph const& add(GraphKey const& key, Graph graph) {
        return find(key.part)->graphs.emplace_back(key, std::move(graph)).second;
    }

    /// Forgets all of them. None may run.
    void clear() {
        for (Size& size : sizes_) size.graphs.clear();
    }

  private:
    struct Size {
        MiniBatchPart part{};
        std::uint64_t used = 0;
        bool given_up = false;
        std::vector<std::pair<GraphKey, Graph>> graphs;
    };
    Size* find(MiniBatchPart const& part) {
        for (Size& size : sizes_)
            if (size.part == part) {
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
