#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace benchmark {

/// Tokens below `classes`, the same in every run.
inline std::vector<std::int32_t> random_tokens(std::size_t count, std::uint32_t classes) {
    std::mt19937 random(1);
    std::vector<std::int32_t> tokens(count);
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % classes);
    return tokens;
}

} // namespace benchmark
