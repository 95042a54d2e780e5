#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>

namespace gpipe {

/// Which devices of a pipeline each rank has: some that stand together, at least one. A rank is a
/// process, or what behaves as one: others see nothing of its memory.
struct Ranks {
    Array<std::size_t> begin; ///< by rank: its first device, and the end
    Array<std::size_t> lanes; ///< by rank: the most that walk for it
    std::size_t self = 0;     ///< the one that asks

    /// One that has all of so many devices.
    static constexpr Ranks one(std::size_t devices) {
        Ranks result{Array<std::size_t>(2), {1, static_cast<std::size_t>(-1)}};
        result.begin[1] = devices;
        return result;
    }
    /// How many there are.
    constexpr std::size_t size() const { return begin.size() - 1; }
    /// Of a device.
    constexpr std::size_t of(std::size_t device) const {
        std::size_t rank = 0;
        while (begin[rank + 1] <= device) ++rank;
        return rank;
    }
    /// The devices of the one that asks: the first, one past the last, whether this is one, and its
    /// number among them.
    ///@{
    constexpr std::size_t first() const { return begin[self]; }
    constexpr std::size_t last() const { return begin[self + 1]; }
    constexpr bool own(std::size_t device) const { return first() <= device && device < last(); }
    constexpr std::size_t number(std::size_t device) const { return device - first(); }
    ///@}
};

/// Of some devices those of the rank that asks.
GPIPE_INLINE constexpr Array<std::size_t> own_of(Array<std::size_t> const& devices,
                                                 Ranks const& ranks) {
    Array<std::size_t> own(devices.size());
    std::size_t count = 0;
    for (std::size_t const device : devices)
        if (ranks.own(device)) own[count++] = device;
    return first_of(own, count);
}

} // namespace gpipe
