#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/transport/descriptor.hpp>
#include <gpipe/transport/rendezvous_key.hpp>
#include <gpipe/transport/rendezvous_messages.hpp>
#include <gpipe/transport/socket_address.hpp>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpipe::detail {

/// What such a file says.
struct RendezvousRecord {
    std::uint64_t magic = rendezvous_magic;
    std::uint64_t job = 0;                 ///< random
    std::array<unsigned char, 32> token{}; ///< likewise, for this once
    SocketAddress address{};               ///< where rank 0 listens

    /// Of the token.
    RendezvousKey key() const {
        return RendezvousKey(std::string_view(reinterpret_cast<char const*>(token.data()), //
                                              token.size()));
    }
    ~RendezvousRecord() { OPENSSL_cleanse(token.data(), token.size()); }
};
static_assert(sizeof(RendezvousRecord) == 184);

/// A file by which rank 0 tells the others where it listens, and a token: nobody but their common
/// user can read it, it appears as a whole, and goes when all have come.
class RendezvousFile {
  public:
    /// Rank 0's: it is there from then on, in place of one that was left behind. Throws
    /// std::runtime_error where it cannot be written.
    RendezvousFile(std::string path, RendezvousRecord const& record) : path_(std::move(path)) {
        auto const random = random_bytes<8>();
        std::string part = path_ + ".";
        for (unsigned char const byte : random) {
            part += "0123456789abcdef"[byte >> 4];
            part += "0123456789abcdef"[byte & 15];
        }
        Descriptor const file(
            ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        bool const is_written =
            file && ::fchmod(file.get(), 0600) == 0 && // whatever the process masks
            ::write(file.get(), &record, sizeof record) == ssize_t{sizeof record} &&
            ::fsync(file.get()) == 0 && ::fstat(file.get(), &own_) == 0 &&
            ::rename(part.c_str(), path_.c_str()) == 0;
        if (is_written) return;
        int const error = errno;
        if (file) ::unlink(part.c_str());
        throw_error<std::runtime_error>("gpipe: '%.300s' cannot be written (%s)", path_.c_str(),
                                        std::strerror(error));
    }
    RendezvousFile(RendezvousFile const&) = delete;
    RendezvousFile& operator=(RendezvousFile const&) = delete;
    /// It goes, unless another has come in its place.
    ~RendezvousFile() {
        struct stat now {};
        if (::lstat(path_.c_str(), &now) == 0 && now.st_ino == own_.st_ino &&
            now.st_dev == own_.st_dev)
            ::unlink(path_.c_str());
    }

    /// Of the others: what it says; false while there is none, or one that was last written before
    /// a time of std::time(), which nobody has needed for long. Throws as open_private(), for a
    /// file that others could have written would lead anywhere.
    static bool read(std::string const& path, std::time_t oldest, RendezvousRecord& record) {
        struct stat status {};
        Descriptor const file = open_private(path, status);
        if (!file || status.st_mtime < oldest) return false;
        if (::read(file.get(), &record, sizeof record) != ssize_t{sizeof record} ||
            record.magic != rendezvous_magic || record.address.length > sizeof(sockaddr_storage))
            throw_error<std::runtime_error>("gpipe: '%.300s' is no file that rank 0 of this "
                                            "version has written",
                                            path.c_str());
        return true;
    }

  private:
    std::string path_;
    struct stat own_ {};
};

} // namespace gpipe::detail
