#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>

namespace gpipe {

/// The directed pairs of devices between which tensors go, numbered: those of one pair go one after
/// the other.
class DevicePairs {
  public:
    constexpr DevicePairs() = default;
    /// Of the boundaries between these programs' cells, and of skips from cell to cell.
    template <class Skip>
    constexpr DevicePairs(Programs const& programs, Part<Skip> skips)
        : cells_(programs.cells()), pair_(2 * (cells_ + skips.size())), to_(pair_.size()),
          next_(pair_.size()) {
        Array<std::size_t> first(programs.devices(), none);
        auto const add = [&](std::size_t i, std::size_t from_cell, std::size_t to_cell) {
            std::size_t const to = programs.device_of(to_cell);
            std::size_t& head = first[programs.device_of(from_cell)];
            std::size_t p = head;
            while (p != none && to_[p] != to) p = next_[p];
            if (p == none) {
                p = count_++;
                to_[p] = to;
                next_[p] = head;
                head = p;
            }
            pair_[i] = p;
        };
        for (std::size_t c = 0; c < cells_; ++c) {
            if (c + 1 < cells_) add(2 * c, c, c + 1);
            if (c > 0) add(2 * c + 1, c, c - 1);
        }
        for (std::size_t s = 0; s < skips.size(); ++s) {
            add(2 * (cells_ + s), skips[s].from, skips[s].to);
            add(2 * (cells_ + s) + 1, skips[s].to, skips[s].from);
        }
    }
    /// Pairs in all.
    constexpr std::size_t count() const { return count_; }
    /// The pair from a cell's device to the next cell's, or `back` to that of the cell before.
    constexpr std::size_t operator()(std::size_t cell, bool back) const {
        return pair_[2 * cell + back];
    }
    /// The pair of a skip's ends, or `back`.
    constexpr std::size_t of_skip(std::size_t skip, bool back) const {
        return pair_[2 * (cells_ + skip) + back];
    }

  private:
    static constexpr std::size_t none = static_cast<std::size_t>(-1);
    std::size_t cells_ = 0;
    Array<std::size_t> pair_;
    Array<std::size_t> to_;   // by pair: the device it leads to
    Array<std::size_t> next_; // by pair: another from the same device
    std::size_t count_ = 0;
};

} // namespace gpipe
