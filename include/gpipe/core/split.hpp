#pragma once

#include <gpipe/core/version.hpp>

#include <cstddef>

namespace gpipe {

/// The samples of a micro-batch.
struct SampleRange {
    std::size_t first = 0; ///< position of the first in the mini-batch
    std::size_t count = 0; ///< how many

    /// Member by member.
    friend constexpr bool operator==(SampleRange const&, SampleRange const&) = default;
};

/// How a mini-batch of `samples` is split, or whatever else is dealt out: sizes differ by at most
/// one, the larger first; with fewer samples than micro-batches the last ones are empty (promise
/// P5).
class Split {
  public:
    /// `micro_batches` is not 0.
    constexpr Split(std::size_t samples, std::size_t micro_batches)
        : share_(samples / micro_batches), rest_(samples % micro_batches) {}

    /// The samples of micro-batch `m`.
    constexpr SampleRange operator[](std::size_t m) const {
        return {m * share_ + (m < rest_ ? m : rest_), share_ + (m < rest_ ? 1 : 0)};
    }

  private:
    std::size_t share_;
    std::size_t rest_;
};

} // namespace gpipe
