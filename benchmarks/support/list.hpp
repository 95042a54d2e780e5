#pragma once

#include "support/options.hpp" // examples/

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace benchmark {

using support::split;

/// The numbers of "1,2,4", each of `allowed`, or from 1 to `most` if that is empty. Throws
/// support::UsageError.
inline std::vector<std::size_t> numbers(std::string_view option, std::string_view text,
                                        std::vector<std::size_t> const& allowed,
                                        std::size_t most = 0) {
    std::vector<std::size_t> values;
    for (std::string const& part : split(text)) {
        std::size_t value = 0;
        auto const [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
        bool const good =
            error == std::errc{} && end == part.data() + part.size() &&
            (allowed.empty() ? value >= 1 && value <= most
                             : std::find(allowed.begin(), allowed.end(), value) != allowed.end());
        if (!good) {
            std::string range = "from 1 to " + std::to_string(most);
            if (!allowed.empty()) range = "of";
            for (std::size_t a : allowed) range += ' ' + std::to_string(a);
            throw support::UsageError(std::string(option) + " takes numbers " + range +
                                      " with commas between, not '" + std::string(text) + "'");
        }
        values.push_back(value);
    }
    return values;
}

/// The words of "a,b", each of `allowed`. Throws support::UsageError.
inline std::vector<std::string> words(std::string_view option, std::string_view text,
                                      std::vector<std::string> const& allowed) {
    std::vector<std::string> const parts = split(text);
    for (std::string const& part : parts)
        if (std::find(allowed.begin(), allowed.end(), part) == allowed.end()) {
            std::string message = std::string(option) + " takes words of";
            for (std::string const& a : allowed) message += ' ' + a;
            throw support::UsageError(message + " with commas between, not '" + std::string(text) +
                                      "'");
        }
    return parts;
}

} // namespace benchmark
