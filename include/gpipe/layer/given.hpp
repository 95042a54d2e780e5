#pragma once

#include <gpipe/layer/constants.hpp>
#include <gpipe/layer/handles.hpp>
#include <gpipe/layer/side.hpp>

namespace gpipe::detail {

template <class L>
concept is_given_more = requires {
    typename L::Constants;
}
|| requires { typename L::Side; };

// What calls of a layer are given beside tensors of the chain, as contexts know it: for nearly all
// layers handles alone, so that these share contexts.
template <class Handles, class Constants, class Sides> struct WithGiven {};
template <class L> struct GivenOf { using type = handles_of<L>; };
template <is_given_more L> struct GivenOf<L> {
    using type = WithGiven<handles_of<L>, constants_of<L>, sides_of<L>>;
};
template <class L> using given_of = typename GivenOf<L>::type;

template <class Given> struct PartsOfGiven {
    using Handles = Given;
    using Constants = gpipe::Constants<>;
    using Sides = SideInputs<>;
};
template <class H, class C, class S> struct PartsOfGiven<WithGiven<H, C, S>> {
    using Handles = H;
    using Constants = C;
    using Sides = S;
};

// Whether what it declares is of that kind.
template <class L> consteval bool given_fits() {
    if constexpr (is_given_more<L>)
        return constants_fit<L>() && SideTypes<sides_of<L>>::fit();
    else
        return true;
}

} // namespace gpipe::detail
