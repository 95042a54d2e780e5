#pragma once

#include <fstream>
#include <stdexcept>
#include <string>

namespace support {

/// Writes a whole file. Throws std::runtime_error if that cannot be.
inline void write_file(std::string const& file, std::string const& content) {
    std::ofstream out(file, std::ios::binary);
    out << content;
    out.close();
    if (!out) throw std::runtime_error("cannot write " + file);
}

} // namespace support
