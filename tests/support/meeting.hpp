#pragma once

// Ranks that meet by sockets, as threads of one process.

#include <gpipe/core/clock.hpp>
#include <gpipe/transport/rendezvous.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace toy {

/// do(rank) of as many threads; what one throws, by rank, "" for nothing.
inline std::vector<std::string> each_rank(std::size_t ranks,
                                          std::function<void(std::size_t)> const& what) {
    std::vector<std::string> thrown(ranks);
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
            try {
                what(r);
            } catch (std::exception const& error) {
                thrown[r] = error.what();
            }
        });
    for (std::thread& thread : threads) thread.join();
    return thrown;
}

/// Where nobody listens on the loopback, nor will in the next moment.
inline std::uint16_t free_port() {
    gpipe::detail::SocketAddress address = gpipe::detail::find_addresses("127.0.0.1", 0)[0];
    auto const listener = gpipe::detail::listen_at(address);
    std::string const text = address.text();
    return static_cast<std::uint16_t>(std::stoi(text.substr(text.find(':') + 1)));
}

/// Of one of so many, who meet there.
inline gpipe::Rendezvous::Options meeting(std::size_t rank, std::size_t ranks, std::uint16_t port,
                                          double deadline = 60) {
    gpipe::Rendezvous::Options o;
    o.ranks = ranks;
    o.rank = rank;
    o.address = "127.0.0.1";
    o.port = port;
    o.deadline = deadline;
    return o;
}

inline void pause(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}
inline bool contains(std::string const& text, std::string const& part) {
    return text.find(part) != std::string::npos;
}
template <class Ready> bool comes_true(Ready ready) {
    for (double const end = gpipe::detail::seconds_now() + 30; gpipe::detail::seconds_now() < end;
         pause(0.001))
        if (ready()) return true;
    return false;
}

} // namespace toy
