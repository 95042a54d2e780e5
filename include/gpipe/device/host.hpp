#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/device/counter.hpp>
#include <gpipe/device/device.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <utility>

namespace gpipe::device {

/// Memory of the host, zeroed, aligned to slot_alignment.
class HostBuffer {
  public:
    HostBuffer() = default;
    /// Of so many bytes; empty for 0. Throws std::bad_alloc.
    explicit HostBuffer(std::size_t bytes)
        : data_(bytes ? static_cast<std::byte*>(
                            ::operator new (bytes, std::align_val_t{slot_alignment}))
                      : nullptr),
          size_(bytes) {
        if (bytes) std::memset(data_.get(), 0, bytes);
    }
    /// Null if it is empty.
    std::byte* data() const { return data_.get(); }
    /// Bytes.
    std::size_t size() const { return size_; }

  private:
    struct Free {
        void operator()(std::byte* data) const {
            ::operator delete (data, std::align_val_t{slot_alignment});
        }
    };
    std::unique_ptr<std::byte, Free> data_;
    std::size_t size_ = 0;
};

/// The CPU. A fixed pool of at most as many threads as cores walks the programs of all K devices:
/// with fewer threads than devices, each walks the merged programs of several neighbouring ones.
/// The caller of run() is the first thread, so one lane needs no other. Tensors are handed from
/// lane to lane without a copy; a mark is a counter. No thread outlives the object.
class Host {
  public:
    using policy_kind = policy::Device;
    /// As DeviceRuntime says.
    ///@{
    static constexpr bool enqueues = false;
    static constexpr bool calls_enqueue = false;
    static constexpr bool overlaps = true;
    static constexpr std::size_t steps_at_once = 2;
    static constexpr bool reads_host = true;
    static constexpr bool host_reads = true;
    ///@}

    /// There is nothing to say of the stream that a CPU's work goes on.
    struct Stream {};
    /// How many threads.
    struct Options {
        /// 0: at most as many as cores, fewer where handing over costs more than it saves.
        /// Otherwise exactly this many, but never more than devices.
        std::size_t threads = 0;
    };

    /// Starts the threads. Throws std::system_error if the system has none left.
    Host(Options options, std::size_t devices)
        : lanes_(std::clamp<std::size_t>(
              options.threads ? options.threads : std::thread::hardware_concurrency(), 1, devices)),
          chooses_(options.threads == 0), marks_(std::make_unique<detail::Counter[]>(lanes_)),
          finished_(std::make_unique<detail::Counter[]>(lanes_)), threads_(lanes_ - 1) {
        try {
            for (std::size_t lane = 1; lane < lanes_; ++lane)
                threads_[lane - 1] = std::thread([this, lane] { work(lane); });
        } catch (...) { // the system has no further thread: those that run must end first
            stop();
            throw;
        }
    }
    Host(Host const&) = delete;
    Host& operator=(Host const&) = delete;
    ~Host() { stop(); }

    /// Threads, at most one per device.
    std::size_t lanes() const { return lanes_; }
    /// Whether a run may use one lane instead of all.
    bool chooses_lanes() const { return chooses_; }
    /// As DeviceRuntime says.
    ///@{
    HostBuffer allocate(std::size_t, std::size_t bytes) { return HostBuffer(bytes); }
    HostBuffer allocate_host(std::size_t bytes) { return HostBuffer(bytes); }
    ///@}

    /// As DeviceRuntime says.
    template <class Walk> void run(std::size_t lanes, Walk&& walk) {
        if (lanes > 1) {
            using Object = std::remove_reference_t<Walk>;
            Job& job = next_job();
            job.walk = &call<Object>;
            job.context = const_cast<void*>(static_cast<void const*>(std::addressof(walk)));
            begin_.publish(epoch_);
        }
        walk(std::size_t{0});
        for (std::size_t lane = 1; lane < lanes; ++lane) finished_[lane].wait(epoch_);
    }
    /// Begins a run that others may follow before it has ended, one for each slot; returns when the
    /// caller's lane and lane `reader` have ended.
    template <class Walk>
    void start(std::size_t slot, std::size_t lanes, std::size_t reader, Walk walk) {
        static_assert(sizeof(Walk) <= sizeof(Job::room) && std::is_trivially_copyable_v<Walk>);
        if (lanes > 1) {
            Job& job = next_job();
            job.walk = &call<Walk>;
            job.context = new (job.room) Walk(walk);
            begin_.publish(epoch_);
        }
        ends_[slot] = {epoch_, lanes};
        walk(std::size_t{0});
        if (reader > 0) finished_[reader].wait(epoch_);
    }
    /// Returns when the run that was started with this slot has ended.
    void finish(std::size_t slot) {
        for (std::size_t lane = 1; lane < ends_[slot].lanes; ++lane)
            finished_[lane].wait(ends_[slot].epoch);
    }

    /// As DeviceRuntime says; work, copies and fills are done when the call returns.
    ///@{
    Stream const& stream(std::size_t) const { return stream_; }
    template <class Work> void launch(std::size_t, Work&& work) noexcept {
        static_assert(noexcept(work()), "other lanes wait for the marks behind it");
        work();
    }
    void copy(std::size_t, std::byte* to, std::byte const* from, std::size_t bytes) noexcept {
        std::memcpy(to, from, bytes);
    }
    void fill(std::size_t, std::byte* to, std::size_t bytes) noexcept { std::memset(to, 0, bytes); }
    void wait(std::size_t, std::size_t producer, std::uint64_t position) noexcept {
        marks_[producer].wait(position);
    }
    void record(std::size_t stream, std::uint64_t position) noexcept {
        marks_[stream].publish(position);
    }

  private:
    // What the other lanes do in a run: written by the caller before it publishes begin_, read by
    // them after. Nobody is more than one run behind.
    struct Job {
        void (*walk)(void*, std::size_t) = nullptr;
        ///@}
        void* context = nullptr;
        alignas(void*) std::byte room[4 * sizeof(void*)];
    };
    struct End {
        std::uint64_t epoch = 0;
        std::size_t lanes = 0;
    };
    template <class Walk> static void call(void* context, std::size_t lane) {
        (*static_cast<Walk*>(context))(lane);
    }
    Job& next_job() { return jobs_[++epoch_ % steps_at_once]; }

    void stop() {
        next_job().walk = nullptr;
        begin_.publish(epoch_);
        for (std::thread& thread : threads_)
            if (thread.joinable()) thread.join();
    }
    void work(std::size_t lane) {
        for (std::uint64_t epoch = 1;; ++epoch) {
            begin_.wait(epoch);
            Job const& job = jobs_[epoch % steps_at_once];
            if (!job.walk) return;
            job.walk(job.context, lane);
            finished_[lane].publish(epoch);
        }
    }

    Job jobs_[steps_at_once];
    End ends_[steps_at_once];
    std::uint64_t epoch_ = 0;

    std::size_t lanes_;
    bool chooses_;
    Stream stream_;
    detail::Counter begin_;
    std::unique_ptr<detail::Counter[]> marks_;    // by lane: how far it has come
    std::unique_ptr<detail::Counter[]> finished_; // by lane: the last run it has finished
    Array<std::thread> threads_;
};

static_assert(DeviceRuntime<Host>);

} // namespace gpipe::device
