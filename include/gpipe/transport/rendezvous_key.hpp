#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/transport/descriptor.hpp>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpipe::detail {

/// Random bytes. Throws std::runtime_error where there are none.
template <std::size_t Size> std::array<unsigned char, Size> random_bytes() {
    std::array<unsigned char, Size> bytes{};
    if (::getrandom(bytes.data(), Size, 0) != static_cast<ssize_t>(Size))
        throw std::runtime_error("gpipe: there are no random numbers");
    return bytes;
}

/// Opens a file that nobody but its owner can read or write, and he is who runs this; none if there
/// is no file, and its size and age in `status`. Throws std::runtime_error for others.
inline Descriptor open_private(std::string const& path, struct stat& status) {
    // Not through a link; a pipe does not keep us.
    Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file && errno == ENOENT) return file;
    if (!file && errno == ELOOP)
        throw_error<std::runtime_error>(
            "gpipe: '%.300s' is a symbolic link, and such a file is not read through one",
            path.c_str());
    if (!file || ::fstat(file.get(), &status) != 0) {
        int const error = errno;
        throw_error<std::runtime_error>("gpipe: '%.300s' cannot be read (%s)", path.c_str(),
                                        std::strerror(error));
    }
    if (!S_ISREG(status.st_mode))
        throw_error<std::runtime_error>("gpipe: '%.300s' is no plain file", path.c_str());
    if (status.st_uid != ::geteuid())
        throw_error<std::runtime_error>("gpipe: '%.300s' belongs to another user: what it says may "
                                        "be anybody's",
                                        path.c_str());
    if (status.st_mode & 077)
        throw_error<std::runtime_error>(
            "gpipe: '%.300s' has mode %03o: others may read or write it, "
            "and it needs 600",
            path.c_str(), static_cast<unsigned>(status.st_mode & 0777));
    return file;
}

/// What ranks have in common and strangers do not: of a token, which itself is kept nowhere.
class RendezvousKey {
  public:
    using Proof = std::array<unsigned char, 32>; ///< of HMAC-SHA-256

    static constexpr std::size_t least_token = 16;  ///< characters, fewer could be guessed
    static constexpr std::size_t most_token = 4096; ///< likewise

    /// Of no token: all have it.
    RendezvousKey() : RendezvousKey(std::string_view{}) {}
    /// Of this one.
    explicit RendezvousKey(std::string_view token)
        : key_(sign(token.data(), token.size(), "gpipe rendezvous", 16)) {}
    RendezvousKey(RendezvousKey const&) = default;
    RendezvousKey& operator=(RendezvousKey const&) = default;
    ~RendezvousKey() { OPENSSL_cleanse(key_.data(), key_.size()); }

    /// Shows that who has made it has the key, of bytes that are plain.
    Proof prove(void const* bytes, std::size_t size) const {
        return sign(key_.data(), key_.size(), bytes, size);
    }
    /// Whether two are the same, in a time that does not say where they differ.
    static bool same(Proof const& a, Proof const& b) {
        return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
    }

    /// Of the token in a file, or if that is "" in the environment; is_there: whether there is one.
    /// Throws std::runtime_error where others than the owner can read the file, or its token is
    /// shorter or longer than the above.
    static RendezvousKey find(std::string const& file, bool& is_there) {
        char const* const token = std::getenv("GPIPE_TOKEN");
        is_there = !file.empty() || token;
        if (!file.empty()) return read(file);
        if (!token) return {};
        return of(token, "GPIPE_TOKEN");
    }

  private:
    static Proof sign(void const* key, std::size_t key_size, void const* bytes, std::size_t size) {
        Proof proof;
        unsigned length = 0;
        static constexpr char none = 0; // a key of no bytes is at some place, too
        if (!HMAC(EVP_sha256(), key ? key : &none, static_cast<int>(key_size),
                  static_cast<unsigned char const*>(bytes), size, proof.data(), &length) ||
            length != proof.size())
            throw std::runtime_error("gpipe: OpenSSL refuses HMAC-SHA-256");
        return proof;
    }
    static RendezvousKey of(std::string_view token, char const* where) {
        if (token.size() > most_token)
            throw_error<std::runtime_error>(
                "gpipe: the token in %.300s has more than %zu characters", where, most_token);
        if (token.size() < least_token)
            throw_error<std::runtime_error>("gpipe: the token in %.300s has %zu characters: of "
                                            "fewer than %zu it could be guessed",
                                            where, token.size(), least_token);
        return RendezvousKey(token);
    }
    static RendezvousKey read(std::string const& path) {
        struct stat status {};
        Descriptor const file = open_private(path, status);
        if (!file)
            throw_error<std::runtime_error>("gpipe: there is no file '%.300s' with a token",
                                            path.c_str());
        struct Text { // gone when this returns or throws
            char bytes[most_token + 64];
            ~Text() { OPENSSL_cleanse(bytes, sizeof bytes); }
        } text;
        ssize_t const count = ::read(file.get(), text.bytes, sizeof text.bytes);
        std::string_view token(text.bytes, count > 0 ? static_cast<std::size_t>(count) : 0);
        while (!token.empty() && std::strchr("\r\n\t ", token.back())) token.remove_suffix(1);
        return of(token, path.c_str());
    }

    Proof key_;
};

} // namespace gpipe::detail
