#pragma once

#include <gpipe/chain/info.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

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

// Places lifetimes one by one, in any order, each as low as those let it that were before: below
// the height there are no bytes that nobody ever has.
class LifetimePlacer {
  public:
    // apart(a, b): whether two of them may lie in the same bytes though their slices overlap.
    template <class Apart>
    LifetimePlacer(Array<Lifetime> const& all, std::uint32_t slices, Apart const& apart)
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
                if (apart(v, o)) continue;
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
    // Places all in that order, below `limit`. Returns where in the order the one is that comes to
    // lie on top; with whoever would not be below the limit it ends.
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
                if (height >= limit) break;
            }
            Placed* own = end++;
            for (; own != placed_.data() && own[-1].begin > low; --own) own[0] = own[-1];
            *own = {low, low + bytes, v};
        }
        return top;
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

// Looks for a lower placement than the one at `at`, of that height, until one is as low as `bound`,
// and returns the best: first what has the most bytes for the longest time, then what has the most
// bytes; of each whoever comes to lie on top, or would not lie below what is the best so far, is
// placed first the next time, `tries` times or until that has not helped for a while. (Of the
// orders that the literature has these two were best on the networks of benchmarks/plan.)
template <class Apart>
[[gnu::cold]] std::size_t lower(Array<Lifetime> const& all, std::uint32_t slices, std::size_t bound,
                                Array<std::size_t>& at, std::size_t height, int tries,
                                Apart const& apart) {
    if (height <= bound || all.empty()) return height;
    LifetimePlacer placer(all, slices, apart);
    if (placer.too_many()) return height;
    constexpr int patience = 12;
    Array<std::uint32_t> order(all.size());
    Array<std::size_t> other(all.size());
    Array<Keyed> keyed(all.size());
    for (bool const by_time : {true, false}) {
        for (std::size_t v = 0; v < all.size(); ++v) {
            std::uint64_t const time = by_time ? all[v].end - all[v].begin + 1 : 1;
            keyed[v] = {~(all[v].bytes / slot_alignment * time),
                        std::uint64_t{all[v].begin} << 32 | v};
        }
        sort_keyed(keyed.data(), keyed.size());
        for (std::size_t v = 0; v < order.size(); ++v)
            order[v] = static_cast<std::uint32_t>(keyed[v].rest);
        std::size_t const until = placer.looks() + (std::size_t{1} << 18);
        for (int n = 0, vain = 0; n < tries && vain < patience && height > bound; ++n) {
            if (placer.looks() >= until) break;
            std::size_t k = placer.place(order, height, other);
            std::uint32_t const top = order[k];
            std::size_t const found = other[top] + all[top].bytes;
            ++vain;
            if (found < height) {
                vain = 0;
                height = found;
                at = other;
            }
            for (; k > 0; --k) order[k] = order[k - 1];
            order[0] = top;
        }
    }
    return height;
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
