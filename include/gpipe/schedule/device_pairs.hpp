#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>

namespace gpipe {

/// The directed pairs of devices between which boundary tensors go, numbered: those of one pair go
/// one after the other.
class DevicePairs {
  public:
    constexpr DevicePairs() = default;
    /// Of the boundaries between these programs' cells.
    constexpr explicit DevicePairs(Programs const& programs)
        : pair_(2 * programs.cells()), to_(2 * programs.cells()), next_(2 * programs.cells()) {
        Array<std::size_t> first(programs.devices(), none);
        for (std::size_t c = 0; c < programs.cells(); ++c)
            for (std::size_t back = 0; back < 2; ++back) {
                if (back ? c == 0 : c + 1 == programs.cells()) continue;
                std::size_t const to = programs.device_of(back ? c - 1 : c + 1);
                std::size_t& head = first[programs.device_of(c)];
                std::size_t p = head;
                while (p != none && to_[p] != to) p = next_[p];
                if (p == none) {
                    p = count_++;
                    to_[p] = to;
                    next_[p] = head;
                    head = p;
                }
                pair_[2 * c + back] = p;
            }
    }
    /// Pairs in all.
    constexpr std::size_t count() const { return count_; }
    /// The pair from a cell's device to the next cell's, or `back` to that of the cell before.
    constexpr std::size_t operator()(std::size_t cell, bool back) const {
        return pair_[2 * cell + back];
    }

  private:
    static constexpr std::size_t none = static_cast<std::size_t>(-1);
    Array<std::size_t> pair_;
    Array<std::size_t> to_;   // by pair: the device it leads to
    Array<std::size_t> next_; // by pair: another from the same device
    std::size_t count_ = 0;
};

} // namespace gpipe
