#pragma once

#include <gpipe/optimizer/groups.hpp>

#include <cmath>
#include <stdexcept>

namespace gpipe::detail {

[[gnu::cold]] GPIPE_INLINE void check_rate(double rate, char const* name) {
    if (!std::isfinite(rate))
        throw_error<std::invalid_argument>("gpipe: the optimizer's %s is %g, and would be all that "
                                           "is left of the parameters",
                                           name, rate);
}

// Throws std::invalid_argument where a rate that may be set, of an O, of a chosen one (see
// optimizer::OneOf), or of its groups, is no number.
template <class O> void check_rates(O const& optimizer) {
    auto const check = [](auto const& of) {
        if constexpr (requires { double{of.learning_rate}; })
            check_rate(of.learning_rate, "learning_rate");
        if constexpr (requires { double{of.weight_decay}; })
            check_rate(of.weight_decay, "weight_decay");
    };
    if constexpr (requires { optimizer.chosen_states(); })
        optimizer.visit(check);
    else
        check(optimizer);
    if constexpr (requires { ParameterGroup{optimizer.groups[0]}; })
        for (ParameterGroup const& group : optimizer.groups) {
            check_rate(group.rate, "groups[].rate");
            check_rate(group.decay, "groups[].decay");
        }
}

} // namespace gpipe::detail
