#pragma once

#include <gpipe/chain/info.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// Something to be sorted.
struct Keyed {
    std::uint64_t key = 0;
    std::uint64_t rest = 0;
};
// By key, then by the rest: a heap sort. (std::sort would be a tenth of a small program's time to
// compile.)
[[gnu::cold]] GPIPE_INLINE constexpr void sort_keyed(Keyed* all, std::size_t size) {
    auto const before = [](Keyed const& a, Keyed const& b) {
        return a.key != b.key ? a.key < b.key : a.rest < b.rest;
    };
    for (std::size_t begin = size / 2, end = size; end > 1;) {
        if (begin > 0) {
            --begin;
        } else {
            Keyed const last = all[--end];
            all[end] = all[0];
            all[0] = last;
        }
        Keyed const sinks = all[begin];
        std::size_t at = begin;
        for (std::size_t child; (child = 2 * at + 1) < end; at = child) {
            if (child + 1 < end && before(all[child], all[child + 1])) ++child;
            if (!before(sinks, all[child])) break;
            all[at] = all[child];
        }
        all[at] = sinks;
    }
}

// What a device has for a while: from slice to slice, counted over its program.
struct Lifetime {
    std::size_t bytes = 0;
    std::uint32_t begin = 0;
    std::uint32_t end = 0; // the last
};

// The most bytes that live at a time: no placement has a lower height. `slices`: how many there
// are.
[[gnu::cold]] GPIPE_INLINE constexpr std::size_t live_bytes(Array<Lifetime> const& all,
                                                            std::uint32_t slices) {
    Array<std::size_t> more(slices + 1), less(slices + 1);
    for (Lifetime const& one : all) {
        more[one.begin] += one.bytes;
        less[one.end + 1] += one.bytes;
    }
    std::size_t live = 0, most = 0;
    for (std::uint32_t t = 0; t < slices; ++t) most = std::max(most, live += more[t] - less[t]);
    return most;
}

// Which two of some lifetimes may share bytes though their slices overlap: null, no two.
struct MayShare {
    bool (*share)(void const* of, std::uint32_t a, std::uint32_t b) = nullptr;
    void const* of = nullptr;

    bool operator()(std::uint32_t a, std::uint32_t b) const { return share && share(of, a, b); }
};

// Places lifetimes one by one, in any order, each as low as those let it that were before: below
// the height there are no bytes that nobody ever has.
class LifetimePlacer {
  public:
    LifetimePlacer(Array<Lifetime> const& all, std::uint32_t slices, MayShare const& may_share)
        : all_(all), begin_(all.size() + 1), is_near_(all.size()), placed_(all.size()) {
        Array<std::uint32_t> starts(slices + 1); // by slice: where those stand that begin in it
        Array<std::uint32_t> by_start(all.size());
        for (Lifetime const& one : all) ++starts[one.begin + 1];
        for (std::uint32_t s = 0; s < slices; ++s) starts[s + 1] += starts[s];
        Array<std::uint32_t> next = starts;
        for (std::uint32_t v = 0; v < all.size(); ++v) by_start[next[all[v].begin]++] = v;
        // Each pair is found by the one that begins first.
        Array<std::uint32_t> pairs(std::min(most_pairs, all.size() * all.size()));
        std::size_t count = 0, looks = 0;
        for (std::uint32_t n = 0; n < all.size() && !too_many_; ++n) {
            std::uint32_t const v = by_start[n];
            std::uint32_t const last = starts[std::min(all[v].end + 1, slices)];
            for (std::uint32_t other = n + 1; other < last; ++other) {
                std::uint32_t const o = by_start[other];
                too_many_ = ++looks > 4 * most_pairs || count + 2 > pairs.size();
                if (too_many_) break;
                if (may_share(v, o)) continue;
                pairs[count++] = v;
                pairs[count++] = o;
                ++begin_[v + 1], ++begin_[o + 1];
            }
        }
        for (std::size_t v = 0; v < all.size(); ++v) begin_[v + 1] += begin_[v];
        others_ = Array<std::uint32_t>(count);
        next = begin_;
        for (std::size_t p = 0; p < count; p += 2) {
            others_[next[pairs[p]]++] = pairs[p + 1];
            others_[next[pairs[p + 1]]++] = pairs[p];
        }
    }

    // Whether it would take too long.
    bool too_many() const { return too_many_; }
    // Places all in that order, no higher than `limit`. Returns where in the order the one is that
    // comes to lie on top; with whoever would be above the limit it ends.
    std::size_t place(Array<std::uint32_t> const& order, std::size_t limit,
                      Array<std::size_t>& at) {
        std::size_t top = 0, height = 0;
        Placed* end = placed_.data(); // of those placed so far
        for (std::uint32_t& near : is_near_) near = nobody;
        for (std::size_t k = 0; k < order.size(); ++k) {
            std::uint32_t const v = order[k];
            for (std::uint32_t n = begin_[v]; n < begin_[v + 1]; ++n) is_near_[others_[n]] = v;
            // From below: the first gap between those that it must not lie over.
            std::size_t const bytes = all_[v].bytes;
            std::size_t low = 0;
            Placed const* one = placed_.data();
            for (; one != end && one->begin < low + bytes; ++one) {
                std::size_t const above = is_near_[one->who] == v ? one->end : 0;
                low = above > low ? above : low;
            }
            looks_ += begin_[v + 1] - begin_[v] + static_cast<std::size_t>(one - placed_.data());
            at[v] = low;
            if (low + bytes > height) {
                height = low + bytes;
                top = k;
                if (height > limit) break;
            }
            Placed* own = end++;
            for (; own != placed_.data() && own[-1].begin > low; --own) own[0] = own[-1];
            *own = {low, low + bytes, v};
        }
        return top;
    }
    // The bytes of some that live at a moment and of which no two may lie over each other: no
    // placement has a lower height. For each moment the first in the order, then each that fits to
    // those before.
    std::size_t clique_bytes(Array<std::uint32_t> const& order) const {
        constexpr std::size_t most_looks = std::size_t{1} << 18;
        Array<std::uint32_t> chosen(all_.size(), nobody); // for whose moment
        std::size_t most = 0, looks = 0;
        for (std::uint32_t n = 0; n < all_.size() && looks < most_looks; ++n) {
            std::uint32_t const now = all_[n].begin;
            std::size_t bytes = 0, size = 0;
            for (std::uint32_t const v : order) {
                if (all_[v].begin > now || all_[v].end < now) continue;
                std::size_t near = 0; // so many that are chosen
                for (std::uint32_t o = begin_[v]; o < begin_[v + 1]; ++o)
                    near += chosen[others_[o]] == n;
                looks += begin_[v + 1] - begin_[v];
                if (near < size) continue;
                chosen[v] = n;
                bytes += all_[v].bytes;
                ++size;
            }
            looks += order.size();
            most = std::max(most, bytes);
        }
        return most;
    }
    // So often place() has looked at one.
    std::size_t looks() const { return looks_; }

  private:
    struct Placed {
        std::size_t begin = 0;
        std::size_t end = 0;
        std::uint32_t who = 0;
    };
    static constexpr std::uint32_t nobody = 0xFFFFFFFF;
    static constexpr std::size_t most_pairs = std::size_t{1} << 20;
    Array<Lifetime> const& all_;
    Array<std::uint32_t> begin_;   // by lifetime: where its part of others_ begins
    Array<std::uint32_t> others_;  // that it must not lie over
    Array<std::uint32_t> is_near_; // by lifetime: whom it must not lie over, the last who asked
    Array<Placed> placed_;         // by place
    bool too_many_ = false;
    std::size_t looks_ = 0;
};

// With more on a device it would take too long.
inline constexpr std::size_t most_placed = 2048;
// While looking for a lower placement, for each order that it begins with, how often one may be
// looked at: some milliseconds over all devices.
GPIPE_INLINE constexpr std::size_t looks_per_device(std::size_t devices) {
    return (std::size_t{1} << 21) / std::max<std::size_t>(6, devices);
}

// Looks for a lower placement than the one at `at`, of that height, until one is as low as `bound`,
// and returns the best. Three orders to begin with: of the bytes, of bytes times time, of the time
// that they take. Of each, as long as that helps, whoever comes to lie on top is placed first the
// next time. Then a local search: by turns whoever lies on top is placed earlier, or two of those
// before it change places, and so it stays if the height is no larger for it. (Both, and all three,
// found lower placements in the same time than one of them alone, in the cells of unit.cell_ways.)
[[gnu::cold]] GPIPE_INLINE std::size_t lower(Array<Lifetime> const& all, std::uint32_t slices,
                                             std::size_t bound, Array<std::size_t>& at,
                                             std::size_t height, std::size_t looks,
                                             MayShare const& may_share) {
    if (height <= bound || all.empty()) return height;
    LifetimePlacer placer(all, slices, may_share);
    if (placer.too_many()) return height;
    constexpr int patience = 12;
    Array<std::uint32_t> order(all.size());
    Array<std::size_t> other(all.size());
    Array<Keyed> keyed(all.size());
    std::size_t top = 0; // of the last placement, where in the order
    auto const place = [&](std::size_t limit) {
        top = placer.place(order, limit, other);
        std::size_t const found = other[order[top]] + all[order[top]].bytes;
        if (found < height) {
            height = found;
            at = other;
        }
        return found;
    };
    auto const move = [&](std::size_t from, std::size_t to) {
        std::uint32_t const who = order[from];
        for (; from < to; ++from) order[from] = order[from + 1];
        for (; from > to; --from) order[from] = order[from - 1];
        order[to] = who;
    };
    std::uint64_t draw = 0x9E3779B97F4A7C15; // the same on all ranks
    auto const some = [&](std::size_t below) {
        draw ^= draw << 13, draw ^= draw >> 7, draw ^= draw << 17; // Marsaglia's xorshift
        return static_cast<std::size_t>((draw >> 32) * below >> 32);
    };
    for (std::size_t begin = 0; begin < 3 && height > bound; ++begin) {
        if (begin > 1 && placer.looks() >= 3 * looks) break; // one placement takes as long
        for (std::size_t v = 0; v < all.size(); ++v) {
            std::uint64_t const time = begin > 0 ? all[v].end - all[v].begin + 1 : 1;
            std::uint64_t const bytes = begin < 2 ? all[v].bytes / slot_alignment : 1;
            keyed[v] = {~(bytes * time), std::uint64_t{all[v].begin} << 32 | v};
        }
        sort_keyed(keyed.data(), keyed.size());
        for (std::size_t v = 0; v < order.size(); ++v)
            order[v] = static_cast<std::uint32_t>(keyed[v].rest);
        if (begin == 0) bound = std::max(bound, placer.clique_bytes(order));
        std::size_t const until = placer.looks() + looks;
        Array<std::uint32_t> best;
        std::size_t lowest = std::numeric_limits<std::size_t>::max(); // from this beginning
        int vain = 0;
        do {
            ++vain;
            if (std::size_t const found = place(lowest); found < lowest) {
                lowest = found;
                best = order;
                vain = 0;
            }
            move(top, 0);
        } while (vain < patience && height > bound && placer.looks() < until);
        order = best;
        std::size_t last = 0; // on top
        for (std::size_t n = 0; height > bound && placer.looks() < until; ++n) {
            bool const earlier = n % 2 > 0;
            std::size_t const one = earlier ? last : some(last + 1), two = some(last + 1);
            earlier ? move(one, two) : std::swap(order[one], order[two]);
            if (std::size_t const found = place(lowest); found <= lowest) {
                lowest = found;
                last = top;
            } else {
                earlier ? move(two, one) : std::swap(order[one], order[two]);
            }
        }
    }
    return height;
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
