#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/transport/mpi_session.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <vector>

namespace gpipe::detail {

/// By rank of the communicator what each has given: plain bytes. All call it. Throws
/// std::runtime_error where after so many seconds not all have.
template <class Card>
    requires std::is_trivially_copyable_v<Card> std::vector<Card>
    mpi_exchange(MPI_Comm all, Card const& own, double deadline) {
        struct Cards { // what MPI reads and writes, even if we have given up
            Card own;
            std::vector<Card> all;
        };
        int count = 0, done = 0;
        MPI_Request request = MPI_REQUEST_NULL;
        auto cards = std::make_unique<Cards>(Cards{own, {}});
        {
            std::lock_guard const lock(MpiSession::calls);
            MPI_Comm_size(all, &count);
            cards->all = std::vector<Card>(static_cast<std::size_t>(count));
            MPI_Iallgather(&cards->own, sizeof(Card), MPI_BYTE, cards->all.data(), sizeof(Card),
                           MPI_BYTE, all, &request);
        }
        for (double const end = seconds_now() + deadline;;) {
            {
                std::lock_guard const lock(MpiSession::calls);
                MPI_Test(&request, &done, MPI_STATUS_IGNORE);
            }
            if (done) return std::move(cards->all);
            if (seconds_now() > end) {
                static_cast<void>(cards.release()); // to MPI
                throw std::runtime_error("gpipe: not all ranks have come within "
                                         "MpiRanks::Options::deadline");
            }
            std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
    }

} // namespace gpipe::detail
