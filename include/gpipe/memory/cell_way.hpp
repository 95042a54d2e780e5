#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/cell_calls.hpp>
#include <gpipe/memory/gap_list.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe {

/// Where a tensor lies: in a part of its way, or in one of these.
struct TensorPlace {
    std::uint32_t part = 0; ///< its number
    std::size_t offset = 0; ///< within
    /// What the forward leaves for a reversal, where that may be away meanwhile.
    static constexpr std::uint32_t retained = 0xFFFFFFFF;
};

/// What a cell does in one of its ways, with its tensors in parts.
struct CellWay {
    CellCalls calls;           ///< what it calls
    WayParts parts;            ///< of its tensors
    Array<TensorPlace> places; ///< by tensor
    std::size_t retained = 0;  ///< bytes, see TensorPlace
    Array<std::uint32_t> ends; ///< parts, in the order in which they are read for the last time
    Array<std::uint32_t> ends_at =
        Array<std::uint32_t>(stage_count + 1); ///< by stage: where its part of `ends` begins
    Array<std::uint32_t> starts_at =
        Array<std::uint32_t>(stage_count + 1); ///< likewise, of parts that begin
};

namespace detail {

// Calls f(tensor) for all of a call.
template <class F> constexpr void each_tensor(CellCalls const& all, CellCall const& call, F f) {
    for (std::uint32_t const t :
         {call.x, call.y, call.dy, call.dx, call.saved, call.deferred, call.scratch})
        f(t);
    std::size_t const last = &call + 1 < all.calls.end() ? (&call + 1)->skips : all.skips.size();
    for (std::size_t e = call.skips; e < last; ++e) {
        f(all.skips[e].value);
        f(all.skips[e].gradient);
    }
}

// Tensors that are written in one slice and read for the last time in one are a part: they lie side
// by side, or, where both are one slice of several calls, as these take turns.
class PartBuilder {
  public:
    // `most`: slices of an action.
    constexpr PartBuilder(CellCalls calls, std::size_t most, bool retains)
        : retains_(retains), slice_(calls.calls.size()) {
        way_.calls = static_cast<CellCalls&&>(calls);
        std::uint32_t at = 0;
        for (std::size_t s = 0; s < stage_count; ++s) {
            std::size_t const first = way_.calls.begin[s];
            std::size_t const size = way_.calls.begin[s + 1] - first;
            std::size_t const slices = std::min(size, most);
            way_.parts.slices[s] = static_cast<std::uint32_t>(slices);
            first_slice_[s] = at;
            for (std::size_t i = 0; i < size; ++i)
                slice_[first + i] = static_cast<std::uint32_t>(at + i * slices / size);
            at += static_cast<std::uint32_t>(slices);
        }
        first_slice_[stage_count] = at;
    }
    constexpr CellWay build() {
        make_parts();
        place_in_turns();
        list_uses();
        list_ends();
        return static_cast<CellWay&&>(way_);
    }

  private:
    constexpr Stage stage_of(std::uint32_t slice) const {
        std::size_t s = 0;
        while (first_slice_[s + 1] <= slice) ++s;
        return static_cast<Stage>(s);
    }
    constexpr std::uint16_t in_stage(std::uint32_t slice) const {
        return static_cast<std::uint16_t>(slice -
                                          first_slice_[static_cast<std::size_t>(stage_of(slice))]);
    }

    constexpr void make_parts() {
        CellCalls const& all = way_.calls;
        way_.places = Array<TensorPlace>(all.tensors.size());
        Array<TensorPart> parts(all.tensors.size());
        begin_ = Array<std::uint32_t>(all.tensors.size());
        end_ = Array<std::uint32_t>(all.tensors.size());
        for (std::size_t t = 0; t < all.tensors.size(); ++t) {
            CellTensor const& one = all.tensors[t];
            if (retains_ && all.waits(t)) {
                way_.places[t] = {TensorPlace::retained, way_.retained};
                way_.retained += one.bytes;
                continue;
            }
            std::uint32_t const begin = slice_[one.begin];
            std::uint32_t const end = slice_[one.end];
            std::uint32_t p = count_;
            while (p > 0 && begin_[p - 1] == begin && end_[p - 1] != end) --p;
            if (p == 0 || begin_[p - 1] != begin) {
                p = count_++;
                begin_[p] = begin;
                end_[p] = end;
                parts[p].first = stage_of(begin);
                parts[p].last = stage_of(end);
                parts[p].from = in_stage(begin);
                parts[p].to = in_stage(end);
            } else {
                --p;
            }
            way_.places[t] = {p, parts[p].bytes};
            parts[p].bytes += one.bytes;
        }
        way_.parts.parts = first_of(parts, count_);
        for (std::size_t p = 0; p < count_; ++p)
            ++way_.starts_at[static_cast<std::size_t>(parts[p].first) + 1];
        for (std::size_t s = 0; s < stage_count; ++s) way_.starts_at[s + 1] += way_.starts_at[s];
    }
    // Within slices of several calls.
    constexpr void place_in_turns() {
        CellCalls const& all = way_.calls;
        Array<std::uint32_t> ends(all.calls.size(), nothing); // by call: a tensor that it ends
        Array<std::uint32_t> more(all.tensors.size(), nothing);
        std::size_t t = 0;
        GapList room;
        std::uint32_t now = nothing; // slice
        for (std::size_t c = 0; c < all.calls.size(); ++c) {
            if (slice_[c] != now) room = {};
            now = slice_[c];
            for (; t < all.tensors.size() && all.tensors[t].begin == c; ++t) {
                std::uint32_t const p = way_.places[t].part;
                if (p == TensorPlace::retained || end_[p] != now) continue;
                way_.places[t].offset = room.take(all.tensors[t].bytes);
                way_.parts.parts[p].bytes = room.height();
                more[t] = ends[all.tensors[t].end];
                ends[all.tensors[t].end] = static_cast<std::uint32_t>(t);
            }
            for (std::uint32_t one = ends[c]; one != nothing; one = more[one])
                room.give_back(way_.places[one].offset, all.tensors[one].bytes);
        }
    }
    constexpr void list_uses() {
        CellCalls const& all = way_.calls;
        WayParts& parts = way_.parts;
        // By part: where it stands among the uses of the stage, and that stage.
        Array<std::uint32_t> at(count_), stage(count_, nothing);
        std::size_t most = 0;
        for (TensorPart const& part : parts.parts)
            most += 1u + static_cast<std::size_t>(part.last) - static_cast<std::size_t>(part.first);
        parts.uses = Array<PartUse>(most);
        std::uint32_t size = 0;
        for (std::uint32_t s = 0; s < stage_count; ++s) {
            parts.begin[s] = size;
            for (std::size_t c = all.begin[s]; c < all.begin[s + 1]; ++c) {
                std::uint32_t const slice = slice_[c] - first_slice_[s];
                each_tensor(all, all.calls[c], [&](std::uint32_t t) {
                    if (t >= way_.places.size()) return use_other(s, t, slice);
                    std::uint32_t const p = way_.places[t].part;
                    if (p == TensorPlace::retained) return;
                    if (stage[p] != s) {
                        stage[p] = s;
                        at[p] = size;
                        parts.uses[size++] = {p, static_cast<std::uint16_t>(slice), 0};
                    }
                    parts.uses[at[p]].to = static_cast<std::uint16_t>(slice);
                });
            }
        }
        parts.begin[stage_count] = size;
        if (size > most_uses)
            throw std::length_error("gpipe: a cell has more tensors than a plan can hold");
    }
    constexpr void use_other(std::uint32_t stage, std::uint32_t t, std::uint32_t slice) {
        if (t == tensor::none) return;
        std::uint32_t const other = t == tensor::input             ? 0
                                    : t == tensor::output          ? 1
                                    : t == tensor::output_gradient ? 2
                                                                   : 3;
        PartUse& use = way_.parts.others[stage * WayParts::other_count + other];
        auto const at = static_cast<std::uint16_t>(slice);
        if (use.to == PartUse{}.to) use.from = at;
        use.to = at;
    }
    constexpr void list_ends() {
        Array<std::uint32_t> at(first_slice_[stage_count] + 1u); // a counting sort
        for (std::size_t p = 0; p < count_; ++p) ++at[end_[p] + 1];
        for (std::size_t e = 1; e < at.size(); ++e) at[e] += at[e - 1];
        way_.ends = Array<std::uint32_t>(count_);
        for (std::size_t s = 0; s <= stage_count; ++s) way_.ends_at[s] = at[first_slice_[s]];
        for (std::uint32_t p = 0; p < count_; ++p) way_.ends[at[end_[p]]++] = p;
    }

    static constexpr std::uint32_t nothing = 0xFFFFFFFF;
    // Operand::address counts them.
    static constexpr std::uint32_t most_uses = 0x7FFF;

    CellWay way_;
    bool retains_;
    Array<std::uint32_t> slice_; // by call, stage by stage
    std::uint32_t first_slice_[stage_count + 1] = {};
    Array<std::uint32_t> begin_; // by part: slices
    Array<std::uint32_t> end_;
    std::uint32_t count_ = 0;
};

} // namespace detail

/// Its tensors in parts; an action has up to so many slices. `retains`: whether what the forward
/// leaves for a reversal has a place of its own.
[[gnu::cold]] GPIPE_INLINE constexpr CellWay cell_way(CellCalls calls, std::size_t slices,
                                                      bool retains) {
    return detail::PartBuilder(static_cast<CellCalls&&>(calls), slices, retains).build();
}

} // namespace gpipe
GPIPE_RUNS_ONCE_END
