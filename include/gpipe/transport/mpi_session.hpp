#pragma once

#include <gpipe/core/version.hpp>

// The C interface is all that is used: not the obsolete C++ one, nor its library.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <mutex>
#include <stdexcept>

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

} // namespace gpipe::detail
