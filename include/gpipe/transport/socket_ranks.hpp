#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/transport/rendezvous.hpp>
#include <gpipe/transport/socket_line.hpp>
#include <gpipe/transport/transport.hpp>
#include <gpipe/transport/watch.hpp>
#include <gpipe/transport/watch_mesh.hpp>
#include <gpipe/transport/watched_ranks.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <poll.h>

namespace gpipe {

/// Processes that were started without MPI as ranks, for what they tell each other beside a
/// transport of tensors, such as NCCL: numbers, losses, who is lost. They find each other by a
/// Rendezvous, watch each other (Watch), and their messages go by a TCP connection between any two,
/// which is not meant for tensors: a message has at most most_bytes.
///
/// One object in each process, made and destroyed by all. Whoever waits reads meanwhile what comes
/// from all, so that nobody who sends waits for a rank that only sends, too; what is received later
/// is kept until then, however much it is. A wait ends where a rank has left, or after
/// Options::deadline.
class SocketRanks : public WatchedRanks {
  public:
    static constexpr std::size_t most_bytes = 16u << 20; ///< of a message

    /// What may be chosen, by all ranks alike.
    struct Options {
        Rendezvous::Options rendezvous{}; ///< how they find each other, within its own deadline
        double deadline = 300;            ///< seconds that a rank is waited for, or may be silent
        std::string address{}; ///< where others reach this host, see Watch: Rendezvous::address()
    };

    /// All ranks make theirs, and each waits for the others. Throws as Rendezvous and Watch do, and
    /// std::invalid_argument for a deadline that is not positive.
    SocketRanks() : SocketRanks(Options{}) {}
    /// The same, with what was chosen.
    explicit SocketRanks(Options const& options) : WatchedRanks(options.deadline) {
        if (!(deadline() > 0))
            throw std::invalid_argument("gpipe: SocketRanks::Options asks for a deadline of more "
                                        "than 0");
        Watch::check(detail::resolved(options.rendezvous).ranks); // nobody is waited for in vain
        Rendezvous meeting(options.rendezvous);
        peers_ = std::vector<Peer>(meeting.ranks());
        std::string const& address = options.address.empty() ? meeting.address() : options.address;
        auto const exchange = [&](detail::WatchMesh::Card const& own) {
            return meeting.exchange(own);
        };
        begin(meeting.rank(), meeting.ranks(), address, exchange);
        if (ranks() == 1) return;
        detail::WatchMesh mesh(rank(), ranks(), deadline(), address, exchange);
        for (std::size_t r = 0; r < ranks(); ++r)
            peers_[r].line = detail::SocketLine(std::move(mesh.ways[r]));
    }
    SocketRanks(SocketRanks const&) = delete;
    SocketRanks& operator=(SocketRanks const&) = delete;
    /// Waits for the others to do so, too, however long what they have to do before takes, unless
    /// one of them is lost.
    ~SocketRanks() {
        watch_->leave(!watch_->lost());
        read_until(Watch::nobody, [&] { return watch_->all_left(); });
    }

    /// As RankTransport says.
    ///@{
    Array<std::uint64_t> gather(std::uint64_t number) {
        Array<std::uint64_t> all(ranks());
        try {
            std::lock_guard const lock(mutex_);
            for (std::size_t r = 0; r < ranks(); ++r)
                if (r != rank())
                    peers_[r].line.say({to_all, 0, sizeof number},
                                       reinterpret_cast<std::byte const*>(&number));
        } catch (...) { // some have been told, and others not
            give_up("has no memory for what it is to tell");
            throw;
        }
        read_until(everybody, [&] {
            // Who has told all that it had to need not come here again for long.
            for (std::size_t r = 0; r < ranks(); ++r)
                if (r != rank() && (peers_[r].given.empty() || peers_[r].line.is_full()))
                    return false;
            for (std::size_t r = 0; r < ranks(); ++r) {
                all[r] = r == rank() ? number : peers_[r].given.front();
                if (r != rank()) peers_[r].given.pop_front();
            }
            return true;
        });
        if (watch_->anybody_lost()) std::rethrow_exception(watch_->error());
        return all;
    }
    void open(Array<Channel> const& channels) {
        for (Channel const& channel : channels)
            if (channel.bytes > most_bytes)
                detail::throw_error<std::invalid_argument>(
                    "gpipe: a message from rank %u to rank %u has %zu bytes, more than the %zu "
                    "that "
                    "SocketRanks sends at a time: tensors do not go this way, but by MPI or NCCL",
                    channel.from, channel.to, channel.bytes, most_bytes);
        {
            std::lock_guard const lock(mutex_);
            if (!ways_.empty())
                throw std::logic_error("gpipe: a SocketRanks joins the devices of one Training, "
                                       "be it a refused one");
            for (Channel const& channel : channels) ways_.push_back({channel, {}});
        }
        gather(channels.size()); // nobody sends before all know what there will be
    }
    void send(std::size_t channel, std::byte const* from, std::size_t bytes,
              std::uint32_t word) noexcept {
        if (watch_->lost()) return;
        std::size_t const to = ways_[channel].channel.to;
        detail::SocketLine& line = peers_[to].line;
        std::uint64_t end = 0;
        {
            std::lock_guard const lock(mutex_);
            line.say({static_cast<std::uint32_t>(channel), word, bytes}, from);
            end = line.said();
        }
        read_until(static_cast<int>(to), [&] { return line.sent() >= end; });
    }
    std::uint32_t receive(std::size_t channel, std::byte* to, std::size_t bytes) noexcept {
        Way& way = ways_[channel];
        int const from = static_cast<int>(way.channel.from);
        Message message;
        bool const came = read_until(from, [&] {
            if (way.waiting.empty()) return false;
            message = std::move(way.waiting.front());
            way.waiting.pop_front();
            return true;
        });
        if (!came) return 0;
        if (message.bytes.size() != bytes) {
            watch_->lose(from, "has sent a message of other bytes than are received");
            return 0;
        }
        if (bytes > 0) std::memcpy(to, message.bytes.data(), bytes);
        return message.word;
    }
    ///@}

  private:
    static constexpr std::uint32_t to_all = 0xFFFFFFFFu; // in place of a channel: of gather()

    struct Message {
        std::vector<std::byte> bytes;
        std::uint32_t word = 0;
    };
    struct Way {
        Channel channel;
        std::deque<Message> waiting; // has come, and is not received yet
    };
    struct Peer {
        detail::SocketLine line;
        std::deque<std::uint64_t> given; // to gather(), likewise
    };

    // As wait(), and reads meanwhile what comes; ready() is asked under the lock.
    template <class Ready> bool read_until(int peer, Ready ready) noexcept {
        auto const look = [&] {
            int liar = Watch::nobody, ended = Watch::nobody;
            bool is_ready = false;
            {
                std::lock_guard const lock(mutex_);
                for (std::size_t r = 0; r < ranks(); ++r) {
                    if (!go_on(r)) liar = static_cast<int>(r);
                    // The watch finds out the cause, unless there is none that it sees.
                    double const since = peers_[r].line.ended();
                    if (since > 0 && detail::seconds_now() > since + 1 && !watch_->has_left(r))
                        ended = static_cast<int>(r);
                }
                is_ready = ready();
            }
            if (liar != Watch::nobody) watch_->lose(liar, "says what no rank says");
            if (ended != Watch::nobody && !is_ready && !watch_->lost())
                watch_->lose(ended, "has closed the connection of its messages");
            return is_ready;
        };
        ++waiting_;
        bool const is_ready = wait(peer, look, [this] { sleep(); });
        --waiting_;
        return is_ready;
    }
    // Sends and reads what can be, of one rank. False where it says what no rank says.
    bool go_on(std::size_t r) {
        Peer& peer = peers_[r];
        auto const is_sound = [&](detail::SocketFrame const& frame) {
            if (frame.channel == to_all) return frame.bytes == sizeof(std::uint64_t);
            if (frame.channel >= ways_.size()) return false;
            Channel const& channel = ways_[frame.channel].channel;
            return channel.from == r && channel.to == rank() && frame.bytes <= channel.bytes;
        };
        auto const take = [&](detail::SocketFrame const& frame, std::vector<std::byte> bytes) {
            if (frame.channel == to_all)
                std::memcpy(&peer.given.emplace_back(), bytes.data(), sizeof(std::uint64_t));
            else
                ways_[frame.channel].waiting.push_back({std::move(bytes), frame.word});
        };
        peer.line.flush();
        return !peer.line.hear(is_sound, take);
    }
    // Until there is something to do, at most a moment: another thread may find what this one waits
    // for.
    void sleep() noexcept {
        pollfd ready[Watch::most_ranks];
        {
            std::lock_guard const lock(mutex_);
            for (std::size_t r = 0; r < ranks(); ++r) {
                detail::SocketLine const& line = peers_[r].line;
                auto const events = static_cast<short>(POLLIN | (line.is_full() ? POLLOUT : 0));
                ready[r] = {line.number(), events, 0};
            }
        }
        ::poll(ready, ranks(), waiting_.load() > 1 ? 1 : 5);
    }

    std::atomic<int> waiting_{0}; // threads
    std::mutex mutex_;            // of all below
    std::vector<Peer> peers_;     // by rank; no line to itself
    std::vector<Way> ways_;       // by channel
};

} // namespace gpipe
