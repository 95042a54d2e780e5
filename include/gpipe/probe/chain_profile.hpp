#pragma once

#include <gpipe/balance/by_profile.hpp>
#include <gpipe/checkpoint/reversed_costs.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/trace/text_table.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace gpipe {

/// What profile() has found of a chain's layers.
struct Profile {
    std::uint64_t chain = 0;       ///< see chain_number()
    std::size_t samples = 0;       ///< of the micro-batch
    Array<LayerProfile> layers;    ///< by layer
    Array<std::string_view> names; ///< of their types

    /// In seconds, for ScheduleSearch::times and costs_of(); without the loss.
    LayerTimes times() const {
        LayerTimes times{Array<double>(layers.size()), Array<double>(layers.size()),
                         Array<double>(layers.size())};
        for (std::size_t i = 0; i < layers.size(); ++i) {
            times.forward[i] = layers[i].forward;
            times.backward[i] = layers[i].backward;
            times.weight_gradient[i] = layers[i].weight_gradient;
        }
        return times;
    }
    /// For who cuts by it; it must live as long.
    operator ProfileView() const& { return {chain, samples, {layers.data(), layers.size()}}; }
};

/// As a table: microseconds, and bytes.
GPIPE_INLINE std::string to_string(Profile const& profile) {
    trace::TextTable table("rlrrrrrrrr",
                           {"layer", "type", "forward", "recompute", "backward", "its input's",
                            "its weights'", "parameters", "saved", "output"});
    for (std::size_t i = 0; i < profile.layers.size(); ++i) {
        LayerProfile const& layer = profile.layers[i];
        table.add({std::to_string(i), trace::short_name(profile.names[i], 40)});
        for (double const seconds : {layer.forward, layer.recompute, layer.backward,
                                     layer.input_gradient, layer.weight_gradient})
            table.add({detail::Message("%.1f", 1e6 * seconds).text});
        for (std::size_t const bytes : {layer.parameters, layer.saved, layer.output})
            table.add({trace::grouped(bytes)});
    }
    return table.text() + "in microseconds and bytes, for a micro-batch of " +
           std::to_string(profile.samples) + (profile.samples == 1 ? " sample\n" : " samples\n");
}
/// As to_string() writes it.
GPIPE_INLINE std::ostream& operator<<(std::ostream& out, Profile const& profile) {
    return out << to_string(profile);
}

/// As a header, which has a constant ProfileView of this name. Throws std::invalid_argument for one
/// that no constant has: it is letters, digits and underscores, and begins with no digit.
GPIPE_INLINE std::string profile_header(Profile const& profile, std::string_view name) {
    std::string const own(name);
    auto const is_digit = [](char c) { return '0' <= c && c <= '9'; };
    auto const is_part = [&](char c) {
        return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || c == '_' || is_digit(c);
    };
    if (own.empty() || is_digit(own[0]) || !std::all_of(own.begin(), own.end(), is_part))
        detail::throw_error<std::invalid_argument>(
            "gpipe: a profile's header has a constant, which cannot be called '%s'", own.c_str());
    std::string text =
        "// Made by gpipe::profile_header(): what layers take for micro-batches of " +
        std::to_string(profile.samples) +
        " samples.\n#pragma once\n\n#include <gpipe/balance/by_profile.hpp>\n\n"
        "inline constexpr gpipe::LayerProfile " +
        own +
        "_layers[] = {\n    // forward, recompute, backward, its halves (seconds); "
        "parameters, saved, output (bytes)\n";
    for (std::size_t i = 0; i < profile.layers.size(); ++i) {
        LayerProfile const& of = profile.layers[i];
        text += "    {";
        for (double const seconds :
             {of.forward, of.recompute, of.backward, of.input_gradient, of.weight_gradient}) {
            char number[32]; // in any locale
            text.append(number, std::to_chars(number, number + sizeof number, seconds,
                                              std::chars_format::general, 6)
                                    .ptr) += ", ";
        }
        detail::Message const row("%zu, %zu, %zu}, // ", of.parameters, of.saved, of.output);
        text.append(row.text).append(profile.names[i]).append("\n");
    }
    text += "};\ninline constexpr gpipe::ProfileView " + own + "{" + std::to_string(profile.chain) +
            "u, " + std::to_string(profile.samples) + ", {" + own + "_layers, " +
            std::to_string(profile.layers.size()) + "}};\n";
    return text;
}

} // namespace gpipe
