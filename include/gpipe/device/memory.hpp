#pragma once

#include <gpipe/plan/edge.hpp>

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace gpipe {

namespace device {

/// What a device has whose work reads and writes the host's memory: nothing is brought there.
struct SharedMemory {
    /// What make() says that a device must have room for of the host's: nothing here.
    template <class F> static constexpr std::invoke_result_t<F> staged(F) { return {}; }
    /// Where the host finds between runs what a device has.
    static std::byte* host_view(std::byte* at) { return at; }
};

/// What a device has whose work finds only its own memory: what the host gives it, and what it
/// gives the host, is copied.
struct OwnMemory {
    /// What make() says that a device must have room for of the host's.
    template <class F> static constexpr std::invoke_result_t<F> staged(F make) { return make(); }
};

/// Where a run reads arrays of the caller at once, or waits until it has: see DeviceMemory.
struct ReadsAtOnce {
    static void end() {} ///< nothing is left to do
};

} // namespace device

/// Whether the host finds what a device has where it is, between runs.
template <class D>
concept HostReadable = requires(std::byte* at) {
    { D::host_view(at) } -> std::same_as<std::byte*>;
};

/// Memory of K devices of a pipeline, and the ways there.
/// - allocate(device, bytes): zeroed, aligned to slot_alignment, freed by its destructor; of a type
///   that can be moved and that can be empty;
/// - allocate_host(bytes): the same of the host's memory, that copies go from and to at best;
/// - staged(make), host_view(at): see SharedMemory, OwnMemory and HostReadable;
/// - link(from, to): how tensors get from one device to another, most_link: the worst there may be;
/// - feed(i, to, from, bytes, waiting): brings tensor i of a mini-batch from the caller's array,
///   where it is staged; `waiting` is room in memory of allocate_host() for it;
/// - feeding(): what feeds read the caller's arrays within: end() returns when he may write them;
/// - await_writers(array): returns when what he has put on the array's device by now has run.
template <class D>
concept DeviceMemory = requires(D device, D const constant, std::size_t n, std::byte* to,
                                std::byte const* from, bool (*make)()) {
    { device.allocate(n, n).data() } -> std::same_as<std::byte*>;
    { device.allocate(n, n).size() } -> std::same_as<std::size_t>;
    { device.allocate_host(n).data() } -> std::same_as<std::byte*>;
    requires std::movable<decltype(device.allocate(n, n))>;
    requires std::default_initializable<decltype(device.allocate(n, n))>;
    { D::staged(make) } -> std::same_as<bool>;
    { constant.link(n, n) } -> std::same_as<Link>;
    { D::most_link } -> std::convertible_to<Link>;
    device.feed(n, to, from, n, to);
    device.feeding().end();
    device.await_writers(static_cast<void const*>(from));
};

/// Numbers that the host and a device both have: written here and put there, or got from there. One
/// and the same where memory is shared; then nothing is copied.
template <class T> struct Mailbox {
    T* here = nullptr;     ///< where the host has it
    T* there = nullptr;    ///< where work of the device has it
    std::size_t count = 1; ///< how many

    /// On a stream: from here to there.
    template <class Device> void put(Device& device, std::size_t stream) const {
        copy(device, stream, there, here);
    }
    /// On a stream: from there to here.
    template <class Device> void get(Device& device, std::size_t stream) const {
        copy(device, stream, here, there);
    }

  private:
    template <class Device>
    void copy(Device& device, std::size_t stream, T* to, T const* from) const {
        using Number = std::remove_const_t<T>;
        if (to != from)
            device.copy(stream, reinterpret_cast<std::byte*>(const_cast<Number*>(to)),
                        reinterpret_cast<std::byte const*>(from), count * sizeof(T));
    }
};

} // namespace gpipe
