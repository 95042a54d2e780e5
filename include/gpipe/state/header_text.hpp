#pragma once

#include <gpipe/layer/dtype.hpp>
#include <gpipe/state/state_inline.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe::safetensors {

/// One tensor of a file. Its data are at [begin, end) behind the header.
struct Entry {
    std::string name;                 ///< of the tensor
    Dtype dtype = Dtype::other;       ///< of its elements
    std::vector<std::uint64_t> shape; ///< extents; none of a number
    std::uint64_t begin = 0;          ///< byte behind the header
    std::uint64_t end = 0;            ///< one past the last
    std::byte* memory = nullptr;      ///< where a training has it, if any does

    /// Of its data.
    std::uint64_t bytes() const { return end - begin; }
};

/// What the text of a header says: every member there, once, and of its type, but no number
/// checked.
struct HeaderText {
    std::vector<Entry> tensors;                  ///< in the order of the text
    std::map<std::string, std::string> metadata; ///< by name
};

/// The position of the first byte that does not belong to UTF-8 (RFC 3629: shortest forms, no
/// surrogates, up to U+10FFFF) or is a control character that JSON does not know; text.size() if
/// there is none. The JSON parser takes a NUL for the end of the text.
GPIPE_STATE_INLINE std::size_t valid_text(std::string_view text) {
    auto const at = [&](std::size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    };
    std::size_t i = 0;
    while (i < text.size()) {
        unsigned const c = at(i);
        if (c < 0x80) {
            if (c < ' ' && c != '\t' && c != '\n' && c != '\r') return i;
            ++i;
            continue;
        }
        std::size_t const more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
        if (c < 0xc2 || c > 0xf4) return i;
        unsigned const least = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
        unsigned const most = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
        if (at(i + 1) < least || at(i + 1) > most) return i;
        for (std::size_t j = 2; j <= more; ++j)
            if (at(i + j) < 0x80 || at(i + j) > 0xbf) return i;
        i += more + 1;
    }
    return i;
}

/// Reads the text of a header. Throws StateError where it is none.
extern HeaderText read_header_text(std::string_view text);

/// The text of the header of these tensors. Throws StateError where a name or the metadata are not
/// UTF-8.
extern std::string header_text(std::vector<Entry> const& tensors,
                               std::map<std::string, std::string> const& metadata);

} // namespace gpipe::safetensors
