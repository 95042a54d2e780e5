#pragma once

#include <gpipe/core/version.hpp>
#include <gpipe/transport/rendezvous_key.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

namespace gpipe::detail {

/// What begins a conversation; another for another language, byte order included.
inline constexpr std::uint64_t rendezvous_magic = 0x6770'6970'6572'7601u;

/// What was never said before.
using RendezvousNonce = std::array<unsigned char, 32>;

/// First who comes says who he is,
struct RendezvousHello {
    std::uint64_t magic = rendezvous_magic;
    std::uint64_t job = 0;
    std::uint32_t version = GPIPE_VERSION;
    std::uint32_t rank = 0;
    std::uint32_t ranks = 0;
    std::uint32_t unused = 0; // so that there are no bytes between members
    RendezvousNonce nonce{};
};
/// then rank 0 has him prove it,
struct RendezvousChallenge {
    std::uint64_t magic = rendezvous_magic;
    RendezvousNonce nonce{};
};
/// what it thinks of that, and who it is,
struct RendezvousAnswer {
    /// Whether he is let in, and why not.
    enum class Verdict : std::uint32_t {
        welcome = 1,
        other_job,
        other_version,
        other_ranks,
        no_rank,
        twice
    };
    std::uint64_t job = 0;
    std::uint32_t version = GPIPE_VERSION;
    std::uint32_t ranks = 0;
    Verdict verdict{};
    std::uint32_t unused = 0;
};
/// with a proof, as his is one. Whoever has no token sees that of nobody.
struct RendezvousProof {
    /// Who proves.
    enum class Who : std::uint64_t { guest = 1, host };

    Who who{};
    RendezvousHello hello;
    RendezvousChallenge challenge;
    RendezvousAnswer answer; ///< nothing yet in the guest's

    /// Of all that.
    RendezvousKey::Proof by(RendezvousKey const& key) const {
        return key.prove(this, sizeof *this);
    }
};
static_assert(sizeof(RendezvousHello) == 64 && sizeof(RendezvousChallenge) == 40 &&
              sizeof(RendezvousAnswer) == 24 && sizeof(RendezvousProof) == 136);

/// Before what an exchange gives to rank 0.
struct RendezvousCard {
    std::uint64_t round = 0; ///< how many were before
    std::uint64_t bytes = 0;
};
/// Before what it gives back, or in place of it.
struct RendezvousNotice {
    std::uint64_t round = 0;
    std::uint64_t bytes = 0; ///< that follow
    char text[240] = {};     ///< why nothing does
};
static_assert(std::has_unique_object_representations_v<RendezvousProof> &&
              std::has_unique_object_representations_v<RendezvousCard> &&
              std::has_unique_object_representations_v<RendezvousNotice>);

/// Why who says this hears that, for both ends in the same words.
inline std::string words_of(RendezvousHello const& hello, RendezvousAnswer const& answer) {
    std::string const who = "gpipe: rank " + std::to_string(hello.rank);
    using Verdict = RendezvousAnswer::Verdict;
    switch (answer.verdict) {
    case Verdict::welcome:
        return who + " is welcome";
    case Verdict::other_job:
        return who + " is of job " + std::to_string(hello.job) + ", and rank 0 of job " +
               std::to_string(answer.job);
    case Verdict::other_version:
        return who + " has version " + std::to_string(hello.version) +
               " of gpipe, and rank 0 has version " + std::to_string(answer.version);
    case Verdict::other_ranks:
        return who + " is one of " + std::to_string(hello.ranks) + " ranks, and rank 0 one of " +
               std::to_string(answer.ranks);
    case Verdict::no_rank:
        return who + " comes to rank 0, and those who do are 1 to " +
               std::to_string(answer.ranks - 1);
    case Verdict::twice:
        return who + " has come twice";
    }
    return who + " hears from rank 0 what no rank says";
}

} // namespace gpipe::detail
