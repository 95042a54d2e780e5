#pragma once

#include <gpipe/layer/dtype.hpp>
#include <gpipe/state/state_inline.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace gpipe {

/// What is wrong with a saved state, or with saving it.
struct StateError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// A name that comes from a file, for messages: short and printable.
GPIPE_STATE_INLINE std::string in_quotes(std::string_view name) {
    std::string text = "\"";
    for (char const c : name.substr(0, 100)) text += c >= ' ' && c <= '~' ? c : '?';
    return text + (name.size() > 100 ? "...\"" : "\"");
}

/// As "F32[2, 3]".
GPIPE_STATE_INLINE std::string described(Dtype dtype, std::span<std::uint64_t const> shape) {
    std::string text(info(dtype).name);
    text += '[';
    for (std::size_t i = 0; i < shape.size() && i < 16; ++i)
        text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + (shape.size() > 16 ? ", ...]" : "]");
}

} // namespace gpipe
