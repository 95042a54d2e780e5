#pragma once

#include <gpipe/core/version.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace gpipe {

/// Whether a step runs on all lanes or on the caller's alone. Handing a tensor from core to core
/// takes about 100 ns, which actions of a few nanoseconds cannot hide, so short steps are tried
/// both ways, and again from time to time. Results do not depend on the choice (promise P1).
class LaneChoice {
  public:
    LaneChoice() = default;
    /// `open`: whether there is a choice at all; `actions`: in a step.
    LaneChoice(bool open, std::size_t actions)
        : open_(open), worth_trying_(static_cast<double>(actions) * longest_action) {}

    /// Whether the next step runs on the caller's lane alone.
    bool alone() const { return open_ && (trying() ? tried_alone() : alone_); }
    /// Whether note() wants the time of the next step.
    bool trying() const { return open_ && step_ < warm_up + trial; }

    /// The next step took this long; 0 where trying() said that nobody asks.
    void note(double seconds) {
        if (!open_) return;
        if (trying() && step_ >= warm_up) {
            // The first steps of each run bring the caches over; the fastest of the others counts.
            if ((step_ - warm_up) % run >= run / 2) {
                double& best = best_[tried_alone()];
                best = std::min(best, seconds);
            }
            // Hand-over is nothing to long actions: then the first run is the whole trial.
            if (step_ + 1 == warm_up + run && best_[0] > worth_trying_) step_ = warm_up + trial - 1;
            if (step_ + 1 == warm_up + trial) {
                alone_ = best_[1] < best_[0];
                best_[0] = best_[1] = std::numeric_limits<double>::max();
            }
        }
        if (++step_ == again) step_ = warm_up;
    }

  private:
    static constexpr double longest_action = 5e-6; ///< seconds
    static constexpr std::uint32_t warm_up = 2;
    static constexpr std::uint32_t run = 4;
    static constexpr std::uint32_t trial = 6 * run;
    static constexpr std::uint32_t again = 16384;

    // Runs of steps take turns, all lanes first.
    bool tried_alone() const { return step_ >= warm_up && (step_ - warm_up) / run % 2 == 1; }

    bool open_ = false;
    bool alone_ = false;
    double worth_trying_ = 0;
    std::uint32_t step_ = 0;
    double best_[2] = {std::numeric_limits<double>::max(), std::numeric_limits<double>::max()};
};

} // namespace gpipe
