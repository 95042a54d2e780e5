#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/transport/arrivals.hpp>
#include <gpipe/transport/descriptor.hpp>
#include <gpipe/transport/rendezvous_key.hpp>
#include <gpipe/transport/rendezvous_messages.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace gpipe::detail {

/// Rank 0 as the others come. Nobody is let in who does not prove that he has the token, and
/// nothing that he says before is believed: a stranger is dropped. Whoever has the token and is of
/// another job is told so; one of another world or version, or who is there already, ends it for
/// all, for that is their user's mistake.
class RendezvousHost {
  public:
    /// Of so many ranks, of a job.
    RendezvousHost(std::size_t ranks, std::uint64_t job, RendezvousKey const& key)
        : ways(ranks), job_(job), key_(key) {}

    std::vector<Descriptor> ways; ///< by rank; none to itself

    /// Lets all in. Throws std::runtime_error where one has not come at that time of seconds_now(),
    /// or one comes who is not meant.
    void admit(Descriptor const& listener, double end) {
        await_arrivals<Said>(
            listener, ways, 0, end, [this](Guest& guest) { return hear(guest); },
            [this](std::size_t rank) { miss(rank); });
    }

  private:
    using Verdict = RendezvousAnswer::Verdict;
    struct Said {
        RendezvousHello hello;
        RendezvousKey::Proof proof{};
        RendezvousChallenge challenge; // that he was told between the two
    };
    using Guest = Arrival<Said>;

    // False of a stranger.
    bool hear(Guest& guest) {
        constexpr std::size_t first = sizeof(RendezvousHello),
                              all = first + sizeof(RendezvousKey::Proof);
        bool const is_asked = guest.bytes >= first;
        if (!guest.hear(is_asked ? all : first)) return false;
        if (!is_asked) {
            if (guest.bytes < first) return true;
            RendezvousChallenge& challenge = guest.said.challenge;
            challenge.nonce = random_bytes<sizeof(RendezvousNonce)>();
            return guest.said.hello.magic == rendezvous_magic && say(guest, challenge);
        }
        if (guest.bytes < all) return true;
        RendezvousProof proof{
            RendezvousProof::Who::guest, guest.said.hello, guest.said.challenge, {}};
        if (!RendezvousKey::same(proof.by(key_), guest.said.proof)) return ++without_token_, false;
        return answer(guest, proof);
    }
    bool answer(Guest& guest, RendezvousProof& proof) {
        RendezvousHello const& hello = guest.said.hello;
        proof.who = RendezvousProof::Who::host;
        proof.answer = {job_, GPIPE_VERSION, static_cast<std::uint32_t>(ways.size()), judge(hello),
                        0};
        bool const is_told = say(guest, proof.answer) && say(guest, proof.by(key_));
        others_ += proof.answer.verdict == Verdict::other_job;
        if (!is_told || proof.answer.verdict == Verdict::other_job) return false;
        if (proof.answer.verdict != Verdict::welcome)
            throw std::runtime_error(words_of(hello, proof.answer));
        ways[hello.rank] = std::move(guest.way);
        return true;
    }
    Verdict judge(RendezvousHello const& hello) {
        if (hello.job != job_) return Verdict::other_job;
        if (hello.version != GPIPE_VERSION) return Verdict::other_version;
        if (hello.ranks != ways.size()) return Verdict::other_ranks;
        if (hello.rank == 0 || hello.rank >= ways.size()) return Verdict::no_rank;
        Descriptor& before = ways[hello.rank];
        if (before && !before.has_ended()) return Verdict::twice;
        before.close(); // it was started again
        return Verdict::welcome;
    }
    template <class Message> static bool say(Guest const& guest, Message const& message) {
        return guest.way.write_some(&message, sizeof message) == sizeof message;
    }
    [[noreturn]] void miss(std::size_t first) const {
        std::size_t others = 0;
        for (std::size_t r = first + 1; r < ways.size(); ++r) others += !ways[r];
        Message const nothing("%s", "");
        Message const more = others > 0 ? Message(", nor %zu more", others) : nothing;
        Message const strangers =
            without_token_ + others_ > 0
                ? Message("; who came with another token was sent away %zu times, and of another "
                          "job (GPIPE_JOB) %zu times",
                          without_token_, others_)
                : nothing;
        throw_error<std::runtime_error>("gpipe: rank %zu has not come in time%s%s", first,
                                        more.text, strangers.text);
    }

    std::uint64_t job_;
    RendezvousKey const& key_;
    std::size_t without_token_ = 0, others_ = 0; // were sent away
};

} // namespace gpipe::detail
