#pragma once

#include "tiny_model.hpp"

#include <gpipe/device/bell.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

namespace benchmark {

/// A count that only grows, with one writer, and that another thread waits for.
class alignas(128) Counter {
  public:
    void publish(std::uint64_t value) noexcept {
        value_.store(value, std::memory_order_release);
        bell_.ring();
    }
    void wait(std::uint64_t value) noexcept {
        auto const reached = [&] { return value_.load(std::memory_order_acquire) >= value; };
        if (!reached()) bell_.wait(reached);
    }

  private:
    std::atomic<std::uint64_t> value_{0};
    gpipe::detail::Bell bell_;
};

/// GPipe as one would write it by hand for exactly K cells on one or two threads: the caller runs
/// the first half of the cells, the other thread the rest, and the order is in the code. They wait
/// as the library's threads do, so that what differs is the walking of tables alone.
template <std::size_t K, std::size_t threads> class Handwritten {
    static_assert(threads == 1 || threads == 2);
    static constexpr std::size_t middle = threads == 1 ? K : K / 2;

  public:
    Handwritten(std::size_t samples, std::size_t micro_batches, gpipe::SGD optimizer)
        : cells_(samples, micro_batches), optimizer_(optimizer) {
        if constexpr (threads == 2) second_ = std::thread([this] { work(); });
    }
    ~Handwritten() {
        if (!second_.joinable()) return;
        stopping_ = true;
        begin_.publish(++steps_);
        second_.join();
    }

    double step(float const* inputs, float const* targets) {
        cells_.point_to(inputs, targets);
        begin_.publish(++steps_);
        auto const count = static_cast<std::uint32_t>(cells_.micro_batches());
        std::uint32_t const base = (steps_ - 1) * count;
        for (std::size_t c = 0; c < middle; ++c) cells_.zero_gradients(c);
        for (std::uint32_t m = 0; m < count; ++m) {
            for (std::size_t c = 0; c < middle; ++c) cells_.forward(c, m);
            if constexpr (threads == 2) forward_.publish(base + m + 1);
        }
        for (std::uint32_t m = count; m-- > 0;) {
            if constexpr (threads == 2) backward_.wait(base + count - m);
            for (std::size_t c = middle; c-- > 0;) cells_.backward(c, m);
        }
        double const loss = cells_.total();
        committed_.publish(steps_);
        for (std::size_t c = 0; c < middle; ++c) cells_.update(c, optimizer_);
        if constexpr (threads == 2) updated_.wait(steps_);
        return loss;
    }

    TinyCells<K> const& cells() const { return cells_; }

  private:
    void work() {
        auto const count = static_cast<std::uint32_t>(cells_.micro_batches());
        for (std::uint32_t step = 1;; ++step) {
            begin_.wait(step);
            if (stopping_) return;
            std::uint32_t const base = (step - 1) * count;
            for (std::size_t c = middle; c < K; ++c) cells_.zero_gradients(c);
            for (std::uint32_t m = 0; m < count; ++m) {
                forward_.wait(base + m + 1);
                for (std::size_t c = middle; c < K; ++c) cells_.forward(c, m);
            }
            for (std::uint32_t m = count; m-- > 0;) {
                for (std::size_t c = K; c-- > middle;) cells_.backward(c, m);
                backward_.publish(base + count - m);
            }
            committed_.wait(step);
            for (std::size_t c = middle; c < K; ++c) cells_.update(c, optimizer_);
            updated_.publish(step);
        }
    }

    TinyCells<K> cells_;
    gpipe::SGD optimizer_;
    std::uint32_t steps_ = 0;
    bool stopping_ = false;
    Counter begin_;
    Counter forward_;
    Counter backward_;
    Counter committed_;
    Counter updated_;
    std::thread second_;
};

} // namespace benchmark
