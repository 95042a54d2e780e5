#pragma once

#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <cstdio>
#include <initializer_list>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe {

/// What check_gradients() found of one tensor.
struct GradientRow {
    std::size_t layer = 0; ///< in the chain; L: the loss
    std::string_view name; ///< its type
    std::string tensor;    ///< "input 0", "parameter 1"
    std::size_t checked = 0;
    /// Entries at which the function has a kink, or whose slope is lost in rounding.
    std::size_t left_out = 0;
    /// Of the entries that were checked, or of the wrong ones, the one that is farthest off. An
    /// input's entries count from the first sample that was checked.
    std::string entry;
    double analytic = 0; ///< what backward says
    double numeric = 0;  ///< the central difference
    /// Of these two, relative to the larger and to the tensor's other gradients.
    double error = 0;
    std::string_view fault; ///< empty: none
};

/// What check_gradients() found: a row for each tensor.
struct GradientReport {
    std::vector<GradientRow> rows;
    std::size_t samples = 0; ///< that it looked at

    /// Whether no gradient was found wrong.
    bool passed() const { return faults() == 0; }
    std::size_t faults() const {
        std::size_t count = 0;
        for (GradientRow const& row : rows) count += !row.fault.empty();
        return count;
    }
};

/// As a table, with a sentence below.
GPIPE_INLINE std::string to_string(GradientReport const& report) {
    std::string text;
    auto const line = [&](std::initializer_list<std::string> cells) {
        constexpr int widths[] = {5, -28, -12, 7, 8, -18, 12, 12, 8};
        int const* width = widths;
        for (std::string const& cell : cells) {
            char buffer[64];
            std::snprintf(buffer, sizeof buffer, "%s%*s", width == widths ? "" : "  ", *width,
                          cell.c_str());
            text += buffer;
            ++width;
        }
    };
    auto const number = [](char const* format, auto value) {
        char buffer[32];
        std::snprintf(buffer, sizeof buffer, format, value);
        return std::string(buffer);
    };
    line({"layer", "type", "tensor", "checked", "left out", "worst entry", "analytic", "numeric",
          "error"});
    text += '\n';
    std::size_t unchecked = 0;
    for (GradientRow const& row : report.rows) {
        bool const seen = row.checked > 0 || !row.fault.empty();
        unchecked += !seen;
        std::string name(row.name);
        if (name.size() > 28) name = name.substr(0, 25) + "...";
        auto const value = [&](char const* format, double of) {
            return seen ? number(format, of) : std::string("-");
        };
        line({number("%zu", row.layer), name, row.tensor, number("%zu", row.checked),
              number("%zu", row.left_out), seen ? row.entry : "-", value("%.5g", row.analytic),
              value("%.5g", row.numeric), value("%.1e", row.error)});
        text += row.fault.empty() ? seen ? "  ok" : "  not checked" : "  WRONG: ";
        text += row.fault;
        text += '\n';
    }
    text += report.passed() ? "No gradient of " : number("%zu", report.faults()) + " of ";
    text += number("%zu", report.rows.size()) + " tensors is wrong";
    if (unchecked > 0) text += ", " + number("%zu", unchecked) + " could not be checked";
    return text + ".\n";
}

GPIPE_INLINE std::ostream& operator<<(std::ostream& out, GradientReport const& report) {
    return out << to_string(report);
}

} // namespace gpipe
