#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/transport/mpi_session.hpp>
#include <gpipe/transport/transport.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace gpipe::detail {

/// How many messages of a channel were sent and received, in memory that both ends see.
struct MpiCounters {
    alignas(64) std::atomic<std::uint64_t> sent{0};     ///< by who sends
    alignas(64) std::atomic<std::uint64_t> received{0}; ///< by the other
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

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
    /// The bytes of the slot that are sent.
    static int bytes_of(std::size_t message) {
        return static_cast<int>(slot_bytes(sizeof(Head)) + message);
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
        if (bytes > 0) std::memcpy(slot_at(turn()) + slot_bytes(sizeof(Head)), from, bytes);
    }
    /// Reads it. False if it has not so many bytes.
    bool take(std::byte* to, std::size_t bytes, std::uint32_t& word) {
        Head head;
        std::memcpy(&head, slot_at(turn()), sizeof head);
        if (head.bytes != bytes) return false;
        if (bytes > 0) std::memcpy(to, slot_at(turn()) + slot_bytes(sizeof(Head)), bytes);
        word = head.word;
        return true;
    }

  private:
    struct Head {
        std::uint64_t bytes = 0;
        std::uint32_t word = 0;
    };
    std::size_t ahead_ = 1;
};

/// Memory that ranks of one host share (MPI-3.1, 11.2.3): each has the slots of what it receives
/// from the others.
class MpiWindow {
  public:
    /// Of those of `all` that are on this host, for channels between them; gives ways slots there.
    /// All call it, and nobody sends before all have.
    void open(MPI_Comm all, Array<Channel> const& channels, std::size_t ahead,
              std::vector<MpiWay>& ways) {
        int self = 0, count = 0;
        MPI_Comm_rank(all, &self);
        MPI_Comm_size(all, &count);
        MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, self, MPI_INFO_NULL, &host_);
        std::vector<int> const local = numbers_here(all, count);
        auto const is_here = [&](Channel const& channel) {
            return local[channel.from] != MPI_UNDEFINED && local[channel.to] != MPI_UNDEFINED;
        };
        constexpr std::size_t head = slot_bytes(sizeof(MpiCounters));
        std::vector<std::size_t> bytes(local.size()); // by rank: of its window so far
        std::vector<std::size_t> begin(channels.size());
        for (std::size_t c = 0; c < channels.size(); ++c) {
            if (!is_here(channels[c])) continue;
            begin[c] = bytes[channels[c].to];
            bytes[channels[c].to] += head + ahead * MpiWay::slot_of(channels[c]);
        }
        void* own = nullptr;
        MPI_Info info;
        MPI_Info_create(&info);
        MPI_Info_set(info, "alloc_shared_noncontig", "true"); // each near to who has it
        MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes[static_cast<std::size_t>(self)]), 1,
                                info, host_, &own, &window_);
        MPI_Info_free(&info);
        for (std::size_t c = 0; c < channels.size(); ++c) {
            MpiWay& way = ways[c];
            if (!is_here(channels[c]) || way.slot == 0) continue; // another's
            MPI_Aint size = 0;
            int unit = 0;
            void* base = nullptr;
            MPI_Win_shared_query(window_, local[channels[c].to], &size, &unit, &base);
            std::byte* const at = static_cast<std::byte*>(base) + begin[c];
            way.counters = way.receives ? new (at) MpiCounters
                                        : std::launder(reinterpret_cast<MpiCounters*>(at));
            way.slots = at + head;
        }
    }
    /// All that are on this host call it.
    void close() {
        if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
        if (host_ != MPI_COMM_NULL) MPI_Comm_free(&host_);
    }

  private:
    // By rank: its number on this host, or MPI_UNDEFINED.
    std::vector<int> numbers_here(MPI_Comm all, int count) const {
        MPI_Group everywhere, here;
        MPI_Comm_group(all, &everywhere);
        MPI_Comm_group(host_, &here);
        std::vector<int> ranks, local(static_cast<std::size_t>(count));
        for (int r = 0; r < count; ++r) ranks.push_back(r);
        MPI_Group_translate_ranks(everywhere, count, ranks.data(), here, local.data());
        MPI_Group_free(&everywhere);
        MPI_Group_free(&here);
        return local;
    }

    MPI_Comm host_ = MPI_COMM_NULL;
    MPI_Win window_ = MPI_WIN_NULL;
};

} // namespace gpipe::detail
