#pragma once

#include <gpipe/optimizer/groups.hpp>

#include <bit>
#include <cstdint>

namespace gpipe {

/// What ranks compare of their optimizers: what may be set, and so may be set on one alone.
struct ToldRates {
    double learning_rate = 0; ///< of an optimizer that has one
    std::uint64_t others = 0; ///< a hash of its name, its weight decay and its groups

    /// Bit by bit, so that what is no number is the same as itself.
    friend bool operator==(ToldRates const& a, ToldRates const& b) {
        return a.has_rate_of(b) && a.others == b.others;
    }
    /// Whether the learning rates are the same.
    bool has_rate_of(ToldRates const& other) const {
        return std::bit_cast<std::uint64_t>(learning_rate) ==
               std::bit_cast<std::uint64_t>(other.learning_rate);
    }
};

/// Of an optimizer's functor.
using ToldRatesFunction = ToldRates (*)(void const* optimizer);

namespace detail {

// Of an O, of a chosen one (see optimizer::OneOf), and in any case of what O has around that.
template <class O> ToldRates told_rates(void const* optimizer) {
    O const& own = *static_cast<O const*>(optimizer);
    ToldRates result;
    auto const add = [&](std::uint64_t number) {
        result.others = (std::rotl(result.others, 5) ^ number) * 0x100000001B3;
    };
    auto const add_rates = [&](auto const& of) {
        if constexpr (requires { double{of.learning_rate}; })
            result.learning_rate = of.learning_rate;
        if constexpr (requires { double{of.weight_decay}; })
            add(std::bit_cast<std::uint64_t>(double{of.weight_decay}));
    };
    add(type_number(chosen_name(own)));
    if constexpr (requires { own.chosen_states(); })
        own.visit(add_rates);
    else
        add_rates(own);
    if constexpr (requires { ParameterGroup{own.groups[0]}; })
        for (ParameterGroup const& group : own.groups) {
            for (std::uint32_t const place : {group.first_layer, group.last_layer, group.tensor})
                add(place);
            for (float const share : {group.rate, group.decay})
                add(std::bit_cast<std::uint32_t>(share));
        }
    return result;
}

} // namespace detail
} // namespace gpipe
