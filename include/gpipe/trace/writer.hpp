#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/trace/timeline.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace gpipe::trace::detail {

// A number with at most so many decimals, without zeros at its end.
struct Decimal {
    double value;
    int digits;
};

// A time or place from 0 on that needs no more than so many decimals.
GPIPE_INLINE constexpr double rounded(Decimal number) {
    double unit = 1;
    for (int i = 0; i < number.digits; ++i) unit *= 10;
    double const units = number.value * unit + 0.5;
    return static_cast<double>(static_cast<std::int64_t>(units < 9e18 ? units : 9e18)) / unit;
}

// Bytes of the character that a text begins with, in UTF-8 (RFC 3629); 0 where that is none.
GPIPE_INLINE constexpr std::size_t first_character(std::string_view text) {
    auto const byte = [text](std::size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    };
    unsigned const first = byte(0), second = byte(1);
    if (first < 0x80) return 1;
    std::size_t const bytes = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    bool const too_long = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
    bool const none = (first == 0xED && second > 0x9F) || (first == 0xF4 && second > 0x8F);
    bool ends = bytes == 0 || first > 0xF4 || too_long || none;
    for (std::size_t i = 1; i < bytes; ++i) ends = ends || byte(i) >> 6 != 2;
    return ends ? 0 : bytes;
}
// f(one after the other), '?' for a byte that is none.
template <class F> void each_character(std::string_view text, F f) {
    while (!text.empty()) {
        std::size_t const bytes = first_character(text);
        f(bytes > 0 ? text.substr(0, bytes) : std::string_view("?"));
        text.remove_prefix(bytes > 0 ? bytes : 1);
    }
}

// Composes text. Numbers do not depend on the locale, nor on how a C library rounds.
class Writer {
  public:
    Writer& operator<<(std::string_view text) {
        text_ += text;
        return *this;
    }
    Writer& operator<<(char letter) {
        text_ += letter;
        return *this;
    }
    template <std::integral T> Writer& operator<<(T number) {
        text_ += std::to_string(number);
        return *this;
    }
    Writer& operator<<(Decimal number) {
        std::int64_t unit = 1;
        for (int i = 0; i < number.digits; ++i) unit *= 10;
        double const size = number.value < 0 ? -number.value : number.value;
        double const units = size * static_cast<double>(unit) + 0.5;
        auto const whole = static_cast<std::int64_t>(units < 9e18 ? units : 9e18);
        if (number.value < 0 && whole > 0) text_ += '-';
        text_ += std::to_string(whole / unit);
        if (std::int64_t rest = whole % unit; rest > 0) {
            text_ += '.';
            for (; rest > 0; rest %= unit) text_ += static_cast<char>('0' + rest / (unit /= 10));
        }
        return *this;
    }

    std::size_t size() const { return text_.size(); }
    std::string take() { return std::exchange(text_, {}); }

  private:
    std::string text_;
};

// The number of digits of a number, and the last of so many numbers from 0 on.
GPIPE_INLINE constexpr std::size_t digits(std::size_t number) {
    std::size_t count = 1;
    for (; number >= 10; number /= 10) ++count;
    return count;
}
GPIPE_INLINE constexpr std::size_t last(std::size_t count) { return count > 0 ? count - 1 : 0; }

// A time with four digits that count, or all of its whole part.
GPIPE_INLINE Decimal significant(double value) {
    int digits = 0;
    for (double size = value; digits < 9 && size < 1000 && size > 0; size *= 10) ++digits;
    return {value, digits};
}

// "12.3 MiB": three digits that count, or all of a whole part.
GPIPE_INLINE std::string bytes(std::size_t count) {
    constexpr std::string_view units[] = {" B", " KiB", " MiB", " GiB", " TiB"};
    double value = static_cast<double>(count);
    std::size_t unit = 0;
    for (; value >= 1000 && unit < 4; value /= 1024) ++unit;
    int const digits = value < 10 ? 2 : value < 100 ? 1 : 0;
    Writer out;
    out << Decimal{value, unit > 0 ? digits : 0} << units[unit];
    return out.take();
}
// The device that plans for the most.
GPIPE_INLINE MemoryCurve const& largest(Timeline const& timeline) {
    MemoryCurve const* most = timeline.memory().data();
    for (MemoryCurve const& curve : timeline.memory())
        if (most->planned < curve.planned) most = &curve;
    return *most;
}

// "lanes lost their core 9 times: none was free for each"
GPIPE_INLINE std::string preempted(Timeline const& timeline) {
    Writer out;
    out << "lanes lost their core " << timeline.preemptions()
        << (timeline.preemptions() == 1 ? " time" : " times") << ": none was free for each";
    return out.take();
}

// "makespan 18, bubble 33.3 %", the end of the step if that is later, and, if known, "at most 12.3
// MiB planned on a device", and what preempted() says
GPIPE_INLINE std::string summary(Timeline const& timeline) {
    Writer out;
    out << "makespan " << significant(timeline.makespan()) << ", bubble "
        << Decimal{100 * timeline.bubble(), 1} << " %";
    if (timeline.length() > timeline.makespan())
        out << ", the end of the step at " << significant(timeline.length());
    if (!timeline.memory().empty())
        out << ", at most " << bytes(largest(timeline).planned) << " planned on a device";
    if (timeline.preemptions() > 0) out << ", " << preempted(timeline);
    return out.take();
}

} // namespace gpipe::trace::detail
