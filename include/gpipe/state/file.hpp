#pragma once

#include <gpipe/state/state_error.hpp>
#include <gpipe/state/state_inline.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>

namespace gpipe {

namespace detail {

[[noreturn]] GPIPE_STATE_INLINE void throw_file_error(char const* call, std::string const& path,
                                                      int error) {
    throw StateError("gpipe: " + path + ": " + call + ": " + std::strerror(error));
}

// What a call of the system returns, made again where a signal comes in between.
template <class Call> auto uninterrupted(Call call) {
    auto result = call();
    while (result < 0 && errno == EINTR) result = call();
    return result;
}

// What is written in a symbolic link, if that is one and there is room for it.
GPIPE_STATE_INLINE std::string target_of(std::string const& path) {
    char target[4096];
    ssize_t const count = ::readlink(path.c_str(), target, sizeof target);
    if (count <= 0 || count == sizeof target) return {};
    return {target, static_cast<std::size_t>(count)};
}
// What a symbolic link stands for, through any number of them; else the path as it is. What cannot
// be followed says so when it is opened.
GPIPE_STATE_INLINE std::string followed(std::string path) {
    for (int links = 0; links < 40; ++links) {
        std::string const next = target_of(path);
        if (next.empty()) break;
        path = next[0] == '/' ? next : path.substr(0, path.rfind('/') + 1) + next;
    }
    return path;
}
// The same file, wherever the process goes meanwhile.
GPIPE_STATE_INLINE std::string from_anywhere(std::string const& path) {
    std::error_code error;
    std::string result = std::filesystem::absolute(path, error).string();
    return error ? path : result;
}

} // namespace detail

/// A file of the system, open. Every call that fails throws a StateError with the path, the call
/// and the system's words.
class File {
  public:
    /// `flags`: as those of open(2).
    File(std::string path, int flags) : path_(std::move(path)) {
        // A pipe by that name must not be waited for.
        fd_ = detail::uninterrupted(
            [&] { return ::open(path_.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0666); });
        if (fd_ < 0) fail("open");
    }
    /// What is moved from is closed.
    File(File&& other) noexcept
        : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
    File& operator=(File&&) = delete;
    ~File() {
        if (fd_ >= 0) ::close(fd_);
    }

    /// As it was given.
    std::string const& path() const { return path_; }
    /// Bytes.
    std::uint64_t size() const { return static_cast<std::uint64_t>(status().st_size); }

    /// Fills `to` from the byte at `offset` on.
    void read_at(std::uint64_t offset, std::span<std::byte> to) const {
        while (!to.empty()) {
            ssize_t const count = detail::uninterrupted(
                [&] { return ::pread(fd_, to.data(), to.size(), static_cast<::off_t>(offset)); });
            if (count < 0) fail("read");
            if (count == 0) throw StateError("gpipe: " + path_ + ": it became shorter meanwhile");
            offset += static_cast<std::uint64_t>(count);
            to = to.subspan(static_cast<std::size_t>(count));
        }
    }
    /// All of them, behind those before.
    void write(std::span<std::byte const> from) {
        while (!from.empty()) {
            ssize_t const count =
                detail::uninterrupted([&] { return ::write(fd_, from.data(), from.size()); });
            if (count < 0) fail("write");
            if (count == 0) detail::throw_file_error("write", path_, ENOSPC);
            from = from.subspan(static_cast<std::size_t>(count));
        }
    }
    /// Returns when what was written outlives a loss of power.
    void sync() {
        if (detail::uninterrupted([&] { return ::fsync(fd_); }) < 0) fail("fsync");
    }
    /// The number of the file is free again whatever close() says, so it is called once.
    void close() {
        if (::close(std::exchange(fd_, -1)) < 0) fail("close");
    }
    /// Whether nobody else holds it. The system gives it back when the file is closed, or its
    /// process dies.
    bool lock() {
        int const result = detail::uninterrupted([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); });
        if (result < 0 && errno != EWOULDBLOCK) fail("flock");
        return result == 0;
    }
    /// Gives it the permissions of the file of that name, if there is one.
    void take_mode_of(std::string const& path) {
        struct ::stat there {};
        if (::stat(path.c_str(), &there) < 0) return;
        if (::fchmod(fd_, there.st_mode & 07777) < 0) fail("fchmod");
    }
    /// Whether the file has this name yet.
    bool named(std::string const& path) const {
        struct ::stat there {};
        if (::stat(path.c_str(), &there) < 0) return false;
        struct ::stat const here = status();
        return here.st_dev == there.st_dev && here.st_ino == there.st_ino;
    }

  private:
    struct ::stat status() const {
        struct ::stat status {};
        if (::fstat(fd_, &status) < 0) fail("fstat");
        return status;
    }
    [[noreturn]] void fail(char const* call) const { detail::throw_file_error(call, path_, errno); }

    std::string path_;
    int fd_ = -1;
};

/// A file that is there as a whole or not at all: written under another name in the same folder,
/// brought to the disk, and given its name in place of the file that had it, which stays as it is
/// until then, whatever fails and whenever the process dies (the recipe of Pillai et al., OSDI'14).
/// A rest of a process that was killed is written over by the next, so only one is ever left.
class AtomicFile {
  public:
    /// Throws StateError, also where somebody else is writing this file just now, and for what is
    /// there but no file, as a device or a pipe. A link stays one: what it stands for is replaced.
    explicit AtomicFile(std::string path)
        : path_(checked(detail::followed(std::move(path)))), partial_(path_ + ".partial"),
          lock_(locked(partial_)), file_(emptied(partial_, path_)) {}
    AtomicFile(AtomicFile const&) = delete;
    AtomicFile& operator=(AtomicFile const&) = delete;
    ~AtomicFile() {
        if (!committed_) ::unlink(partial_.c_str()); // while it is locked yet
    }

    /// Behind those before.
    void write(std::span<std::byte const> bytes) { file_.write(bytes); }
    /// From here on it has its name. If this throws, the old file is there as it was, unless only
    /// the folder could not be brought to the disk: then the new one is, but may be lost with the
    /// power.
    void commit() {
        file_.sync();
        file_.close(); // which may say that something was not written
        if (std::rename(partial_.c_str(), path_.c_str()) < 0)
            detail::throw_file_error("rename", path_, errno);
        committed_ = true;
        std::size_t const slash = path_.rfind('/');
        File folder(slash == std::string::npos ? "." : path_.substr(0, slash + 1),
                    O_RDONLY | O_DIRECTORY);
        folder.sync();
        folder.close();
    }

  private:
    static std::string checked(std::string path) {
        struct ::stat there {};
        if (::lstat(path.c_str(), &there) == 0 && S_ISLNK(there.st_mode))
            detail::throw_file_error("readlink", path, ELOOP);
        if (::stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode))
            throw StateError("gpipe: " + path + ": it is there, but no file that can be replaced");
        return path;
    }
    // The lock may be that of a file which has got its name, or lost it, meanwhile.
    static File locked(std::string const& partial) {
        for (int tries = 0; tries < 100; ++tries) {
            File file(partial, O_WRONLY | O_CREAT);
            if (!file.lock()) break;
            if (file.named(partial)) return file;
        }
        throw StateError("gpipe: " + partial + ": somebody else is writing it just now");
    }

    static File emptied(std::string const& partial, std::string const& path) try {
        File file(partial, O_WRONLY | O_TRUNC);
        file.take_mode_of(path);
        return file;
    } catch (...) {
        ::unlink(partial.c_str()); // while it is locked yet
        throw;
    }

    std::string path_;
    std::string partial_;
    File lock_; // nothing is written through it
    File file_;
    bool committed_ = false;
};

namespace detail {

GPIPE_STATE_INLINE std::span<std::byte const> bytes_of(std::string const& text) {
    return std::as_bytes(std::span(text));
}

GPIPE_STATE_INLINE void write_file(std::string const& path, std::string const& begin,
                                   std::span<std::byte const> bytes) {
    AtomicFile file(path);
    file.write(bytes_of(begin));
    file.write(bytes);
    file.commit();
}

} // namespace detail
} // namespace gpipe
