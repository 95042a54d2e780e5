#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/gathering.hpp>
#include <gpipe/runtime/tables.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <type_traits>
#include <vector>

namespace gpipe::detail {

// What a rank tells others that run the same program, one behind the other.
struct RankWords {
    std::vector<std::byte> bytes;
    std::size_t at = 0; // of the next to be read

    template <class T> void put(T const& value) {
        static_assert(std::is_trivially_copyable_v<T>);
        put(&value, sizeof value);
    }
    template <class T> T get() {
        T value;
        get(&value, sizeof value);
        return value;
    }
    // Puts it, or gets it, so that both are said once: a value, a string, or bytes.
    template <class T> void pass(bool tells, T& value) {
        if constexpr (std::is_trivially_copyable_v<T>) {
            tells ? put(&value, sizeof value) : get(&value, sizeof value);
        } else {
            std::size_t count = value.size();
            pass(tells, count);
            value.resize(count);
            tells ? put(value.data(), count) : get(value.data(), count);
        }
    }

  private:
    void put(void const* from, std::size_t count) {
        auto const data = static_cast<std::byte const*>(from);
        bytes.insert(bytes.end(), data, data + count);
    }
    void get(void* to, std::size_t count) {
        if (count > 0) std::memcpy(to, bytes.data() + at, count);
        at += count;
    }
};

// Between runs: afterwards all have what the teller had. All call it. Throws where one is gone.
template <class Device>
void tell_all(Device const& device, Gathering<Device>& all, Tables const& tables,
              std::size_t teller, RankWords& words) {
    auto& transport = device.transport();
    std::size_t const self = tables.ranks.number();
    auto const sizes = all.gather(words.bytes.size());
    if (self != teller) words = {std::vector<std::byte>(sizes[teller])};
    all.gather(0); // all have room: from here on nobody throws in the midst of a message
    // In messages that all channels between ranks have room for, by way of the one that decides.
    for (std::size_t at = 0; at < sizes[teller]; at += sizeof(RankNote)) {
        std::byte* const data = words.bytes.data() + at;
        std::size_t const count = std::min(sizeof(RankNote), sizes[teller] - at);
        if (std::uint32_t const up = tables.channel_of_rank(self); up != no_channel) {
            if (self == teller)
                transport.send(up, data, count, 0);
            else
                transport.receive(up + 1, data, count);
            continue;
        }
        if (self != teller) transport.receive(tables.channel_of_rank(teller), data, count);
        tables.each_channel_of_rank([&](std::size_t r, std::uint32_t channel) {
            if (r != teller) transport.send(channel + 1, data, count, 0);
        });
    }
    if (transport.error()) std::rethrow_exception(transport.error());
}

// By how many seconds this one's clock is ahead of the first rank's; 0 where both may be the same.
// All call it.
template <class Device> double clock_ahead(Gathering<Device>& all_ranks) {
    double ahead = 0, narrowest = 0;
    for (int round = 0; round < 8; ++round) {
        double const begin = seconds_now();
        all_ranks.gather(0);
        // Between these two the first one looks at its clock, too: no sooner than this one has
        // come, and no later than it goes on.
        auto const all = all_ranks.gather(std::bit_cast<std::uint64_t>(seconds_now()));
        double const end = seconds_now(), first = std::bit_cast<double>(all[0]);
        if (round > 0 && end - begin >= narrowest) continue;
        narrowest = end - begin;
        ahead = begin <= first && first <= end ? 0 : (begin + end) / 2 - first;
    }
    return ahead;
}

} // namespace gpipe::detail
