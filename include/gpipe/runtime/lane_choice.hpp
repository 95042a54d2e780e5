#pragma once

#include <gpipe/core/version.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace gpipe {

/// Whether a step runs on all lanes or on the caller's alone. Handing a tensor from core to core
/// takes about 100 ns, which actions of a few nanoseconds cannot hide, so both ways are tried, in
/// runs of steps that take turns. A trial can be misled, by another process on a core of ours, but
/// not for long: what was chosen holds for twice as many steps as before each time that a trial
/// confirms it, and for the fewest once one does not. Where all lanes were chosen they have to earn
/// it: a process that takes a core away now and then costs more than they gain, and few trials see
/// it. Results do not depend on the choice (promise P1).
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
    /// Whether the next step is one of a trial.
    bool trying() const { return open_ && step_ < trial; }
    /// Whether note() wants its time.
    bool asks() const { return trying() || (open_ && earns_); }

    /// The next step took this long; 0 where asks() said that nobody does.
    void note(double seconds) {
        if (!open_) return;
        if (trying()) {
            bool const by_one = alone();
            // The first steps of each run bring the caches over.
            if (step_ % run >= run / 2) {
                seconds_[by_one] += seconds;
                if (by_one) least_ = std::min(least_, seconds);
            }
            // Hand-over is nothing to long actions: the first step that shows it is the last.
            bool const clear =
                step_ / run == 1 && seconds > long_step_ && seconds > seconds_[0] / (run - run / 2);
            if (clear || step_ + 1 == trial) {
                bool const one = !clear && seconds_[1] < seconds_[0];
                choose(one, one == alone_ ? 2 * holds_ : fewest);
                earns_ = !clear && !one;
                earned_ = std::max(earned_, few * least_);
            }
        } else if (earns_) {
            earned_ += least_ - seconds;
            if (earned_ >= many * least_) {
                earned_ = many * least_;
                patience_ = fewest;
            }
            if (earned_ < 0) {
                choose(true, patience_);
                patience_ = std::min(2 * patience_, most);
                earns_ = false;
            }
        }
        if (++step_ == trial + holds_) {
            step_ = 0;
            seconds_[0] = seconds_[1] = 0;
            least_ = std::numeric_limits<double>::infinity();
        }
    }

  private:
    static constexpr double long_action = 5e-6;  ///< seconds
    static constexpr double few = 4, many = 256; ///< steps on one lane

    void choose(bool alone, std::uint32_t steps) {
        holds_ = std::min(steps, most);
        alone_ = alone;
        step_ = trial - 1;
    }

    bool open_;
    bool alone_ = false;
    double long_step_;
    double seconds_[2] = {};           ///< of the steps that count, on all lanes and on one
    double least_ = 0;                 ///< of these on one
    std::uint32_t step_ = trial;       ///< of the trial, and then of those that it decides for
    std::uint32_t holds_ = fewest / 2; ///< for so many steps
    bool earns_ = false;               ///< whether all lanes were chosen for being faster
    double earned_ = 0;                ///< seconds, by steps on all lanes
    std::uint32_t patience_ = fewest;  ///< steps on one lane once that is used up
};

} // namespace gpipe
