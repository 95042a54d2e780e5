#pragma once

#include <gpipe/optimizer/groups.hpp>

#include <cmath>
#include <stdexcept>

namespace gpipe::detail {

// f(name, rate) for each rate that may be set: of an O, of a chosen one (see optimizer::OneOf), and
// in any case of what O has around that, its groups.
template <class O, class F> void each_rate(O const& optimizer, F f) {
    auto const own = [&](auto const& of) {
        if constexpr (requires { double{of.learning_rate}; })
            f("learning_rate", double{of.learning_rate});
        if constexpr (requires { double{of.weight_decay}; })
            f("weight_decay", double{of.weight_decay});
    };
    if constexpr (requires { optimizer.chosen_states(); })
        optimizer.visit(own);
    else
        own(optimizer);
    if constexpr (requires { ParameterGroup{optimizer.groups[0]}; })
        for (ParameterGroup const& group : optimizer.groups) {
            f("groups[].rate", double{group.rate});
            f("groups[].decay", double{group.decay});
        }
}

[[gnu::cold]] GPIPE_INLINE void check_rate(char const* name, double rate) {
    if (!std::isfinite(rate))
        throw_error<std::invalid_argument>("gpipe: the optimizer's %s is %g, and would be all that "
                                           "is left of the parameters",
                                           name, rate);
}
// Throws std::invalid_argument where one is not finite.
template <class O> void check_rates(void const* optimizer) {
    each_rate(*static_cast<O const*>(optimizer), &check_rate);
}

} // namespace gpipe::detail
