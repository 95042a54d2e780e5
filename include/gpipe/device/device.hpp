#pragma once

#include <gpipe/core/version.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace gpipe {

namespace policy {
struct Device;
} // namespace policy

/// Whether tensors may have to be copied from one of its devices to another.
template <class D>
concept HasLinks = requires(D const device, std::size_t n) {
    device.link(n, n);
};

/// What runs programs. Work goes on streams, in order on each; `record` marks how far a stream has
/// come, `wait` holds a stream back until another has come that far, `launch` puts work on a
/// stream. A device may run work at once (a CPU) or enqueue it and run it any time later that
/// streams and marks allow (a GPU): nothing that uses a device may rely on a call's having finished
/// before run() returns.
///
/// A device is made for K devices of a pipeline and offers
/// - lanes(): how many walkers run() can have at once; device k is walked by one of them;
/// - enqueues: whether one walker serves all streams, one per device, or every walker is a stream;
/// - calls_enqueue: whether the functions of layers put work on a stream instead of doing it;
/// - reads_host: whether its work may read and write the caller's arrays. If not, a mini-batch is
///   copied to its memory first, and results are copied back; such a device enqueues;
/// - host_reads: whether the host may read and write its memory between runs;
/// - run(lanes, walk): calls walk(lane) for every lane, concurrently, and returns when all work is
///   done; walk may not throw. One that enqueues has one lane;
/// - launch(stream, work): work may only throw where calls enqueue. On a device with several lanes
///   launch, copy, fill, wait and record may not throw either: other lanes wait for the marks
///   behind;
/// - copy(stream, to, from, bytes), from or to the host's memory or any device's, and
///   fill(stream, to, bytes) with zeros: in the order of the stream, like other work;
/// - positions of record and wait are 64-bit counts that only grow;
/// - allocate(device, bytes): zeroed memory, aligned to slot_alignment, freed by its destructor; of
///   a type that can be moved and that can be empty;
/// - allocate_host(bytes): the same of the host's memory, that its copies go from and to at best;
/// - if it likes, link(from, to): how tensors get from one device to another (default: shared);
/// - if it likes, prepare(device of each stream, marks): called once, before the first run: what
///   streams there will be, and how many positions each may record in a run;
/// - steps_at_once: how many steps may be under way, and overlaps: whether those of a device that
///   does not enqueue may, where updates are immediate: then start and finish, as device::Host has
///   them;
/// - if its calls enqueue, what goes with steps that are under way: start, finish, feed, drain,
///   captures, launched, as device::Cuda has them.
template <class D>
concept DeviceRuntime = requires(D device, typename D::Options options, std::size_t n,
                                 std::uint64_t position, void (*walk)(std::size_t),
                                 void (*work)() noexcept, std::byte* to, std::byte const* from) {
    D(options, n);
    { D::enqueues } -> std::convertible_to<bool>;
    { D::calls_enqueue } -> std::convertible_to<bool>;
    { D::overlaps } -> std::convertible_to<bool>;
    { D::steps_at_once } -> std::convertible_to<std::size_t>;
    { D::reads_host } -> std::convertible_to<bool>;
    { D::host_reads } -> std::convertible_to<bool>;
    requires(D::enqueues || D::reads_host);
    typename D::Stream;
    { device.stream(n) } -> std::convertible_to<typename D::Stream const&>;
    { device.lanes() } -> std::same_as<std::size_t>;
    { device.allocate(n, n).data() } -> std::same_as<std::byte*>;
    { device.allocate(n, n).size() } -> std::same_as<std::size_t>;
    { device.allocate_host(n).data() } -> std::same_as<std::byte*>;
    requires std::movable<decltype(device.allocate(n, n))>;
    requires std::default_initializable<decltype(device.allocate(n, n))>;
    device.run(n, walk);
    device.launch(n, work);
    device.copy(n, to, from, n);
    device.fill(n, to, n);
    device.wait(n, n, position);
    device.record(n, position);
    requires(D::enqueues ||
             (noexcept(device.launch(n, work))&& noexcept(device.copy(n, to, from, n))&& noexcept(
                 device.fill(
                     n, to,
                     n))&& noexcept(device.wait(n, n,
                                                position))&& noexcept(device.record(n, position))));
};

} // namespace gpipe
