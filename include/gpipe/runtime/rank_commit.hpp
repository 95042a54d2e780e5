#pragma once

#include <gpipe/runtime/mailboxes.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/tables.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpipe::detail {

// All ranks commit at once: one decides, by what the others have told it, and tells them. Each of
// them meets that one alone, in their order, so that nobody waits for himself. End: a StepEnd.
template <class End, class Device> class RankCommit {
  public:
    RankCommit(End& end, Tables const& tables, Mailboxes<Device> const& mail, Run& run,
               std::size_t stream)
        : end_(end), tables_(tables), mail_(mail), run_(run), stream_(stream) {}

    // `squares`: whether those of gradients are summed up; `theirs`: room for another replica's.
    void commit(bool squares, double* theirs) {
        std::size_t const slot = run_.arguments.slot;
        Ranks const& ranks = tables_.ranks;
        std::size_t const losses = tables_.micro_batches * tables_.sums;
        double* const all = tables_.loss_sums;
        double* const own = mail_.squares(slot);
        bool const ends = ranks.self == tables_.decider();
        if (ends) std::fill(all + run_.filled() * tables_.sums, all + losses, 0.0);
        if (std::uint32_t const up = tables_.channel_of_rank(ranks.number()); up != no_channel) {
            if (ends) send(up, all, losses);
            each_square(squares, ranks.self, [&](std::size_t first, std::size_t count) {
                send(up, own + first, count);
            });
            return end_.receive(run_, stream_, up + 1, &mail_.state(slot), sizeof(StepState));
        }
        each_other([&](std::uint32_t channel, std::size_t replica, std::size_t rank) {
            if (rank == tables_.decider()) receive(channel, all + replica * losses, losses);
            each_square(squares, rank, [&](std::size_t first, std::size_t count) {
                if (replica == 0) return receive(channel, own + first, count);
                receive(channel, theirs, count); // in the order of the replicas
                for (std::size_t i = 0; i < count; ++i) own[first + i] += theirs[i];
            });
        });
        end_.commit(run_, stream_);
        each_other([&](std::uint32_t channel, std::size_t, std::size_t) {
            end_.send(run_, stream_, channel + 1, &mail_.state(slot), sizeof(StepState));
        });
    }

  private:
    void send(std::uint32_t channel, double const* from, std::size_t count) {
        end_.send(run_, stream_, channel, from, count * sizeof(double));
    }
    void receive(std::uint32_t channel, double* to, std::size_t count) {
        end_.receive(run_, stream_, channel, to, count * sizeof(double));
    }
    // f(first, count): of a rank.
    template <class F> void each_square(bool any, std::size_t rank, F f) const {
        std::size_t const first = tables_.updates_at[tables_.ranks.begin(rank)];
        f(first, any ? tables_.updates_at[tables_.ranks.end(rank)] - first : 0);
    }
    // f(channel to the one that decides, replica, rank).
    template <class F> void each_other(F f) const {
        std::size_t const count = tables_.ranks.count;
        for (std::size_t n = 0; n < tables_.ranks.all(); ++n)
            if (std::uint32_t const channel = tables_.channel_of_rank(n); channel != no_channel)
                f(channel, n / count, n % count);
    }

    End& end_;
    Tables const& tables_;
    Mailboxes<Device> const& mail_;
    Run& run_;
    std::size_t stream_;
};

} // namespace gpipe::detail
