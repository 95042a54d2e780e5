#pragma once

#include <gpipe/core/version.hpp>

#include <cstddef>

namespace gpipe {

/// In place of a number in a policy: given at construction instead of at compile time, as with the
/// extents of mdspan. `Cells<dynamic>`, `MicroBatches<dynamic>`.
inline constexpr std::size_t dynamic = static_cast<std::size_t>(-1);

} // namespace gpipe
