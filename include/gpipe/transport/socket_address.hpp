#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/transport/descriptor.hpp>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace gpipe::detail {

/// Where a TCP connection ends: an address of a host, and a port.
struct SocketAddress {
    sockaddr_storage bytes{}; ///< what it is
    socklen_t length = 0;     ///< of that
    std::uint32_t unused = 0; // so that there are no bytes between members

    /// For calls of the system.
    ///@{
    sockaddr const* get() const { return reinterpret_cast<sockaddr const*>(&bytes); }
    sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
    ///@}
    /// Whether nobody but this host reaches it.
    bool is_loopback() const {
        in6_addr const six = number();
        return IN6_IS_ADDR_LOOPBACK(&six) || (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
    }
    /// Whether it stands for every address that a host has.
    bool is_any() const {
        in6_addr const six = number();
        return IN6_IS_ADDR_UNSPECIFIED(&six) ||
               (IN6_IS_ADDR_V4MAPPED(&six) && std::memcmp(&six.s6_addr[12], "\0\0\0\0", 4) == 0);
    }
    /// The address as a number, without the port.
    std::string host() const {
        char host[NI_MAXHOST] = {};
        ::getnameinfo(get(), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
        return host;
    }
    /// With it: "127.0.0.1:29500", "[::1]:29500".
    std::string text() const {
        char port[NI_MAXSERV] = {};
        ::getnameinfo(get(), length, nullptr, 0, port, sizeof port, NI_NUMERICSERV);
        std::string const name = host();
        return (bytes.ss_family == AF_INET6 ? "[" + name + "]" : name) + ":" + port;
    }

  private:
    // Of either family as one of the newer.
    in6_addr number() const {
        if (bytes.ss_family == AF_INET6) {
            sockaddr_in6 six;
            std::memcpy(&six, &bytes, sizeof six);
            return six.sin6_addr;
        }
        sockaddr_in four;
        std::memcpy(&four, &bytes, sizeof four);
        in6_addr mapped{};
        mapped.s6_addr[10] = mapped.s6_addr[11] = 0xFF;
        std::memcpy(&mapped.s6_addr[12], &four.sin_addr, 4);
        return mapped;
    }
};

/// All that a name or number means, at least one. Throws std::invalid_argument where it means
/// nothing, or every address of a host: nobody listens there.
inline std::vector<SocketAddress> find_addresses(std::string const& name, std::uint16_t port) {
    addrinfo hints{}, *all = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    std::string const service = std::to_string(port);
    if (int const code = ::getaddrinfo(name.c_str(), service.c_str(), &hints, &all); code != 0)
        throw_error<std::invalid_argument>(
            "gpipe: rank 0's address '%.200s' (MASTER_ADDR) is none: "
            "%s",
            name.c_str(), ::gai_strerror(code));
    std::vector<SocketAddress> found;
    for (addrinfo const* at = all; at; at = at->ai_next)
        if (at->ai_family == AF_INET || at->ai_family == AF_INET6) {
            std::memcpy(&found.emplace_back().bytes, at->ai_addr, at->ai_addrlen);
            found.back().length = at->ai_addrlen;
        }
    ::freeaddrinfo(all);
    bool is_one = !found.empty();
    for (SocketAddress const& address : found) is_one = is_one && !address.is_any();
    if (!is_one)
        throw_error<std::invalid_argument>("gpipe: rank 0's address '%.200s' (MASTER_ADDR) is none "
                                           "of a single network: ranks listen where they are "
                                           "told to, and never on all networks of a host",
                                           name.c_str());
    return found;
}

/// Listens there; with port 0 at a free one, which the address then has. Throws std::runtime_error
/// where the system refuses.
inline Descriptor listen_at(SocketAddress& address) {
    Descriptor listener = Descriptor::of_tcp(address.bytes.ss_family);
    int const on = 1; // what a process before has left of its connections is not in the way
    if (listener) ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!listener || ::bind(listener.get(), address.get(), address.length) != 0 ||
        ::listen(listener.get(), SOMAXCONN) != 0 ||
        ::getsockname(listener.get(), address.get(), &address.length) != 0) {
        int const error = errno;
        throw_error<std::runtime_error>("gpipe: rank 0 cannot listen at %s (%s)",
                                        address.text().c_str(), std::strerror(error));
    }
    return listener;
}

/// A connection to who listens there, until a time of seconds_now(); none where nobody does, and
/// errno says why.
inline Descriptor connect_to(SocketAddress const& address, double end) {
    Descriptor way = Descriptor::of_tcp(address.bytes.ss_family);
    if (!way || way.connect(address.get(), address.length, end)) return way;
    return {};
}

} // namespace gpipe::detail
