#pragma once

#include <gpipe/core/type_list.hpp>

#include <cstddef>
#include <type_traits>

namespace gpipe {

// Policies are types with a nested `policy_kind`; they may be given in any order, each kind once.

namespace detail {

template <class P> struct KindOf { using type = void; };
template <class P>
    requires requires { typename P::policy_kind; }
struct KindOf<P> {
    using type = typename P::policy_kind;
};
template <class P, class Kind>
inline constexpr bool is_kind = std::is_same_v<typename KindOf<P>::type, Kind>;

// The position of the policy of a kind, or the number of policies.
template <class Kind, class... Policies> constexpr std::size_t find_policy() {
    return first_true({is_kind<Policies, Kind>...});
}

template <class Kind, class Default, class... Policies>
using policy_or =
    typename List<Policies..., Default>::template at<find_policy<Kind, Policies...>()>;

// False of a policy that has said what is wrong with its own arguments (`sound`): nothing is then
// made of it, and its sentence stays the only one.
template <class P> inline constexpr bool sound_policy = true;
template <class P>
    requires requires { P::sound; }
inline constexpr bool sound_policy<P> = P::sound;

// Whether it has what schedules or checkpointing policies have.
template <class P> inline constexpr bool acts_as_policy = requires { &P::programs; };
template <class P>
    requires(
        requires { &P::lower; } || requires { &P::reversal; })
inline constexpr bool acts_as_policy<P> = true;

} // namespace detail

/// That the header of a policy is included, where others declare it.
template <class Policy, bool defined> struct CheckIncluded {
    static consteval bool ok() {
        static_assert(defined, "gpipe: Policy is declared, but its header is not included: for "
                               "gpipe::device::Cuda that is <gpipe/gpipe.cuh>, for "
                               "gpipe::transport::Mpi <gpipe/transport/mpi.hpp>");
        return defined;
    }
};
/// That policy `Index` is one of the known kinds.
template <std::size_t Index, class Policy, bool known> struct CheckPolicy {
    static consteval bool ok() {
        constexpr bool silent = !known && detail::acts_as_policy<Policy>;
        static_assert(!silent, "gpipe: policy Index is a schedule or a checkpointing policy that "
                               "does not say so: using policy_kind = gpipe::policy::Schedule, or "
                               "gpipe::policy::Checkpointing");
        static_assert(known || silent,
                      "gpipe: policy Index is none that this template knows: Cells or Balance, "
                      "MicroBatches, Loss, Optimizer, a schedule, a checkpointing policy, an "
                      "update, replicas, a transport, a device");
        return known;
    }
};
/// The same of an Inference.
template <std::size_t Index, class Policy, bool known> struct CheckInferencePolicy {
    static consteval bool ok() {
        static_assert(known, "gpipe: policy Index is none that an Inference knows: Cells or "
                             "Balance, MicroBatches, a transport, a device");
        return known;
    }
};
/// That policy `Index` is the first of its kind.
template <std::size_t Index, class Policy, bool first> struct CheckPolicyOnce {
    static consteval bool ok() {
        static_assert(first, "gpipe: policy Index is given twice: there is one of each kind");
        return first;
    }
};

namespace detail {

template <class Policies, class... Kinds> struct PolicyChecks;
template <class... Policies, class... Kinds> struct PolicyChecks<List<Policies...>, Kinds...> {
    struct Verdict {
        std::size_t unknown = sizeof...(Policies);
        std::size_t twice = sizeof...(Policies);
    };
    // Each policy's kind as a number; the number of kinds if it is none of them.
    static constexpr Verdict find() {
        constexpr std::size_t count = sizeof...(Policies);
        std::size_t const kinds[] = {kind_number<Policies>()..., 0};
        Verdict verdict;
        for (std::size_t i = count; i-- > 0;) {
            if (kinds[i] == sizeof...(Kinds)) verdict.unknown = i;
            for (std::size_t j = 0; j < i; ++j)
                if (kinds[j] == kinds[i] && kinds[i] < sizeof...(Kinds)) verdict.twice = i;
        }
        return verdict;
    }
    template <class P> static constexpr std::size_t kind_number() {
        return first_true({is_kind<P, Kinds>...});
    }
};

// Unknown says that one is of no such kind.
template <template <std::size_t, class, bool> class Unknown, class Policies, class... Kinds>
consteval bool check_policies_by() {
    constexpr auto verdict = PolicyChecks<Policies, Kinds...>::find();
    if constexpr (verdict.unknown < Policies::size) {
        using Policy = typename Policies::template at<verdict.unknown>;
        if constexpr (constexpr bool defined =
                          !std::is_class_v<Policy> || requires { sizeof(Policy); };
                      defined)
            return Unknown<verdict.unknown, Policy, false>::ok();
        else
            return CheckIncluded<Policy, defined>::ok();
    } else if constexpr (verdict.twice < Policies::size)
        return CheckPolicyOnce<verdict.twice, typename Policies::template at<verdict.twice>,
                               false>::ok();
    else
        return true;
}
template <class Policies, class... Kinds> consteval bool check_policies() {
    return check_policies_by<CheckPolicy, Policies, Kinds...>();
}

} // namespace detail
} // namespace gpipe
