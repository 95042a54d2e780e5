#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/trace/palette.hpp>
#include <gpipe/trace/writer.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace gpipe::trace::detail {

// Text between tags. XML has no control characters, nor U+FFFE and U+FFFF.
struct Xml {
    std::string_view text;

    friend Writer& operator<<(Writer& out, Xml xml) {
        each_character(xml.text, [&out](std::string_view character) {
            auto const c = static_cast<unsigned char>(character[0]);
            if (c == '&')
                out << "&amp;";
            else if (c == '<')
                out << "&lt;";
            else if (c == '>')
                out << "&gt;";
            else if (character == "\xEF\xBF\xBE" || character == "\xEF\xBF\xBF")
                out << '?';
            else
                out << (c < 0x20 || c == 0x7F ? " " : character);
        });
        return out;
    }
};

// A length in pixels, as it is written.
GPIPE_INLINE constexpr Decimal px(double value) { return {value, 2}; }

GPIPE_INLINE Writer& operator<<(Writer& out, Colour colour) {
    out << '#';
    for (int const part : {colour.red, colour.green, colour.blue})
        out << "0123456789abcdef"[part / 16] << "0123456789abcdef"[part % 16];
    return out;
}

struct Box {
    double x = 0;
    double y = 0;
    double width = 0;
    double height = 0;
};
// As a tag that is still open.
struct Rectangle {
    Box box;

    friend Writer& operator<<(Writer& out, Rectangle r) {
        return out << "<rect x='" << px(r.box.x) << "' y='" << px(r.box.y) << "' width='"
                   << px(r.box.width) << "' height='" << px(r.box.height) << '\'';
    }
};
// As a part of a path.
struct Outline {
    Box box;

    friend Writer& operator<<(Writer& out, Outline o) {
        return out << 'M' << px(o.box.x) << ' ' << px(o.box.y) << 'h' << px(o.box.width) << 'v'
                   << px(o.box.height) << 'h' << px(-o.box.width) << 'z';
    }
};

// 1, 2 or 5 times a power of ten: five to ten ticks on an axis that long, four at times.
GPIPE_INLINE constexpr double tick_step(double length) {
    double step = 1;
    while (step * 10 < length) step *= 10;
    while (step >= length && length > 0) step /= 10;
    return step * 2 >= length ? step / 5 : step * 5 >= length ? step / 2 : step;
}

// Swatches with words, in lines.
class SvgLegend {
  public:
    static constexpr double height = 13; // of a swatch

    SvgLegend(double left, double right, double top)
        : left_(left), right_(right), x_(left), y_(top) {}

    // The first of so many swatches beside each other, with words behind them; a line further where
    // they would not fit.
    Box add(std::size_t swatches, double width, std::string_view words) {
        double const boxes = static_cast<double>(swatches) * width;
        double const needs = boxes + 5 + letter_width * static_cast<double>(words.size());
        if (x_ > left_ && x_ + needs > right_) {
            x_ = left_;
            y_ += height + 6;
        }
        Box const first{x_, y_, width, height};
        out_ << "<text x='" << px(x_ + boxes + 5) << "' y='" << px(y_ + 10) << "'>" << Xml{words}
             << "</text>\n";
        x_ += needs + 16;
        return first;
    }
    template <class Fill> void fill(Box const& box, Fill const& fill) {
        out_ << Rectangle{box} << " fill='" << fill << "' stroke='#fff' stroke-width='.6'/>\n";
    }
    double bottom() const { return y_ + height; }
    std::string take() { return out_.take(); }

    static constexpr double letter_width = 5.7; // on the average, of 11 pixels

  private:
    double left_, right_, x_, y_;
    Writer out_;
};

} // namespace gpipe::trace::detail
