// For libFuzzer: whatever a file holds, it is refused, or what it says is sound and can be written
// again. An input that begins with 'j' is the number of its data's bytes (one byte) and a header's
// text; any other is a whole file.
#include <gpipe/state/safetensors.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

using gpipe::safetensors::Entry;
using gpipe::safetensors::Header;

void require(bool holds) {
    if (!holds) __builtin_trap();
}

void check(Header const& header, std::uint64_t data_bytes) {
    std::uint64_t end = 0;
    for (Entry const& entry : header.tensors) {
        require(entry.begin == end && entry.end >= entry.begin);
        require(entry.dtype != gpipe::Dtype::other);
        std::uint64_t bytes = gpipe::info(entry.dtype).bytes;
        for (std::uint64_t const extent : entry.shape) bytes *= extent;
        require(bytes == entry.bytes());
        end = entry.end;
    }
    require(end == data_bytes);

    std::vector<Entry> tensors = header.tensors;
    gpipe::safetensors::arrange(tensors);
    std::string const begin = gpipe::safetensors::file_begin(tensors, header.metadata);
    Header const again =
        gpipe::safetensors::parse({begin.data() + 8, begin.size() - 8}, data_bytes);
    require(again.tensors.size() == tensors.size() && again.metadata == header.metadata);
}

} // namespace

bool taken = false; // see support/replay_inputs.cpp

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
    taken = true;
    try {
        if (size >= 2 && data[0] == 'j') {
            auto const* const text = reinterpret_cast<char const*>(data);
            check(gpipe::safetensors::parse({text + 2, size - 2}, data[1]), data[1]);
        } else {
            auto const file = std::as_bytes(std::span(data, size));
            Header const header = gpipe::safetensors::parse_file(file);
            check(header, size - header.data_at);
        }
    } catch (gpipe::StateError const&) {
        taken = false;
    }
    return 0;
}
