#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/plan/value.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace gpipe {

/// What can be wrong with a table that is walked.
enum class Flaw : std::uint8_t {
    sound,
    unwritten,   ///< a value is read that is not there yet, or no more, whatever happens
    unordered,   ///< a value is read, and nothing makes the action wait for its writer
    misplaced,   ///< a value is read elsewhere than it was written
    overwritten, ///< bytes are written while who uses what is there may not be done
    outside,     ///< bytes are used that are no operand's: of another device, or parameters
};
/// In words.
GPIPE_INLINE constexpr std::string_view sentence(Flaw flaw) {
    constexpr std::string_view sentences[] = {"the table is sound",
                                              "it reads what is not there",
                                              "it reads what it does not wait for",
                                              "it reads where something else lies",
                                              "it writes over what is still in use",
                                              "it uses memory that is not for this"};
    return sentences[static_cast<std::size_t>(flaw)];
}

/// What a sweep has found.
struct SweepVerdict {
    Flaw flaw = Flaw::sound;  ///< the first that it met
    std::uint32_t action = 0; ///< that is wrong there
    std::uint32_t value = 0;  ///< that it reads, or writes over
    /// Whether nothing is wrong.
    constexpr explicit operator bool() const { return flaw == Flaw::sound; }
};

/// Thrown where no needs at all would make a table sound: it is planned wrongly.
class SweepFlaw : public std::logic_error {
  public:
    /// Says so.
    SweepFlaw(SweepVerdict const& found, Value const& value)
        : std::logic_error(
              detail::Message("gpipe: a table is planned wrongly at action %u: %s (%s %u of "
                              "micro-batch %u)",
                              found.action, std::string(sentence(found.flaw)).c_str(),
                              std::string(name(value.holds)).c_str(), value.owner,
                              value.micro_batch)
                  .text),
          verdict(found) {}
    SweepVerdict verdict; ///< what the sweep has found
};

} // namespace gpipe
