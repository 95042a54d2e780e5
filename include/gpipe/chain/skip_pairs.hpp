#pragma once

#include <gpipe/chain/info.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// A skip of a chain: from the layer that stashes to the one that pops.
struct SkipPair {
    std::uint32_t from = 0;         ///< layer
    std::uint32_t to = 0;           ///< layer, behind it
    std::uint32_t stash = 0;        ///< which of its ends at `from`, see SkipEnds
    std::uint32_t pop = 0;          ///< likewise at `to`
    std::size_t bytes = 0;          ///< of a sample
    std::size_t gradient_bytes = 0; ///< 0 where it carries none
};

/// The number of the skip of which this is an end, see SkipEnds.
GPIPE_INLINE constexpr std::size_t skip_of(Part<SkipPair> skips, std::size_t layer,
                                           std::uint32_t end) {
    std::size_t s = 0;
    while (!(skips[s].from == layer && skips[s].stash == end) &&
           !(skips[s].to == layer && skips[s].pop == end))
        ++s;
    return s;
}

/// Why what some layers stash is not what others pop.
struct SkipFault {
    /// What is wrong with one end.
    enum class Kind : std::uint8_t {
        nothing,
        never_popped,
        never_stashed,
        stashed_again,
        popped_again,
        stashed_and_popped, ///< by one layer
        popped_before,      ///< it is stashed
        other_tensor,       ///< is popped than was stashed
    };
    Kind kind = Kind::nothing; ///< the first that was found
    std::size_t leaf = 0;      ///< that has the end
    std::uint32_t end = 0;     ///< see SkipEnds
    std::size_t other = 0;     ///< leaf of the other end, or the same
};

/// Finds out which ends belong together of these leaves, in order: those of the chain that stand
/// alone, or those of one Repeat, each of whose repetitions is a namespace of its own. Calls
/// `found(from, stash, to, pop)`, leaves and ends, for each pair in the order of what is popped.
/// Returns the first fault.
template <class F>
constexpr SkipFault match_skips(LayerInfo const* infos, Part<std::size_t> leaves, F found) {
    using Fault = SkipFault::Kind;
    std::size_t const size = leaves.size();
    auto const ends = [&](std::size_t i) -> SkipEnds const& { return infos[leaves[i]].skips; };
    struct End {
        std::size_t layer = 0; // of the leaves; `size` if there is none
        std::uint32_t number = 0;
    };
    // The first end of that tag.
    auto const find = [&](std::string_view tag, bool stash) {
        for (std::size_t i = 0; i < size; ++i)
            for (std::uint32_t e = stash ? 0 : ends(i).stashes;
                 e < (stash ? ends(i).stashes : ends(i).count()); ++e)
                if (ends(i).first[e].tag == tag) return End{i, e};
        return End{size, 0};
    };
    for (std::size_t i = 0; i < size; ++i)
        for (std::uint32_t e = 0; e < ends(i).count(); ++e) {
            bool const stashes = e < ends(i).stashes;
            SkipInfo const& own = ends(i).first[e];
            auto const fault = [&](Fault kind, std::size_t other) {
                return SkipFault{kind, leaves[i], e, leaves[other]};
            };
            End const same = find(own.tag, stashes);
            if (same.layer != i || same.number != e)
                return fault(stashes ? Fault::stashed_again : Fault::popped_again, same.layer);
            End const other = find(own.tag, !stashes);
            if (other.layer == size)
                return fault(stashes ? Fault::never_popped : Fault::never_stashed, i);
            if (other.layer == i) return fault(Fault::stashed_and_popped, i);
            if (stashes) {
                if (other.layer < i) return fault(Fault::popped_before, other.layer);
                continue;
            }
            if (ends(other.layer).first[other.number].tensor != own.tensor)
                return fault(Fault::other_tensor, other.layer);
            found(leaves[other.layer], other.number, leaves[i], e);
        }
    return {};
}

} // namespace gpipe
