#pragma once

#include <gpipe/core/version.hpp>
#include <gpipe/state/state_inline.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace gpipe {

/// Whether a name is what a pattern means: with '*' (any text) or '?' (any character) in it a whole
/// name, else the begin of one.
GPIPE_STATE_INLINE bool matches(std::string_view pattern, std::string_view name) {
    if (pattern.find_first_of("*?") == std::string_view::npos)
        return name.substr(0, pattern.size()) == pattern;
    // Where it does not go on, the last '*' takes one character more.
    std::size_t p = 0, n = 0, star = std::string_view::npos, taken = 0;
    while (n < name.size()) {
        if (p < pattern.size() && pattern[p] == '*') {
            star = p++;
            taken = n;
        } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
            ++p;
            ++n;
        } else if (star != std::string_view::npos) {
            p = star + 1;
            n = ++taken;
        } else {
            return false;
        }
    }
    while (p < pattern.size() && pattern[p] == '*') ++p;
    return p == pattern.size();
}

/// Which names are taken: of those that a pattern of `only` means, or of all if it has none, those
/// that none of `except` means.
class NameFilter {
  public:
    /// Patterns, see LoadOptions.
    NameFilter(std::vector<std::string> const& only, std::vector<std::string> const& except) {
        for (std::string const& pattern : only) only_.push_back({pattern, false});
        for (std::string const& pattern : except) except_.push_back({pattern, false});
    }
    /// Whether this name is taken; notes which patterns mean it.
    bool takes(std::string_view name) {
        bool const among = any(only_, name) || only_.empty();
        names_.emplace_back(name);
        return !any(except_, name) && among;
    }
    /// Whether one of the names that were asked for begins as a pattern means.
    bool begins_one(std::string const& pattern) const {
        return std::any_of(names_.begin(), names_.end(),
                           [&](std::string const& name) { return matches(pattern + '*', name); });
    }
    /// Whether there is no pattern.
    bool takes_all() const { return only_.empty() && except_.empty(); }
    /// The patterns that have meant nothing yet.
    std::vector<std::string> unused() const {
        std::vector<std::string> result;
        for (auto const* list : {&only_, &except_})
            for (auto const& [pattern, used] : *list)
                if (!used) result.push_back(pattern);
        return result;
    }

  private:
    using Patterns = std::vector<std::pair<std::string, bool>>;
    static bool any(Patterns& patterns, std::string_view name) {
        bool found = false;
        for (auto& [pattern, used] : patterns)
            if (matches(pattern, name)) found = used = true;
        return found;
    }

    Patterns only_, except_;
    std::vector<std::string> names_;
};

/// For LoadOptions::rename: the layers of the saved chain from number `first` on stand so many
/// places further behind now, as `by` layers were put in before them; with a negative number in
/// front, as the first of them were taken out, whose tensors stay out.
GPIPE_STATE_INLINE std::function<std::string(std::string const&)> moved_layers(std::size_t first,
                                                                               std::ptrdiff_t by) {
    return [first, by](std::string const& name) -> std::string {
        // Behind "optimizer.v.", where it is the optimizer's.
        std::size_t const at = name.rfind("optimizer.", 0) == 0 ? name.find('.', 10) + 1 : 0;
        if (name.compare(at, 6, "layer.") != 0) return name;
        std::size_t const begin = at + 6;
        std::size_t const end = std::min(name.find_first_not_of("0123456789", begin), name.size());
        std::size_t layer = 0;
        auto const read = std::from_chars(name.data() + begin, name.data() + end, layer);
        if (read.ec != std::errc() || read.ptr != name.data() + end || layer < first) return name;
        auto const gone = by < 0 ? -static_cast<std::size_t>(by) : 0;
        if (layer - first < gone) return {};
        char number[32];
        std::snprintf(number, sizeof number, "%04zu", layer + static_cast<std::size_t>(by));
        return name.substr(0, begin) + number + name.substr(end);
    };
}

} // namespace gpipe
