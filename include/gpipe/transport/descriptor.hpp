#pragma once

#include <gpipe/core/clock.hpp>

#include <cerrno>
#include <cstddef>
#include <utility>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace gpipe::detail {

/// A file descriptor that is closed once, and what ranks do with one that is a socket of TCP.
class Descriptor {
  public:
    Descriptor() = default;
    /// Of this one; -1 is none.
    explicit Descriptor(int number) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~Descriptor() { close(); }
    /// A socket that never blocks; none where the system refuses.
    static Descriptor of_tcp(int family) {
        return Descriptor(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    }

    /// Whether there is one.
    explicit operator bool() const { return number_ >= 0; }
    /// It.
    int get() const { return number_; }
    /// There is none any more.
    void close() {
        if (number_ >= 0) ::close(std::exchange(number_, -1));
    }

    /// Who has come to a socket that listens; none where nobody has, or the system refuses.
    Descriptor accept() const {
        Descriptor way(::accept4(number_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (way) way.send_at_once();
        return way;
    }
    /// Connects a new one. False, with errno, where nobody listens there, or (ETIMEDOUT) at that
    /// time of seconds_now().
    bool connect(sockaddr const* address, socklen_t length, double end) const {
        if (::connect(number_, address, length) != 0) {
            if (errno != EINPROGRESS && errno != EINTR) return false;
            int error = 0;
            socklen_t size = sizeof error;
            if (!await(POLLOUT, end)) return false;
            ::getsockopt(number_, SOL_SOCKET, SO_ERROR, &error, &size);
            if (errno = error; error != 0) return false;
        }
        send_at_once();
        return true;
    }
    /// Whether it is ready before that time of seconds_now(); if not, errno is ETIMEDOUT.
    bool await(short events, double end) const {
        for (;;) {
            double const left = end - seconds_now();
            pollfd one{number_, events, 0};
            // At least one look: a deadline that has passed does not hide what is there.
            int const wait =
                left > 0 ? static_cast<int>(1000 * (left < 1000 ? left : 1000)) + 1 : 0;
            if (::poll(&one, 1, wait) > 0) return true;
            if (left > 0) continue;
            errno = ETIMEDOUT;
            return false;
        }
    }
    /// Reads what is there, or writes what there is room for, at once, of so many bytes: how many
    /// that were; none, if nothing can be; -1 where the other end has gone (of what is read, errno
    /// is 0 if it has in good order).
    ///@{
    std::ptrdiff_t read_some(void* to, std::size_t bytes) const {
        ssize_t const count = ::recv(number_, to, bytes, MSG_DONTWAIT);
        if (count == 0) errno = 0;
        return count == 0 ? -1 : count < 0 && is_too_soon() ? 0 : count;
    }
    std::ptrdiff_t write_some(void const* from, std::size_t bytes) const {
        ssize_t const count = ::send(number_, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        return count < 0 && is_too_soon() ? 0 : count;
    }
    ///@}
    /// Reads all of so many bytes, or writes them. False where the other end has gone, as above, or
    /// at that time of seconds_now().
    ///@{
    bool read(void* to, std::size_t bytes, double end) const {
        for (auto at = static_cast<char*>(to); bytes > 0;) {
            if (!await(POLLIN, end)) return false;
            std::ptrdiff_t const count = read_some(at, bytes);
            if (count < 0) return false;
            at += count;
            bytes -= static_cast<std::size_t>(count);
        }
        return true;
    }
    bool write(void const* from, std::size_t bytes, double end) const {
        for (auto at = static_cast<char const*>(from); bytes > 0;) {
            if (!await(POLLOUT, end)) return false;
            std::ptrdiff_t const count = write_some(at, bytes);
            if (count < 0) return false;
            at += count;
            bytes -= static_cast<std::size_t>(count);
        }
        return true;
    }
    ///@}
    /// Whether the other end has gone, and nothing that it has said is left to read.
    bool has_ended() const {
        char one = 0;
        ssize_t const count = ::recv(number_, &one, 1, MSG_PEEK | MSG_DONTWAIT);
        return count == 0 || (count < 0 && !is_too_soon());
    }

  private:
    // Whether a call that has failed may be made again.
    static bool is_too_soon() { return errno == EAGAIN || errno == EINTR; }
    // Small messages do not wait for each other.
    void send_at_once() const {
        int const on = 1;
        ::setsockopt(number_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }

    int number_ = -1;
};

} // namespace gpipe::detail
