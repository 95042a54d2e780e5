#pragma once

#include <gpipe/core/version.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Which tensors of a mini-batch are absent, of those that may be: see gpipe::Optional.
struct StepOptionals {
    void const* const* tags = nullptr; ///< by tensor: one address per tag
    std::uint64_t absent = 0;          ///< a bit for each tensor

    /// Whether tensors of this tag are.
    constexpr bool lack(void const* tag) const {
        std::size_t i = 0;
        for (std::uint64_t left = absent; left != 0; left >>= 1, ++i)
            if ((left & 1) && tags[i] == tag) return true;
        return false;
    }
};

} // namespace gpipe
