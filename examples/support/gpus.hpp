#pragma once

#include "support/options.hpp"

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace support {

/// The GPU of each of so many devices, from "0,0,1". Throws UsageError.
inline std::vector<int> gpu_list(std::string_view text, std::size_t devices) {
    std::vector<int> list;
    for (char const *at = text.data(), *const end = at + text.size();; ++at) {
        int number = -1;
        auto const [next, error] = std::from_chars(at, end, number);
        if (error != std::errc{} || number < 0 || (next != end && *next != ','))
            throw UsageError("--gpus takes numbers with commas between, not '" + std::string(text) +
                             "'");
        list.push_back(number);
        at = next;
        if (at == end) break;
    }
    if (list.size() != devices)
        throw UsageError("--gpus takes a number for each device: " + std::to_string(devices) +
                         ", not " + std::to_string(list.size()));
    return list;
}

} // namespace support
