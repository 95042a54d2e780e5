#pragma once

#include <gpipe/core/compiled.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpipe::trace {

/// Rows of text in columns that are as wide as they have to be.
class TextTable {
  public:
    /// `sides`: of each column, 'l' or 'r'.
    TextTable(std::string sides, std::vector<std::string> heads) : sides_(std::move(sides)) {
        add(std::move(heads));
    }
    /// A row, of as many columns.
    void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

    /// A line for each row, the heads first.
    std::string text() const {
        std::vector<std::size_t> widths(sides_.size());
        for (auto const& row : rows_)
            for (std::size_t c = 0; c < row.size(); ++c)
                widths[c] = std::max(widths[c], row[c].size());
        std::string text;
        for (auto const& row : rows_) {
            std::string line;
            for (std::size_t c = 0; c < row.size(); ++c) {
                std::string const gap(widths[c] - row[c].size(), ' ');
                line += (c > 0 ? "  " : "") + (sides_[c] == 'r' ? gap + row[c] : row[c] + gap);
            }
            line.erase(line.find_last_not_of(' ') + 1);
            text += line + '\n';
        }
        return text;
    }

  private:
    std::string sides_;
    std::vector<std::vector<std::string>> rows_;
};

/// A type's name in at most `most` characters.
GPIPE_INLINE std::string short_name(std::string_view name, std::size_t most) {
    if (name.size() <= most) return std::string(name);
    return std::string(name.substr(0, most - 3)) + "...";
}
/// 1234567 as 1,234,567.
GPIPE_INLINE std::string grouped(std::size_t number) {
    std::string digits = std::to_string(number);
    for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
    return digits;
}

} // namespace gpipe::trace
