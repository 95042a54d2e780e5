#pragma once

#include <gpipe/core/array.hpp>

#include <cstddef>

namespace gpipe {

/// The samples of micro-batch `m`.
struct SampleRange {
    std::size_t first = 0;
    std::size_t count = 0;
};

/// How a mini-batch of `samples` is split: sizes differ by at most one, the larger first; with
/// fewer samples than micro-batches the last ones are empty (promise P5).
constexpr SampleRange micro_batch_range(std::size_t samples, std::size_t micro_batches,
                                        std::size_t m) {
    std::size_t const share = samples / micro_batches;
    std::size_t const rest = samples % micro_batches;
    return {m * share + (m < rest ? m : rest), share + (m < rest ? 1 : 0)};
}

} // namespace gpipe
