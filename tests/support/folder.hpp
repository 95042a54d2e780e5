#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace toy {

/// A folder for files, which goes with the object.
struct Folder {
    std::string path = (std::filesystem::temp_directory_path() / "gpipe-test-XXXXXX").string();

    Folder() {
        if (!::mkdtemp(path.data())) throw std::runtime_error("no folder for files: " + path);
    }
    Folder(Folder const&) = delete;
    Folder& operator=(Folder const&) = delete;
    ~Folder() { std::filesystem::remove_all(path); }

    std::string operator/(std::string const& name) const { return path + '/' + name; }
    std::string content(std::string const& name) const {
        std::ifstream file(*this / name, std::ios::binary);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    void write(std::string const& name, std::string const& content) const {
        // A file that is cut to nothing and written again goes to the disk when it is closed.
        std::filesystem::remove(*this / name);
        std::ofstream(*this / name, std::ios::binary) << content;
    }
};

} // namespace toy
