#pragma once

#include <gpipe/core/clock.hpp>

// The C interface is all that is used: not the obsolete C++ one, nor its library.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpipe::detail {

/// MPI as long as anybody in this process needs it, in calls of which one is made at a time
/// (MPI_THREAD_SERIALIZED).
class MpiSession {
  public:
    /// To be held around every call.
    inline static std::recursive_mutex calls;

    /// Starts MPI, unless the program has. Throws std::runtime_error if it has ended, or was
    /// started for fewer threads.
    MpiSession() {
        std::lock_guard const lock(calls);
        int begun = 0, ended = 0, threads = 0;
        MPI_Initialized(&begun);
        MPI_Finalized(&ended);
        if (ended) throw std::runtime_error("gpipe: MPI has ended, and cannot be started again");
        if (!begun) {
            MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &threads);
            ends_ = true;
        }
        MPI_Query_thread(&threads);
        if (threads < MPI_THREAD_SERIALIZED)
            throw std::runtime_error("gpipe: MPI was started for fewer threads than "
                                     "MPI_THREAD_SERIALIZED");
        ++count_;
    }
    MpiSession(MpiSession const&) = delete;
    MpiSession& operator=(MpiSession const&) = delete;
    /// Of the last: ends MPI if one of them started it, which waits for all processes. Where
    /// some of them are lost nobody calls this.
    void end() {
        std::lock_guard const lock(calls);
        if (--count_ == 0 && ends_) MPI_Finalize();
    }

    /// Of one that came to nothing: MPI goes on, for another.
    void give_up() {
        std::lock_guard const lock(calls);
        --count_;
    }

  private:
    inline static int count_ = 0;
    inline static bool ends_ = false;
};

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
