#pragma once

#include <gpipe/checkpoint/dynamic.hpp>
#include <gpipe/core/compiled.hpp>

#include <charconv>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

namespace gpipe::detail {

// The number that a name ends with; false if it is none.
GPIPE_INLINE bool read_number(std::string_view text, std::size_t& number) {
    auto const end = text.data() + text.size();
    auto const [last, error] = std::from_chars(text.data(), end, number);
    return error == std::errc() && last == end;
}

GPIPE_INLINE bool read_bytes(std::string_view text, std::size_t& bytes) {
    struct Unit {
        std::string_view name;
        std::size_t bytes;
    };
    std::size_t unit = 1;
    for (Unit const each : {Unit{"KiB", std::size_t{1} << 10}, Unit{"MiB", std::size_t{1} << 20},
                            Unit{"GiB", std::size_t{1} << 30}})
        if (text.size() > 3 && text.substr(text.size() - 3) == each.name) unit = each.bytes;
    if (unit > 1) text.remove_suffix(3);
    if (!read_number(text, bytes) || bytes > std::numeric_limits<std::size_t>::max() / unit)
        return false;
    bytes *= unit;
    return true;
}

// Empty if there is none of that name.
GPIPE_INLINE checkpoint::Dynamic find_one(std::string_view name) {
    using namespace checkpoint;
    std::size_t number = 0;
    auto const begins = [&](std::string_view words) {
        return name.substr(0, words.size()) == words;
    };
    auto const ends = [&](std::string_view words) {
        return begins(words) && read_number(name.substr(words.size()), number);
    };
    if (name == Never::name) return Never{};
    if (name == Always::name) return Always{};
    if (name == ExceptLast::name) return ExceptLast{};
    if (name == SquareRoot::name) return SquareRoot{};
    if (name == Selective::name) return Selective{};
    if (name == "offload") return Dynamic::offload(Never{});
    if (begins("offload-")) {
        Dynamic kept = find_one(name.substr(std::string_view("offload-").size()));
        return kept ? Dynamic::offload(std::move(kept)) : Dynamic();
    }
    if (ends("every-segment-") && number > 0) return EverySegment<dynamic>{number};
    if (ends("revolve-")) return Revolve<dynamic>{number};
    constexpr std::string_view optimal = "optimal-";
    if (begins(optimal) && read_bytes(name.substr(optimal.size()), number))
        return Optimal<dynamic, dynamic>{number};
    return {};
}

} // namespace gpipe::detail

namespace gpipe::checkpoint {

/// What find_checkpointing() knows, as a sentence lists it.
inline constexpr std::string_view checkpointing_names =
    "never, always, except-last, every-segment-N, square-root, revolve-SLOTS, selective, "
    "optimal-BYTES (KiB, MiB or GiB may follow), offload, which is offload-never, offload- and any "
    "that reverses one cell, or one for each cell with commas between them";

/// The checkpointing policy of that name. Throws std::invalid_argument, listing what there is, if
/// there is none.
GPIPE_INLINE Dynamic find_checkpointing(std::string_view name) {
    std::size_t count = 1;
    for (char const c : name) count += c == ',';
    Array<Dynamic> policies(count);
    std::string_view rest = name;
    for (Dynamic& policy : policies) {
        std::string_view const one = rest.substr(0, rest.find(','));
        policy = gpipe::detail::find_one(one);
        if (!policy)
            throw std::invalid_argument("gpipe: there is no checkpointing policy '" +
                                        std::string(one) + "'; there are " +
                                        std::string(checkpointing_names));
        rest.remove_prefix(one.size() < rest.size() ? one.size() + 1 : one.size());
    }
    return count == 1 ? policies[0] : Dynamic::per_cell(std::move(policies));
}

} // namespace gpipe::checkpoint
