#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/transport/shared_counter.hpp>
#include <gpipe/transport/watch.hpp>

#include <algorithm>
#include <chrono>
#include <thread>

namespace gpipe::detail {

/// How a rank waits for another: awake for about as long as it takes to fall asleep and wake up,
/// then asleep between two looks, until it is so, or somebody is lost, or the deadline has passed,
/// which makes who is waited for lost: nobody, for all that live, as at a program's end.
class RankWait {
  public:
    /// `watch` must outlive it; `deadline`: seconds.
    RankWait(Watch& watch, double deadline) : watch_(watch), deadline_(deadline) {}

    /// Until ready(); returns false where a rank is lost first. `peer`: who is waited for.
    template <class Ready> bool until(int peer, Ready ready) noexcept {
        return until(peer, ready,
                     [] { std::this_thread::sleep_for(std::chrono::microseconds(20)); });
    }
    /// The same, with sleep() between two looks, for a hundredth of a second at most.
    template <class Ready, class Sleep> bool until(int peer, Ready ready, Sleep sleep) noexcept {
        for (int n = 0; n < 100; ++n)
            if (ready()) return true;
        double const since = seconds_now();
        while (seconds_now() - since < 60e-6) {
            if (ready()) return true;
            if (watch_.lost()) return false;
            std::this_thread::yield(); // to a rank on the same core
        }
        watch_.wait_for(peer);
        bool const is_ready = until_asleep(peer, since, ready, sleep);
        watch_.wait_for(Watch::nobody);
        return is_ready;
    }
    /// Until ready(count) of what another process counts in memory of both, who wakes this one.
    template <class Ready>
    bool until_counted(SharedCounter& counter, int peer, Ready ready) noexcept {
        auto const there = [&] { return ready(counter.get()); };
        return until(peer, there, [&] { counter.sleep(there, 10'000'000); });
    }

  private:
    template <class Ready, class Sleep>
    bool until_asleep(int peer, double since, Ready ready, Sleep sleep) noexcept {
        double patience = deadline_;
        int left = Watch::nobody; // who is waited for, and has left
        while (!ready()) {
            if (watch_.lost()) return false;
            sleep();
            if (left == Watch::nobody && (left = watch_.first_left(peer)) != Watch::nobody) {
                // What it sent before may be on its way yet.
                since = seconds_now();
                patience = std::min(patience, 1.0);
            }
            if (peer == Watch::nobody || seconds_now() - since < patience) continue;
            left == Watch::nobody ? watch_.overdue(peer) : watch_.lose(left, "has left");
        }
        return true;
    }

    Watch& watch_;
    double deadline_;
};

} // namespace gpipe::detail
