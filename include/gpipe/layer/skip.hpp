#pragma once

#include <gpipe/core/type_list.hpp>
#include <gpipe/core/type_name.hpp>
#include <gpipe/layer/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace gpipe {

/// A tensor that one layer gives to a later one past the layers between (a skip connection), known
/// by a tag, any type: `using Stash = gpipe::Skip<Tag, Tensor<...>>` in the layer that gives it,
/// `using Pop = ...` with the same in the one that takes it. T: one tensor, of one sample. After
/// torchgpipe's skippable layers.
template <class Tag, class T> struct Skip {};

/// Several of them: `Skips<A>` and `A` mean the same.
template <class... Ss> struct Skips {};

/// A skip at one of its ends, as a value.
struct SkipInfo {
    std::string_view tag;           ///< its type's name
    std::string_view tensor;        ///< likewise
    std::size_t bytes = 0;          ///< of a sample
    std::size_t gradient_bytes = 0; ///< 0 of a tensor that carries none
    ElementInfo element;            ///< of the tensor
};

/// The ends of skips at a layer: what it stashes, then what it pops.
struct SkipEnds {
    SkipInfo const* first = nullptr; ///< of all
    std::uint32_t stashes = 0;       ///< how many
    std::uint32_t pops = 0;          ///< how many
    bool backward_reads = false;     ///< whether its backward reads what it has popped

    /// Of both kinds.
    constexpr std::uint32_t count() const { return stashes + pops; }
};

namespace detail {

template <class S> struct SkipOf { static constexpr bool fits = false; };
template <class Tag, class T> struct SkipOf<Skip<Tag, T>> {
    using tag = Tag;
    using Tensor = T;
    static constexpr bool fits = is_tensor<T>;
};

template <class L, class = void> struct StashOf { using type = Skips<>; };
template <class L>
struct StashOf<L, std::void_t<typename L::Stash>> : AsPack<Skips, typename L::Stash> {};
template <class L, class = void> struct PopOf { using type = Skips<>; };
template <class L>
struct PopOf<L, std::void_t<typename L::Pop>> : AsPack<Skips, typename L::Pop> {};

// The one of some skips that has this tag: its place among them, and its tensor.
template <class Tag, class... Ss> struct TaggedSkip {
    static constexpr bool found = (false || ... || std::is_same_v<Tag, typename SkipOf<Ss>::tag>);
    static constexpr std::size_t at() {
        return first_true({std::is_same_v<Tag, typename SkipOf<Ss>::tag>...});
    }
    // Of one that is not there any: who asks has said so.
    using Tensor =
        typename SkipOf<typename List<Ss..., Skip<Tag, void>>::template at<at()>>::Tensor;
};
template <class Tag> struct TaggedSkip<Tag> { static constexpr bool found = false; };

// What a layer stashes and pops, as a type that contexts carry.
template <class Stash, class Pop, bool reads_pops> struct LayerSkips;

template <class S> constexpr SkipInfo skip_info() {
    if constexpr (SkipOf<S>::fits) {
        using T = typename SkipOf<S>::Tensor;
        return {type_name<typename SkipOf<S>::tag>, type_name<T>, T::bytes,
                CarriesGradient<typename T::Element>::value ? T::bytes : 0, element_info_of<T>()};
    } else
        return {};
}

template <class... Ss, class... Ps, bool reads_pops>
struct LayerSkips<Skips<Ss...>, Skips<Ps...>, reads_pops> {
    static constexpr bool reads = reads_pops;
    static constexpr std::size_t stashes = sizeof...(Ss);
    static constexpr bool fit =
        (true && ... && SkipOf<Ss>::fits) && (true && ... && SkipOf<Ps>::fits);
    static constexpr SkipInfo infos[sizeof...(Ss) + sizeof...(Ps) + 1] = {
        skip_info<Ss>()..., skip_info<Ps>()..., SkipInfo{}};
    static constexpr SkipEnds ends() {
        return {infos, sizeof...(Ss), sizeof...(Ps), reads_pops && sizeof...(Ps) > 0};
    }

    template <class Tag> using Stash = TaggedSkip<Tag, Ss...>;
    template <class Tag> using Pop = TaggedSkip<Tag, Ps...>;
};
// Of most layers: nothing to instantiate for each.
template <bool reads_pops> struct LayerSkips<Skips<>, Skips<>, reads_pops> {
    static constexpr bool reads = reads_pops;
    static constexpr bool fit = true;
    static constexpr std::size_t stashes = 0;
    static constexpr SkipEnds ends() { return {}; }
    template <class Tag> using Stash = TaggedSkip<Tag>;
    template <class Tag> using Pop = TaggedSkip<Tag>;
};

template <class L> inline constexpr bool reads_pops = true;
template <class L>
    requires requires { L::backward_reads_pops; }
inline constexpr bool reads_pops<L> = static_cast<bool>(L::backward_reads_pops);

template <class L>
using skips_of = LayerSkips<typename StashOf<L>::type, typename PopOf<L>::type, reads_pops<L>>;

} // namespace detail
} // namespace gpipe
