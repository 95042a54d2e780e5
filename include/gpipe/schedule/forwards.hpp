#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>

namespace gpipe {

/// What an Inference runs: forwards alone, of one cell on each of K devices, micro-batch behind
/// micro-batch.
GPIPE_INLINE constexpr Programs forwards(std::size_t devices, std::size_t micro_batches) {
    Programs result(devices, devices, micro_batches, devices * micro_batches);
    for (std::size_t k = 0; k < devices; ++k) {
        for (std::size_t m = 0; m < micro_batches; ++m) result.add(forward(k, m));
        result.next_device();
    }
    return result;
}

} // namespace gpipe
