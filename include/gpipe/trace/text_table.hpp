#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace gpipe::trace {

namespace detail {

// Whether a byte begins a character of UTF-8.
GPIPE_INLINE constexpr bool begins(char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}
GPIPE_INLINE constexpr std::size_t characters(std::string_view text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins));
}

} // namespace detail

/// Rows of text in columns that are as wide as they have to be.
class TextTable {
  public:
    /// `sides`: of each column, 'l' or 'r'.
    TextTable(std::string_view sides, std::initializer_list<std::string_view> heads)
        : sides_(sides), widths_(sides.size()) {
        add(heads);
    }
    /// Further cells, on one line; a row ends with its last column.
    void add(std::initializer_list<std::string_view> cells) {
        for (std::string_view const cell : cells) {
            widths_[next_] = std::max(widths_[next_], detail::characters(cell));
            next_ = (next_ + 1) % sides_.size();
            cells_.append(cell).append(1, '\n');
        }
    }

    /// A line for each row, the heads first.
    std::string text() const {
        std::string text;
        std::size_t column = 0;
        for (std::size_t at = 0, end; at < cells_.size(); at = end + 1) {
            end = cells_.find('\n', at);
            auto const cell = std::string_view(cells_).substr(at, end - at);
            std::string const gap(widths_[column] - detail::characters(cell), ' ');
            if (sides_[column] == 'r') text += gap;
            text.append(cell);
            if (sides_[column] == 'l') text += gap;
            column = (column + 1) % sides_.size();
            if (column > 0) {
                text += "  ";
                continue;
            }
            text.erase(text.find_last_not_of(' ') + 1);
            text += '\n';
        }
        return text;
    }

  private:
    std::string sides_;
    std::string cells_; // row by row, a newline behind each
    Array<std::size_t> widths_;
    std::size_t next_ = 0; // column
};

/// A type's name in at most `most` characters.
GPIPE_INLINE std::string short_name(std::string_view name, std::size_t most) {
    if (detail::characters(name) <= most) return std::string(name);
    std::size_t end = 0;
    for (std::size_t left = most - 3; left > 0 || !detail::begins(name[end]); ++end)
        left -= detail::begins(name[end]);
    return std::string(name.substr(0, end)) + "...";
}
/// 1234567 as 1,234,567.
GPIPE_INLINE std::string grouped(std::size_t number) {
    std::string digits = std::to_string(number);
    for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
    return digits;
}

} // namespace gpipe::trace
