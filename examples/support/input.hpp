#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace support {

/// A whole file of at most `most` bytes. Throws Error(what), which names the file and the reason.
template <class Error> std::string read_file(std::string const& path, std::size_t most) {
    auto const refuse = [&](std::string const& why) {
        return Error("cannot read '" + path + "': " + why);
    };
    auto const close = [](std::FILE* file) { std::fclose(file); };
    std::unique_ptr<std::FILE, decltype(close)> const file(std::fopen(path.c_str(), "rb"), close);
    if (!file) throw refuse(std::strerror(errno));
    std::string content;
    std::vector<char> buffer(1 << 16);
    while (std::size_t const n = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
        content.append(buffer.data(), n);
        if (content.size() > most)
            throw refuse("it has more than " + std::to_string(most) + " bytes");
    }
    if (std::ferror(file.get())) throw refuse(std::strerror(errno));
    return content;
}

} // namespace support
