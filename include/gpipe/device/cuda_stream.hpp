#pragma once

#include <gpipe/device/cuda_error.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpipe::cuda {

/// Makes a GPU the calling thread's current one, and the one before again at the end.
class DeviceGuard {
  public:
    /// Only remembers it; others may be made current until the end.
    DeviceGuard() : changed_(true) { check("cudaGetDevice", cudaGetDevice(&before_)); }
    /// Makes it current.
    explicit DeviceGuard(int device) {
        check("cudaGetDevice", cudaGetDevice(&before_));
        if (before_ == device) return;
        check("cudaSetDevice", cudaSetDevice(device));
        changed_ = true;
    }
    DeviceGuard(DeviceGuard const&) = delete;
    DeviceGuard& operator=(DeviceGuard const&) = delete;
    ~DeviceGuard() {
        if (changed_) detail::forget(cudaSetDevice(before_));
    }

  private:
    int before_ = 0;
    bool changed_ = false;
};

class Event;

/// A stream that somebody else owns. Never made of a literal: 0 is the legacy stream, which would
/// wait for everybody.
class StreamRef {
  public:
    /// Does not own it.
    StreamRef(cudaStream_t stream) : stream_(stream) {}
    StreamRef(int) = delete;
    StreamRef(std::nullptr_t) = delete;

    /// As CUDA takes it.
    cudaStream_t get() const noexcept { return stream_; }

    /// What comes next on this stream waits for all that was on the event's when it was last
    /// recorded; for nothing if it never was.
    void wait(Event const& event) const;
    /// From any GPU's memory or the host's to any: addresses tell whose they are.
    /// (cudaMemcpyPeerAsync, which would be told, is said to be refused in captures.)
    void copy(std::byte* to, std::byte const* from, std::size_t bytes) const {
        check("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
    }
    /// Whether everything on the stream has run.
    bool query() const {
        cudaError_t const status = cudaStreamQuery(stream_);
        if (status == cudaErrorNotReady) return detail::forget(status), false;
        check("cudaStreamQuery", status);
        return true;
    }
    /// Returns when everything on the stream has run.
    void synchronize() const { check("cudaStreamSynchronize", cudaStreamSynchronize(stream_)); }

    friend bool operator==(StreamRef a, StreamRef b) noexcept { return a.stream_ == b.stream_; }

  protected:
    /// What it is of.
    cudaStream_t stream_;
};

/// Whose work goes first when streams of one GPU compete.
enum class Priority : std::uint8_t { low, high };

/// A stream of one GPU that does not wait for the legacy stream, unless it is made to. Destroying
/// it does not wait, nor lose what is still to run. Default constructed or moved from, it is no
/// stream, and no call of CUDA takes it for one.
class Stream : public StreamRef {
  public:
    Stream() : StreamRef(nobody()) {}
    /// Throws cuda::Error if CUDA does.
    explicit Stream(int device, Priority priority = Priority::low, bool blocking = false)
        : Stream() {
        DeviceGuard const guard(device);
        int least = 0;
        int greatest = 0;
        check("cudaDeviceGetStreamPriorityRange",
              cudaDeviceGetStreamPriorityRange(&least, &greatest));
        check("cudaStreamCreateWithPriority",
              cudaStreamCreateWithPriority(&stream_,
                                           blocking ? cudaStreamDefault : cudaStreamNonBlocking,
                                           priority == Priority::high ? greatest : least));
        device_ = device;
    }
    /// What is moved from is no stream.
    Stream(Stream&& other) noexcept
        : StreamRef(std::exchange(other.stream_, nobody())), device_(other.device_) {}
    /// The two change places.
    Stream& operator=(Stream&& other) noexcept {
        std::swap(stream_, other.stream_);
        std::swap(device_, other.device_);
        return *this;
    }
    ~Stream() {
        if (stream_ != nobody()) detail::forget(cudaStreamDestroy(stream_));
    }

    /// The GPU, as CUDA counts them.
    int device() const noexcept { return device_; }

  private:
    static cudaStream_t nobody() { return reinterpret_cast<cudaStream_t>(~std::uintptr_t{0}); }

    int device_ = 0;
};

/// How far a stream had come. Measures no time.
class Event {
  public:
    Event() = default;
    /// To be recorded on streams of this GPU only; streams of any GPU may wait for it.
    explicit Event(int device) {
        DeviceGuard const guard(device);
        cudaEvent_t event = nullptr;
        check("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        event_.reset(event);
    }

    /// As CUDA takes it; null if it is none, or was moved from.
    cudaEvent_t get() const noexcept { return event_.get(); }

    /// From now on stands for all that is on the stream by now. Waits enqueued before keep to what
    /// it stood for then.
    void record(StreamRef stream) {
        check("cudaEventRecord", cudaEventRecord(get(), stream.get()));
    }
    /// Whether all that it stands for has run; true if never recorded.
    bool query() const {
        cudaError_t const status = cudaEventQuery(get());
        if (status == cudaErrorNotReady) return detail::forget(status), false;
        check("cudaEventQuery", status);
        return true;
    }
    /// Returns when all that it stands for has run.
    void synchronize() const { check("cudaEventSynchronize", cudaEventSynchronize(get())); }

  private:
    detail::Owned<cudaEvent_t, cudaEventDestroy> event_;
};

inline void StreamRef::wait(Event const& event) const {
    check("cudaStreamWaitEvent", cudaStreamWaitEvent(stream_, event.get(), 0));
}

} // namespace gpipe::cuda
