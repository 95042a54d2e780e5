#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/schedule/action.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// What a cell does on a micro-batch is one of a few ways: each has some of these stages, an action
/// each, in this order.
enum class Stage : std::uint8_t { forward, recompute, backward, weight_gradient };
/// How many there are.
inline constexpr std::size_t stage_count = 4;
/// That of an action; a backward's first half is where a whole one would be.
GPIPE_INLINE constexpr Stage stage_of(Kind kind) {
    return kind == Kind::forward     ? Stage::forward
           : kind == Kind::recompute ? Stage::recompute
           : gives_gradient(kind)    ? Stage::backward
                                     : Stage::weight_gradient;
}

/// Ways, by number: with or without a recompute, with a backward that comes whole or in halves;
/// and an evaluation.
///@{
inline constexpr std::size_t way_count = 5;
inline constexpr std::uint8_t way_recomputes = 1;
inline constexpr std::uint8_t way_halves = 2;
inline constexpr std::uint8_t way_evaluates = 4;
///@}

/// In which stages calls read something, in each way of a cell that trains.
class CallReads {
  public:
    /// In one more.
    constexpr void add(std::size_t way, Stage stage) {
        bits_ = static_cast<std::uint16_t>(bits_ | bit(way, stage));
    }
    /// Whether they do.
    constexpr bool in(std::size_t way, Stage stage) const {
        return way < way_evaluates && (bits_ & bit(way, stage)) != 0;
    }
    /// Whether they ever do.
    constexpr bool any() const { return bits_ != 0; }

  private:
    static constexpr unsigned bit(std::size_t way, Stage stage) {
        return 1u << (stage_count * way + static_cast<std::size_t>(stage));
    }
    std::uint16_t bits_ = 0;
};

} // namespace gpipe
