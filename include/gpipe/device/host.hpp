#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/thread.hpp>
#include <gpipe/device/bell.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/device/host_buffer.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace gpipe::device {

/// The CPU. A fixed pool of threads (by default at most as many as cores) walks the programs of all
/// K devices: each is a lane of its own, in order, which any thread goes on with that has nothing
/// to do; a thread keeps to its share of neighbouring ones while it can. So a thread that has lost
/// its core holds up no more than the actions that need the one it is in. The caller of submit() is
/// the first thread, so one lane needs no other. Tensors are handed from lane to lane without a
/// copy; a mark is a count. Work is done when the call returns. No thread outlives the object. (A
/// process that fork() makes has none of the threads: it must not use the object, nor destroy it.)
/// Threads round, and flush denormals or not, as the one did that made the object; where the caller
/// does otherwise (fesetround(), say) bits depend on who walks what.
class Host : public SharedMemory {
  public:
    using policy_kind = policy::Device;

    /// There is nothing to say of the stream that a CPU's work goes on.
    struct Stream {};
    /// How many threads.
    struct Options {
        /// 0: at most as many as cores that the process may use, fewer where handing over costs
        /// more than it saves. Otherwise exactly this many, but never more than devices.
        std::size_t threads = 0;
        /// Whether the caller walks nothing itself, for which there is a thread more: then it
        /// waits, of runs that overlap, for no more than its arrays, if they are read.
        bool apart = false;
    };

    /// Starts the threads. Throws std::system_error if the system has none left.
    Host(Options options, std::size_t devices)
        : walkers_(std::clamp<std::size_t>(options.threads ? options.threads : detail::processors(),
                                           1, devices)),
          chooses_(options.threads == 0), apart_(options.apart),
          bell_(walkers_ + apart_ <= detail::processors() ? detail::Bell::patient
                                                          : detail::Bell::brief),
          lanes_(walkers_ > 1 ? devices : 1), threads_(walkers_ - (apart_ ? 0 : 1)) {
        try {
            for (std::size_t n = 0; n < threads_.size(); ++n) {
                threads_[n].host = this;
                threads_[n].walker = n + (apart_ ? 0 : 1);
                threads_[n].thread.start(threads_[n]);
            }
        } catch (...) { // the system has no further thread: those that run must end first
            stop();
            throw;
        }
    }
    Host(Host const&) = delete;
    Host& operator=(Host const&) = delete;
    ~Host() { stop(); }

    /// As DeviceQueue says, of a stream for each lane. Nothing throws: other lanes wait for the
    /// marks behind.
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
    bool wait(std::size_t stream, std::size_t producer, std::uint64_t position) noexcept {
        if (reached(producer, position)) return true;
        lanes_[stream].producer.store(producer, std::memory_order_relaxed);
        lanes_[stream].position.store(position, std::memory_order_relaxed);
        return false;
    }
    void record(std::size_t stream, std::uint64_t position) noexcept {
        lanes_[stream].mark.store(position, std::memory_order_release);
        bell_.ring();
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
    std::size_t lanes() const { return lanes_.size(); }
    std::size_t walkers() const { return walkers_; }
    bool chooses_lanes() const { return chooses_; }
    static constexpr std::size_t kept() { return 0; }
    template <class F> void run(F&& f) { f(); }
    /// Of a run that overlaps with the next, the caller waits for the reader's lane, and walks none
    /// but its share: else it may be in an action of the last device when the first could begin
    /// the next run.
    template <DeviceWalk Walk> bool submit(Ticket const& ticket, Walk walk) {
        static_assert(sizeof(Walk) <= sizeof(Job::room) && std::is_trivially_copyable_v<Walk>);
        walk.feed();
        walk.begin(overlapping_ && overlapping_ == ticket.work);
        overlapping_ = ticket.overlaps && (ticket.lanes > 1 || apart_) ? ticket.work : nullptr;
        if (ticket.lanes == 1 && !apart_) return walk(std::size_t{0}), true;
        std::uint64_t const run = begun_.load(std::memory_order_relaxed) + 1;
        Job& job = jobs_[run % depth];
        job.lanes = ticket.lanes;
        job.walk = &call<Walk>;
        new (job.room) Walk(walk);
        begun_.store(run, std::memory_order_release);
        bell_.ring();
        runs_[ticket.slot] = run;
        if (!overlapping_) return finish(ticket.slot), true;
        if (ticket.reader == Ticket::nobody) return false;
        await(run, ticket.reader, ticket.reader + 1);
        if (!apart_) bell_.ring(); // for who has found a lane taken by this thread
        return false;
    }
    void finish(std::size_t slot) { await(runs_[slot], 0, lanes_.size()); }
    static void abort() noexcept {}
    static void forget() {}
    static constexpr bool launched() { return true; }
    static constexpr bool spoilt() noexcept { return false; }
    ///@}

  private:
    // What lanes do in a run: written by the caller before the run has begun, read by who has taken
    // a lane that is to walk it, and no lane is further behind.
    struct Job {
        bool (*walk)(void const*, std::size_t, Progress&) = nullptr;
        std::size_t lanes = 0;
        alignas(void*) std::byte room[4 * sizeof(void*)];
    };
    struct alignas(128) Lane {
        std::atomic<std::uint64_t> state{0}; // twice the runs it has walked; odd: somebody has it
        Progress progress;                   // in the next one
        // What that is held up by: a mark of another lane.
        std::atomic<std::size_t> producer{0};
        std::atomic<std::uint64_t> position{0};
        std::atomic<std::uint64_t> mark{0}; // how far it has come

        std::uint64_t runs() const { return state.load(std::memory_order_acquire) / 2; }
    };
    struct Walker {
        Host* host = nullptr;
        std::size_t walker = 0;
        detail::Thread thread;

        void operator()() const {
            host->work(walker, true,
                       [this] { return host->stops_.load(std::memory_order_relaxed); });
        }
    };
    template <class Walk> static bool call(void const* walk, std::size_t lane, Progress& progress) {
        return static_cast<Walk const*>(walk)->go_on(lane, progress);
    }

    bool reached(std::size_t producer, std::uint64_t position) const {
        return lanes_[producer].mark.load(std::memory_order_acquire) >= position;
    }
    // Whether there is anything to walk that nobody walks. Who has a lane may change the mark that
    // it waits for meanwhile: then that thread looks again.
    bool runnable(std::size_t lane) const {
        Lane const& it = lanes_[lane];
        std::uint64_t const state = it.state.load(std::memory_order_acquire);
        return state % 2 == 0 && state / 2 < begun_.load(std::memory_order_acquire) &&
               reached(it.producer.load(std::memory_order_relaxed),
                       it.position.load(std::memory_order_relaxed));
    }
    // Goes on with a lane, unless another thread was faster.
    void go_on(std::size_t lane, std::size_t walker) {
        Lane& it = lanes_[lane];
        // Before begun_: of an older run than that says it may be walked no more.
        std::uint64_t state = it.state.load(std::memory_order_acquire);
        if (state % 2 == 1 || state / 2 == begun_.load(std::memory_order_acquire) ||
            !it.state.compare_exchange_strong(state, state + 1, std::memory_order_acquire))
            return;
        Job const& job = jobs_[(state / 2 + 1) % depth];
        it.progress.walker = walker;
        if (lane < job.lanes && !job.walk(job.room, lane, it.progress))
            return it.state.store(state, std::memory_order_release);
        it.progress = {};
        it.position.store(0, std::memory_order_relaxed);
        it.state.store(state + 2, std::memory_order_release);
        bell_.ring();
    }
    // A lane to go on with; if there is none, one past the last. Of several the last: that is the
    // one that others wait for.
    std::size_t find(std::size_t walker, bool of_all) const {
        std::size_t const begin = walker * lanes_.size() / walkers_;
        std::size_t const end = (walker + 1) * lanes_.size() / walkers_;
        for (std::size_t lane = end; lane-- > begin;)
            if (runnable(lane)) return lane;
        for (std::size_t lane = of_all ? lanes_.size() : 0; lane-- > 0;)
            if (runnable(lane)) return lane;
        return lanes_.size();
    }
    // Has this thread walk what can be walked, of all lanes or of its share, until done() says that
    // it is enough.
    template <class Done> void work(std::size_t walker, bool of_all, Done done) {
        for (;;) {
            std::size_t lane = lanes_.size();
            int looks = 0;
            bell_.wait([&] {
                return done() ||
                       (lane = find(walker, of_all && ++looks > own_looks)) < lanes_.size();
            });
            if (lane == lanes_.size()) return;
            go_on(lane, walker);
        }
    }
    // Returns when these lanes have walked a run; the caller walks what it can of all lanes where
    // it waits for all, else of its share.
    void await(std::uint64_t run, std::size_t first, std::size_t last) {
        auto const done = [=, this] {
            return std::all_of(lanes_.begin() + first, lanes_.begin() + last,
                               [=](Lane const& lane) { return lane.runs() >= run; });
        };
        apart_ ? bell_.wait(done) : work(0, last - first == lanes_.size(), done);
    }
    void stop() {
        stops_.store(true, std::memory_order_release);
        bell_.ring();
        for (Walker& it : threads_) it.thread.join();
    }

    // For so many looks, about a microsecond, a lane is left to the thread whose caches know it.
    static constexpr int own_looks = 16;

    std::size_t walkers_;
    bool chooses_;
    bool apart_;
    Stream stream_;
    Job jobs_[depth];
    std::uint64_t runs_[depth] = {};    // by slot: which it is of those that lanes have walked
    void const* overlapping_ = nullptr; // the work of the last run, if that may be under way
    std::atomic<std::uint64_t> begun_{0};
    std::atomic<bool> stops_{false};
    detail::Bell bell_;
    Array<Lane> lanes_;
    Array<Walker> threads_; // but the caller's
};

static_assert(DeviceRuntime<Host>);

} // namespace gpipe::device
