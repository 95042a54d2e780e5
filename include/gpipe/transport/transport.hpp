#pragma once

#include <gpipe/core/array.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>

namespace gpipe {

/// A way from one rank to another: what is sent first is received first.
struct Channel {
    std::uint32_t from = 0;     ///< rank
    std::uint32_t to = 0;       ///< another
    std::size_t bytes = 0;      ///< of a message, at the most
    bool between_hosts = false; ///< whether hosts talk there, too, beside a step
    std::uint32_t device = 0;   ///< between replicas: of each, whose stream it is on
    bool waits = false; ///< whether a message waits for who receives it, be nothing else buffered
};

/// What carries messages between ranks; each has an object of its own.
/// - rank(), ranks(): which one this is, and of how many;
/// - gather(number): by rank what each has given. Only while machines are made, and between runs;
///   throws where a rank is gone, and what goes wrong before it has given anything;
/// - open(channels): which there will be, by number; once, the same on all ranks;
/// - send(channel, from, bytes, word): returns when these may be written again, which may be as
///   soon as it has them somewhere else or as late as they are received; of a channel whose
///   messages wait, of which never more than one is on its way, at once;
/// - receive(channel, to, bytes): returns when they are there, with the word that came with them;
/// - error(): null, or why a rank is gone. From then on send and receive return at once, the latter
///   with word 0, whatever they have been waiting for;
/// - note(steps, kind, cell, micro_batch), rest(), if it has them: that the rank is at this action,
///   after so many steps, or in none; noexcept, and soon done.
///
/// A message has no tag and no header: both ends know its bytes. The word says how far the sender's
/// step is sound (FirstFailure): what is sent behind a failure is of no use, but is sent all the
/// same, so that no channel is ever left in the midst of a step. None of the last four throws.
/// Several threads may call at once, of one channel one sends and one receives. Nobody who waits in
/// a send or a receive ever waits for himself: see messages_of() and StepEnd.
template <class T>
concept RankTransport = requires(T transport, T const constant, std::uint64_t number,
                                 Array<Channel> const& channels, std::size_t channel,
                                 std::byte const* from, std::byte* to, std::uint32_t word) {
    { constant.rank() } -> std::convertible_to<std::size_t>;
    { constant.ranks() } -> std::convertible_to<std::size_t>;
    { transport.gather(number) } -> std::convertible_to<Array<std::uint64_t>>;
    transport.open(channels);
    { transport.send(channel, from, channel, word) }
    noexcept;
    { transport.receive(channel, to, channel) }
    noexcept->std::same_as<std::uint32_t>;
    { constant.error() } -> std::same_as<std::exception_ptr>;
};

/// One whose messages within a step are put on streams, from and to memory of devices, and go in
/// their order, some time later: send(channel, from, bytes, stream) and receive(channel, to, bytes,
/// stream); together(stream, f): what f() sends and receives there goes on at once, in no order;
/// meets(): what a device asks while it waits for streams. They bring no word. Each rank has one
/// device, or where ranks are threads of one process any number, and one thread calls.
template <class T, class Stream>
concept StreamTransport = RankTransport<T> &&
    requires(T transport, std::size_t n, Stream stream, std::byte const* from, std::byte* to,
             void (*f)()) {
    transport.send(n, from, n, stream);
    transport.receive(n, to, n, stream);
    transport.together(stream, f);
    transport.meets();
};

} // namespace gpipe
