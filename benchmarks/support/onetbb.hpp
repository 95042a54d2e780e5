#pragma once

#include "tiny_model.hpp"

#include <oneapi/tbb/parallel_pipeline.h>
#include <oneapi/tbb/task_arena.h>

#include <cstddef>

namespace benchmark {

/// The same cells as filters of oneTBB's parallel_pipeline: micro-batches are its items, a cell is
/// a serial filter.
enum class TbbForm {
    two_pipelines, ///< all forwards, then all backwards in descending order, as GPipe
    one_pipeline   ///< 2 K filters: an item goes forward and straight backward
};

template <std::size_t K> class OneTbb {
    static_assert(K >= 2);

  public:
    /// `tokens`: how many micro-batches may be on their way at once.
    OneTbb(std::size_t samples, std::size_t micro_batches, gpipe::SGD optimizer, TbbForm form,
           std::size_t tokens, std::size_t threads)
        : cells_(samples, micro_batches), optimizer_(optimizer), form_(form), tokens_(tokens),
          arena_(static_cast<int>(threads)) {}

    double step(float const* inputs, float const* targets) {
        cells_.point_to(inputs, targets);
        for (std::size_t c = 0; c < K; ++c) cells_.zero_gradients(c);
        arena_.execute([this] {
            if (form_ == TbbForm::one_pipeline) {
                run(2 * K, [this](std::size_t filter, std::size_t m) {
                    if (filter < K)
                        cells_.forward(filter, m);
                    else
                        cells_.backward(2 * K - 1 - filter, m);
                });
            } else {
                run(K, [this](std::size_t filter, std::size_t m) { cells_.forward(filter, m); });
                run(K, [this](std::size_t filter, std::size_t m) {
                    cells_.backward(K - 1 - filter, cells_.micro_batches() - 1 - m);
                });
            }
        });
        double const loss = cells_.total();
        for (std::size_t c = 0; c < K; ++c) cells_.update(c, optimizer_);
        return loss;
    }

    TinyCells<K> const& cells() const { return cells_; }

  private:
    template <class Act> void run(std::size_t filters, Act act) {
        namespace tbb = oneapi::tbb;
        constexpr auto serial = tbb::filter_mode::serial_in_order;
        std::size_t next = 0;
        auto first = tbb::make_filter<void, std::size_t>(serial, [&](tbb::flow_control& control) {
            if (next == cells_.micro_batches()) {
                control.stop();
                return next;
            }
            act(0, next);
            return next++;
        });
        for (std::size_t f = 1; f + 1 < filters; ++f)
            first = first &
                    tbb::make_filter<std::size_t, std::size_t>(serial, [&act, f](std::size_t m) {
                        act(f, m);
                        return m;
                    });
        auto const last = tbb::make_filter<std::size_t, void>(
            serial, [&act, filters](std::size_t m) { act(filters - 1, m); });
        tbb::parallel_pipeline(tokens_, first & last);
    }

    TinyCells<K> cells_;
    gpipe::SGD optimizer_;
    TbbForm form_;
    std::size_t tokens_;
    oneapi::tbb::task_arena arena_;
};

} // namespace benchmark
