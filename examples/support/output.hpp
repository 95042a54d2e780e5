#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace support {

/// From here on the program ends with exit status 1 and one line on stderr if what it prints on
/// stdout cannot be written, however it ends (as close_stdout of GNU's programs).
inline void check_output(std::string program) {
    static std::string name;
    bool const first = name.empty();
    name = std::move(program);
    if (!first) return;
    std::atexit([] {
        errno = 0;
        bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
        // Closing tells what a file system finds out late; a stdout that was closed is no matter
        // where nothing was printed.
        failed = failed || (std::fclose(stdout) != 0 && errno != EBADF);
        if (!failed) return;
        // The reason of what failed before the end is no longer known.
        std::fprintf(stderr, "%s: cannot write standard output%s%s\n", name.c_str(),
                     errno != 0 ? ": " : "", errno != 0 ? std::strerror(errno) : "");
        std::_Exit(1);
    });
}

/// A file that is opened now, and written as a whole later.
class OutputFile {
  public:
    /// Throws std::runtime_error, which names the file and the reason, if there can be none.
    explicit OutputFile(std::string path)
        : path_(std::move(path)), file_(std::fopen(path_.c_str(), "wb")) {
        if (!file_) fail();
    }
    ~OutputFile() {
        if (file_) std::fclose(file_);
    }
    OutputFile(OutputFile const&) = delete;
    OutputFile& operator=(OutputFile const&) = delete;

    /// Throws std::runtime_error likewise. At most once.
    void write(std::string const& content) {
        errno = 0;
        bool const all = std::fwrite(content.data(), 1, content.size(), file_) == content.size();
        int const first = errno;
        bool const closed = std::fclose(std::exchange(file_, nullptr)) == 0;
        if (!all) errno = first;
        if (!all || !closed) fail();
    }

  private:
    [[noreturn]] void fail() const {
        throw std::runtime_error("cannot write '" + path_ + "': " + std::strerror(errno));
    }

    std::string path_;
    std::FILE* file_;
};

inline void write_file(std::string const& path, std::string const& content) {
    OutputFile(path).write(content);
}

} // namespace support
