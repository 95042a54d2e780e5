#pragma once

// A device for tests only. It runs nothing when it is told to: launches, waits and records are put
// on streams, one per device of the pipeline, and run when run() drains them, in an order that
// streams and marks allow and that a seed chooses. Whatever relies on a call's having finished goes
// wrong here, on one thread and every time.

#include <gpipe/core/bytes.hpp>
#include <gpipe/device/device.hpp>
#include <gpipe/device/host.hpp>
#include <gpipe/plan/edge.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace toy {

/// Zeroed memory with a guard on either side, which nobody may touch.
class GuardedBuffer {
  public:
    static constexpr std::size_t guard = 4 * gpipe::slot_alignment;
    static constexpr std::byte mark{0xA5};

    GuardedBuffer() = default;
    explicit GuardedBuffer(std::size_t bytes)
        : memory_(static_cast<std::byte*>(
              ::operator new (bytes + 2 * guard, std::align_val_t{gpipe::slot_alignment}))),
          size_(bytes) {
        std::memset(memory_.get(), static_cast<int>(mark), bytes + 2 * guard);
        std::memset(data(), 0, bytes);
    }
    std::byte* data() const { return memory_.get() + guard; }
    std::size_t size() const { return size_; }
    bool intact() const {
        for (std::size_t i = 0; memory_ && i < guard; ++i)
            if (memory_[i] != mark || memory_[guard + size_ + i] != mark) return false;
        return true;
    }

  private:
    struct Free {
        void operator()(std::byte* data) const {
            ::operator delete (data, std::align_val_t{gpipe::slot_alignment});
        }
    };
    std::unique_ptr<std::byte[], Free> memory_;
    std::size_t size_ = 0;
};

class Deferred : public gpipe::device::SharedMemory, public gpipe::device::OneRunAtATime {
  public:
    using policy_kind = gpipe::policy::Device;
    static constexpr gpipe::Link most_link = gpipe::Link::copied;

    struct Stream {
        std::size_t device = 0;
    };
    struct Options {
        /// 0: the lowest stream that can go on, as far as it can; 1: the highest; else any, by
        /// chance.
        std::uint64_t seed = 0;
        /// Is increased by all that is allocated.
        std::size_t* allocated = nullptr;
        /// Between any two devices.
        gpipe::Link link = gpipe::Link::shared;
    };

    Deferred(Options options, std::size_t devices)
        : options_(options), chance_(options.seed), queues_(devices), reached_(devices),
          recorded_(devices), names_(devices) {
        for (std::size_t d = 0; d < devices; ++d) names_[d].device = d;
    }
    Deferred(Deferred const&) = delete;
    Deferred& operator=(Deferred const&) = delete;

    gpipe::Link link(std::size_t from, std::size_t to) const {
        return from == to ? gpipe::Link::shared : options_.link;
    }
    GuardedBuffer allocate(std::size_t device, std::size_t bytes) {
        if (device >= queues_.size()) throw std::out_of_range("no such device");
        if (options_.allocated) *options_.allocated += bytes;
        return GuardedBuffer(bytes);
    }
    gpipe::device::HostBuffer allocate_host(std::size_t bytes) {
        return gpipe::device::HostBuffer(bytes);
    }
    void feed(std::size_t i, std::byte* to, std::byte const* from, std::size_t bytes, std::byte*) {
        copy(feed_stream(i), to, from, bytes);
    }
    static gpipe::device::ReadsAtOnce feeding() { return {}; }
    static void await_writers(void const*) {}

    template <class F> void run(F&& f) {
        f();
        drain();
    }
    template <gpipe::DeviceWalk Walk> bool submit(gpipe::Ticket const& ticket, Walk const& walk) {
        run([&] { put(ticket, walk); });
        return true;
    }

    static constexpr std::size_t streams(std::size_t, std::size_t programs) { return programs; }
    void prepare(gpipe::Array<std::size_t> const& device_of_stream, std::size_t,
                 gpipe::Array<std::size_t> const& device_of_feed) {
        std::size_t const streams = device_of_stream.size();
        queues_.resize(streams);
        reached_.resize(streams);
        recorded_.resize(streams);
        names_.resize(streams);
        for (std::size_t s = 0; s < streams; ++s) names_[s].device = device_of_stream[s];
        feeds_.assign(device_of_feed.begin(), device_of_feed.end());
    }
    Stream const& stream(std::size_t s) const { return names_.at(s); }

    template <class Work> void launch(std::size_t stream, Work&& work) {
        queues_.at(stream).push_back({Entry::Kind::work, std::forward<Work>(work), 0, 0});
    }
    void copy(std::size_t stream, std::byte* to, std::byte const* from, std::size_t bytes) {
        launch(stream, [=] { std::memcpy(to, from, bytes); });
    }
    void fill(std::size_t stream, std::byte* to, std::size_t bytes) {
        launch(stream, [=] { std::memset(to, 0, bytes); });
    }
    bool wait(std::size_t stream, std::size_t producer, std::uint64_t position) {
        // As cudaStreamWaitEvent: a wait for an event that nobody has recorded waits for nothing.
        if (!recorded_.at(producer).count(position) && fault_.empty())
            fault_ = "stream " + std::to_string(stream) + " waits for mark " +
                     std::to_string(position) + " of stream " + std::to_string(producer) +
                     ", which has not been recorded";
        queues_.at(stream).push_back({Entry::Kind::wait, {}, producer, position});
        return true;
    }
    void record(std::size_t stream, std::uint64_t position) {
        recorded_.at(stream).insert(position);
        queues_.at(stream).push_back({Entry::Kind::record, {}, stream, position});
    }

  protected:
    template <class Walk> static void put(gpipe::Ticket const& ticket, Walk const& walk) {
        walk.feed();
        walk.begin(false);
        for (std::size_t lane = 0; lane < ticket.lanes; ++lane) walk(lane);
    }
    std::size_t feed_stream(std::size_t i) const { return feeds_.at(i); }
    void drain() {
        if (!fault_.empty()) throw std::logic_error(fault_);
        std::vector<std::size_t> ready;
        for (;;) {
            ready.clear();
            bool empty = true;
            for (std::size_t s = 0; s < queues_.size(); ++s) {
                empty = empty && queues_[s].empty();
                if (can_run(s)) ready.push_back(s);
            }
            if (empty) break;
            if (ready.empty()) throw std::logic_error("the streams wait for each other");
            std::size_t const s = options_.seed == 0   ? ready.front()
                                  : options_.seed == 1 ? ready.back()
                                                       : ready[chance_() % ready.size()];
            Entry next = std::move(queues_[s].front());
            queues_[s].pop_front();
            if (next.kind == Entry::Kind::work) next.run();
            if (next.kind == Entry::Kind::record) reached_[s].insert(next.position);
        }
        for (std::size_t s = 0; s < queues_.size(); ++s) {
            recorded_[s].clear();
            reached_[s].clear();
        }
    }

  private:
    struct Entry {
        enum class Kind { work, wait, record } kind;
        std::function<void()> run;
        std::size_t producer;
        std::uint64_t position;
    };

    bool can_run(std::size_t s) const {
        if (queues_[s].empty()) return false;
        Entry const& next = queues_[s].front();
        return next.kind != Entry::Kind::wait || reached_[next.producer].count(next.position) > 0;
    }
    Options options_;
    std::mt19937_64 chance_;
    std::vector<std::deque<Entry>> queues_;
    std::vector<std::set<std::uint64_t>> reached_;  // by stream: marks that have been passed
    std::vector<std::set<std::uint64_t>> recorded_; // by stream: marks that have been enqueued
    std::vector<Stream> names_;
    std::vector<std::size_t> feeds_; // streams that tensors of a mini-batch are brought on
    std::string fault_;
};

static_assert(gpipe::DeviceRuntime<Deferred>);

} // namespace toy
