#pragma once

#include <gpipe/core/array.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace gpipe {

/// Streams of work, in order on each; a device may run work at once (a CPU) or any time later that
/// streams and marks allow (a GPU). None may throw where others wait for what comes behind.
/// - Stream, stream(s): what the functions of layers put their work on;
/// - streams(lanes, programs): how many streams so many lanes make of so many programs: one for
///   each lane, or, where one lane puts all on streams, one for each program;
/// - prepare(device of each stream, marks, device of each feed): called once, before the first run:
///   what streams there will be, how many positions each may record in a run, and of which devices
///   the tensors of a mini-batch are, see DeviceMemory::feed;
/// - launch(stream, work): calls work() in the order of the stream, or at once where that itself
///   puts work on the stream;
/// - copy(stream, to, from, bytes), from or to the host's memory or any device's, and
///   fill(stream, to, bytes) with zeros, in the order of the stream;
/// - record(stream, position) marks how far a stream has come, wait(stream, producer, position)
///   holds it back until another has come that far; positions are 64-bit counts that only grow. A
///   wait that returns false is refused: the other has not come that far yet, and work would not be
///   held back, being done at once.
template <class D>
concept DeviceQueue = requires(D device, D const constant, Array<std::size_t> const& devices,
                               std::size_t n, std::uint64_t position, void (*work)() noexcept,
                               std::byte* to, std::byte const* from) {
    typename D::Stream;
    { D::streams(n, n) } -> std::same_as<std::size_t>;
    { constant.stream(n) } -> std::convertible_to<typename D::Stream const&>;
    device.prepare(devices, n, devices);
    device.launch(n, work);
    device.copy(n, to, from, n);
    device.fill(n, to, n);
    device.record(n, position);
    { device.wait(n, n, position) } -> std::same_as<bool>;
};

} // namespace gpipe
