#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace gpipe {

/// A number that a name ends with, as 4 in every-segment-4.
struct NamedNumber {
    /// No number.
    static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

    std::string_view name;       ///< what stands for it in lists; empty: there is no such number
    std::size_t low = 0;         ///< the least it may be
    std::size_t high = none;     ///< the most
    std::size_t fallback = none; ///< where the name may end without it
    bool bytes = false;          ///< KiB, MiB or GiB may follow
};
/// Those of a name, in their order.
using Numbers = std::array<std::size_t, 2>;

/// Something that can be chosen by its name. `around`, if given, makes it of another choice, whose
/// name follows behind a hyphen (offload-except-last); make is for the name alone, then.
template <class Choice> struct Named {
    std::string_view name;                             ///< it may be followed by numbers
    std::string_view help;                             ///< one line
    Choice (*make)(Numbers const&) = nullptr;          ///< of the numbers
    NamedNumber numbers[std::tuple_size_v<Numbers>]{}; ///< that may follow, in their order
    Choice (*around)(Choice) = nullptr;                ///< see above
};

namespace detail {

// Takes a number from the front of the text, with its unit if it may have one.
GPIPE_INLINE constexpr bool take_number(std::string_view& text, bool bytes, std::size_t& number) {
    constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
    std::size_t digits = 0;
    number = 0;
    for (; digits < text.size() && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
        auto const digit = static_cast<std::size_t>(text[digits] - '0');
        if (number > (most - digit) / 10) return false;
        number = 10 * number + digit;
    }
    text.remove_prefix(digits);
    std::size_t unit = 1;
    constexpr std::string_view units[] = {"KiB", "MiB", "GiB"};
    for (std::size_t i = 0; bytes && i < 3; ++i)
        if (text.substr(0, 3) == units[i]) unit = std::size_t{1} << 10 * (i + 1);
    if (unit > 1) text.remove_prefix(3);
    if (digits == 0 || number > most / unit) return false;
    number *= unit;
    return true;
}

// Whether a text behind an entry's name is its numbers.
GPIPE_INLINE constexpr bool read_numbers(std::span<NamedNumber const> ranges, std::string_view text,
                                         Numbers& numbers) {
    for (std::size_t i = 0; i < ranges.size() && !ranges[i].name.empty(); ++i) {
        NamedNumber const& range = ranges[i];
        if (text.empty() && range.fallback != NamedNumber::none) {
            numbers[i] = range.fallback;
        } else {
            if (text.empty() || text[0] != '-') return false;
            text.remove_prefix(1);
            if (!take_number(text, range.bytes, numbers[i])) return false;
        }
        if (numbers[i] < range.low || numbers[i] > range.high) return false;
    }
    return text.empty();
}

// "-N" as lists show it behind a name, and what is to be known of N.
GPIPE_INLINE std::string show_numbers(std::span<NamedNumber const> ranges, bool around) {
    std::string result = around ? "[-NAME]" : "";
    std::string known;
    for (NamedNumber const& range : ranges) {
        if (range.name.empty()) break;
        bool const optional = range.fallback != NamedNumber::none;
        result += (optional ? "[-" : "-") + std::string(range.name) + (optional ? "]" : "");
        std::string const low = std::to_string(range.low);
        std::string words;
        if (range.high != NamedNumber::none)
            words = " from " + low + " to " + std::to_string(range.high);
        else if (range.low > 0)
            words = " from " + low + " on";
        if (optional) words += ", else " + std::to_string(range.fallback);
        if (range.bytes) words += ", KiB, MiB or GiB may follow";
        if (words.empty()) continue;
        known += (known.empty() ? " (" : "; ") +
                 (words[0] == ',' ? words.substr(2) : std::string(range.name) + words);
    }
    return result + known + (known.empty() ? "" : ")");
}

} // namespace detail

/// The bytes that a text like 4096 or 16MiB says; false if it says none.
GPIPE_INLINE constexpr bool read_bytes(std::string_view text, std::size_t& bytes) {
    return detail::take_number(text, true, bytes) && text.empty();
}

/// What can be chosen by name, as a value: the library's schedules, checkpointing policies and
/// optimizers (schedule::schedules(), checkpoint::policies(), optimizer::optimizers()), and what a
/// program adds to them:
///
///     constexpr gpipe::Named<gpipe::schedule::Dynamic> mine[] = {
///         {"WarmUp1F1B", "1F1B that begins with n more forwards",
///          [](gpipe::Numbers const& n) -> gpipe::schedule::Dynamic { return WarmUp1F1B{n[0]}; },
///          {{"N", 0, 64}}}};
///     auto const chosen = gpipe::schedule::schedules().with(mine).find("WarmUp1F1B-5");
template <class Choice> class Registry {
  public:
    /// Makes one choice of several, one for each cell.
    using Each = Choice (*)(Array<Choice>);

    /// `what` the choices are, in messages. With `each` names may be joined by commas, and
    /// `each_words` says what for.
    constexpr Registry(std::string_view what, std::span<Named<Choice> const> entries,
                       Each each = nullptr, std::string_view each_words = {})
        : what_(what), each_(each), each_words_(each_words), entries_(entries.size()) {
        for (std::size_t i = 0; i < entries.size(); ++i) entries_[i] = entries[i];
    }
    /// The same with more behind them. Of two that a name could mean the first is found.
    constexpr Registry with(std::span<Named<Choice> const> more) const {
        Registry result(what_, more, each_, each_words_);
        Array<Named<Choice>> all(entries_.size() + more.size());
        for (std::size_t i = 0; i < all.size(); ++i)
            all[i] = i < entries_.size() ? entries_[i] : more[i - entries_.size()];
        result.entries_ = std::move(all);
        return result;
    }
    /// The same where commas stand between choices: no name is of several.
    constexpr Registry of_one_each() const { return {what_, entries_}; }

    /// What can be chosen.
    ///@{
    constexpr Array<Named<Choice>> const& entries() const& { return entries_; }
    constexpr Array<Named<Choice>> entries() && { return std::move(entries_); } // for range-for
    ///@}

    /// The choice of that name. Throws std::invalid_argument, listing what there is, if there is
    /// none.
    constexpr Choice find(std::string_view name) const {
        std::size_t count = 1;
        for (char const c : name) count += c == ',';
        if (count == 1 || !each_) return find_one(name, name);
        Array<Choice> choices(count);
        for (Choice& choice : choices) {
            std::string_view const one = name.substr(0, name.find(','));
            choice = find_one(one, one);
            name.remove_prefix(one.size() < name.size() ? one.size() + 1 : one.size());
        }
        return each_(std::move(choices));
    }

    /// The names, with their numbers, for a sentence.
    std::string list() const {
        std::string result;
        for (Named<Choice> const& entry : entries_)
            result += (result.empty() ? "" : ", ") + shown(entry);
        if (each_) result += ", " + std::string(each_words_);
        return result;
    }
    /// A line for each of them, each with its help.
    std::string help() const {
        std::string result;
        for (Named<Choice> const& entry : entries_)
            result += "  " + shown(entry) + ": " + std::string(entry.help) + '\n';
        return result;
    }

  private:
    static std::string shown(Named<Choice> const& entry) {
        return std::string(entry.name) +
               detail::show_numbers(entry.numbers, entry.around != nullptr);
    }
    constexpr Choice find_one(std::string_view name, std::string_view whole) const {
        for (Named<Choice> const& entry : entries_) {
            if (name.substr(0, entry.name.size()) != entry.name) continue;
            std::string_view const rest = name.substr(entry.name.size());
            Numbers numbers{};
            if (detail::read_numbers(entry.numbers, rest, numbers)) return entry.make(numbers);
            if (entry.around && rest.substr(0, 1) == "-")
                return entry.around(find_one(rest.substr(1), whole));
        }
        refuse(whole);
    }
    [[noreturn]] void refuse(std::string_view name) const {
        throw std::invalid_argument("gpipe: there is no " + std::string(what_) + " '" +
                                    std::string(name) + "'; there are " + list());
    }

    std::string_view what_;
    Each each_;
    std::string_view each_words_;
    Array<Named<Choice>> entries_;
};

} // namespace gpipe
