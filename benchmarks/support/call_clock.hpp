#pragma once

#include "by_hand.hpp"
#include "call_times.hpp"
#include "statistics.hpp"

#include <barrier>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace benchmark {

/// Times the calls of a network in loops by hand (SegmentsByHand) on so many threads at once: as
/// busy as the machine will be.
template <class Hand> class CallClock {
  public:
    static constexpr std::size_t layers = Hand::size;

    /// `make(length, keeps)` makes a loop.
    template <class Make> CallClock(std::size_t threads, Make make) {
        for (std::size_t thread = 0; thread < threads; ++thread) {
            single_.push_back(make(1, ByHand::segments));
            whole_.push_back(make(layers, ByHand::segments));
            waiting_.push_back(make(layers, ByHand::everything));
        }
    }

    /// One step of each loop, and forwards alone.
    template <class Input, class Target>
    CallTimes measure(Input const& inputs, Target const& targets) {
        auto const step = [&](Hand& hand) { hand.step(inputs, targets); };
        run(single_, step);
        run(whole_, [&](Hand& hand) {
            step(hand);
            hand.pass(inputs);
        });
        run(waiting_, step);
        CallTimes times{{means(whole_, &Times::passing), {}},
                        calls(single_),
                        calls(whole_),
                        calls(waiting_),
                        means(waiting_, &Times::update)};
        for (auto const& hand : whole_)
            times.loss += mean(hand->times().loss) / static_cast<double>(whole_.size());
        // Where a loop by hand has no reason to run a layer right before its backward.
        for (std::size_t l = 0; l < layers; ++l)
            if (std::isnan(times.next.forward[l])) times.next.forward[l] = times.fresh.forward[l];
        return times;
    }

  private:
    using Times = typename Hand::Times;
    using Loops = std::vector<std::unique_ptr<Hand>>; // by thread

    template <class Work> static void run(Loops& loops, Work const& work) {
        wait_until_quiet();
        std::barrier start(static_cast<std::ptrdiff_t>(loops.size()));
        auto const timed = [&](Hand& hand) {
            hand.time_layers();
            start.arrive_and_wait();
            work(hand);
        };
        std::vector<std::jthread> others;
        for (std::size_t thread = 1; thread < loops.size(); ++thread)
            others.emplace_back(timed, std::ref(*loops[thread]));
        timed(*loops[0]);
    }
    template <class Member> static std::vector<double> means(Loops const& loops, Member member) {
        std::vector<double> result(layers);
        for (std::size_t l = 0; l < layers; ++l)
            for (auto const& hand : loops)
                result[l] += mean((hand->times().*member)[l]) / static_cast<double>(loops.size());
        return result;
    }
    static LayerCalls calls(Loops const& loops) {
        return {means(loops, &Times::forward), means(loops, &Times::backward)};
    }

    Loops single_, whole_, waiting_;
};

} // namespace benchmark
