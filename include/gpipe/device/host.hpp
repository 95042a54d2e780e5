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
/// The caller of submit() is the first thread, so one lane needs no other. Tensors are handed from
/// lane to lane without a copy; a mark is a counter. Work is done when the call returns. No thread
/// outlives the object.
class Host : public SharedMemory {
  public:
    using policy_kind = policy::Device;

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

    /// As DeviceQueue says. Nothing throws: other lanes wait for the marks behind.
    ///@{
    static constexpr std::size_t streams(std::size_t lanes, std::size_t) { return lanes; }
    static void prepare(Array<std::size_t> const&, std::size_t, Array<std::size_t> const&) {}
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
    ///@}

    /// As DeviceMemory says. Nothing is fed: work reads the caller's arrays.
    ///@{
    static constexpr Link most_link = Link::shared;
    static constexpr Link link(std::size_t, std::size_t) { return Link::shared; }
    static HostBuffer allocate(std::size_t, std::size_t bytes) { return HostBuffer(bytes); }
    static HostBuffer allocate_host(std::size_t bytes) { return HostBuffer(bytes); }
    static void feed(std::size_t, std::byte* to, std::byte const* from, std::size_t bytes,
                     std::byte*) {
        std::memcpy(to, from, bytes);
    }
    static ReadsAtOnce feeding() { return {}; }
    static void await_writers(void const*) {}
    ///@}

    /// As DeviceExecutor says.
    ///@{
    static constexpr std::size_t depth = 2;
    std::size_t lanes() const { return lanes_; }
    bool chooses_lanes() const { return chooses_; }
    template <class F> void run(F&& f) { f(); }
    /// Of a run that overlaps with the next, the caller waits for its own lane and the reader's.
    template <DeviceWalk Walk> bool submit(Ticket const& ticket, Walk walk) {
        static_assert(sizeof(Walk) <= sizeof(Job::room) && std::is_trivially_copyable_v<Walk>);
        std::size_t const lanes = ticket.lanes;
        walk.feed();
        walk.begin(overlapping_ && overlapping_ == ticket.work);
        overlapping_ = ticket.overlaps && lanes > 1 ? ticket.work : nullptr;
        if (lanes > 1) {
            Job& job = next_job();
            job.walk = &call<Walk>;
            new (job.room) Walk(walk);
            begin_.publish(epoch_);
        }
        ends_[ticket.slot] = {epoch_, lanes};
        walk(std::size_t{0});
        if (!overlapping_)
            finish(ticket.slot);
        else if (ticket.reader > 0)
            finished_[ticket.reader].wait(epoch_);
        return !overlapping_;
    }
    void finish(std::size_t slot) {
        for (std::size_t lane = 1; lane < ends_[slot].lanes; ++lane)
            finished_[lane].wait(ends_[slot].epoch);
    }
    static void abort() noexcept {}
    static void forget() {}
    static constexpr bool launched() { return true; }
    static constexpr bool spoilt() noexcept { return false; }
    ///@}

  private:
    // What the other lanes do in a run: written by the caller before it publishes begin_, read by
    // them after. Nobody is more than one run behind.
    struct Job {
        void (*walk)(void const*, std::size_t) = nullptr;
        alignas(void*) std::byte room[4 * sizeof(void*)];
    };
    struct End {
        std::uint64_t epoch = 0;
        std::size_t lanes = 0;
    };
    template <class Walk> static void call(void const* walk, std::size_t lane) {
        (*static_cast<Walk const*>(walk))(lane);
    }
    Job& next_job() { return jobs_[++epoch_ % depth]; }

    void stop() {
        next_job().walk = nullptr;
        begin_.publish(epoch_);
        for (std::thread& thread : threads_)
            if (thread.joinable()) thread.join();
    }
    void work(std::size_t lane) {
        for (std::uint64_t epoch = 1;; ++epoch) {
            begin_.wait(epoch);
            Job const& job = jobs_[epoch % depth];
            if (!job.walk) return;
            job.walk(job.room, lane);
            finished_[lane].publish(epoch);
        }
    }

    Job jobs_[depth];
    End ends_[depth];
    std::uint64_t epoch_ = 0;
    void const* overlapping_ = nullptr; // the work of the last run, if that may be under way

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
