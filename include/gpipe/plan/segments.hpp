#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <cstdint>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// Who has which bytes of a memory. Segments lie sorted in blocks of a few, so that a change moves
// few of them however many there are.
class Segments {
  public:
    // Gives [begin, end) to `value`, and calls lost(value) for all who had bytes of it.
    template <class Lost>
    constexpr void give(std::uint64_t begin, std::uint64_t end, std::size_t value, Lost lost) {
        Place at = first_behind(begin);
        bool given = false; // in the place of one that had bytes of it
        while (at.block < blocks_ && here(at).begin < end) {
            Segment const old = here(at);
            lost(old.value);
            if (old.begin < begin) {
                here(at).end = begin;
                at = next(at);
                if (old.end <= end) continue;
                insert(next(insert(at, {begin, end, value})), {end, old.end, old.value});
                return;
            }
            if (old.end > end) {
                here(at).begin = end;
                break;
            }
            if (given) {
                at = erase(at);
            } else {
                here(at) = {begin, end, value};
                given = true;
                at = next(at);
            }
        }
        if (!given) insert(at, {begin, end, value});
    }

  private:
    struct Segment {
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
        std::size_t value = 0;
    };
    static constexpr std::size_t most = 64; // of a block
    struct Block {
        Array<Segment> segments;
        std::size_t count = 0;
    };
    struct Place {
        std::size_t block = 0;
        std::size_t at = 0;
    };

    constexpr Segment& here(Place place) { return all_[place.block].segments[place.at]; }
    constexpr Place next(Place place) const {
        return place.at + 1 < all_[place.block].count ? Place{place.block, place.at + 1}
                                                      : Place{place.block + 1, 0};
    }
    // The first that ends behind `begin`.
    constexpr Place first_behind(std::uint64_t begin) const {
        std::size_t block = 0;
        for (std::size_t last = blocks_; block < last;) {
            std::size_t const middle = (block + last) / 2;
            if (all_[middle].segments[all_[middle].count - 1].end <= begin)
                block = middle + 1;
            else
                last = middle;
        }
        if (block == blocks_) return {block, 0};
        Segment const* const segments = all_[block].segments.data();
        std::size_t at = 0;
        for (std::size_t last = all_[block].count; at < last;) {
            std::size_t const middle = (at + last) / 2;
            if (segments[middle].end <= begin)
                at = middle + 1;
            else
                last = middle;
        }
        return {block, at};
    }
    // In front of what is there, or at the end. Returns where it is then.
    constexpr Place insert(Place place, Segment const& segment) {
        if (place.at == 0 && place.block > 0 && all_[place.block - 1].count < most)
            place = {place.block - 1, all_[place.block - 1].count};
        else if (place.block == blocks_)
            add_block(place.block);
        else if (all_[place.block].count == most)
            place = split(place);
        Block& block = all_[place.block];
        if (block.count == block.segments.size())
            enlarge(block.segments, block.count,
                    2 * block.count + 4 < most ? 2 * block.count + 4 : most);
        for (std::size_t k = block.count++; k > place.at; --k)
            block.segments[k] = block.segments[k - 1];
        block.segments[place.at] = segment;
        return place;
    }
    constexpr Place split(Place place) {
        add_block(place.block + 1);
        Block& block = all_[place.block];
        Block& behind = all_[place.block + 1];
        behind.segments = Array<Segment>(most);
        while (block.count > most / 2) {
            --block.count;
            behind.segments[block.count - most / 2] = block.segments[block.count];
            ++behind.count;
        }
        if (place.at <= most / 2) return place;
        return {place.block + 1, place.at - most / 2};
    }
    // Returns the place of the next.
    constexpr Place erase(Place place) {
        Block& block = all_[place.block];
        --block.count;
        for (std::size_t k = place.at; k < block.count; ++k)
            block.segments[k] = block.segments[k + 1];
        if (place.at < block.count) return place;
        if (block.count > 0) return {place.block + 1, 0};
        --blocks_;
        for (std::size_t b = place.block; b < blocks_; ++b)
            all_[b] = static_cast<Block&&>(all_[b + 1]);
        return {place.block, 0};
    }
    constexpr void add_block(std::size_t at) {
        if (blocks_ == all_.size()) enlarge(all_, blocks_, 2 * blocks_ + 1);
        for (std::size_t b = blocks_++; b > at; --b) all_[b] = static_cast<Block&&>(all_[b - 1]);
        all_[at] = {};
    }

    Array<Block> all_; // the first `blocks_` of it, none of them empty
    std::size_t blocks_ = 0;
};

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
