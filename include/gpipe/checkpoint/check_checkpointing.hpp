#pragma once

#include <gpipe/checkpoint/dynamic_policy.hpp>
#include <gpipe/checkpoint/verify_reversal.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/policy.hpp>
#include <gpipe/core/type_name.hpp>

#include <cstddef>
#include <type_traits>

namespace gpipe {

namespace detail {

// (g++ 12 takes C::lower(programs) for a call where it needs an object.)
template <class C> inline constexpr bool lowers_by_object = false;
template <class C>
    requires requires { &C::lower; }
inline constexpr bool lowers_by_object<C> = std::is_member_function_pointer_v<decltype(&C::lower)>;

} // namespace detail

/// That a policy offers what a checkpointing policy must.
template <class C> struct CheckCheckpointing {
    static consteval bool ok() {
        constexpr bool chosen = std::is_same_v<C, checkpoint::Dynamic>;
        constexpr bool lowers =
            CheckpointingPass<C> && !(std::is_empty_v<C> && detail::lowers_by_object<C>);
        constexpr bool offers = chosen || lowers || reverses_cells<C>;
        constexpr bool constant = chosen || !offers || std::is_empty_v<C>;
        static_assert(offers, "gpipe: a checkpointing policy needs: static constexpr "
                              "gpipe::Programs lower(gpipe::Programs const& schedule), or static "
                              "constexpr gpipe::Reversal reversal(gpipe::CellToReverse const&)");
        static_assert(constant,
                      "gpipe: a checkpointing policy whose numbers are dynamic is an object: among "
                      "the policies stands gpipe::checkpoint::Dynamic, and the object in "
                      "Options::checkpointing");
        return offers && constant && detail::sound_policy<C>;
    }
};

namespace detail {

// The library's own need no check.
template <class C> inline constexpr bool is_users = !type_name<C>.starts_with("gpipe::");

template <class Chosen> constexpr bool gives_reversals() {
    return Chosen::checkpointed().reversals.size() > 0;
}

} // namespace detail

/// That how a policy reverses the cells of a Chosen, its ChosenPolicies, is a constant.
template <class Policy, class Chosen> struct CheckConstantReversal {
    static consteval bool ok() {
        constexpr bool constant = requires {
            typename std::bool_constant<detail::gives_reversals<Chosen>()>;
        };
        static_assert(constant, "gpipe: reversal(cell) of the checkpointing policy is no constant: "
                                "it must be constexpr, may throw nothing for the cells, and stays "
                                "within -fconstexpr-ops-limit, -fconstexpr-steps and the like");
        return constant;
    }
};

/// That a policy reverses a cell soundly. The template arguments name the first step at which it
/// does not. One sentence for each ReversalProblem.
template <class Policy, ReversalProblem problem, std::size_t cell, std::size_t step>
struct CheckReversal {
    static consteval bool ok() {
        static_assert(problem != ReversalProblem::empty,
                      "gpipe: the reversal of Policy is not for the layers of this cell");
        static_assert(
            problem != ReversalProblem::no_such_layer,
            "gpipe: the reversal of Policy names, at this step, a layer that this cell does "
            "not have");
        static_assert(problem != ReversalProblem::reversed,
                      "gpipe: the reversal of Policy runs, at this step, a layer again behind its "
                      "backward");
        static_assert(
            problem != ReversalProblem::no_input,
            "gpipe: the reversal of Policy runs, at this step, a layer again whose input is "
            "nowhere kept");
        static_assert(problem != ReversalProblem::twice,
                      "gpipe: the reversal of Policy keeps, at this step, a layer whole that is so "
                      "already");
        static_assert(
            problem != ReversalProblem::in_vain,
            "gpipe: the reversal of Policy does not take up, at this step, what the forward "
            "before it has computed");
        static_assert(
            problem != ReversalProblem::order,
            "gpipe: the reversal of Policy keeps something, at this step, of a layer before "
            "what it keeps of a later one is released");
        static_assert(
            problem != ReversalProblem::out_of_turn,
            "gpipe: the reversal of Policy runs, at this step, a backward that is not that "
            "of the last layer left");
        static_assert(
            problem != ReversalProblem::not_whole,
            "gpipe: the reversal of Policy runs, at this step, a backward of a layer that is "
            "not kept whole");
        static_assert(problem != ReversalProblem::missing,
                      "gpipe: the reversal of Policy leaves out a backward");
        return problem == ReversalProblem::sound;
    }
};

/// The first cell that a policy reverses wrongly, and how.
struct ReversalsVerdict {
    ReversalVerdict verdict; ///< of that cell; sound if all are
    std::size_t cell = 0;    ///< its number
};

/// Proves the reversals of all cells of a chain, [first[c], first[c + 1]) being the layers of cell
/// c.
GPIPE_INLINE constexpr ReversalsVerdict verify(Array<Reversal> const& reversals,
                                               std::size_t const* first) {
    for (std::size_t c = 0; c < reversals.size(); ++c) {
        if (reversals[c].layers() != first[c + 1] - first[c])
            return {{ReversalProblem::empty, 0}, c};
        if (ReversalVerdict const verdict = verify(reversals[c]); !verdict) return {verdict, c};
    }
    return {};
}

} // namespace gpipe
