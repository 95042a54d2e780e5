#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/device/bell.hpp>
#include <gpipe/plan/edge.hpp>
#include <gpipe/transport/transport.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

namespace gpipe {

/// What ranks share that are threads of one process: a message is copied once, by who receives it,
/// while the sender waits; unless the message waits for him, see Channel.
class LocalWire {
  public:
    /// Of so many ranks.
    explicit LocalWire(std::size_t ranks) : given_(ranks) {}
    LocalWire(LocalWire const&) = delete;
    LocalWire& operator=(LocalWire const&) = delete;

    /// How many there are.
    std::size_t ranks() const { return given_.size(); }
    /// What all do together begins; nobody is at it. They gather from the same round on.
    void begin() noexcept {
        arrived_.store(0, std::memory_order_relaxed);
        refused_.store(false, std::memory_order_relaxed);
        std::uint64_t round = 0;
        for (Given const& given : given_) round = std::max(round, given.rounds.load());
        for (Given& given : given_) given.rounds = round, given.ended = false;
    }
    /// A rank has thrown in it: who gathers there throws, too, where that one has not come.
    void end(std::size_t rank) noexcept {
        given_[rank].ended.store(true, std::memory_order_release);
        ring_all();
    }
    /// That a rank is gone, and why: nobody waits for it.
    void leave(std::exception_ptr why) noexcept {
        {
            std::lock_guard const lock(leaving_);
            if (left_.load(std::memory_order_relaxed)) return;
            error_ = std::move(why);
            left_.store(true, std::memory_order_release);
        }
        ring_all();
    }

  private:
    friend class LocalRanks;
    struct alignas(128) Way {
        std::atomic<std::uint64_t> sent{0};
        std::atomic<std::uint64_t> received{0};
        std::atomic<std::uint64_t> claimed{0}; // by who copies it, or who takes it back
        void* offered = nullptr;
        std::uint32_t word = 0;
        std::uint32_t sender = 0, receiver = 0;
        std::unique_ptr<std::byte[]> waiting; // for one that does

        bool claim(std::uint64_t message) noexcept {
            std::uint64_t before = message - 1;
            return claimed.compare_exchange_strong(before, message, std::memory_order_acq_rel);
        }
    };
    struct alignas(128) Given {
        std::atomic<std::uint64_t> rounds{0};
        std::uint64_t number[2] = {}; // of the round, and of the one before
        std::atomic<bool> ended{false};
        bool opened = false;
        detail::Bell bell{detail::Bell::Many{}}; // for who waits on that rank
    };

    template <class Ready> bool wait(std::size_t rank, Ready ready) noexcept {
        given_[rank].bell.wait([&] { return ready() || left_.load(std::memory_order_acquire); });
        return ready();
    }
    void ring(std::size_t rank) noexcept { given_[rank].bell.ring(); }
    void ring_all() noexcept {
        for (Given& given : given_) given.bell.ring();
    }

    Array<Given> given_; // by rank
    // Of what all do together: how often each has been about to begin, and that one cannot.
    std::atomic<std::uint64_t> arrived_{0};
    std::atomic<bool> refused_{false};
    std::unique_ptr<Way[]> ways_;
    std::once_flag opened_;
    std::atomic<bool> left_{false};
    std::mutex leaving_;
    std::exception_ptr error_;
};

/// What joins replicas in one process, with a LocalWire: its `type`, if there is any for such
/// devices.
template <class Device> struct LocalTransport {};

/// One of them, see RankTransport.
class LocalRanks {
  public:
    static constexpr int everybody = -2;         ///< in place of a rank
    static constexpr bool in_one_process = true; ///< they are threads of it

    /// The wire must outlive it. `deadline`: what deadline() says, which nobody else looks at.
    LocalRanks(LocalWire& wire, std::size_t rank, double deadline = 1e9)
        : wire_(wire), rank_(rank), deadline_(deadline) {}

    /// As RankTransport says.
    ///@{
    std::size_t rank() const { return rank_; }
    std::size_t ranks() const { return wire_.given_.size(); }
    Array<std::uint64_t> gather(std::uint64_t number) {
        Array<std::uint64_t> all(ranks());
        // Nobody is two rounds ahead of who is still to read: that one has not given its next.
        LocalWire::Given& own = wire_.given_[rank_];
        std::uint64_t const round = own.rounds.load(std::memory_order_relaxed);
        own.number[round % 2] = number;
        own.rounds.store(round + 1, std::memory_order_release);
        wire_.ring_all();
        for (std::size_t r = 0; r < ranks(); ++r) {
            LocalWire::Given const& given = wire_.given_[r];
            auto const came = [&] { return given.rounds.load(std::memory_order_acquire) > round; };
            if (!wire_.wait(rank_,
                            [&] { return given.ended.load(std::memory_order_acquire) || came(); }))
                std::rethrow_exception(wire_.error_);
            if (!came()) throw detail::RefusedElsewhere();
            all[r] = given.number[round % 2];
        }
        return all;
    }
    void open(Array<Channel> const& channels) {
        if (std::exchange(wire_.given_[rank_].opened, true))
            throw std::logic_error(
                "gpipe: a LocalWire joins the devices of one Training, be it a refused one");
        std::call_once(wire_.opened_, [&] {
            wire_.ways_ = std::make_unique<LocalWire::Way[]>(channels.size());
            for (std::size_t c = 0; c < channels.size(); ++c) {
                wire_.ways_[c].sender = channels[c].from;
                wire_.ways_[c].receiver = channels[c].to;
                if (channels[c].waits)
                    wire_.ways_[c].waiting = std::make_unique<std::byte[]>(channels[c].bytes);
            }
        });
    }
    void send(std::size_t channel, std::byte const* from, std::size_t bytes,
              std::uint32_t word) noexcept {
        std::byte* const waiting = wire_.ways_[channel].waiting.get();
        if (waiting) std::memcpy(waiting, from, bytes);
        offer(channel, waiting ? waiting : const_cast<std::byte*>(from), word);
        if (!waiting) settle(channel);
    }
    std::uint32_t receive(std::size_t channel, std::byte* to, std::size_t bytes) noexcept {
        std::uint32_t result = 0;
        take(channel, [&](void const* from, std::uint32_t word) {
            if (bytes > 0) std::memcpy(to, from, bytes);
            result = word;
        });
        return result;
    }
    std::exception_ptr error() const {
        return wire_.left_.load(std::memory_order_acquire) ? wire_.error_ : nullptr;
    }
    ///@}

    /// What these consist of: something is offered to who receives from that channel, who takes it,
    /// f(offered, word), and may say something there; whereupon it is settled.
    ///@{
    void offer(std::size_t channel, void* offered, std::uint32_t word) noexcept {
        LocalWire::Way& way = wire_.ways_[channel];
        way.offered = offered;
        way.word = word;
        way.sent.store(way.sent.load(std::memory_order_relaxed) + 1, std::memory_order_release);
        wire_.ring(way.receiver);
    }
    /// Returns when that has been taken, or, false, never will be, for a rank is gone.
    bool settle(std::size_t channel) noexcept {
        LocalWire::Way& way = wire_.ways_[channel];
        std::uint64_t const last = way.sent.load(std::memory_order_relaxed);
        auto const taken = [&] { return way.received.load(std::memory_order_acquire) >= last; };
        if (wire_.wait(rank_, taken)) return true;
        if (way.claim(last)) return false;
        while (!taken()) std::this_thread::yield(); // the other is still at it
        return true;
    }
    /// Whether anything has come, before a rank is gone. What f() throws is thrown once it is
    /// taken.
    template <class F> bool take(std::size_t channel, F f) {
        LocalWire::Way& way = wire_.ways_[channel];
        std::uint64_t const next = way.received.load(std::memory_order_relaxed) + 1;
        if (!wire_.wait(rank_, [&] { return way.sent.load(std::memory_order_acquire) >= next; }) ||
            !way.claim(next))
            return false;
        struct Taken {
            LocalWire& wire;
            LocalWire::Way& way;
            std::uint64_t number;
            ~Taken() {
                way.received.store(number, std::memory_order_release);
                wire.ring(way.sender);
            }
        } const taken{wire_, way, next};
        f(way.offered, way.word);
        return true;
    }
    ///@}
    /// Of what all do together: when nobody is at it, it can be entered. Who is about to begin
    /// arrives; returns once all have, or, false, one refuses or is gone.
    ///@{
    void enter() { arrivals_ = 0; }
    bool arrive() noexcept {
        std::uint64_t const all = ++arrivals_ * ranks();
        auto const arrived = [&] { return wire_.arrived_.load(std::memory_order_acquire) >= all; };
        wire_.arrived_.fetch_add(1, std::memory_order_acq_rel);
        wire_.ring_all();
        wire_.wait(rank_,
                   [&] { return arrived() || wire_.refused_.load(std::memory_order_acquire); });
        return arrived();
    }
    void refuse() noexcept {
        wire_.refused_.store(true, std::memory_order_release);
        wire_.ring_all();
    }
    ///@}
    /// See WatchedRanks: for who waits elsewhere, on behalf of this rank.
    ///@{
    double deadline() const { return deadline_; }
    void overdue(int peer = everybody) noexcept {
        detail::Message const words("has waited for rank %d for longer than the deadline", peer);
        give_up(peer < 0 ? "has waited for all for longer than the deadline" : words.text);
    }
    void give_up(char const* words) noexcept {
        detail::Message const text("gpipe: rank %zu %s", rank_, words);
        wire_.leave(detail::made_error([&] { return std::runtime_error(text.text); }));
    }
    ///@}

  private:
    LocalWire& wire_;
    std::size_t rank_;
    double deadline_;
    std::uint64_t arrivals_ = 0; // since enter()
};

/// Of devices that share the host's memory.
template <class Device>
    requires(Device::most_link == Link::shared)
struct LocalTransport<Device> {
    using type = LocalRanks; ///< what joins them
};

} // namespace gpipe
