#pragma once

#include <gpipe/transport/mpi_session.hpp>
#include <gpipe/transport/shared_counter.hpp>
#include <gpipe/transport/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace gpipe::detail {

/// How many pieces of a channel's messages were sent and received, in memory that both ends see.
struct MpiCounters {
    alignas(64) SharedCounter sent;     ///< by who sends
    alignas(64) SharedCounter received; ///< by the other
};

/// One end of a channel: a ring of buffers. A message, which is a head and the tensors behind it,
/// goes through them in pieces, so that what copies them in, what carries them and what copies them
/// out are at work at once.
class MpiWay {
  public:
    MpiWay() = default;
    /// `self`: the rank that has it; `ahead`: room for so many messages. Its buffers are still to
    /// be given.
    MpiWay(Channel const& channel, std::size_t self, std::size_t ahead)
        : peer(static_cast<int>(channel.from == self ? channel.to : channel.from)),
          receives(channel.to == self), most_(channel.bytes), piece_(piece_of(channel)),
          count_(ring_of(channel, ahead) / piece_) {}

    int peer = 0;                      ///< the other rank
    bool receives = false;             ///< or sends
    std::uint64_t next = 0;            ///< piece
    std::byte* buffers = nullptr;      ///< the ring
    MpiCounters* counters = nullptr;   ///< where both ends see it
    std::uint64_t known = 0;           ///< of the other's, when this end has last looked
    std::vector<std::byte> memory;     ///< else this end's own
    std::vector<MPI_Request> requests; ///< by buffer

    /// Bytes of such a ring.
    static std::size_t ring_of(Channel const& channel, std::size_t ahead) {
        std::size_t const piece = piece_of(channel);
        return ahead * ((head_bytes + channel.bytes + piece - 1) / piece) * piece;
    }
    /// How many buffers it has; none of a channel between others.
    std::size_t count() const { return count_; }
    /// Of each; what MPI can send at once.
    std::size_t piece() const { return piece_; }
    /// Which one the next piece goes through.
    std::size_t turn() const { return static_cast<std::size_t>(next % count_); }
    std::byte* buffer(std::size_t n) const { return buffers + n * piece_; }
    /// Gives it buffers that the other end does not see.
    void own_memory() {
        memory = std::vector<std::byte>(count_ * piece_);
        buffers = memory.data();
        requests = std::vector<MPI_Request>(count_, MPI_REQUEST_NULL);
    }

    /// Writes a message, each piece once is_free(), and says put(bytes) behind it. Ends early where
    /// the former is false. Of one that is too long for the channel the head alone.
    template <class IsFree, class Put>
    void write(std::byte const* from, std::size_t bytes, std::uint32_t word, IsFree is_free,
               Put put) {
        Head const head{bytes, word};
        by_piece(bytes <= most_ ? bytes : 0, [&](std::size_t at, std::size_t size, bool first) {
            if (!is_free()) return false;
            std::byte* const to = buffer(turn());
            if (first) std::memcpy(to, &head, sizeof head);
            std::size_t const before = first ? head_bytes : 0;
            if (size > 0) std::memcpy(to + before, from + at, size);
            put(static_cast<int>(before + size));
            return ++next, true;
        });
    }
    /// Reads one, each piece once is_there(), and says taken(). Ends early where the former is
    /// false, with word 0; false if it has not so many bytes, or more than there can be.
    template <class IsThere, class Taken>
    bool read(std::byte* to, std::size_t bytes, std::uint32_t& word, IsThere is_there,
              Taken taken) {
        bool good = true;
        Head head;
        by_piece(bytes, [&](std::size_t at, std::size_t size, bool first) {
            if (!is_there()) return word = 0, false;
            std::byte const* const from = buffer(turn());
            if (first) {
                std::memcpy(&head, from, sizeof head);
                good = head.bytes == bytes && bytes <= most_;
                if (!good) return false;
                word = head.word;
            }
            if (size > 0) std::memcpy(to + at, from + (first ? head_bytes : 0), size);
            taken();
            return ++next, true;
        });
        return good;
    }

  private:
    struct Head {
        std::uint64_t bytes = 0;
        std::uint32_t word = 0;
    };
    static constexpr std::size_t head_bytes = 64; // a cache line, so that tensors begin with one

    // Small enough for a core's cache; but each has a request, which MPI looks for among all.
    static std::size_t piece_of(Channel const& channel) {
        constexpr std::size_t least = std::size_t{1} << 18, most = std::size_t{1} << 30;
        std::size_t const whole = head_bytes + channel.bytes;
        std::size_t const piece = std::min(whole, std::clamp(whole / 16 + 1, least, most));
        return (piece + head_bytes - 1) / head_bytes * head_bytes;
    }
    // of(where in the tensors, size, whether it is the first), until false.
    template <class Of> void by_piece(std::size_t bytes, Of of) const {
        std::size_t at = std::min(bytes, piece_ - head_bytes);
        if (!of(std::size_t{0}, at, true)) return;
        for (std::size_t size = 0; at < bytes; at += size)
            if (size = std::min(bytes - at, piece_); !of(at, size, false)) return;
    }

    std::size_t most_ = 0;  // bytes of a message
    std::size_t piece_ = 1; // bytes of a buffer
    std::size_t count_ = 0; // of buffers
};

} // namespace gpipe::detail
