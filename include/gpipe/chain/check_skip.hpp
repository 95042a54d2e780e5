#pragma once

#include <gpipe/chain/skip_pairs.hpp>

#include <cstddef>

namespace gpipe {

/// The sentence about a tensor that layer `Index` stashes or pops under Tag, where the rest of the
/// chain does not go with it.
template <SkipFault::Kind kind, std::size_t Index, class L, class Tag, std::size_t Other,
          class OtherLayer, class T>
struct CheckSkip {
    static consteval bool ok() {
        using Fault = SkipFault::Kind;
        static_assert(kind != Fault::never_popped,
                      "gpipe: layer Index (L) stashes a tensor under Tag, but no layer pops it "
                      "(of the same Repeat, if L is in one)");
        static_assert(kind != Fault::never_stashed,
                      "gpipe: layer Index (L) pops a tensor under Tag, but no layer stashes it "
                      "(of the same Repeat, if L is in one)");
        static_assert(kind != Fault::stashed_again,
                      "gpipe: layer Index (L) stashes a tensor under Tag, as layer Other "
                      "(OtherLayer) does: each has a tag of its own, or stands in a Repeat");
        static_assert(kind != Fault::popped_again,
                      "gpipe: layer Index (L) pops a tensor under Tag, as layer Other "
                      "(OtherLayer) does: what is stashed once is popped once");
        static_assert(kind != Fault::stashed_and_popped,
                      "gpipe: layer Index (L) both stashes and pops a tensor under Tag");
        static_assert(kind != Fault::popped_before,
                      "gpipe: layer Other (OtherLayer) pops a tensor under Tag before layer Index "
                      "(L) stashes it");
        static_assert(kind != Fault::other_tensor,
                      "gpipe: layer Index (L) pops a T under Tag, but layer Other (OtherLayer) "
                      "stashes another tensor");
        return false;
    }
};

namespace detail {

// One of a layer's ends, see SkipEnds.
template <class Stash, class Pop, std::size_t end> struct SkipOfEnds;
template <class... Ss, class... Ps, std::size_t end>
struct SkipOfEnds<Skips<Ss...>, Skips<Ps...>, end> {
    using type = typename List<Ss..., Ps...>::template at<end>;
};
template <class L, std::size_t end>
using SkipAt = typename SkipOfEnds<typename StashOf<L>::type, typename PopOf<L>::type, end>::type;

} // namespace detail
} // namespace gpipe
