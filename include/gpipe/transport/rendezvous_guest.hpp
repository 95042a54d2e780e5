#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/transport/descriptor.hpp>
#include <gpipe/transport/rendezvous_key.hpp>
#include <gpipe/transport/rendezvous_messages.hpp>
#include <gpipe/transport/socket_address.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace gpipe::detail {

/// Another rank as it comes to rank 0, which may not be there yet: what listens in its place, or
/// nothing, is tried again and again.
class RendezvousGuest {
  public:
    /// Where rank 0 may be, and how both know each other.
    struct Place {
        std::vector<SocketAddress> addresses;
        RendezvousKey key;
        std::uint64_t job = 0;
    };

    static constexpr double patience = 5;            ///< seconds that who listens may take
    static constexpr int most_refusals = 3;          ///< of another token, where that is the user's
    static constexpr double again = 0.02, most = 10; ///< seconds between two attempts, and of one

    /// This rank, of so many.
    RendezvousGuest(std::size_t rank, std::size_t ranks) {
        hello_.rank = static_cast<std::uint32_t>(rank);
        hello_.ranks = static_cast<std::uint32_t>(ranks);
    }

    /// A connection to rank 0, which has proven that it is. find(place): where to look now, false
    /// for nowhere yet, the same for `nowhere` in words; `is_fixed`: whether it is always the same.
    /// Throws std::runtime_error where rank 0 refuses this one, and says so, or has another token,
    /// or is not there at that time of seconds_now().
    template <class Find>
    Descriptor join(Find find, std::string const& nowhere, bool is_fixed, double end) {
        std::string why = nowhere;
        for (int refusals = 0;;) {
            Place place;
            bool const is_known = find(place);
            for (SocketAddress const& address : place.addresses) {
                if (!is_known) break;
                double const until = std::min(end, seconds_now() + patience);
                Descriptor way = connect_to(address, until);
                if (!way) {
                    why = "nobody listens at " + address.text() + " (" + std::strerror(errno) + ")";
                    continue;
                }
                Outcome const outcome = meet(way, place, until);
                if (outcome == Outcome::welcome) return way;
                why = "who listens at " + address.text() +
                      (outcome == Outcome::refused ? " has another token, or expects nobody"
                                                   : " does not say what rank 0 says");
                if (outcome == Outcome::refused && is_fixed && ++refusals == most_refusals)
                    throw std::runtime_error("gpipe: " + why);
            }
            if (seconds_now() >= end)
                throw std::runtime_error("gpipe: rank 0 has not come in time: " + why);
            std::this_thread::sleep_for(std::chrono::duration<double>(again));
        }
    }

  private:
    enum class Outcome { welcome, refused, strange };

    // With who listens: both prove who they are.
    Outcome meet(Descriptor const& way, Place const& place, double end) {
        RendezvousProof proof;
        hello_.job = place.job;
        hello_.nonce = random_bytes<sizeof(RendezvousNonce)>();
        proof.hello = hello_;
        if (!way.write(&hello_, sizeof hello_, end) ||
            !way.read(&proof.challenge, sizeof proof.challenge, end) ||
            proof.challenge.magic != rendezvous_magic)
            return Outcome::strange;
        proof.who = RendezvousProof::Who::guest;
        RendezvousKey::Proof const own = proof.by(place.key);
        RendezvousKey::Proof others{};
        if (!way.write(&own, sizeof own, end)) return Outcome::refused;
        if (!way.read(&proof.answer, sizeof proof.answer, end) ||
            !way.read(&others, sizeof others, end))
            return errno == ETIMEDOUT ? Outcome::strange : Outcome::refused;
        proof.who = RendezvousProof::Who::host;
        if (!RendezvousKey::same(proof.by(place.key), others)) return Outcome::strange;
        if (proof.answer.verdict != RendezvousAnswer::Verdict::welcome)
            throw std::runtime_error(words_of(hello_, proof.answer));
        return Outcome::welcome;
    }

    RendezvousHello hello_;
};

} // namespace gpipe::detail
