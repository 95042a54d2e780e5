#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/runtime/rank_call.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/tables.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>

namespace gpipe {

/// What step(), or a constructor, throws on other ranks than the one where something threw: which
/// one that is, the place, and what was said there.
class RankError : public std::runtime_error {
  public:
    /// Of these words.
    using std::runtime_error::runtime_error;
};

namespace detail {

// f(words) of what was thrown, if anything was.
template <class F> void with_words_of(std::exception_ptr const& thrown, F f) {
    if (!thrown) return;
    try {
        std::rethrow_exception(thrown);
    } catch (std::exception const& error) {
        f(error.what());
    } catch (...) {
        f("what it threw is no std::exception");
    }
}
GPIPE_INLINE std::string what_of(std::exception_ptr const& thrown) {
    std::string all;
    with_words_of(thrown, [&](char const* words) { all = words; });
    return all;
}
// As far as there is room for them: where there is no memory, too.
struct Words {
    char text[256] = {};

    Words() = default;
    explicit Words(std::exception_ptr const& thrown) noexcept {
        with_words_of(thrown,
                      [&](char const* words) { std::snprintf(text, sizeof text, "%s", words); });
    }
};

// What a rank tells of a run: its first failure.
struct RankNote {
    std::uint32_t place = FirstFailure::none; // in the linear order
    bool knows = false;                       // what it was
    bool updated = false;                     // whether parameters have been, here
    Kind action{};
    FailureOf of{};
    std::size_t rank = 0, layer = 0, cell = 0, micro_batch = 0, tensor = 0;
    Words what;
    RankVerdict verdict;

    RankNote(Run const& run, std::size_t self)
        : place(run.failure.place()), updated(run.updated.load(std::memory_order_relaxed)),
          rank(self) {
        if (!run.failure.get()) return;
        Failure const& f = *run.failure.get();
        knows = true;
        action = f.action;
        of = f.of;
        layer = f.layer;
        cell = f.cell;
        micro_batch = f.micro_batch;
        tensor = f.tensor;
        what = Words(f.error);
    }
    // Of both the first; what either has updated.
    void take_in(RankNote const& other) {
        bool const any = updated || other.updated;
        if (other.knows && (!knows || other.place < place)) {
            RankVerdict const found = verdict;
            *this = other;
            verdict = found;
        }
        updated = any;
    }
    // To a run on a rank that does not know better.
    void tell(Run& run, Tables const& tables) const {
        if (updated) run.updated.store(true, std::memory_order_relaxed);
        if (!knows || (run.failure.get() && run.failure.place() == place)) return;
        Failure failure{layer, tables.name_of(layer), cell, micro_batch, action, {}, of, tensor};
        try {
            failure.error =
                std::make_exception_ptr(RankError("gpipe: on rank " + std::to_string(rank) + ", " +
                                                  failure.place() + ": " + what.text));
        } catch (...) { // no memory for that
            failure.error = std::current_exception();
        }
        run.failure.settle(place, std::move(failure));
    }
};

// Throws std::invalid_argument, on all ranks, unless they have given the same number: the sentence
// with the first rank that has not.
template <class Transport>
void compare(Transport& transport, std::uint64_t number, char const* sentence) {
    Array<std::uint64_t> const all = transport.gather(number);
    for (std::size_t r = 1; r < all.size(); ++r)
        if (all[r] != all[0]) throw_error<std::invalid_argument>(sentence, r);
}
// Likewise, unless it is so on all of them.
template <class Transport> void require(Transport& transport, bool so, char const* sentence) {
    Array<std::uint64_t> const all = transport.gather(so);
    for (std::size_t r = 0; r < all.size(); ++r)
        if (all[r] == 0) throw_error<std::invalid_argument>(sentence, r);
}

// How others hear of what a rank throws while it makes its machine: when they gather, to which they
// come; by throwing that, too, for all do what they do together (but for want of memory); or by the
// transport, on which they wait for it.
enum class Making { alone, together, awaited };

// What that rank has there, to all. All: what gathers, a transport or a Gathering.
template <class All, std::size_t size>
void spread(All& all, std::size_t rank, char (&bytes)[size]) {
    std::uint64_t word = 0;
    static_assert(size % sizeof word == 0);
    for (std::size_t at = 0; at < size; at += sizeof word) {
        std::memcpy(&word, bytes + at, sizeof word);
        word = all.gather(word)[rank];
        std::memcpy(bytes + at, &word, sizeof word);
    }
}

// What a rank gathers with that has thrown since it was last together with the others.
inline constexpr std::uint64_t has_thrown = ~std::uint64_t{0};

// Who cannot say any more what others wait for is lost to them.
template <class Transport> void lose_self(Transport& transport, char const* words) noexcept {
    if constexpr (requires { transport.give_up(words); })
        if (!transport.error()) transport.give_up(words);
}
// Throws where a rank has gathered with that: on all but those which have.
template <class Transport>
void hear(Transport& transport, Array<std::uint64_t> const& all, char const* where) {
    auto const first =
        static_cast<std::size_t>(std::find(all.begin(), all.end(), has_thrown) - all.begin());
    if (first == all.size()) return;
    Words words;
    try {
        spread(transport, first, words.text);
    } catch (...) {
        lose_self(transport, "has no memory to hear of what went wrong elsewhere");
        throw;
    }
    throw_error<RankError>("gpipe: on rank %zu, in %s: %s", first, where, words.text);
}
// That this rank has thrown what is being caught: to those who gather.
template <class Transport> void tell_thrown(Transport& transport) noexcept {
    if (transport.error()) return; // all know
    Words words(std::current_exception());
    try {
        Array<std::uint64_t> const all = transport.gather(has_thrown);
        auto const first = std::find(all.begin(), all.end(), has_thrown) - all.begin();
        spread(transport, static_cast<std::size_t>(first), words.text);
    } catch (...) { // no memory for that, or one is gone
        Message const lost("has thrown: %s", words.text);
        lose_self(transport, lost.text);
    }
}

// Of one, or the first of several, as transports take them.
template <class T> std::byte* bytes_at(T& first) { return reinterpret_cast<std::byte*>(&first); }

// Where ranks wait for each other in any case: throws std::invalid_argument on all of them unless
// all are told the same.
template <class Transport>
void agree_on(Transport& transport, Tables const& tables, RankCall call) {
    std::size_t const self = tables.ranks.number();
    RankVerdict verdict;
    if (std::uint32_t const up = tables.channel_of_rank(self); up != no_channel) {
        transport.send(up, bytes_at(call), sizeof call, 0);
        transport.receive(up + 1, bytes_at(verdict), sizeof verdict);
    } else {
        tables.each_channel_of_rank([&](std::size_t r, std::uint32_t channel) {
            RankCall theirs = call;
            transport.receive(channel, bytes_at(theirs), sizeof theirs);
            verdict.compare(self, call, r, theirs);
        });
        tables.each_channel_of_rank([&](std::size_t, std::uint32_t channel) {
            transport.send(channel + 1, bytes_at(verdict), sizeof verdict, 0);
        });
    }
    if (transport.error()) std::rethrow_exception(transport.error());
    verdict.check();
}
// At the end of a run: all ranks hear of the first failure of all, and what the loss comes to.
// `room`: for as many totals of another rank. Nothing is allocated: who threw for that in between
// would leave the others waiting.
template <class Transport>
void agree(Transport& transport, Tables const& tables, Run& run, std::span<double> totals,
           std::span<double> room) {
    Ranks const& ranks = tables.ranks;
    RankNote note(run, ranks.number());
    RankCall const call(run.arguments, *run.batch, tables.model->told_rates);
    note.verdict.call = call; // until it is a verdict
    // What each replica has evaluated; of a step they are the sums over all.
    bool const adds = ranks.replicas > 1 && !run.arguments.training();
    std::span<double> const sums = totals.first(tables.sums);
    if (std::uint32_t const up = tables.channel_of_rank(ranks.number()); up != no_channel) {
        transport.send(up, bytes_at(note), sizeof note, 0);
        if (adds && ranks.self == tables.decider())
            transport.send(up, bytes_at(sums[0]), sums.size_bytes(), 0);
        transport.receive(up + 1, bytes_at(note), sizeof note);
        transport.receive(up + 1, bytes_at(totals[0]), totals.size_bytes());
    } else {
        tables.each_channel_of_rank([&](std::size_t r, std::uint32_t channel) {
            RankNote theirs = note;
            transport.receive(channel, bytes_at(theirs), sizeof theirs);
            note.verdict.compare(ranks.number(), call, r, theirs.verdict.call);
            note.take_in(theirs);
            if (!adds || r % ranks.count != tables.decider()) return;
            transport.receive(channel, bytes_at(room[0]), sums.size_bytes());
            for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += room[i];
        });
        tables.each_channel_of_rank([&](std::size_t, std::uint32_t channel) {
            transport.send(channel + 1, bytes_at(note), sizeof note, 0);
            transport.send(channel + 1, bytes_at(totals[0]), totals.size_bytes(), 0);
        });
    }
    if (transport.error()) std::rethrow_exception(transport.error());
    note.verdict.check();
    note.tell(run, tables);
}

} // namespace detail
} // namespace gpipe
