#pragma once

#include <gpipe/core/version.hpp>

#include <cstddef>

namespace gpipe {

/// As many ranks can be joined where they notice that one is lost, and commit on their devices.
inline constexpr std::size_t most_ranks = 64;

/// Which devices of a pipeline each rank has: some that stand together, at least one. A rank is a
/// process, or what behaves as one: others see nothing of its memory. Small: what it points to must
/// outlive it. Ranks are counted within their replica, unless something else is said.
struct Ranks {
    std::size_t devices = 0;            ///< of all ranks
    std::size_t count = 1;              ///< how many ranks there are
    std::size_t self = 0;               ///< the one that asks
    std::size_t const* first = nullptr; ///< by rank: its first device, and the end; null: one rank
    std::size_t const* most = nullptr;  ///< likewise: the lanes that it has at the most
    /// The same ranks are there once for each replica: which of these the one that asks is of.
    ///@{
    std::size_t replicas = 1;
    std::size_t replica = 0;
    ///@}

    /// The devices of a rank: [begin(r), end(r)).
    ///@{
    constexpr std::size_t begin(std::size_t rank) const { return first ? first[rank] : 0; }
    constexpr std::size_t end(std::size_t rank) const { return first ? first[rank + 1] : devices; }
    ///@}
    /// Those of the one that asks.
    ///@{
    constexpr std::size_t begin() const { return begin(self); }
    constexpr std::size_t end() const { return end(self); }
    constexpr bool own(std::size_t device) const { return begin() <= device && device < end(); }
    ///@}
    /// Who has a device.
    constexpr std::size_t of(std::size_t device) const {
        std::size_t rank = 0;
        while (end(rank) <= device) ++rank;
        return rank;
    }
    /// Of all replicas: how many ranks there are, and which number one has.
    ///@{
    constexpr std::size_t all() const { return replicas * count; }
    constexpr std::size_t number(std::size_t of_replica, std::size_t rank) const {
        return of_replica * count + rank;
    }
    constexpr std::size_t number() const { return number(replica, self); }
    ///@}
    /// Of so many lanes those that a rank has.
    constexpr std::size_t lanes(std::size_t rank, std::size_t lanes) const {
        return most && most[rank] < lanes ? most[rank] : lanes;
    }
};

} // namespace gpipe
