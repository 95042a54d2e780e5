#pragma once

#include <gpipe/core/finite.hpp>
#include <gpipe/optimizer/groups.hpp>
#include <gpipe/optimizer/hooked.hpp>
#include <gpipe/optimizer/rmsprop.hpp>

#include <concepts>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace gpipe::detail {

inline constexpr double no_bound = std::numeric_limits<double>::infinity();
inline constexpr double up_to_1 = 1 + std::numeric_limits<double>::epsilon();

// f(name, value, least, below) for each number that may be set: of an O, of a chosen one (see
// optimizer::OneOf), and of what either has around that, groups and a hook.
template <class O, class F> void each_rate(O const& optimizer, F f) {
    if constexpr (requires { typename O::grouped; }) {
        each_rate(static_cast<typename O::grouped const&>(optimizer), f);
    } else if constexpr (requires { typename O::hooked; }) {
        each_rate(static_cast<typename O::hooked const&>(optimizer), f);
    } else if constexpr (requires { optimizer.chosen_name(); }) {
        optimizer.visit([&](auto const& chosen) { each_rate(chosen, f); });
    } else {
        if constexpr (requires { double{optimizer.learning_rate}; })
            f("learning_rate", double{optimizer.learning_rate}, -no_bound, no_bound);
        if constexpr (requires { double{optimizer.weight_decay}; })
            f("weight_decay", double{optimizer.weight_decay}, -no_bound, no_bound);
        if constexpr (requires { double{optimizer.momentum}; })
            f("momentum", double{optimizer.momentum}, -no_bound, no_bound);
        if constexpr (requires { bool{optimizer.nesterov}; })
            f("nesterov", optimizer.nesterov ? 1.0 : 0.0, -no_bound, no_bound);
        // RMSProp takes the root of what it keeps a share of; an alpha of others is their own.
        constexpr bool share = std::derived_from<O, RMSProp>;
        if constexpr (requires { double{optimizer.alpha}; })
            f("alpha", double{optimizer.alpha}, share ? 0 : -no_bound, share ? up_to_1 : no_bound);
        // Adam divides by what is left to 1.
        if constexpr (requires { double{optimizer.beta1}; })
            f("beta1", double{optimizer.beta1}, 0, 1);
        if constexpr (requires { double{optimizer.beta2}; })
            f("beta2", double{optimizer.beta2}, 0, 1);
        if constexpr (requires { double{optimizer.epsilon}; })
            f("epsilon", double{optimizer.epsilon}, 0, no_bound);
    }
    if constexpr (requires { ParameterGroup{optimizer.groups[0]}; })
        for (ParameterGroup const& group : optimizer.groups) {
            f("groups[].rate", double{group.rate}, -no_bound, no_bound);
            f("groups[].decay", double{group.decay}, -no_bound, no_bound);
        }
    if constexpr (requires { double{optimizer.hook.limit}; })
        if constexpr (std::is_same_v<decltype(optimizer.hook), ClipByValue>)
            f("hook.limit", double{optimizer.hook.limit}, 0, no_bound);
}

[[gnu::cold]] GPIPE_INLINE void check_rate(char const* name, double rate, double least,
                                           double below) {
    if (is_finite(rate) && least <= rate && rate < below) return;
    if (is_finite(rate))
        throw_error<std::invalid_argument>("gpipe: the optimizer's %s is %g, not %g or more%s",
                                           name, rate, least,
                                           below == no_bound ? ""
                                           : below > 1       ? ", and at most 1"
                                                             : ", and less than 1");
    throw_error<std::invalid_argument>("gpipe: the optimizer's %s is %g, and has to be finite",
                                       name, rate);
}
[[gnu::cold]] GPIPE_INLINE void refuse_states(std::string_view name, std::size_t states,
                                              std::size_t planned) {
    throw_error<std::invalid_argument>(
        "gpipe: %s wants more state (%zu) than when the Training was made (%zu): what is to have "
        "momentum later has to have some then",
        std::string(name).c_str(), states, planned);
}
// Throws std::invalid_argument where one is not finite, or not within its bounds, or wants state
// that was not planned.
template <class O> void check_rates(void const* optimizer, std::size_t planned_states) {
    O const& own = *static_cast<O const*>(optimizer);
    each_rate(own, &check_rate);
    if (states_of(own) > planned_states)
        refuse_states(chosen_name(own), states_of(own), planned_states);
}

} // namespace gpipe::detail
