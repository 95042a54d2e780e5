#pragma once

#include <gpipe/call/handle_set.hpp>
#include <gpipe/core/type_list.hpp>
#include <gpipe/core/type_name.hpp>

#include <type_traits>

namespace gpipe {

/// The library handles that a layer or a loss works with, e.g. one of cuBLAS: declared as
/// `using Handles = gpipe::Handles<A, B>`, got by `gpipe::handle<A>(context)`. There is one object
/// of each type per device of the pipeline, which has one stream, shared by its layers; made with
/// the training, as H(Stream const&, std::byte* workspace), and destroyed with it. A type that
/// declares `static constexpr std::size_t workspace` is given that many bytes of the device's
/// memory, aligned to slot_alignment; others are given a pointer not to be used.
template <class... Hs> struct Handles {};

namespace detail {

template <class L, class = void> struct HandlesOf { using type = Handles<>; };
template <class L>
struct HandlesOf<L, std::void_t<typename L::Handles>> : AsPack<Handles, typename L::Handles> {};
template <class L> using handles_of = typename HandlesOf<L>::type;

template <class Hs, class H> inline constexpr bool declares = false;
template <class... Hs, class H>
inline constexpr bool declares<Handles<Hs...>, H> = (std::is_same_v<Hs, H> || ...);

} // namespace detail

/// The handle of type H that belongs to the stream of this call of a layer or a loss.
template <class H, class Context> H& handle(Context const& context) {
    static_assert(detail::declares<typename Context::HandleTypes, H>,
                  "gpipe: who works with gpipe::handle<H>(context) must declare it: "
                  "using Handles = gpipe::Handles<H>");
    return *static_cast<H*>(context.handles()->find(&detail::type_mark<H>));
}

} // namespace gpipe
