#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/transport/mpi_session.hpp>
#include <gpipe/transport/shared_counter.hpp>
#include <gpipe/transport/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace gpipe::detail {

/// How far a channel is, in memory that both ends see.
struct MpiCounters {
    alignas(64) SharedCounter sent;     ///< pieces of messages, by who sends
    alignas(64) SharedCounter received; ///< messages, by the other
};

/// One end of a channel: slots that its messages go through in turn, each a Head and the tensors,
/// piece by piece, so that where both ends see them one writes while the other reads.
class MpiWay {
  public:
    /// Of so many bytes at the most.
    static std::size_t slot_of(Channel const& channel) {
        return slot_bytes(sizeof(Head)) + slot_bytes(channel.bytes);
    }
    MpiWay() = default;
    /// `self`: the rank that has it. Its slots are still to be given.
    MpiWay(Channel const& channel, std::size_t self, std::size_t ahead)
        : peer(static_cast<int>(channel.from == self ? channel.to : channel.from)),
          receives(channel.to == self), slot(slot_of(channel)), ahead_(ahead) {}

    int peer = 0;                      ///< the other rank
    bool receives = false;             ///< or sends
    std::uint64_t next = 0;            ///< message
    std::uint64_t pieces = 0;          ///< before the next one
    std::size_t slot = 0;              ///< bytes
    std::byte* slots = nullptr;        ///< [ahead]
    MpiCounters* counters = nullptr;   ///< where both ends see the slots
    std::vector<std::byte> memory;     ///< else this end's own
    std::vector<MPI_Request> requests; ///< by slot

    /// Which has the next message, or message n.
    ///@{
    std::size_t turn() const { return static_cast<std::size_t>(next % ahead_); }
    std::byte* slot_at(std::size_t n) const { return slots + n * slot; }
    ///@}
    /// The bytes of the slot that are sent: of a message that is too long for it the head alone.
    int bytes_of(std::size_t message) const {
        return static_cast<int>(slot_bytes(sizeof(Head)) + (fits(message) ? message : 0));
    }
    /// Gives it slots that the other end does not see.
    void own_memory() {
        memory = std::vector<std::byte>(ahead_ * slot);
        slots = memory.data();
        requests = std::vector<MPI_Request>(ahead_, MPI_REQUEST_NULL);
    }
    /// Writes the next message into its slot, and says at(piece) whenever that is there.
    template <class At>
    void put(std::byte const* from, std::size_t bytes, std::uint32_t word, At at) {
        Head const head{bytes, word};
        std::memcpy(slot_at(turn()), &head, sizeof head);
        if (!fits(bytes)) bytes = 0;
        by_piece(bytes, [&](std::size_t begin, std::size_t size) {
            if (size > 0) std::memcpy(tensors() + begin, from + begin, size);
            return at(++pieces), true;
        });
        ++next;
    }
    /// Reads it, each piece behind is_there(piece); false if that says so, or if it has not so many
    /// bytes, or more than there can be.
    template <class IsThere>
    bool take(std::byte* to, std::size_t bytes, std::uint32_t& word, IsThere is_there) {
        Head head;
        bool const taken = by_piece(bytes, [&](std::size_t begin, std::size_t size) {
            if (!is_there(++pieces)) return false;
            if (begin == 0) {
                std::memcpy(&head, slot_at(turn()), sizeof head);
                if (head.bytes != bytes || !fits(bytes)) return false;
            }
            if (size > 0) std::memcpy(to + begin, tensors() + begin, size);
            return true;
        });
        word = head.word;
        ++next;
        return taken;
    }

  private:
    struct Head {
        std::uint64_t bytes = 0;
        std::uint32_t word = 0;
    };
    // Small enough to be in a cache of each of two cores.
    static constexpr std::size_t piece = 64 * 1024;

    template <class Piece> static bool by_piece(std::size_t bytes, Piece of) {
        for (std::size_t begin = 0;; begin += piece) {
            if (!of(begin, std::min(piece, bytes - begin))) return false;
            if (bytes - begin <= piece) return true;
        }
    }
    std::byte* tensors() const { return slot_at(turn()) + slot_bytes(sizeof(Head)); }
    bool fits(std::size_t message) const { return message <= slot - slot_bytes(sizeof(Head)); }

    std::size_t ahead_ = 1;
};

} // namespace gpipe::detail
