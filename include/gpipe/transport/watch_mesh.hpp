#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/hash.hpp>
#include <gpipe/transport/arrivals.hpp>
#include <gpipe/transport/descriptor.hpp>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpipe::detail {

/// While it lives the thread takes no signals, nor do those that it makes.
class WithoutSignals {
  public:
    WithoutSignals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    WithoutSignals(WithoutSignals const&) = delete;
    WithoutSignals& operator=(WithoutSignals const&) = delete;
    ~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};

/// A TCP connection between any two ranks, for a Watch. Nobody listens for longer than it takes to
/// make them: at the loopback where all ranks are on one host, else at one address. Who connects
/// says the 128 random bits that the listener has told the ranks, by a way that is trusted; who
/// says others, or nothing for a while, is not let in.
class WatchMesh {
  public:
    /// What a rank tells the others of itself: plain bytes.
    struct Card {
        std::uint64_t host = 0;      ///< the same where ranks share a loopback
        std::uint64_t token[2] = {}; ///< that it wants to hear
        sockaddr_storage address{};  ///< where it listens
        std::uint32_t length = 0;    ///< of that
    };

    /// None.
    WatchMesh() = default;
    /// `address`: where to listen, a name or number; if that is empty, the loopback, or the first
    /// interface that is none where ranks are on several hosts. `exchange(card)`: by rank what all
    /// have told, called by all of them. Throws std::runtime_error where the system refuses, or
    /// where after so many seconds a rank is missing, which it names.
    template <class Exchange>
    WatchMesh(std::size_t rank, std::size_t ranks, double seconds, std::string const& address,
              Exchange exchange)
        : ways(ranks), self_(rank), end_(seconds_now() + seconds) {
        Card own;
        own.host = host_number();
        bool one_host = true;
        for (Card const& card : exchange(own)) one_host = one_host && card.host == own.host;
        if (::getrandom(own.token, sizeof own.token, 0) != sizeof own.token)
            refuse("there are no random numbers");
        Descriptor const listener = listen(own, address, one_host);
        std::vector<Card> const cards = exchange(own);
        for (std::size_t r = 0; r < rank; ++r) ways[r] = connect(cards[r], r);
        await_arrivals<Hello>(
            listener, ways, rank, end_, [&](Arrival<Hello>& arrival) { return hear(arrival, own); },
            miss);
    }

    std::vector<Descriptor> ways; ///< by rank: never blocks; none to itself

  private:
    struct Hello {
        std::uint64_t token[2] = {};
        std::uint32_t rank = 0;
        std::uint32_t ranks = 0;
    };
    [[noreturn]] static void refuse(char const* what) {
        int const error = errno;
        throw_error<std::runtime_error>("gpipe: ranks cannot watch each other: %s (%s)", what,
                                        std::strerror(error));
    }
    // Of this host's network, as far as the kernel tells.
    static std::uint64_t host_number() {
        char text[256] = {};
        Descriptor const boot(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
        if (!boot || ::read(boot.get(), text, sizeof text - 1) <= 0)
            ::gethostname(text, sizeof text - 1);
        std::uint64_t hash = 0;
        for (char const c : text) hash = mixed(hash, static_cast<unsigned char>(c));
        struct stat network {};
        return ::stat("/proc/self/ns/net", &network) == 0 ? mixed(hash, network.st_ino) : hash;
    }
    // An address of this host that others reach it by, without a port.
    static void find_address(Card& own, std::string const& name) {
        auto const take = [&](sockaddr const* found) {
            own.length = found->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
            std::memcpy(&own.address, found, own.length);
        };
        if (!name.empty()) {
            addrinfo hints{}, *all = nullptr;
            hints.ai_socktype = SOCK_STREAM;
            if (int const code = ::getaddrinfo(name.c_str(), nullptr, &hints, &all); code != 0)
                throw_error<std::runtime_error>("gpipe: '%s' is no address of this host: %s",
                                                name.c_str(), ::gai_strerror(code));
            take(all->ai_addr);
            return ::freeaddrinfo(all);
        }
        ifaddrs* all = nullptr;
        if (::getifaddrs(&all) != 0) refuse("this host's addresses are not known");
        for (int const family : {AF_INET6, AF_INET}) // the last found stays
            for (ifaddrs const* at = all; at; at = at->ifa_next)
                if (at->ifa_addr && at->ifa_addr->sa_family == family && (at->ifa_flags & IFF_UP) &&
                    !(at->ifa_flags & IFF_LOOPBACK)) {
                    take(at->ifa_addr);
                    break;
                }
        ::freeifaddrs(all);
        if (own.length == 0)
            throw_error<std::runtime_error>("gpipe: this host has no address that ranks on others "
                                            "reach it by");
    }
    Descriptor listen(Card& own, std::string const& address, bool one_host) const {
        find_address(own, address.empty() && one_host ? "127.0.0.1" : address);
        Descriptor listener = Descriptor::of_tcp(own.address.ss_family);
        auto const where = reinterpret_cast<sockaddr*>(&own.address);
        if (!listener || ::bind(listener.get(), where, own.length) != 0 ||
            ::listen(listener.get(), static_cast<int>(2 * ways.size())) != 0 ||
            ::getsockname(listener.get(), where, &own.length) != 0)
            refuse(address.empty() ? "nobody can listen"
                                   : ("nobody can listen at " + address).c_str());
        return listener;
    }
    // To a rank that listens.
    Descriptor connect(Card const& card, std::size_t r) const {
        Descriptor way = Descriptor::of_tcp(card.address.ss_family);
        if (!way) refuse("there is no socket");
        auto const where = reinterpret_cast<sockaddr const*>(&card.address);
        if (!way.connect(where, card.length, end_)) {
            if (errno == ETIMEDOUT && seconds_now() >= end_) miss(r);
            refuse(Message("rank %zu does not listen", r).text);
        }
        Hello const hello{{card.token[0], card.token[1]},
                          static_cast<std::uint32_t>(self_),
                          static_cast<std::uint32_t>(ways.size())};
        if (way.write_some(&hello, sizeof hello) != sizeof hello) refuse("a rank does not hear");
        return way;
    }
    // False of a stranger.
    bool hear(Arrival<Hello>& arrival, Card const& own) {
        if (!arrival.hear(sizeof(Hello))) return false;
        if (arrival.bytes < sizeof(Hello)) return true;
        Hello const& hello = arrival.said;
        std::uint64_t const other =
            (hello.token[0] ^ own.token[0]) | (hello.token[1] ^ own.token[1]);
        bool const is_welcome = other == 0 && hello.ranks == ways.size() && hello.rank > self_ &&
                                hello.rank < ways.size() && !ways[hello.rank];
        if (is_welcome) ways[hello.rank] = std::move(arrival.way);
        return is_welcome;
    }
    [[noreturn]] static void miss(std::size_t rank) {
        throw_error<std::runtime_error>("gpipe: rank %zu has not come in time", rank);
    }

    std::size_t self_ = 0;
    double end_ = 0;
};

} // namespace gpipe::detail
