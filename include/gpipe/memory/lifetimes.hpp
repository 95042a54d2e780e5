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
    constexpr LifetimePlacer(Array<Lifetime> const& all, std::uint32_t slices)
        : all_(all), heads_(all.size() / 8 + 1), per_bucket_(slices / heads_.size() + 1),
          seen_(all.size()), near_(all.size()), nodes_(2 * all.size() + 16) {}

    // The height of all at `at`, in that order. Takes from `work` what it looks at; too_much if
    // that does not do.
    constexpr std::size_t place(Array<std::uint32_t> const& order, Array<std::size_t>& at,
                                std::size_t& work) {
        std::size_t height = 0;
        node_count_ = 0;
        for (std::uint32_t& head : heads_) head = none;
        for (std::uint32_t& seen : seen_) seen = none;
        for (std::uint32_t const v : order) {
            Lifetime const& one = all_[v];
            std::size_t const first = one.begin / per_bucket_, last = one.end / per_bucket_;
            std::size_t near = 0;
            for (std::size_t b = first; b <= last; ++b)
                for (std::uint32_t n = heads_[b]; n != none; n = nodes_[n].next) {
                    std::uint32_t const o = nodes_[n].lifetime;
                    if (work == 0) return too_much;
                    --work;
                    if (seen_[o] == v || all_[o].begin > one.end || one.begin > all_[o].end)
                        continue;
                    seen_[o] = v;
                    near_[near++] = {at[o], at[o] + all_[o].bytes}; // where it begins, and ends
                }
            sort_keyed(near_.data(), near);
            std::size_t low = 0;
            for (std::size_t k = 0; k < near && near_[k].key < low + one.bytes; ++k)
                low = std::max<std::size_t>(low, near_[k].rest);
            at[v] = low;
            height = std::max(height, low + one.bytes);
            for (std::size_t b = first; b <= last; ++b) add(b, v);
        }
        return height;
    }
    static constexpr std::size_t too_much = static_cast<std::size_t>(-1);

  private:
    static constexpr std::uint32_t none = 0xFFFFFFFF;
    struct Node {
        std::uint32_t lifetime = 0;
        std::uint32_t next = none;
    };
    constexpr void add(std::size_t bucket, std::uint32_t lifetime) {
        if (node_count_ == nodes_.size()) {
            Array<Node> more(2 * nodes_.size());
            for (std::size_t n = 0; n < node_count_; ++n) more[n] = nodes_[n];
            nodes_ = static_cast<Array<Node>&&>(more);
        }
        nodes_[node_count_] = {lifetime, heads_[bucket]};
        heads_[bucket] = static_cast<std::uint32_t>(node_count_++);
    }

    Array<Lifetime> const& all_;
    Array<std::uint32_t> heads_; // by bucket, each some slices: a list of who lives then
    std::size_t per_bucket_;
    Array<std::uint32_t> seen_; // by lifetime: for whom it has been looked at
    Array<Keyed> near_;
    Array<Node> nodes_;
    std::size_t node_count_ = 0;
};

// Looks for a lower placement than the one at `at`, of that height, and returns the best: first
// what has the most bytes for the longest time, then what has the most bytes; of each whoever comes
// to lie on top is placed first the next time. (Of the orders that the literature has these two
// were best on the networks of benchmarks/plan, and 60 tries found nearly all that more did.)
[[gnu::cold]] GPIPE_INLINE constexpr std::size_t lower(Array<Lifetime> const& all,
                                                       std::uint32_t slices, Array<std::size_t>& at,
                                                       std::size_t height) {
    constexpr std::size_t most = std::size_t{1} << 17; // lifetimes
    constexpr int tries = 60;
    std::size_t work = std::size_t{1} << 20;
    std::size_t const bound = live_bytes(all, slices);
    if (height <= bound || all.size() > most) return height;
    LifetimePlacer placer(all, slices);
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
        for (int n = 0; n <= tries && height > bound; ++n) {
            std::size_t const found = placer.place(order, other, work);
            if (found == LifetimePlacer::too_much) break;
            if (found < height) {
                height = found;
                at = other;
            }
            std::size_t k = 0;
            while (other[order[k]] + all[order[k]].bytes != found) ++k;
            std::uint32_t const top = order[k];
            for (; k > 0; --k) order[k] = order[k - 1];
            order[0] = top;
        }
    }
    return height;
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
