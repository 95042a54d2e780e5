#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/core/split.hpp>

#include <algorithm>
#include <cstddef>

namespace gpipe {

/// How many replicas there are, and what they share out.
struct Replication {
    std::size_t count = 1;                 ///< R
    bool shards = false;                   ///< see Replicas
    std::size_t longest = longest_message; ///< bytes of a message between them, at the most
    bool apart = false; ///< whether a device with several cells adds up on a stream of its own

    /// Of hosts, whose caches such messages fit in; and of devices that enqueue, where a message
    /// costs what it takes to begin one.
    ///@{
    static constexpr std::size_t longest_message = std::size_t{1} << 18;
    static constexpr std::size_t longest_enqueued = std::size_t{1} << 22;
    ///@}

    /// Of a cell's parameters, gradients or states with these bytes, in slots: where the part of a
    /// replica begins; of R: the end. Parts are whole slots, so that of a tensor they are whole
    /// elements, and differ by one at the most.
    constexpr std::size_t begin(std::size_t bytes, std::size_t replica) const {
        return Split(bytes / slot_alignment, count)[replica].first * slot_alignment;
    }
    /// The bytes of the largest part.
    constexpr std::size_t most(std::size_t bytes) const { return begin(bytes, 1); }

    /// The bytes of a message with such a part, or a piece of it.
    constexpr std::size_t message(std::size_t bytes) const {
        return std::min(most(bytes), longest);
    }
    /// Where the parts of others come to be added up, in messages of so many bytes.
    constexpr std::size_t room(std::size_t message) const { return (count - 1) * message; }
};

} // namespace gpipe
