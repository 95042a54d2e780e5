#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/core/version.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

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
    static constexpr std::uint32_t fewest = 80;     ///< steps from trial to trial
    static constexpr std::uint32_t most = 16384;    ///< likewise
    static constexpr std::uint32_t run = 4;         ///< steps in a row, on all lanes or on one
    static constexpr std::uint32_t trial = 8 * run; ///< steps, all lanes first

    /// `open`: whether there is a choice at all; `actions`: in a step.
    LaneChoice(bool open, std::size_t actions)
        : open_(open), long_step_(static_cast<double>(actions) * long_action) {}

    /// Whether the next step runs on the caller's lane alone.
    bool alone() const { return trying() ? turns >> step_ / run & 1 : alone_; }
    /// Whether the next step is one of a trial.
    bool trying() const { return open_ && step_ < trial; }
    /// Around the next step, and end(begin()): looks at the clock only where that is wanted.
    ///@{
    double begin() const { return asks() ? detail::seconds_now() : 0; }
    void end(double begun) { note(asks() ? detail::seconds_now() - begun : 0); }
    ///@}
    /// Whether note() wants the time of the next step.
    bool asks() const { return trying() || (open_ && counts_credit_); }
    /// The next step took this long; 0 where asks() said that nobody does.
    void note(double seconds) {
        if (!open_) return;
        if (trying()) {
            bool const by_one = alone();
            // The first steps of each run bring the caches over.
            if (step_ % run >= run / 2) {
                seconds_[by_one] += seconds;
                if (by_one) one_[ones_++] = seconds;
            }
            // Hand-over is nothing to long actions: the first step that shows it is the last.
            bool const clear =
                step_ / run == 1 && seconds > long_step_ && seconds > seconds_[0] / (run - run / 2);
            if (clear || step_ + 1 == trial) {
                bool const one = !clear && seconds_[1] < seconds_[0];
                choose(one, one == alone_ ? 2 * holds_ : fewest);
                counts_credit_ = !clear && !one;
                if (counts_credit_) mean_of_one_ = mean_on_one();
                credit_ = std::max(credit_, few * mean_of_one_);
            }
        } else if (counts_credit_) {
            credit_ += mean_of_one_ - seconds;
            if (credit_ >= many * mean_of_one_) {
                credit_ = many * mean_of_one_;
                backoff_ = fewest;
            }
            if (credit_ < 0) {
                choose(true, backoff_);
                backoff_ = std::min(2 * backoff_, most);
                counts_credit_ = false;
            }
        }
        if (++step_ == trial + holds_) {
            step_ = 0;
            seconds_[0] = seconds_[1] = 0;
            ones_ = 0;
        }
    }

  private:
    static constexpr double long_action = 5e-6;  ///< seconds
    static constexpr double few = 4, many = 256; ///< steps on one lane
    /// Who is on one lane, by run: both meet alike what comes with every 8th or 16th step.
    static constexpr std::uint32_t turns = 0b10010110;
    static constexpr double hit = 16; ///< no step takes so many times the least by its own work

    void choose(bool alone, std::uint32_t steps) {
        holds_ = std::min(steps, most);
        alone_ = alone;
        step_ = trial - 1;
    }

    // Steps are not all alike, as those that train and those that evaluate, so it is their mean.
    double mean_on_one() const {
        double const least = *std::min_element(one_, one_ + ones_);
        double sum = 0;
        for (std::uint32_t n = 0; n < ones_; ++n) sum += std::min(one_[n], hit * least);
        return sum / ones_;
    }

    bool open_;
    bool alone_ = false;
    double long_step_;
    double seconds_[2] = {};           ///< of the steps that count, on all lanes and on one
    double one_[trial / 4] = {};       ///< each of these on one
    std::uint32_t ones_ = 0;           ///< so many
    double mean_of_one_ = 0;           ///< of a step on one
    std::uint32_t step_ = trial;       ///< of the trial, and then of those that it decides for
    std::uint32_t holds_ = fewest / 2; ///< for so many steps
    bool counts_credit_ = false;       ///< whether all lanes were chosen for being faster
    double credit_ = 0;                ///< seconds, by steps on all lanes
    std::uint32_t backoff_ = fewest;   ///< steps on one lane once that is used up
};

} // namespace gpipe
