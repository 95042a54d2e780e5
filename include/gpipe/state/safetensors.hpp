#pragma once

#include <gpipe/layer/dtype.hpp>
#include <gpipe/state/header_text.hpp>
#include <gpipe/state/state_error.hpp>
#include <gpipe/state/state_inline.hpp>

// A JSON library takes seconds to read: with gpipe::compiled it is read once.
#if !(defined GPIPE_COMPILED && defined GPIPE_STATE)
#include <gpipe/state/header_json.hpp>
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Files in the format safetensors (https://github.com/huggingface/safetensors): 8 bytes n, little-
/// endian; n bytes of JSON that may end in spaces, name -> {dtype, shape, data_offsets}, and
/// __metadata__ from string to string; then the tensors, row-major, one behind the other without a
/// gap. What this reads may come from anybody: every number is checked before anything is allocated
/// or read for it.
namespace gpipe::safetensors {

static_assert(std::endian::native == std::endian::little,
              "gpipe: saved states are little-endian, and this machine is not");

/// As the reference has it.
inline constexpr std::uint64_t most_header_bytes = 100'000'000;
/// Where data begins that is written here: at a multiple of so many bytes.
inline constexpr std::uint64_t data_alignment = 64;

/// A file but for the data: tensors in the order of that, and every number checked.
struct Header : HeaderText {
    std::uint64_t data_at = 0; ///< in the file
};

namespace detail {

[[noreturn]] GPIPE_STATE_INLINE void too_large(Entry const& entry) {
    throw StateError("tensor " + in_quotes(entry.name) +
                     " is too large for any file: " + described(entry.dtype, entry.shape));
}
// The bytes of a tensor. It is too large where a product of extents, taken in order, is no number
// of 64 bits, although a later extent might be 0: as in the reference.
GPIPE_STATE_INLINE std::uint64_t tensor_bytes(Entry const& entry) {
    std::uint64_t bytes = 1;
    for (std::uint64_t const extent : entry.shape)
        if (__builtin_mul_overflow(bytes, extent, &bytes)) too_large(entry);
    if (__builtin_mul_overflow(bytes, info(entry.dtype).bytes, &bytes)) too_large(entry);
    return bytes;
}

} // namespace detail

/// n, from the first 8 bytes of a file (or all, if it has less) of file_bytes bytes. Throws
/// StateError if there is no such header.
GPIPE_STATE_INLINE std::uint64_t header_bytes(std::span<std::byte const> begin,
                                              std::uint64_t file_bytes) {
    std::uint64_t n = 0;
    if (file_bytes < sizeof n || begin.size() < sizeof n)
        throw StateError("the file has " +
                         std::to_string(std::min<std::uint64_t>(file_bytes, begin.size())) +
                         " bytes; a header alone takes 8 and more");
    std::memcpy(&n, begin.data(), sizeof n);
    if (n > most_header_bytes)
        throw StateError("no safetensors file begins as this one: the header is said to have " +
                         std::to_string(n) + " bytes; the format ends at " +
                         std::to_string(most_header_bytes));
    if (n > file_bytes - sizeof n)
        throw StateError("the header is said to have " + std::to_string(n) +
                         " bytes, but the file ends " + std::to_string(file_bytes - sizeof n) +
                         " bytes behind its length");
    return n;
}

/// The elements of a tensor with these extents, whose bytes are known to be a number.
GPIPE_STATE_INLINE std::uint64_t elements_of(Entry const& entry) {
    std::uint64_t count = 1;
    for (std::uint64_t const extent : entry.shape) count *= extent;
    return count;
}

/// The header with this text, of a file with data_bytes bytes behind it. Throws StateError.
GPIPE_STATE_INLINE Header parse(std::string_view text, std::uint64_t data_bytes) {
    Header header{read_header_text(text), sizeof(std::uint64_t) + text.size()};
    for (Entry const& entry : header.tensors) {
        std::uint64_t const bytes = detail::tensor_bytes(entry);
        if (entry.begin > entry.end || entry.bytes() != bytes)
            throw StateError("tensor " + in_quotes(entry.name) + " takes " + std::to_string(bytes) +
                             " bytes, but its data_offsets are [" + std::to_string(entry.begin) +
                             ", " + std::to_string(entry.end) + ")");
    }
    std::sort(header.tensors.begin(), header.tensors.end(), [](Entry const& a, Entry const& b) {
        return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::uint64_t end = 0;
    for (Entry const& entry : header.tensors) {
        if (entry.begin != end)
            throw StateError("the data of tensor " + in_quotes(entry.name) + " begin at " +
                             std::to_string(entry.begin) + ", " +
                             (entry.begin < end ? "within" : "behind a hole after") +
                             " those before, which end at " + std::to_string(end));
        end = entry.end;
    }
    if (end != data_bytes)
        throw StateError("the tensors take " + std::to_string(end) + " bytes, but behind the " +
                         "header the file has " + std::to_string(data_bytes));
    return header;
}

/// The header of a whole file. Throws StateError.
GPIPE_STATE_INLINE Header parse_file(std::span<std::byte const> file) {
    std::uint64_t const n = header_bytes(file, file.size());
    auto const* const text = reinterpret_cast<char const*>(file.data() + sizeof n);
    return parse({text, n}, file.size() - sizeof n - n);
}

/// Puts tensors into the order in which they are written, by descending size of their elements,
/// then by name, so that each lies at a multiple of that size, and says where. Throws StateError
/// where a file cannot hold them.
GPIPE_STATE_INLINE void arrange(std::vector<Entry>& tensors) {
    std::sort(tensors.begin(), tensors.end(), [](Entry const& a, Entry const& b) {
        std::size_t const x = info(a.dtype).bytes, y = info(b.dtype).bytes;
        return x != y ? x > y : a.name < b.name;
    });
    std::uint64_t at = 0;
    for (Entry& entry : tensors) {
        entry.begin = at;
        if (__builtin_add_overflow(at, detail::tensor_bytes(entry), &at)) detail::too_large(entry);
        entry.end = at;
    }
}

/// The begin of a file, up to the data: length and header, padded to data_alignment.
GPIPE_STATE_INLINE std::string file_begin(std::vector<Entry> const& tensors,
                                          std::map<std::string, std::string> const& metadata) {
    std::string text = header_text(tensors, metadata);
    std::uint64_t n = text.size() + sizeof n;
    n = (n + data_alignment - 1) / data_alignment * data_alignment - sizeof n;
    if (n > most_header_bytes)
        throw StateError("the header would have " + std::to_string(n) +
                         " bytes; the format ends at " + std::to_string(most_header_bytes));
    text.resize(n, ' ');
    std::string begin(sizeof n, '\0');
    std::memcpy(begin.data(), &n, sizeof n);
    return begin + text;
}

} // namespace gpipe::safetensors
