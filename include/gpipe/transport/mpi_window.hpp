#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/transport/mpi_session.hpp>
#include <gpipe/transport/mpi_ways.hpp>
#include <gpipe/transport/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace gpipe::detail {

/// Memory that ranks of one host share (MPI-3.1, 11.2.3): each has the buffers of what it
/// receives from the others.
class MpiWindow {
  public:
    /// Of those of `all` that are on this host, for channels between them; gives ways buffers
    /// there. All call it, and nobody sends before all have. What MPI returned.
    int open(MPI_Comm all, Array<Channel> const& channels, std::size_t ahead,
             std::vector<MpiWay>& ways) {
        int self = 0, count = 0;
        MPI_Comm_rank(all, &self);
        MPI_Comm_size(all, &count);
        if (int const code =
                MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, self, MPI_INFO_NULL, &host_);
            code != MPI_SUCCESS)
            return code;
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
            bytes[channels[c].to] += head + MpiWay::ring_of(channels[c], ahead);
        }
        void* own = nullptr;
        // It may begin anywhere: counters begin behind that, in every process alike, for what they
        // map are whole pages.
        MPI_Info info;
        MPI_Info_create(&info);
        MPI_Info_set(info, "alloc_shared_noncontig", "true"); // each near to who has it
        int code = MPI_Win_allocate_shared(
            static_cast<MPI_Aint>(bytes[static_cast<std::size_t>(self)] + slot_alignment), 1, info,
            host_, &own, &window_);
        MPI_Info_free(&info);
        if (code != MPI_SUCCESS) return code; // no room, say
        for (std::size_t c = 0; c < channels.size(); ++c) {
            MpiWay& way = ways[c];
            if (!is_here(channels[c]) || way.count() == 0) continue; // another's
            MPI_Aint size = 0;
            int unit = 0;
            void* base = nullptr;
            code = MPI_Win_shared_query(window_, local[channels[c].to], &size, &unit, &base);
            if (code != MPI_SUCCESS) return code;
            std::size_t const before = reinterpret_cast<std::uintptr_t>(base) % slot_alignment;
            std::byte* const at =
                static_cast<std::byte*>(base) + (slot_alignment - before) + begin[c];
            way.counters = way.receives ? new (at) MpiCounters
                                        : std::launder(reinterpret_cast<MpiCounters*>(at));
            way.buffers = at + head;
        }
        return code;
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
