#pragma once

// One rank of many, made without the others: what it plans is of all devices, what it has of its
// own.

#include "counting_allocator.hpp"
#include "tiny_model.hpp"

#include <gpipe/gpipe.hpp>
#include <gpipe/runtime/joined.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>

namespace benchmark {

/// A transport that joins it to nobody.
struct Alone {
    std::size_t self = 0, all = 1;

    std::size_t rank() const { return self; }
    std::size_t ranks() const { return all; }
    gpipe::Array<std::uint64_t> gather(std::uint64_t number) const { return {all, number}; }
    static void open(gpipe::Array<gpipe::Channel> const&) {}
    static void send(std::size_t, std::byte const*, std::size_t, std::uint32_t) noexcept {}
    static std::uint32_t receive(std::size_t, std::byte*, std::size_t) noexcept { return 0; }
    static std::exception_ptr error() { return nullptr; }
};

/// Makes the one in the middle of `ranks`, with a device each, whose micro-batches are as many.
struct MadeAlone {
    static constexpr std::size_t layers = 128;
    double seconds = 0;
    std::size_t bytes = 0; ///< allocated at the same time, at most
    std::size_t own = 0;   ///< of these, what its device is planned to have

    explicit MadeAlone(std::size_t ranks) {
        using Train =
            gpipe::Training<gpipe::Pipeline<gpipe::Repeat<layers, Tiny>>,
                            gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                            gpipe::Loss<TinyLoss>, gpipe::Optimizer<gpipe::AdamW>,
                            gpipe::schedule::OneForwardOneBackward,
                            gpipe::Joined<gpipe::device::Host, Alone>>;
        Alone alone{ranks / 2, ranks};
        typename Train::Options o;
        o.samples = o.micro_batches = o.cells = ranks;
        o.device = {{1}, &alone, 1};
        std::size_t const before = restart_peak();
        auto const begin = std::chrono::steady_clock::now();
        Train const train({}, {}, {}, o);
        std::chrono::duration<double> const took = std::chrono::steady_clock::now() - begin;
        seconds = took.count();
        bytes = peak_bytes - before;
        own = train.used_bytes();
    }
};

} // namespace benchmark
