#pragma once

#include <gpipe/layer/constants.hpp>
#include <gpipe/layer/handles.hpp>

namespace gpipe::detail {

// What calls of a layer are given beside tensors of their own, as contexts know it: for nearly all
// layers handles alone, so that these share contexts.
template <class Handles, class Constants> struct WithConstants {};
template <class L> struct GivenOf { using type = handles_of<L>; };
template <class L>
    requires requires { typename L::Constants; }
struct GivenOf<L> {
    using type = WithConstants<handles_of<L>, constants_of<L>>;
};
template <class L> using given_of = typename GivenOf<L>::type;

template <class Given> struct PartsOfGiven {
    using Handles = Given;
    using Constants = gpipe::Constants<>;
};
template <class H, class C> struct PartsOfGiven<WithConstants<H, C>> {
    using Handles = H;
    using Constants = C;
};

} // namespace gpipe::detail
