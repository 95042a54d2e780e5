#pragma once

#include <gpipe/core/hash.hpp>
#include <gpipe/optimizer/check_rates.hpp>

#include <bit>
#include <cstdint>
#include <string_view>

namespace gpipe {

/// What ranks compare of their optimizers: what may be set, and so may be set on one alone.
struct ToldRates {
    double learning_rate = 0; ///< of an optimizer that has one
    std::uint64_t others = 0; ///< a hash of its name, its other numbers and its groups

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
    auto const add = [&](std::uint64_t number) { result.others = mixed(result.others, number); };
    add(type_number(chosen_name(own)));
    add(states_of(own));
    each_rate(own, [&](std::string_view name, double rate, double, double) {
        if (name == "learning_rate")
            result.learning_rate = rate;
        else
            add(std::bit_cast<std::uint64_t>(rate));
    });
    if constexpr (requires { ParameterGroup{own.groups[0]}; })
        for (ParameterGroup const& group : own.groups)
            for (std::uint64_t const place :
                 {std::uint64_t{group.first_layer}, std::uint64_t{group.last_layer},
                  std::uint64_t{group.tensor}, group.type})
                add(place);
    return result;
}

} // namespace detail
} // namespace gpipe
