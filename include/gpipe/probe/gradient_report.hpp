#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/trace/text_table.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace gpipe {

/// How check_gradients() looks.
struct GradientCheckOptions {
    /// How many samples of the mini-batch, the first, are run through the layers; at least 3. Where
    /// there are fewer they are taken again, a single one with other numbers, up to an eighth less.
    std::size_t samples = 3;
    /// How many entries of each tensor are looked at, at least one, beside the two with the largest
    /// gradients and two sums over all of them.
    std::size_t entries = 16;
    /// The largest relative error; 0: 16 times the root of the elements' precision, which is 2e-7
    /// for double and 6e-3 for float, and never more than 0.25. What is ok has no larger one, and
    /// what is wrong has one that is larger even by what the differences are in doubt.
    double tolerance = 0;
    std::uint64_t seed = 1; ///< of the entries that are looked at
};

/// What check_gradients() found of one tensor.
struct GradientRow {
    std::size_t layer = 0;   ///< in the chain; L: the loss
    std::string_view name;   ///< its type
    std::string tensor;      ///< "input 0", "parameter 1"
    std::size_t checked = 0; ///< entries, and sums over all
    /// Those whose slope is in much doubt, at a kink of the function or lost in rounding, and those
    /// that are off by more than the tolerance, but not by more than the slope may be. If it is all
    /// of them the tensor is not checked: unchecked() counts it.
    std::size_t left_out = 0;
    /// Of the entries that were checked, or of the wrong ones, the one that is farthest off. An
    /// input's entries count from the first sample that was checked.
    std::string entry;
    double analytic = 0; ///< what backward says
    double numeric = 0;  ///< the central difference
    /// Of these two, relative to the larger and to the tensor's other gradients.
    double error = 0;
    std::string fault; ///< empty: none
    /// Of the loss: that its weight does not depend on the number of samples, if so. Then a sample
    /// of a smaller micro-batch counts more, and the sum is to be one over samples, with their
    /// number (or that of words) as the weight.
    std::string note{};

    /// Whether anything is known of it.
    bool seen() const { return checked > 0 || !fault.empty(); }
};

/// What check_gradients() found: a row for each tensor.
struct GradientReport {
    std::vector<GradientRow> rows; ///< in the order of the chain
    std::size_t samples = 0;       ///< that it looked at

    /// Whether no gradient was found wrong; it says nothing of those that unchecked() counts.
    bool passed() const { return faults() == 0; }
    /// Tensors of which a gradient was found wrong.
    std::size_t faults() const {
        std::size_t count = 0;
        for (GradientRow const& row : rows) count += !row.fault.empty();
        return count;
    }
    /// Tensors of which nothing is known: a bias in front of a normalisation, whose slope is
    /// rounding alone; most of them where a mini-batch is all zeros.
    std::size_t unchecked() const {
        std::size_t count = 0;
        for (GradientRow const& row : rows) count += !row.seen();
        return count;
    }
};

/// As a table, with a sentence below.
GPIPE_INLINE std::string to_string(GradientReport const& report) {
    trace::TextTable table("rllrrlrrrl", {"layer", "type", "tensor", "checked", "left out",
                                          "worst entry", "analytic", "numeric", "error", ""});
    for (GradientRow const& row : report.rows) {
        bool const seen = row.seen();
        auto const number = [&](char const* format, double value) {
            char buffer[32];
            std::snprintf(buffer, sizeof buffer, format, value);
            return seen ? buffer : std::string("-");
        };
        table.add({std::to_string(row.layer), trace::short_name(row.name, 28), row.tensor,
                   std::to_string(row.checked), std::to_string(row.left_out),
                   seen ? row.entry : "-", number("%.5g", row.analytic),
                   number("%.5g", row.numeric), number("%.1e", row.error),
                   !row.fault.empty() ? "WRONG: " + row.fault
                   : seen             ? row.note.empty() ? "ok" : "ok, but " + row.note
                                      : "not checked: slopes in doubt"});
    }
    std::string text = table.text();
    text += report.faults() == 0 ? "No gradient of " : std::to_string(report.faults()) + " of ";
    text += std::to_string(report.rows.size()) +
            (report.faults() > 1 ? " tensors are wrong" : " tensors is wrong");
    if (std::size_t const unchecked = report.unchecked(); unchecked > 0)
        text += ", " + std::to_string(unchecked) + " could not be checked";
    return text + ".\n";
}

/// As to_string() writes it.
GPIPE_INLINE std::ostream& operator<<(std::ostream& out, GradientReport const& report) {
    return out << to_string(report);
}

} // namespace gpipe
