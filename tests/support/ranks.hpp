#pragma once

// Ranks in one process, for tests: each a thread with a machine of its own, which see nothing of
// each other's memory but what goes through here. A send returns at once or, with `meets`, when it
// has been received: whoever trains then needs no buffer anywhere. Bytes of a message that the
// other end does not expect, and messages that nobody receives, are faults.

#include "crew.hpp"

#include <gpipe/device/host.hpp>
#include <gpipe/runtime/joined.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace toy {

/// What all ranks share.
class Wire {
  public:
    explicit Wire(std::size_t ranks, bool meets) : meets_(meets), given_(ranks), counts_(ranks) {}
    Wire(Wire const&) = delete;
    Wire& operator=(Wire const&) = delete;

    std::size_t ranks() const { return given_.size(); }
    /// Messages, and their bytes.
    std::size_t messages = 0, bytes = 0;
    /// What is wrong with them; nothing if it is empty.
    std::string fault() const {
        std::lock_guard const lock(mutex_);
        if (!fault_.empty()) return fault_;
        for (Way const& way : ways_)
            if (!way.waiting.empty()) return "a message that nobody has received";
        return "";
    }
    /// That a rank is gone, in other words perhaps.
    void leave(std::size_t rank, std::string const& words = "is gone") {
        std::lock_guard const lock(mutex_);
        if (error_) return;
        error_ = std::make_exception_ptr(
            std::runtime_error("rank " + std::to_string(rank) + " " + words));
        changed_.notify_all();
    }

  private:
    friend class Station;
    struct Message {
        std::vector<std::byte> bytes;
        std::uint32_t word;
    };
    struct Way {
        gpipe::Channel channel;
        std::deque<Message> waiting;
        std::uint64_t sent = 0, received = 0;
    };

    bool const meets_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Way> ways_;
    std::vector<std::vector<std::uint64_t>> given_; // by rank
    std::vector<std::size_t> counts_;               // of gathers, by rank
    std::string fault_;
    std::exception_ptr error_;
};

/// What a rank has of it.
class Station {
  public:
    Station(std::shared_ptr<Wire> wire, std::size_t rank) : wire_(std::move(wire)), rank_(rank) {}
    ~Station() { wire_->leave(rank_); }
    Station(Station const&) = delete;
    Station& operator=(Station const&) = delete;

    std::size_t rank() const { return rank_; }
    std::size_t ranks() const { return wire_->ranks(); }
    /// There is no memory to gather behind so many more times; negative: there is.
    long gathers_left = -1;
    gpipe::Array<std::uint64_t> gather(std::uint64_t number) {
        if (gathers_left >= 0 && gathers_left-- == 0) throw std::bad_alloc();
        gpipe::Array<std::uint64_t> result(ranks());
        std::unique_lock lock(wire_->mutex_);
        wire_->given_[rank_].push_back(number);
        std::size_t const round = wire_->counts_[rank_]++;
        wire_->changed_.notify_all();
        auto const all = [&] {
            for (auto const& given : wire_->given_)
                if (given.size() <= round) return false;
            return true;
        };
        wire_->changed_.wait(lock, [&] { return wire_->error_ || all(); });
        if (!all()) std::rethrow_exception(wire_->error_);
        for (std::size_t r = 0; r < ranks(); ++r) result[r] = wire_->given_[r][round];
        return result;
    }
    void open(gpipe::Array<gpipe::Channel> const& channels) {
        std::lock_guard const lock(wire_->mutex_);
        if (wire_->ways_.empty())
            for (gpipe::Channel const& channel : channels) wire_->ways_.push_back({channel, {}});
        if (wire_->ways_.size() != channels.size()) wire_->fault_ = "other channels";
    }
    void send(std::size_t channel, std::byte const* from, std::size_t bytes,
              std::uint32_t word) noexcept {
        std::unique_lock lock(wire_->mutex_);
        Wire::Way& way = wire_->ways_[channel];
        if (wire_->error_) return;
        if (way.channel.from != rank_) wire_->fault_ = "a rank sends for another";
        if (bytes > way.channel.bytes) wire_->fault_ = "a message that is longer than any";
        if (way.channel.waits && !way.waiting.empty()) wire_->fault_ = "two messages that wait";
        way.waiting.push_back({{from, from + bytes}, word});
        std::uint64_t const number = ++way.sent;
        ++wire_->messages;
        wire_->bytes += bytes;
        wire_->changed_.notify_all();
        if (wire_->meets_ && !way.channel.waits)
            wire_->changed_.wait(lock, [&] { return wire_->error_ || way.received >= number; });
    }
    std::uint32_t receive(std::size_t channel, std::byte* to, std::size_t bytes) noexcept {
        std::unique_lock lock(wire_->mutex_);
        Wire::Way& way = wire_->ways_[channel];
        if (way.channel.to != rank_) wire_->fault_ = "a rank receives for another";
        wire_->changed_.wait(lock, [&] { return wire_->error_ || !way.waiting.empty(); });
        if (wire_->error_) return 0;
        Wire::Message const message = std::move(way.waiting.front());
        way.waiting.pop_front();
        ++way.received;
        wire_->changed_.notify_all();
        if (message.bytes.size() != bytes) wire_->fault_ = "a message of other bytes";
        if (bytes > 0 && message.bytes.size() == bytes)
            std::memcpy(to, message.bytes.data(), bytes);
        return message.word;
    }
    std::exception_ptr error() const {
        std::lock_guard const lock(wire_->mutex_);
        return wire_->error_;
    }
    void give_up(char const* words) { wire_->leave(rank_, words); }

  private:
    std::shared_ptr<Wire> wire_;
    std::size_t rank_;
};

/// As the policy of a Training.
struct Wired {
    using policy_kind = gpipe::policy::Transport;
    template <class Device> using Of = gpipe::Joined<Device, Station>;
};
using Rank = gpipe::Joined<gpipe::device::Host, Station>;
static_assert(gpipe::RankTransport<Station>);
static_assert(gpipe::DeviceRuntime<Rank>);

/// What a rank of a Crew has.
template <class T> struct CrewMember {
    std::unique_ptr<Station> station;
    std::unique_ptr<T> train;
};

/// A Training on ranks that a Wire joins.
template <class T> class Crew final : public AnyCrew<CrewMember<T>> {
    using Base = AnyCrew<CrewMember<T>>;

  public:
    /// `devices`: of each rank; make(rank, options) makes its Training of Options::device so far.
    template <class Make>
    Crew(std::vector<std::size_t> const& devices, bool meets, std::size_t threads, Make make)
        : Base(devices), wire(std::make_shared<Wire>(devices.size(), meets)) {
        for (std::size_t r = 0; r < devices.size(); ++r)
            this->members_[r].station = std::make_unique<Station>(wire, r);
        this->each([&](std::size_t r) {
            auto& [station, train] = this->members_[r];
            try {
                train = make(r, Rank::Options{{threads}, station.get(), devices[r]});
            } catch (...) {
                station.reset(); // as at the end of a program
                throw;
            }
        });
        this->rethrow();
    }
    // All at once, for steps that are under way end together.
    ~Crew() {
        this->each([&](std::size_t r) { this->members_[r].train.reset(); });
    }

    std::shared_ptr<Wire> wire;

    /// Calls f(rank) on all, again and again, where on this one there is no memory to gather: first
    /// the first time, then the second, until there is for all of them. tried(whether there was,
    /// what is wrong with what was thrown) after each.
    template <class F, class Tried>
    void without_memory(std::size_t rank, std::string const& where, F f, Tried tried) {
        long& left = this->members_[rank].station->gathers_left;
        bool ends = false;
        for (long n = 0; !ends; ++n) {
            left = n;
            this->each(f);
            ends = std::exchange(left, -1) >= 0;
            tried(ends, ends ? thrown_nothing() : thrown_on_all(rank, where));
        }
    }
    /// Whether the last call has thrown nothing; whether that was thrown, and on the others told.
    ///@{
    std::string thrown_nothing() const {
        for (std::exception_ptr const& error : this->errors)
            if (error) return "something was thrown";
        return "";
    }
    std::string thrown_on_all(std::size_t rank, std::string const& where) const {
        std::string const told =
            "gpipe: on rank " + std::to_string(rank) + ", in " + where + ": std::bad_alloc";
        for (std::size_t r = 0; r < this->ranks(); ++r) {
            if (!this->errors[r]) return "nothing was thrown on rank " + std::to_string(r);
            try {
                std::rethrow_exception(this->errors[r]);
            } catch (std::bad_alloc const&) {
                if (r != rank) return "thrown elsewhere";
            } catch (gpipe::RankError const& error) {
                if (r == rank || error.what() != told) return error.what();
            }
        }
        return "";
    }
    ///@}

  private:
    std::string fault() const override { return wire->fault(); }
};

} // namespace toy
