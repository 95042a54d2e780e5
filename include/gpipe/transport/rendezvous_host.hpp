#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/transport/descriptor.hpp>
#include <gpipe/transport/rendezvous_key.hpp>
#include <gpipe/transport/rendezvous_messages.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

namespace gpipe::detail {

/// Rank 0 as the others come. Nobody is let in who does not prove that he has the token, and
/// nothing that he says before is believed: a stranger is dropped. Whoever has the token and is of
/// another job is told so; one of another world or version, or who is there already, ends it for
/// all, for that is their user's mistake.
class RendezvousHost {
  public:
    static constexpr std::size_t most_guests = 64; ///< who have connected and are not let in yet
    static constexpr double patience = 5;          ///< seconds that one may take for it

    /// Of so many ranks, of a job.
    RendezvousHost(std::size_t ranks, std::uint64_t job, RendezvousKey const& key)
        : ways(ranks), job_(job), key_(key) {}

    std::vector<Descriptor> ways; ///< by rank; none to itself

    /// Lets all in. Throws std::runtime_error where one has not come at that time of seconds_now(),
    /// or one comes who is not meant.
    void admit(Descriptor const& listener, double end) {
        std::vector<Guest> guests;
        std::vector<pollfd> ready;
        for (;;) {
            std::size_t missing = 0, first = 0;
            for (std::size_t r = ways.size() - 1; r > 0; --r)
                if (!ways[r]) ++missing, first = r;
            if (missing == 0) return;
            double const now = seconds_now();
            if (now >= end) miss(first, missing - 1);
            std::erase_if(guests, [&](Guest const& g) { return !g.way || now > g.until; });
            ready.assign(1, {listener.get(), POLLIN, 0});
            for (Guest const& guest : guests) ready.push_back({guest.way.get(), POLLIN, 0});
            if (::poll(ready.data(), ready.size(), 20) <= 0) continue;
            for (std::size_t g = 0; g < guests.size(); ++g)
                if (ready[g + 1].revents && !hear(guests[g])) guests[g].way.close();
            if (!ready[0].revents) continue;
            Descriptor way = listener.accept();
            // Who has been there for longest goes: one of ours takes a moment, and comes again.
            if (way && guests.size() >= most_guests) guests.erase(guests.begin());
            if (way)
                guests.emplace_back(std::move(way), std::min(now + patience, end));
            else // there are no descriptors left
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

  private:
    using Verdict = RendezvousAnswer::Verdict;
    struct Guest {
        Guest(Descriptor connection, double end) : way(std::move(connection)), until(end) {}
        Descriptor way;
        double until;
        std::size_t bytes = 0; // of both that follow
        struct {
            RendezvousHello hello;
            RendezvousKey::Proof proof{};
        } said;
        RendezvousChallenge challenge;
    };

    // False of a stranger. So few bytes are taken at once by a connection that is new.
    bool hear(Guest& guest) {
        constexpr std::size_t first = sizeof(RendezvousHello), all = sizeof guest.said;
        bool const is_asked = guest.bytes >= first;
        auto const to = reinterpret_cast<char*>(&guest.said) + guest.bytes;
        ssize_t const count =
            ::recv(guest.way.get(), to, (is_asked ? all : first) - guest.bytes, MSG_DONTWAIT);
        if (count < 0) return errno == EAGAIN || errno == EINTR;
        if (count == 0) return false;
        guest.bytes += static_cast<std::size_t>(count);
        if (!is_asked) {
            if (guest.bytes < first) return true;
            guest.challenge.nonce = random_bytes<sizeof(RendezvousNonce)>();
            return guest.said.hello.magic == rendezvous_magic && say(guest, guest.challenge);
        }
        if (guest.bytes < all) return true;
        RendezvousProof proof{RendezvousProof::Who::guest, guest.said.hello, guest.challenge, {}};
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
        return ::send(guest.way.get(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
               ssize_t{sizeof message};
    }
    [[noreturn]] void miss(std::size_t first, std::size_t others) const {
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
