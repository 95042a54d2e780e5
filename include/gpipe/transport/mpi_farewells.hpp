#pragma once

#include <gpipe/transport/mpi_session.hpp>

#include <cstddef>
#include <mutex>
#include <vector>

namespace gpipe::detail {

/// What ranks tell each other when they leave, so that nobody waits for who is gone: a byte.
class MpiFarewells {
  public:
    /// Of all in this communicator, which must outlive it.
    explicit MpiFarewells(MPI_Comm all) : all_(all) {
        std::lock_guard const lock(MpiSession::calls);
        int count = 0;
        MPI_Comm_rank(all, &self_);
        MPI_Comm_size(all, &count);
        heard_ = told_ =
            std::vector<MPI_Request>(static_cast<std::size_t>(count), MPI_REQUEST_NULL);
        words_ = std::vector<Word>(heard_.size(), Word::none_yet);
        each([&](int rank, std::size_t r) {
            MPI_Irecv(&words_[r], 1, MPI_BYTE, rank, tag, all_, &heard_[r]);
        });
    }
    MpiFarewells(MpiFarewells const&) = delete;
    MpiFarewells& operator=(MpiFarewells const&) = delete;

    static constexpr int tag = 0; ///< of these messages; of others those above

    /// Whether a rank has told.
    bool has_left(int rank) noexcept { return is_done(heard_[static_cast<std::size_t>(rank)]); }
    /// Tells all; `good`: that none of them was lost.
    void leave(bool good) {
        std::lock_guard const lock(MpiSession::calls);
        own_ = good ? Word::good : Word::after_loss;
        each([&](int rank, std::size_t r) {
            MPI_Isend(&own_, 1, MPI_BYTE, rank, tag, all_, &told_[r]);
        });
    }
    /// Whether all know of each other.
    bool is_complete() noexcept {
        bool complete = true;
        each([&](int rank, std::size_t r) {
            complete = complete && is_done(told_[r]) && has_left(rank);
        });
        return complete;
    }
    /// Then: whether nobody was lost, as far as any of them knows.
    bool good() const {
        bool good = own_ == Word::good;
        for (Word const word : words_) good = good && word != Word::after_loss;
        return good;
    }

  private:
    enum class Word : unsigned char { none_yet, good, after_loss };

    // Of the others.
    template <class F> void each(F f) {
        for (std::size_t r = 0; r < heard_.size(); ++r)
            if (static_cast<int>(r) != self_) f(static_cast<int>(r), r);
    }
    static bool is_done(MPI_Request& request) noexcept {
        std::lock_guard const lock(MpiSession::calls);
        int done = 0;
        MPI_Test(&request, &done, MPI_STATUS_IGNORE); // of none that is so, too
        return done != 0;
    }

    MPI_Comm all_;
    int self_ = 0;
    Word own_ = Word::none_yet;
    std::vector<Word> words_;               // by rank
    std::vector<MPI_Request> heard_, told_; // likewise
};

} // namespace gpipe::detail
