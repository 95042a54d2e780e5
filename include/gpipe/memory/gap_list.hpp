#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// Bytes that are taken and given back: always the lowest that do, so that below the height there
// are none that nobody ever has.
class GapList {
  public:
    // Returns where they begin.
    constexpr std::size_t take(std::size_t bytes) {
        std::size_t g = 0;
        while (g < count_ && gaps_[g].end - gaps_[g].begin < bytes) ++g;
        if (g < count_) {
            std::size_t const at = gaps_[g].begin;
            gaps_[g].begin += bytes;
            if (gaps_[g].begin == gaps_[g].end) erase(g);
            return at;
        }
        std::size_t const at = top_;
        top_ += bytes;
        if (height_ < top_) height_ = top_;
        return at;
    }
    constexpr void give_back(std::size_t at, std::size_t bytes) {
        std::size_t g = count_; // the first gap behind
        while (g > 0 && gaps_[g - 1].begin > at) --g;
        bool const touches = g > 0 && gaps_[g - 1].end == at; // the gap before
        if (at + bytes == top_) {
            top_ = touches ? gaps_[g - 1].begin : at;
            if (touches) --count_;
            return;
        }
        bool const touched = g < count_ && gaps_[g].begin == at + bytes;
        if (touches && touched) {
            gaps_[g - 1].end = gaps_[g].end;
            erase(g);
        } else if (touches) {
            gaps_[g - 1].end = at + bytes;
        } else if (touched) {
            gaps_[g].begin = at;
        } else {
            insert(g, {at, at + bytes});
        }
    }
    // The most that was ever taken.
    constexpr std::size_t height() const { return height_; }

  private:
    struct Gap {
        std::size_t begin = 0;
        std::size_t end = 0;
    };
    constexpr void erase(std::size_t g) {
        --count_;
        for (; g < count_; ++g) gaps_[g] = gaps_[g + 1];
    }
    constexpr void insert(std::size_t g, Gap const& gap) {
        if (count_ == gaps_.size()) enlarge(gaps_, count_, 2 * count_ + 8);
        for (std::size_t i = count_++; i > g; --i) gaps_[i] = gaps_[i - 1];
        gaps_[g] = gap;
    }

    Array<Gap> gaps_; // ascending, none at the top
    std::size_t count_ = 0;
    std::size_t top_ = 0;
    std::size_t height_ = 0;
};

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
