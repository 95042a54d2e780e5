#pragma once

#include <gpipe/schedule/action.hpp>

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>

namespace gpipe {

/// Where a layer (or the loss) threw. The exception itself leaves step() as it was thrown.
struct Failure {
    std::size_t layer = 0;       ///< position in the chain; L for the loss
    std::string_view layer_name; ///< its type
    std::size_t cell = 0;
    std::size_t micro_batch = 0;
    Kind action = Kind::forward;
    std::exception_ptr error;

    /// One line: "layer 3 (Linear<8, 8>) in the backward of micro-batch 2, cell 1".
    std::string place() const {
        return "layer " + std::to_string(layer) + " (" + std::string(layer_name) + ") in the " +
               std::string(name(action)) + " of micro-batch " + std::to_string(micro_batch) +
               ", cell " + std::to_string(cell);
    }
};

} // namespace gpipe
