#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/transport/descriptor.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>

namespace gpipe::detail {

inline constexpr std::size_t most_arrivals = 64; ///< who have connected and are not let in yet
inline constexpr double arrival_patience = 5;    ///< seconds that one may take for it

/// Who has connected to a rank that listens, be it anybody. `Said`: what he says, plain bytes, with
/// what is kept of him behind it.
template <class Said> struct Arrival {
    Descriptor way;        ///< to him
    double until = 0;      ///< is he waited for, by seconds_now()
    std::size_t bytes = 0; ///< that he has said
    Said said{};           ///< these

    /// Hears what he has said by now, of the first so many bytes. (What is said back, as little, a
    /// connection that is new takes at once.) False where he has gone.
    bool hear(std::size_t all) {
        auto const to = reinterpret_cast<char*>(&said) + bytes;
        std::ptrdiff_t const count = way.read_some(to, all - bytes);
        if (count > 0) bytes += static_cast<std::size_t>(count);
        return count >= 0;
    }
};

/// Waits for the ranks behind this one, those of higher numbers, to connect, among strangers.
/// hear(arrival): of one that has said something; if he is a rank its place in `ways` takes his
/// way; false of who is to be dropped. miss(rank): throws, of the first that has not come at that
/// time of seconds_now().
template <class Said, class Hear, class Miss>
void await_arrivals(Descriptor const& listener, std::vector<Descriptor> const& ways,
                    std::size_t self, double end, Hear hear, Miss miss) {
    std::vector<Arrival<Said>> all;
    std::vector<pollfd> ready;
    for (;;) {
        std::size_t missing = self + 1;
        while (missing < ways.size() && ways[missing]) ++missing;
        if (missing >= ways.size()) return;
        double const now = seconds_now();
        if (now >= end) miss(missing);
        std::erase_if(all, [&](Arrival<Said> const& a) { return !a.way || now > a.until; });
        ready.assign(1, {listener.get(), POLLIN, 0});
        for (Arrival<Said> const& arrival : all) ready.push_back({arrival.way.get(), POLLIN, 0});
        if (::poll(ready.data(), ready.size(), 20) <= 0) continue;
        for (std::size_t a = 0; a < all.size(); ++a)
            if (ready[a + 1].revents && !hear(all[a])) all[a].way.close();
        if (!ready[0].revents) continue;
        Descriptor way = listener.accept();
        // Who has been there for longest goes: one of ours takes a moment.
        if (way && all.size() >= most_arrivals) all.erase(all.begin());
        if (way)
            all.push_back({std::move(way), now + arrival_patience});
        else // there are no descriptors left
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

} // namespace gpipe::detail
