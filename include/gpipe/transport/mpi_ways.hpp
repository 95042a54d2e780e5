#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/transport/mpi_session.hpp>
#include <gpipe/transport/shared_counter.hpp>
#include <gpipe/transport/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace gpipe::detail {

/// How many messages of a channel were sent and received, in memory that both ends see.
struct MpiCounters {
    alignas(64) SharedCounter sent;     ///< by who sends
    alignas(64) SharedCounter received; ///< by the other
};

/// One end of a channel: slots that its messages go through in turn, each a Head and the tensors.
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
    std::size_t slot = 0;              ///< bytes
    std::byte* slots = nullptr;        ///< [ahead]
    MpiCounters* counters = nullptr;   ///< where both ends see the slots
    std::vector<std::byte> memory;     ///< else this end's own
    std::vector<MPI_Request> requests; ///< by slot

    /// Which has the next message, or message n.
    ///@{
    std::size_t turn() const { return static_cast<std::size_t>(next % ahead_); }
    std::byte* slot_at(std::size_t n) { return slots + n * slot; }
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
    /// Writes the next message into its slot.
    void put(std::byte const* from, std::size_t bytes, std::uint32_t word) {
        Head const head{bytes, word};
        std::memcpy(slot_at(turn()), &head, sizeof head);
        if (bytes > 0 && fits(bytes))
            std::memcpy(slot_at(turn()) + slot_bytes(sizeof(Head)), from, bytes);
    }
    /// Reads it. False if it has not so many bytes, or more than there can be.
    bool take(std::byte* to, std::size_t bytes, std::uint32_t& word) {
        Head head;
        std::memcpy(&head, slot_at(turn()), sizeof head);
        if (head.bytes != bytes || !fits(bytes)) return false;
        if (bytes > 0) std::memcpy(to, slot_at(turn()) + slot_bytes(sizeof(Head)), bytes);
        word = head.word;
        return true;
    }

  private:
    struct Head {
        std::uint64_t bytes = 0;
        std::uint32_t word = 0;
    };
    bool fits(std::size_t message) const { return message <= slot - slot_bytes(sizeof(Head)); }

    std::size_t ahead_ = 1;
};

} // namespace gpipe::detail
