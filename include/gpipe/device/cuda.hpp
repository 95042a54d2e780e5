#pragma once

#include <gpipe/device/cuda_memory.hpp>
#include <gpipe/device/cuda_stream.hpp>
#include <gpipe/device/device.hpp>

#include <cstddef>
#include <cstdint>
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
/// context.stream(); nothing waits for it before the step's end. One stream per device of the
/// pipeline, which may share a GPU: then tensors are handed over without a copy. Devices on
/// different GPUs write into each other's memory, so these GPUs must have peer access.
class Cuda {
  public:
    using policy_kind = policy::Device;
    static constexpr bool enqueues = true;
    static constexpr bool calls_enqueue = true;
    static constexpr bool reads_host = false;
    static constexpr bool host_reads = false;

    /// What a layer's work goes on; to be written where a cudaStream_t is expected.
    class Stream : public cuda::StreamRef {
      public:
        using StreamRef::StreamRef;
        static constexpr bool replays = true; ///< what a step puts on it may run in others
        operator cudaStream_t() const noexcept { return stream_; }
        /// Throws cuda::Error if a kernel could not be launched.
        static void check_launch() { cuda::check("a kernel launch", cudaGetLastError()); }
    };
    struct Options {
        /// By device of the pipeline; at least as many as there are devices. Empty: all GPUs that
        /// CUDA sees, in their order.
        std::vector<int> gpus{};
    };

    /// Throws cuda::NoDevice, cuda::TooFewDevices, and std::invalid_argument for GPUs that are not
    /// there or cannot reach each other.
    Cuda(Options options, std::size_t devices) : gpus_(chosen(std::move(options.gpus), devices)) {
        for (int const gpu : gpus_) {
            streams_.emplace_back(gpu, cuda::Priority::high);
            names_.emplace_back(streams_.back().get());
        }
        for (int const from : gpus_)
            for (int const to : gpus_)
                if (from != to) enable_peer_access(from, to);
        marks_.resize(devices);
    }
    Cuda(Cuda const&) = delete;
    Cuda& operator=(Cuda const&) = delete;
    /// Memory that work still uses must not be given back before it.
    ~Cuda() {
        for (cuda::Stream const& stream : streams_)
            cuda::detail::forget(cudaStreamSynchronize(stream.get()));
    }

    std::size_t lanes() const { return 1; }
    cuda::Buffer allocate(std::size_t device, std::size_t bytes) {
        return cuda::Buffer(gpus_[device], bytes);
    }
    cuda::PinnedBuffer allocate_host(std::size_t bytes) { return cuda::PinnedBuffer(bytes); }
    Stream const& stream(std::size_t s) const { return names_[s]; }
    int gpu(std::size_t device) const { return gpus_[device]; }

    /// Makes the events that `marks` marks per stream and run need: a run then makes none.
    void reserve_marks(std::size_t marks) {
        for (std::size_t s = 0; s < marks_.size(); ++s)
            while (marks_[s].size() < marks) marks_[s].emplace_back(gpus_[s]);
    }

    template <class Walk> void run(std::size_t, Walk&& walk) {
        walk(std::size_t{0});
        // All of them, although one may have failed: their work must not outlive the run.
        cudaError_t first = cudaSuccess;
        for (cuda::Stream const& stream : streams_) {
            cudaError_t const status = cudaStreamSynchronize(stream.get());
            if (first == cudaSuccess) first = status;
        }
        cuda::check("cudaStreamSynchronize", first);
    }
    template <class Work> void launch(std::size_t stream, Work&& work) {
        cuda::DeviceGuard const guard(gpus_[stream]);
        work();
    }
    void wait(std::size_t stream, std::size_t producer, std::uint32_t position) {
        names_[stream].wait(mark(producer, position));
    }
    void record(std::size_t stream, std::uint32_t position) {
        cuda::DeviceGuard const guard(gpus_[stream]);
        mark(stream, position).record(names_[stream]);
    }
    void copy(std::size_t stream, std::byte* to, std::byte const* from, std::size_t bytes) {
        cuda::DeviceGuard const guard(gpus_[stream]);
        cuda::check("cudaMemcpyAsync",
                    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, names_[stream]));
    }
    void fill(std::size_t stream, std::byte* to, std::size_t bytes) {
        cuda::DeviceGuard const guard(gpus_[stream]);
        cuda::check("cudaMemsetAsync", cudaMemsetAsync(to, 0, bytes, names_[stream]));
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
    static void enable_peer_access(int from, int to) {
        int can = 0;
        cuda::check("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can, from, to));
        if (!can)
            throw std::invalid_argument("gpipe: GPU " + std::to_string(from) +
                                        " has no peer access to GPU " + std::to_string(to));
        cuda::DeviceGuard const guard(from);
        cudaError_t const status = cudaDeviceEnablePeerAccess(to, 0);
        if (status == cudaErrorPeerAccessAlreadyEnabled)
            cuda::detail::forget(status);
        else
            cuda::check("cudaDeviceEnablePeerAccess", status);
    }
    // A mark's event is recorded again only in the next run, when nobody waits for the old one.
    cuda::Event& mark(std::size_t stream, std::uint32_t position) {
        return marks_[stream][position % marks_[stream].size()];
    }

    std::vector<int> gpus_; // by device
    std::vector<cuda::Stream> streams_;
    std::vector<Stream> names_;
    std::vector<std::vector<cuda::Event>> marks_; // by stream
};

static_assert(DeviceRuntime<Cuda>);

} // namespace device
} // namespace gpipe
