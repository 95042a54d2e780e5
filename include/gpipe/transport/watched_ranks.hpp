#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/schedule/action.hpp>
#include <gpipe/transport/shared_counter.hpp>
#include <gpipe/transport/watch.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace gpipe {

/// What processes that are ranks have in common, whatever carries their messages: they watch each
/// other, and whoever waits for another gives up where one is lost.
class WatchedRanks {
  public:
    static constexpr int everybody = Watch::everybody; ///< in place of a rank

    /// As RankTransport says.
    ///@{
    std::size_t rank() const { return self_; }
    std::size_t ranks() const { return count_; }
    std::exception_ptr error() const { return watch_->error(); }
    void note(std::uint64_t steps, Kind kind, std::uint32_t cell,
              std::uint32_t micro_batch) noexcept {
        watch_->note(steps, kind, cell, micro_batch);
    }
    void rest() noexcept { watch_->rest(); }
    ///@}
    /// For who waits elsewhere, on behalf of this rank: seconds after which it has waited for too
    /// long; tells all others that, and finds out for whom; tells them that this rank is lost, in
    /// words that go on from its number. The last two return when error() says so.
    ///@{
    double deadline() const { return deadline_; }
    void overdue(int peer = everybody) noexcept { watch_->overdue(peer); }
    void give_up(char const* words) noexcept { watch_->lose(static_cast<int>(self_), words); }
    ///@}

  protected:
    /// That is in seconds.
    explicit WatchedRanks(double deadline) : deadline_(deadline) {}
    ~WatchedRanks() = default;

    /// All ranks at once: see Watch.
    template <class Exchange>
    void begin(std::size_t rank, std::size_t ranks, std::string const& address, Exchange exchange) {
        self_ = rank;
        count_ = ranks;
        watch_ = std::make_unique<Watch>(rank, ranks, deadline_, address, exchange);
    }

    /// Until ready(); returns false where a rank is lost first. `peer`: who is waited for. Awake
    /// for a millisecond, as threads are (see detail::Bell), then asleep between two looks, until
    /// it is so, or somebody is lost, or the deadline has passed, which makes who is waited for
    /// lost: nobody, for all that live, as at a program's end.
    template <class Ready> bool wait(int peer, Ready ready) noexcept {
        return wait(peer, ready,
                    [] { std::this_thread::sleep_for(std::chrono::microseconds(20)); });
    }
    /// The same, with sleep() between two looks, for a hundredth of a second at most.
    template <class Ready, class Sleep> bool wait(int peer, Ready ready, Sleep sleep) noexcept {
        for (int n = 0; n < 100; ++n)
            if (ready()) return true;
        double const since = detail::seconds_now();
        while (detail::seconds_now() - since < 1e-3) {
            if (ready()) return true;
            if (watch_->lost()) return false;
            std::this_thread::yield(); // to a rank on the same core
        }
        begin_wait(peer);
        bool const is_ready = wait_asleep(peer, since, ready, sleep);
        end_wait(peer);
        return is_ready;
    }
    /// Until ready(count) of what another process counts in memory of both, who wakes this one.
    template <class Ready>
    bool wait_counted(detail::SharedCounter& counter, int peer, Ready ready) noexcept {
        auto const there = [&] { return ready(counter.get()); };
        return wait(peer, there, [&] { counter.sleep(there, 10'000'000); });
    }

    std::unique_ptr<Watch> watch_; ///< from begin() on

  private:
    // Where several threads wait at once, others are told for whom the last does that still waits.
    void begin_wait(int peer) noexcept {
        std::lock_guard const lock(waiting_);
        if (waits_ == most_waits) return;
        waits_for_[waits_++] = peer;
        watch_->wait_for(peer);
    }
    void end_wait(int peer) noexcept {
        std::lock_guard const lock(waiting_);
        std::size_t n = waits_;
        while (n > 0 && waits_for_[n - 1] != peer) --n;
        if (n == 0) return;
        for (; n < waits_; ++n) waits_for_[n - 1] = waits_for_[n];
        watch_->wait_for(--waits_ > 0 ? waits_for_[waits_ - 1] : Watch::nobody);
    }
    template <class Ready, class Sleep>
    bool wait_asleep(int peer, double since, Ready ready, Sleep sleep) noexcept {
        double patience = deadline_;
        int left = Watch::nobody; // who is waited for, and has left
        while (!ready()) {
            if (watch_->lost()) return false;
            sleep();
            if (left == Watch::nobody && (left = watch_->first_left(peer)) != Watch::nobody) {
                // What it sent before may be on its way yet.
                since = detail::seconds_now();
                patience = std::min(patience, 1.0);
            }
            if (peer == Watch::nobody || detail::seconds_now() - since < patience) continue;
            left == Watch::nobody ? watch_->overdue(peer) : watch_->lose(left, "has left");
        }
        return true;
    }

    double deadline_;
    std::size_t self_ = 0, count_ = 1;
    static constexpr std::size_t most_waits = 16;
    std::mutex waiting_;
    int waits_for_[most_waits] = {};
    std::size_t waits_ = 0;
};

} // namespace gpipe
