#pragma once

#include <gpipe/optimizer/groups.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace gpipe {

/// What ranks compare of their optimizers: what is set between steps, and so set on one alone.
struct ToldRates {
    double learning_rate = 0; ///< of an optimizer that has one
    std::uint64_t others = 0; ///< a hash of its weight decay, and of what its groups say
    friend bool operator==(ToldRates const&, ToldRates const&) = default;
};

/// Of an optimizer's functor.
using ToldRatesFunction = ToldRates (*)(void const* optimizer);

namespace detail {

template <class O> void add_rates(ToldRates& to, O const& optimizer) {
    auto const add = [&](double number) {
        to.others = (to.others ^ std::bit_cast<std::uint64_t>(number)) * 0x100000001B3;
    };
    if constexpr (requires { double{optimizer.learning_rate}; })
        to.learning_rate = optimizer.learning_rate;
    if constexpr (requires { double{optimizer.weight_decay}; }) add(optimizer.weight_decay);
    if constexpr (requires { ParameterGroup{optimizer.groups[0]}; })
        for (ParameterGroup const& group : optimizer.groups)
            for (double const number : {double{group.rate}, double{group.decay}}) add(number);
}
template <class O> ToldRates told_rates(void const* optimizer) {
    O const& own = *static_cast<O const*>(optimizer);
    ToldRates result;
    if constexpr (requires { own.chosen_states(); }) // see optimizer::OneOf
        own.visit([&](auto const& chosen) { add_rates(result, chosen); });
    else
        add_rates(result, own);
    return result;
}

} // namespace detail
} // namespace gpipe
