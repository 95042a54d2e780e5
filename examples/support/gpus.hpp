#pragma once

#include "support/options.hpp"

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#ifdef __CUDACC__
#include <gpipe/gpipe.cuh>
#endif

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

#ifdef __CUDACC__
/// The same; of an empty text all GPUs in turn, again where there are more devices than GPUs.
inline std::vector<int> chosen_gpus(std::string_view text, std::size_t devices) {
    if (!text.empty()) return gpu_list(text, devices);
    int const present = gpipe::cuda::device_count();
    std::vector<int> list;
    while (list.size() < devices) list.push_back(static_cast<int>(list.size()) % present);
    return list;
}
#endif

} // namespace support
