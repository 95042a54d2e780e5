#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/transport/descriptor.hpp>
#include <gpipe/transport/rendezvous_messages.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>

namespace gpipe::detail {

/// Connections of rank 0 with all others, who have proven who they are: what all give goes to it,
/// and all of that back to each.
class RendezvousStar {
  public:
    RendezvousStar() = default;
    /// `ways`: by rank, of rank 0 to all others, of these to rank 0 alone. `deadline`: seconds that
    /// a rank is waited for.
    RendezvousStar(std::size_t rank, std::vector<Descriptor> ways, double deadline)
        : rank_(rank), ways_(std::move(ways)), deadline_(deadline) {}

    /// All call it: so many bytes of each, to all of them by rank. Throws std::runtime_error, with
    /// the same words on all who can be told, where one has gone or does not come in time.
    void exchange(void const* own, std::size_t bytes, void* all) {
        rank_ > 0 ? give(own, bytes, static_cast<char*>(all))
                  : gather(own, bytes, static_cast<char*>(all));
        ++round_;
    }
    /// Of rank 0: tells the others why nothing comes of it, and leaves them.
    void leave(std::string const& why) {
        RendezvousNotice notice;
        std::strncpy(notice.text, why.c_str(), sizeof notice.text - 1);
        for (Descriptor& way : ways_) {
            if (!way) continue;
            (void)way.write(&notice, sizeof notice, 0);
            // A connection that is closed with bytes unread is reset, and these words with it.
            ::shutdown(way.get(), SHUT_WR);
            char unread[4096];
            while (::recv(way.get(), unread, sizeof unread, MSG_DONTWAIT) > 0) {
            }
            way.close();
        }
    }

  private:
    void gather(void const* own, std::size_t bytes, char* all) {
        double const end = seconds_now() + deadline_;
        if (bytes > 0) std::memcpy(all, own, bytes);
        for (std::size_t r = 1; r < ways_.size(); ++r) {
            RendezvousCard card;
            if (!ways_[r].read(&card, sizeof card, end)) miss(r);
            if (card.round != round_ || card.bytes != bytes)
                fail("gpipe: rank " + std::to_string(r) + " exchanges something else than rank 0");
            if (!ways_[r].read(all + r * bytes, bytes, end)) miss(r);
        }
        RendezvousNotice notice;
        notice.round = round_;
        notice.bytes = bytes * ways_.size();
        for (std::size_t r = 1; r < ways_.size(); ++r)
            if (!ways_[r].write(&notice, sizeof notice, end) ||
                !ways_[r].write(all, bytes * ways_.size(), end))
                miss(r);
    }
    void give(void const* own, std::size_t bytes, char* all) {
        // A little longer than rank 0 waits for others: it is the one that can say for whom.
        double const end = seconds_now() + deadline_ + std::min(1.0, deadline_ / 10);
        Descriptor const& way = ways_[0];
        RendezvousCard card;
        card.round = round_;
        card.bytes = bytes;
        RendezvousNotice notice;
        // Rank 0 may have said why before it left, though there is nobody to write to.
        (void)(way.write(&card, sizeof card, end) && way.write(own, bytes, end));
        if (!way.read(&notice, sizeof notice, end)) miss(0);
        notice.text[sizeof notice.text - 1] = 0;
        if (notice.text[0]) throw std::runtime_error(notice.text);
        if (notice.round != round_ || notice.bytes != bytes * ways_.size())
            throw std::runtime_error("gpipe: rank 0 exchanges something else than rank " +
                                     std::to_string(rank_));
        if (!way.read(all, notice.bytes, end)) miss(0);
    }
    [[noreturn]] void miss(std::size_t rank) {
        fail("gpipe: rank " + std::to_string(rank) +
             (errno == ETIMEDOUT ? " has not told the others in time how they reach it"
                                 : " has gone before all were connected"));
    }
    [[noreturn]] void fail(std::string const& why) {
        if (rank_ == 0) leave(why);
        throw std::runtime_error(why);
    }

    std::size_t rank_ = 0;
    std::vector<Descriptor> ways_;
    double deadline_ = 0;
    std::uint64_t round_ = 0;
};

} // namespace gpipe::detail
