#pragma once

#include <gpipe/device/cuda_graph.hpp>
#include <gpipe/device/cuda_memory.hpp>
#include <gpipe/device/cuda_stream.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/plan/edge.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {

/// The GPUs that a pipeline's devices run on, in this order; the same one may be named again.
template <class... Ints> std::vector<int> gpus(Ints... numbers) {
    return {static_cast<int>(numbers)...};
}

namespace device {

/// GPUs of this machine. The functions of layers are called once per action and put their work on
/// context.stream(); nothing waits for it before the step's end. Each device of the pipeline has a
/// stream to compute on; devices on one GPU hand tensors over in place, others copy them on streams
/// of their own: from GPU to GPU where these have peer access, else through pinned memory.
///
/// A step can be kept as a CUDA graph: of each size of mini-batches one is captured, soon after the
/// first, and the others are launched by one call. Layers are then not called again, so what
/// changes from step to step must be read by their work, from the device's memory (context.random()
/// does).
class Cuda {
  public:
    using policy_kind = policy::Device;
    /// As DeviceRuntime says.
    ///@{
    static constexpr bool enqueues = true;
    static constexpr bool calls_enqueue = true;
    static constexpr bool overlaps = false;
    static constexpr bool reads_host = false;
    static constexpr bool host_reads = false;
    ///@}
    /// Steps that may have been started and not finished.
    static constexpr std::size_t steps_at_once = 2;
    /// What start() may be given to wait for.
    using CallersStream = cudaStream_t;

    /// What a layer's work goes on; to be written where a cudaStream_t is expected.
    class Stream : public cuda::StreamRef {
      public:
        /// Work may be run again in later steps without the layer's being called.
        static constexpr bool replays = true;

        /// One that this device captures, or, without that, any.
        explicit Stream(cudaStream_t stream, cuda::CaptureWatch* capture = nullptr)
            : StreamRef(stream), capture_(capture) {}
        /// For calls of CUDA. Notes, in a capture, whether one before was refused.
        operator cudaStream_t() const noexcept {
            if (capture_) capture_->look();
            return stream_;
        }
        /// Throws cuda::Error if a kernel could not be launched, and cuda::CannotCapture.
        void check_launch() const {
            if (capture_) capture_->check(*this);
            cuda::check("a kernel launch", cudaGetLastError());
        }

      private:
        cuda::CaptureWatch* capture_;
    };
    /// Which GPUs, and how tensors pass between them.
    struct Options {
        /// By device of the pipeline; at least as many as there are devices. Empty: all GPUs that
        /// CUDA sees, in their order.
        std::vector<int> gpus{};
        /// The fastest way between devices that may be taken; slower ones are where needed. For
        /// measurements: Link::staged is a machine without a fast interconnect.
        Link link = Link::shared;
        /// Of how many sizes of mini-batches steps are kept as graphs, two each; 0: of none. A
        /// graph takes memory of the GPU that no plan counts, as CUDA's context and cuBLAS do, and
        /// how much CUDA does not say: leave a reserve beside what is planned. Where there is none
        /// left, or another thread spoils the capture (see cuda::Capture), steps of that size run
        /// on streams, with the same results.
        std::size_t graphs = 0;
    };

    /// Throws cuda::NoDevice, cuda::TooFewDevices, and std::invalid_argument for GPUs that are not
    /// there.
    Cuda(Options options, std::size_t devices)
        : gpus_(chosen(std::move(options.gpus), devices)), link_(options.link),
          links_(devices * devices, Link::shared), hub_(gpus_[0], cuda::Priority::high),
          fork_(gpus_[0]), graphs_(options.graphs) {
        for (std::size_t from = 0; from < devices; ++from)
            for (std::size_t to = 0; to < devices; ++to)
                if (from != to) links_[from * devices + to] = natural_link(gpus_[from], gpus_[to]);
        for (std::size_t step = 0; step < steps_at_once; ++step) done_.emplace_back(gpus_[0]);
    }
    Cuda(Cuda const&) = delete;
    Cuda& operator=(Cuda const&) = delete;
    /// Memory that work still uses must not be given back before it.
    ~Cuda() { drain(); }

    /// As DeviceRuntime says.
    ///@{
    std::size_t lanes() const { return 1; }
    cuda::Buffer allocate(std::size_t device, std::size_t bytes) {
        return cuda::Buffer(gpus_[device], bytes);
    }
    cuda::PinnedBuffer allocate_host(std::size_t bytes) { return cuda::PinnedBuffer(bytes); }
    Stream const& stream(std::size_t s) const { return names_[s]; }
    ///@}
    /// The GPU, as CUDA counts them, of a device of the pipeline.
    int gpu(std::size_t device) const { return gpus_[device]; }
    /// As there and back.
    Link link(std::size_t a, std::size_t b) const {
        std::size_t const devices = gpus_.size();
        return a == b ? Link::shared
                      : std::max({link_, links_[a * devices + b], links_[b * devices + a]});
    }

    /// Makes a stream for each entry, of that device: those that compute, one for each device in
    /// their order, those that transfer, and last `feeds` that bring mini-batches; and the events
    /// that `marks` positions per stream and run need. A run then makes none.
    void prepare(Array<std::size_t> const& device_of_stream, std::size_t marks,
                 std::size_t feeds = 0) {
        feeds_ = feeds;
        names_.reserve(device_of_stream.size());
        for (std::size_t s = 0; s < device_of_stream.size(); ++s) {
            // What others wait for goes first.
            auto const priority = s < gpus_.size() ? cuda::Priority::low : cuda::Priority::high;
            int const gpu = gpus_[device_of_stream[s]];
            streams_.emplace_back(gpu, priority);
            names_.emplace_back(streams_.back().get(), &capture_);
            marks_.emplace_back();
            while (marks_[s].size() < marks) marks_[s].emplace_back(gpu);
            ends_.emplace_back(gpu);
        }
    }

    /// Before what a step enqueues. Throws an error that the caller's own calls have left behind,
    /// which a launch would be taken for.
    void begin() const { cuda::check_earlier(); }
    /// Calls walk, waits until all is done.
    template <class Walk> void run(std::size_t, Walk&& walk) {
        cuda::DeviceGuard const before;
        walk(std::size_t{0});
        cuda::check("cudaStreamSynchronize", drain());
    }
    /// Enqueues a step: what walk() enqueues, after the feeds and the step before. Without
    /// `key.work` it is never kept as a graph. Of no step whose walk returns false anything runs
    /// any more when this returns; after an exception drain() makes sure of that. Nothing runs of a
    /// capture that fails. Where that is no layer's doing (by failure(), what a walk that returned
    /// false ended with), the step is walked once more.
    template <class Walk, class Failure>
    void start(cuda::GraphKey const& key, Walk&& walk, Failure&& failure) {
        cuda::DeviceGuard const before;
        for (std::size_t s = names_.size() - feeds_; s < names_.size(); ++s) {
            ends_[s].record(names_[s]);
            hub_.wait(ends_[s]);
        }
        if (cuda::Graph const* const kept = graph_of(key)) {
            launch(*kept);
        } else {
            bool const keeps = key.work && graphs_;
            Captured const captured =
                keeps && graphs_.captures(key.samples) ? capture(key, walk, failure) : Captured::no;
            if (captured == Captured::failed || (captured == Captured::no && !surround(walk)))
                return static_cast<void>(drain());
            if (keeps && !graphs_.has_met(key.samples)) meet(key.samples);
        }
        done_[key.slot].record(hub_);
        launched_ = false;
    }
    /// Returns when the step that was started with this slot is done.
    void finish(std::size_t slot) { done_[slot].synchronize(); }
    /// Waits for everything, although something may have failed; returns the first failure.
    cudaError_t drain() noexcept {
        cudaError_t first = cudaSuccess;
        auto const wait = [&](cudaStream_t stream) {
            cudaError_t const status = cudaStreamSynchronize(stream);
            if (first == cudaSuccess) first = status;
            cuda::detail::forget(status);
        };
        for (cuda::Stream const& stream : streams_) wait(stream.get());
        wait(hub_.get());
        return first;
    }
    /// Steps are captured anew: their calls are no longer what they were.
    void forget_graphs() {
        hub_.synchronize();
        graphs_.clear();
    }
    /// Whether what is enqueued does not run, but is noted for a graph.
    bool captures() const { return capture_.on(); }
    /// Whether that cannot become a graph any more: every call fails then, whoever is to blame.
    bool spoilt() const noexcept {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        cuda::detail::forget(cudaStreamIsCapturing(hub_.get(), &status));
        return status == cudaStreamCaptureStatusInvalidated;
    }
    /// Whether a step that start() threw for has run nonetheless.
    bool launched() const { return launched_; }

    // Launches and fills go on streams of the current device, copies, records and waits on those of
    // any (CUDA C++ Programming Guide, "Stream and Event Behavior"). run() and start() make the
    // caller's current again.
    /// As DeviceRuntime says.
    ///@{
    template <class Work> void launch(std::size_t stream, Work&& work) {
        make_current(streams_[stream].device());
        work();
    }
    void wait(std::size_t stream, std::size_t producer, std::uint64_t position) {
        names_[stream].wait(mark(producer, position));
    }
    void record(std::size_t stream, std::uint64_t position) {
        mark(stream, position).record(names_[stream]);
    }
    /// From GPU to GPU, too: addresses tell whose they are. (cudaMemcpyPeerAsync, which would be
    /// told, is said to be refused in captures.)
    void copy(std::size_t stream, std::byte* to, std::byte const* from, std::size_t bytes) {
        cuda::check("cudaMemcpyAsync",
                    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, names_[stream]));
    }
    void fill(std::size_t stream, std::byte* to, std::size_t bytes) {
        make_current(streams_[stream].device());
        cuda::check("cudaMemsetAsync", cudaMemsetAsync(to, 0, bytes, names_[stream]));
        ///@}
    }
    /// Brings a part of a mini-batch from the caller's array, wherever that is. An array of the
    /// host is read at once, into `pinned`, one of a GPU behind its default stream; all behind the
    /// caller's stream while a Following lives, and pageable memory is refused then: throws
    /// std::invalid_argument.
    void feed(std::size_t stream, std::byte* to, std::byte const* from, std::size_t bytes,
              std::byte* pinned) {
        cuda::PointerKind const kind = cuda::pointer_kind(from);
        if (following_ && kind.memory == cuda::Memory::pageable)
            throw std::invalid_argument(
                "gpipe: a step that follows a stream was given an array in pageable memory of the "
                "host, which it would read before the stream writes it: give pinned memory, or no "
                "stream");
        if (following_ || is_on_gpu(kind)) {
            reads_caller_ = true;
            if (!following_)
                names_[stream].wait(default_stream_of(kind, streams_[stream].device()));
        } else {
            std::memcpy(pinned, from, bytes);
            from = pinned;
        }
        copy(stream, to, from, bytes);
    }
    /// Returns when what is on the default stream of its GPU is done, if an array is on one.
    void await_writers(void const* array) {
        cuda::PointerKind const kind = cuda::pointer_kind(array);
        if (is_on_gpu(kind)) default_stream_of(kind, gpus_[0]).synchronize();
    }
    /// Returns when the caller's arrays may be written again.
    void settle(std::size_t first_feed) {
        if (!std::exchange(reads_caller_, false)) return;
        for (std::size_t s = first_feed; s < names_.size(); ++s) names_[s].synchronize();
    }
    /// While it lives, feeds follow the caller's stream.
    class Following {
      public:
        /// Sets `on` until it is destroyed.
        explicit Following(bool& on) : on_(on) { on_ = true; }
        Following(Following const&) = delete;
        Following& operator=(Following const&) = delete;
        ~Following() { on_ = false; }

      private:
        bool& on_;
    };
    /// What is fed from now on waits for the caller's stream, which writes all of it.
    [[nodiscard]] Following follow(CallersStream caller, std::size_t first_feed) {
        int gpu = 0;
        cuda::check("cudaStreamGetDevice", cudaStreamGetDevice(caller, &gpu));
        cuda::Event& now = callers_event(gpu);
        cuda::DeviceGuard const guard(gpu); // whose default stream it may be
        now.record(caller);
        for (std::size_t s = first_feed; s < names_.size(); ++s) names_[s].wait(now);
        return Following(following_);
    }
    /// The caller's stream waits for what was fed.
    void lead(CallersStream caller, std::size_t first_feed) {
        reads_caller_ = false;
        for (std::size_t s = first_feed; s < names_.size(); ++s) {
            ends_[s].record(names_[s]);
            cuda::StreamRef(caller).wait(ends_[s]);
        }
    }

  private:
    static std::vector<int> chosen(std::vector<int> gpus, std::size_t devices) {
        int const present = cuda::device_count();
        if (gpus.empty())
            for (int gpu = 0; gpu < present; ++gpu) gpus.push_back(gpu);
        if (gpus.size() < devices)
            throw cuda::TooFewDevices(static_cast<int>(devices), static_cast<int>(gpus.size()));
        gpus.resize(devices);
        for (int const gpu : gpus)
            if (gpu < 0 || gpu >= present)
                throw std::invalid_argument("gpipe: there is no GPU " + std::to_string(gpu) +
                                            ", but " + std::to_string(present) + " of them");
        return gpus;
    }
    static void make_current(int gpu) { cuda::check("cudaSetDevice", cudaSetDevice(gpu)); }
    static bool is_on_gpu(cuda::PointerKind const& kind) {
        return kind.memory == cuda::Memory::device || kind.memory == cuda::Memory::managed;
    }
    // How far the legacy stream has come, and so every stream that waits for it: the threads'
    // default streams, and all that were not made to do without.
    cuda::Event& default_stream_of(cuda::PointerKind const& kind, int otherwise) {
        int const gpu = kind.memory == cuda::Memory::device ? kind.device : otherwise;
        cuda::Event& now = callers_event(gpu);
        cuda::DeviceGuard const guard(gpu);
        now.record(cudaStreamLegacy);
        return now;
    }
    // The callers' streams are of few GPUs: one event for each is made when it is first seen.
    cuda::Event& callers_event(int gpu) {
        for (auto& [of, event] : callers_)
            if (of == gpu) return event;
        return callers_.emplace_back(gpu, cuda::Event(gpu)).second;
    }
    // Peer access is a matter of the whole process: what another pipeline enabled is fine.
    static Link natural_link(int from, int to) {
        if (from == to) return Link::shared;
        int can = 0;
        cuda::check("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can, from, to));
        if (!can) return Link::staged;
        cuda::DeviceGuard const guard(from);
        cudaError_t const status = cudaDeviceEnablePeerAccess(to, 0);
        if (status == cudaErrorPeerAccessAlreadyEnabled || status == cudaErrorTooManyPeers)
            cuda::detail::forget(status);
        else
            cuda::check("cudaDeviceEnablePeerAccess", status);
        return status == cudaErrorTooManyPeers ? Link::staged : Link::copied;
    }

    // What walk() enqueues, between two marks on the hub. A stream that transfers waits for one
    // that computes before all it does, and one that computes for all that it did.
    template <class Walk> bool surround(Walk&& walk) {
        fork_.record(hub_);
        for (std::size_t d = 0; d < gpus_.size(); ++d) names_[d].wait(fork_);
        if (!walk(std::size_t{0})) return false;
        for (std::size_t d = 0; d < gpus_.size(); ++d) {
            ends_[d].record(names_[d]);
            hub_.wait(ends_[d]);
        }
        return true;
    }
    cuda::Graph const* graph_of(cuda::GraphKey const& key) {
        return key.work && graphs_ ? graphs_.find(key) : nullptr;
    }
    void meet(std::size_t samples) {
        if (graphs_.is_full()) hub_.synchronize();
        graphs_.meet(samples);
    }
    // On its own GPU, as whatever is about graphs: no page of CUDA asks for that, but experience
    // does (ml-explore/mlx#2351).
    void launch(cuda::Graph const& graph) {
        make_current(gpus_[0]);
        graph.launch(hub_);
        launched_ = true;
    }

    enum class Captured { no, failed, launched };
    // Launches the step that it has captured. No: there is no graph to be had, and no layer to
    // blame.
    template <class Walk, class Failure>
    Captured capture(cuda::GraphKey const& key, Walk&& walk, Failure&& failure) {
        try {
            if (!surround_captured(key, walk)) {
                if (capture_.refused() || !is_spoilt_capture(failure())) return Captured::failed;
            } else {
                launch(*graphs_.find(key));
                return Captured::launched;
            }
        } catch (cuda::CannotCapture const&) {
            throw;
        } catch (cuda::Error const&) {
        }
        static_cast<void>(cudaGetLastError()); // of a launch that nobody checked
        graphs_.give_up(key);
        return Captured::no;
    }
    template <class Walk> bool surround_captured(cuda::GraphKey const& key, Walk&& walk) {
        struct Watching {
            cuda::CaptureWatch& watch;
            explicit Watching(cuda::CaptureWatch& w) : watch(w) { watch.begin(); }
            ~Watching() { watch.end(); }
        };
        Watching const watching(capture_);
        make_current(gpus_[0]);
        cuda::Capture capture(hub_);
        if (!surround(walk)) return false;
        make_current(gpus_[0]);
        graphs_.add(key, capture.end());
        return true;
    }
    // Of a call that failed because the capture had been spoilt before.
    static bool is_spoilt_capture(std::exception_ptr const& error) {
        try {
            std::rethrow_exception(error);
        } catch (cuda::Error const& e) {
            return e.code() == cudaErrorStreamCaptureInvalidated;
        } catch (...) {
            return false;
        }
    }
    // A mark's event is recorded again only in the next run, behind everybody who waits for the old
    // one.
    cuda::Event& mark(std::size_t stream, std::uint64_t position) {
        return marks_[stream][position % marks_[stream].size()];
    }

    std::vector<int> gpus_; // by device
    Link link_;
    std::vector<Link> links_; // by device and device
    cuda::Stream hub_;        // where steps begin and end
    cuda::Event fork_;
    std::vector<cuda::Event> done_; // by slot
    cuda::Graphs graphs_;
    cuda::CaptureWatch capture_;
    bool launched_ = false;
    bool following_ = false;    // whether feeds wait for a stream of the caller
    bool reads_caller_ = false; // whether feeds read arrays of the caller
    std::size_t feeds_ = 0;
    std::vector<cuda::Stream> streams_;
    std::vector<Stream> names_;
    std::vector<std::vector<cuda::Event>> marks_; // by stream
    std::vector<cuda::Event> ends_;               // by stream
    std::vector<std::pair<int, cuda::Event>> callers_;
};

static_assert(DeviceRuntime<Cuda>);

} // namespace device
} // namespace gpipe
