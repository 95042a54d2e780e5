#pragma once

#include <gpipe/schedule/action.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace support {

/// The bubble of real steps: the share of the lanes' time in which no action ran, and the mean
/// duration of each action, which a simulation can predict the bubble from.
class BubbleMeter {
  public:
    /// `lanes`: threads that a step runs on.
    BubbleMeter(std::size_t cells, std::size_t lanes)
        : lanes_(lanes), seconds_(cells * kinds), counts_(cells * kinds) {}

    /// Adds the last step of a Training that times its actions.
    template <class Train> void add(Train const& train) {
        double last = 0;
        for (auto const& time : train.times()) {
            if (!time.ran) continue; // its micro-batch had no samples
            double const duration = time.end - time.start;
            busy_ += duration;
            last = std::max(last, time.end);
            seconds_[place(time.action)] += duration;
            counts_[place(time.action)] += 1;
        }
        available_ += last * static_cast<double>(lanes_);
    }
    double measured() const { return available_ > 0 ? 1 - busy_ / available_ : 0; }
    /// The mean duration of such an action, in seconds.
    double operator()(gpipe::Action const& action) const {
        double const count = counts_[place(action)];
        return count > 0 ? seconds_[place(action)] / count : 0;
    }

  private:
    static constexpr std::size_t kinds = 16;
    static std::size_t place(gpipe::Action const& action) {
        return static_cast<std::size_t>(action.cell) * kinds +
               static_cast<std::size_t>(action.kind) % kinds;
    }

    std::size_t lanes_;
    double busy_ = 0;
    double available_ = 0;
    std::vector<double> seconds_;
    std::vector<double> counts_;
};

} // namespace support
