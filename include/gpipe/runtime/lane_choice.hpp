#pragma once

#include <gpipe/core/version.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Whether a step runs on all lanes or on the caller's alone. Handing a tensor from core to core
/// takes about 100 ns, which actions of a few nanoseconds cannot hide, so both ways are tried, in
/// runs of steps that take turns. A trial can be misled, by another process on a core of ours, but
/// not for long: what was chosen holds for twice as many steps as before each time that a trial
/// confirms it, and for the fewest once one does not. Results do not depend on the choice (promise
/// P1).
class LaneChoice {
  public:
    static constexpr std::uint32_t fewest = 64;     ///< steps from trial to trial
    static constexpr std::uint32_t most = 16384;    ///< likewise
    static constexpr std::uint32_t run = 4;         ///< steps in a row, on all lanes or on one
    static constexpr std::uint32_t trial = 6 * run; ///< steps, all lanes first

    /// `open`: whether there is a choice at all; `actions`: in a step.
    LaneChoice(bool open, std::size_t actions)
        : open_(open), long_step_(static_cast<double>(actions) * long_action) {}

    /// Whether the next step runs on the caller's lane alone.
    bool alone() const { return trying() ? step_ / run % 2 == 1 : alone_; }
    /// Whether note() wants the time of the next step.
    bool trying() const { return open_ && step_ < trial; }

    /// The next step took this long; 0 where trying() said that nobody asks.
    void note(double seconds) {
        if (!open_) return;
        if (trying()) {
            bool const by_one = alone();
            // The first steps of each run bring the caches over.
            if (step_ % run >= run / 2) seconds_[by_one] += seconds;
            // Hand-over is nothing to long actions: the first step that shows it is the last.
            bool const clear =
                step_ / run == 1 && seconds > long_step_ && seconds > seconds_[0] / (run - run / 2);
            if (clear || step_ + 1 == trial) choose(!clear && seconds_[1] < seconds_[0]);
        }
        if (++step_ == trial + holds_) {
            step_ = 0;
            seconds_[0] = seconds_[1] = 0;
        }
    }

  private:
    static constexpr double long_action = 5e-6; ///< seconds

    void choose(bool alone) {
        holds_ = alone == alone_ ? std::min(2 * holds_, most) : fewest;
        alone_ = alone;
        step_ = trial - 1;
    }

    bool open_;
    bool alone_ = false;
    double long_step_;
    double seconds_[2] = {};           ///< of the steps that count, on all lanes and on one
    std::uint32_t step_ = trial;       ///< of the trial, and then of those that it decides for
    std::uint32_t holds_ = fewest / 2; ///< for so many steps
};

} // namespace gpipe
