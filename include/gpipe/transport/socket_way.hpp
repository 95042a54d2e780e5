#pragma once

#include <gpipe/core/clock.hpp>

#include <cerrno>
#include <cstddef>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

namespace gpipe::detail {

/// Whether a socket is ready before that time of seconds_now(); if not, errno is ETIMEDOUT.
inline bool await(int way, short events, double end) {
    for (;;) {
        double const left = end - seconds_now();
        pollfd one{way, events, 0};
        // At least one look: a deadline that has passed does not hide what is there.
        int const wait = left > 0 ? static_cast<int>(1000 * (left < 1000 ? left : 1000)) + 1 : 0;
        if (::poll(&one, 1, wait) > 0) return true;
        if (left > 0) continue;
        errno = ETIMEDOUT;
        return false;
    }
}

/// Reads so many bytes, or writes them. False where the other end has gone (errno is 0 if it has in
/// good order), or at that time of seconds_now().
///@{
inline bool read_all(int way, void* to, std::size_t bytes, double end) {
    for (auto at = static_cast<char*>(to); bytes > 0;) {
        if (!await(way, POLLIN, end)) return false;
        ssize_t const count = ::recv(way, at, bytes, MSG_DONTWAIT);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (count == 0) errno = 0;
        if (count <= 0) return false;
        at += count;
        bytes -= static_cast<std::size_t>(count);
    }
    return true;
}
inline bool write_all(int way, void const* from, std::size_t bytes, double end) {
    for (auto at = static_cast<char const*>(from); bytes > 0;) {
        if (!await(way, POLLOUT, end)) return false;
        ssize_t const count = ::send(way, at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (count <= 0) return false;
        at += count;
        bytes -= static_cast<std::size_t>(count);
    }
    return true;
}
///@}

/// Whether the other end has gone, and nothing that it has said is left to read.
inline bool has_ended(int way) {
    char one = 0;
    ssize_t const count = ::recv(way, &one, 1, MSG_PEEK | MSG_DONTWAIT);
    return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

/// Small messages do not wait for each other.
inline void send_at_once(int way) {
    int const on = 1;
    ::setsockopt(way, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

} // namespace gpipe::detail
