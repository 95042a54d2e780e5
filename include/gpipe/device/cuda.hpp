#pragma once

#include <gpipe/device/cuda_feeds.hpp>
#include <gpipe/device/cuda_graph.hpp>
#include <gpipe/device/cuda_links.hpp>
#include <gpipe/device/cuda_memory.hpp>
#include <gpipe/device/cuda_options.hpp>
#include <gpipe/device/cuda_peers.hpp>
#include <gpipe/device/cuda_stream.hpp>
#include <gpipe/device/device.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace gpipe {
namespace device {

/// GPUs of this machine. The functions of layers are called once per action and put their work on
/// context.stream(); nothing waits for it before the step's end. Each device of the pipeline has a
/// stream to compute on; devices on one GPU hand tensors over in place, others copy them on streams
/// of their own: from GPU to GPU where these have peer access, else through pinned memory.
///
/// A step, or an inference, can be kept as a CUDA graph: of each size of mini-batches one is
/// captured, soon after the first, and the others are launched by one call. Layers are then not
/// called again, so what changes from step to step must be read by their work, from the device's
/// memory (context.random() does).
class Cuda : public OwnMemory {
  public:
    using policy_kind = policy::Device;
    /// What feeding() may be given to wait for.
    using CallersStream = cudaStream_t;

    /// What a layer's work goes on; to be written where a cudaStream_t is expected.
    using Stream = cuda::WatchedStream;
    using Options = cuda::Options; ///< which GPUs, and how tensors pass between them

    /// Throws as cuda::Links does.
    Cuda(Options options, std::size_t devices)
        : links_(std::move(options.gpus), devices, options.link), blocking_(options.blocking),
          hub_(links_.gpu(0), cuda::Priority::high, blocking_), fork_(links_.gpu(0)),
          graphs_(options.graphs) {
        for (std::size_t step = 0; step < depth; ++step) done_.emplace_back(links_.gpu(0));
    }
    Cuda(Cuda const&) = delete;
    Cuda& operator=(Cuda const&) = delete;
    ~Cuda() { drain(); } ///< memory that work still uses must not be given back before it

    /// As DeviceMemory says, and cuda::Feeds.
    ///@{
    static constexpr Link most_link = Link::copied;
    Link link(std::size_t a, std::size_t b) const { return links_.link(a, b); }
    cuda::Buffer allocate(std::size_t device, std::size_t bytes) {
        return cuda::Buffer(links_.gpu(device), bytes);
    }
    cuda::PinnedBuffer allocate_host(std::size_t bytes) { return cuda::PinnedBuffer(bytes); }
    void feed(std::size_t i, std::byte* to, std::byte const* from, std::size_t bytes,
              std::byte* pinned) {
        feeds_.feed(i, to, from, bytes, pinned);
    }
    auto feeding() { return feeds_.feeding(); }
    auto feeding(CallersStream caller) { return feeds_.feeding(caller, hub_); }
    void await_writers(void const* array) { feeds_.await_writers(array, links_.gpu(0)); }
    ///@}

    // Launches and fills go on streams of the current device, copies, records and waits on those of
    // any (CUDA C++ Programming Guide, "Stream and Event Behavior"). run() and submit() make the
    // caller's current again.
    /// As DeviceQueue says. The first streams compute, one for each device in their order; the
    /// others transfer.
    ///@{
    static constexpr std::size_t streams(std::size_t, std::size_t programs) { return programs; }
    Stream const& stream(std::size_t s) const { return names_[s]; }
    void prepare(Array<std::size_t> const& device_of_stream, std::size_t marks,
                 Array<std::size_t> const& device_of_feed) {
        names_.reserve(device_of_stream.size());
        for (std::size_t s = 0; s < device_of_stream.size(); ++s) {
            // What others wait for goes first.
            auto const priority = s < links_.devices() ? cuda::Priority::low : cuda::Priority::high;
            int const gpu = links_.gpu(device_of_stream[s]);
            cuda::Stream const& own = streams_.emplace_back(gpu, priority, blocking_);
            names_.emplace_back(own, &capture_, blocking_, peers_);
            marks_.emplace_back();
            while (marks_[s].size() < marks) marks_[s].emplace_back(gpu);
            if (s < ending()) ends_.emplace_back(gpu);
        }
        for (std::size_t const device : device_of_feed) feeds_.add(links_.gpu(device));
    }
    template <class Work> void launch(std::size_t stream, Work&& work) {
        make_current(streams_[stream].device());
        work();
    }
    bool wait(std::size_t stream, std::size_t producer, std::uint64_t position) {
        names_[stream].wait(mark(producer, position));
        return true;
    }
    void record(std::size_t stream, std::uint64_t position) {
        mark(stream, position).record(names_[stream]);
    }
    void copy(std::size_t stream, std::byte* to, std::byte const* from, std::size_t bytes) {
        names_[stream].copy(to, from, bytes);
    }
    void fill(std::size_t stream, std::byte* to, std::size_t bytes) {
        make_current(streams_[stream].device());
        cuda::check("cudaMemsetAsync", cudaMemsetAsync(to, 0, bytes, names_[stream]));
    }
    ///@}

    /// As DeviceExecutor says.
    ///@{
    static constexpr std::size_t depth = 2;
    static constexpr std::size_t lanes() { return 1; }
    static constexpr std::size_t walkers() { return 1; }
    static constexpr bool chooses_lanes() { return false; }
    std::size_t kept() const { return graphs_.count(); }
    template <class F> void run(F&& f) {
        cuda::DeviceGuard const before;
        try {
            f();
        } catch (...) {
            drain();
            throw;
        }
        cuda::check("cudaStreamSynchronize", drain());
    }
    /// Runs what is fed, and then what is walked, behind the run before, or, where both were walked
    /// and the ticket says so, as it goes. Throws an error that the caller's own calls have left
    /// behind, which a launch would be taken for. Nothing runs of a capture that fails; where that
    /// is no layer's doing, the run is walked once more.
    template <DeviceWalk Walk> bool submit(Ticket const& ticket, Walk const& walk) {
        launched_ = false;
        cuda::check_earlier();
        cuda::DeviceGuard const before;
        walk.feed();
        feeds_.join(hub_);
        if (peers_ && !peers_->begin()) throw detail::RefusedElsewhere();
        cuda::GraphKey const key{ticket.work, ticket.part, ticket.slot};
        bool const keeps = ticket.repeats && graphs_;
        bool const overlaps = ticket.overlaps && !peers_ && !feeds_.follows();
        bool const follows = std::exchange(walked_, nullptr) == ticket.work && overlaps;
        if (cuda::Graph const* const kept = keeps ? graphs_.find(key) : nullptr) {
            launch(*kept);
        } else {
            Captured const captured =
                keeps && graphs_.captures(key.part) ? capture(key, walk) : Captured::no;
            if (captured == Captured::failed ||
                (captured == Captured::no && !surround(walk, follows)))
                return static_cast<void>(drain()), true;
            if (captured == Captured::no && overlaps) walked_ = ticket.work;
            if (keeps && !graphs_.has_met(key.part)) {
                if (graphs_.is_full()) cuda::finish(hub_, peers_);
                graphs_.meet(key.part);
            }
        }
        walk.deliver([this](auto... copied) { cuda::copy(hub_, peers_, copied...); });
        done_[key.slot].record(hub_);
        return false;
    }
    void finish(std::size_t slot) { cuda::finish(done_[slot], peers_); }
    void abort() noexcept { drain(); }
    bool launched() const { return launched_; }
    bool spoilt() const noexcept {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        cuda::detail::forget(cudaStreamIsCapturing(hub_.get(), &status));
        return status == cudaStreamCaptureStatusInvalidated;
    }
    void forget() {
        cuda::finish(hub_, peers_);
        graphs_.clear();
    }
    ///@}

  protected:
    /// Before prepare(): its work meets those, who must outlive it. Whether they can, on its GPUs.
    bool meet(cuda::Peers& peers) { return peers_ = &peers, peers.meet(links_.gpus()); }
    bool is_capturing() const { return capture_.on(); } ///< work is noted, not run

  private:
    static void make_current(int gpu) { cuda::check("cudaSetDevice", cudaSetDevice(gpu)); }
    // Waits for everything, although something may have failed; returns the first failure.
    cudaError_t drain() noexcept {
        cudaError_t first = cudaSuccess;
        auto const wait = [&](cuda::Stream const& stream) {
            cudaError_t const status = cuda::await(stream, peers_);
            if (first == cudaSuccess) first = status;
            cuda::detail::forget(status);
        };
        for (cuda::Stream const& stream : streams_) wait(stream);
        feeds_.each(wait);
        wait(hub_);
        return first;
    }
    // Streams that wait for a run's begin, and its end for them. One that transfers waits for one
    // that computes, and one that computes for it; but not where it receives from elsewhere.
    std::size_t ending() const { return peers_ ? streams_.size() : links_.devices(); }
    // What is walked, between two marks on the hub, or behind what is fed alone. With others all of
    // it is of use to them, whatever has failed.
    template <class Walk> bool surround(Walk const& walk, bool follows) {
        if (!follows) fork_.record(hub_);
        for (std::size_t s = 0; s < ending(); ++s)
            follows ? feeds_.join(streams_[s]) : names_[s].wait(fork_);
        walk.begin(follows);
        launched_ = !capture_.on();
        if (!walk(std::size_t{0}) && (!peers_ || capture_.on())) return false;
        for (std::size_t s = 0; s < ending(); ++s) {
            ends_[s].record(names_[s]);
            hub_.wait(ends_[s]);
        }
        return true;
    }
    // On its own GPU, as whatever is about graphs: no page of CUDA asks for that, but experience
    // does (ml-explore/mlx#2351).
    void launch(cuda::Graph const& graph) {
        make_current(links_.gpu(0));
        graph.launch(hub_);
        launched_ = true;
    }

    enum class Captured { no, failed, launched };
    // Launches the step that it has captured; with others all do, or none. No: there is no graph to
    // be had, and no layer to blame.
    template <class Walk> Captured capture(cuda::GraphKey const& key, Walk const& walk) {
        Captured result = capture_alone(key, walk);
        if (peers_) {
            if (peers_->all(result == Captured::launched))
                return launch(*graphs_.find(key)), result;
            result = peers_->all(result != Captured::failed) ? Captured::no : Captured::failed;
            graphs_.drop(key);
        }
        if (result == Captured::no) graphs_.give_up(key);
        return result;
    }
    template <class Walk> Captured capture_alone(cuda::GraphKey const& key, Walk const& walk) {
        try {
            if (surround_captured(key, walk)) {
                if (!peers_) launch(*graphs_.find(key));
                return Captured::launched;
            }
            if (capture_.refused() || !cuda::is_spoilt_capture(walk.error()))
                return Captured::failed;
        } catch (cuda::CannotCapture const&) {
            throw;
        } catch (cuda::Error const&) {
        }
        static_cast<void>(cudaGetLastError()); // of a launch that nobody checked
        return Captured::no;
    }
    template <class Walk> bool surround_captured(cuda::GraphKey const& key, Walk const& walk) {
        cuda::CaptureWatch::While const watching(capture_);
        make_current(links_.gpu(0));
        cuda::Capture capture(hub_);
        if (!surround(walk, false)) return false;
        make_current(links_.gpu(0));
        graphs_.add(key, capture.end());
        return true;
    }
    // A mark's event is recorded again only in the next run, behind everybody who waits for the old
    // one.
    cuda::Event& mark(std::size_t stream, std::uint64_t position) {
        return marks_[stream][position % marks_[stream].size()];
    }

    cuda::Links links_;
    bool blocking_;
    cuda::Stream hub_; // where steps begin and end
    cuda::Event fork_;
    std::vector<cuda::Event> done_; // by slot
    cuda::Graphs graphs_;
    cuda::CaptureWatch capture_;
    cuda::Peers* peers_ = nullptr;
    bool launched_ = false;
    void const* walked_ = nullptr; // the work of the run before, if it may be under way
    cuda::Feeds feeds_;
    std::vector<cuda::Stream> streams_;
    std::vector<Stream> names_;
    std::vector<std::vector<cuda::Event>> marks_; // by stream
    std::vector<cuda::Event> ends_;               // by device
};

static_assert(DeviceRuntime<Cuda>);

} // namespace device

// In gpipe.cuh.
template <> struct StepWork<device::Cuda>;

} // namespace gpipe
