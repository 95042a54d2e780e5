#pragma once

#include <gpipe/call/constant_table.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/core/type_list.hpp>
#include <gpipe/core/type_name.hpp>

#include <cstddef>
#include <new>
#include <type_traits>

namespace gpipe {

/// What every micro-batch of a step is to see alike (a temperature, a scale, a small table):
/// trivially copyable classes, declared by whatever layers, and the loss, read them as `using
/// Constants = gpipe::Constants<A, B>`, read by `gpipe::constant<A>(context)`, and set between
/// steps by Training::constant<A>(). There is one value of each type, however many read it, which
/// begins as A{}. A step has the values that it was started with, in recomputation and backward,
/// too.
template <class... Cs> struct Constants {};

namespace detail {

template <class L, class = void> struct ConstantsOf { using type = Constants<>; };
template <class L>
struct ConstantsOf<L, std::void_t<typename L::Constants>>
    : AsPack<Constants, typename L::Constants> {};
template <class L> using constants_of = typename ConstantsOf<L>::type;

template <class Cs, class C> inline constexpr bool declares_constant = false;
template <class... Cs, class C>
inline constexpr bool declares_constant<Constants<Cs...>, C> = (std::is_same_v<Cs, C> || ...);

// Whether bytes of it may be copied, to a device, too.
template <class C> consteval bool is_constant() {
    if constexpr (std::is_class_v<C> && !std::is_const_v<C>)
        return std::is_trivially_copyable_v<C> && std::is_default_constructible_v<C> &&
               alignof(C) <= slot_alignment;
    else
        return false;
}
template <class C> [[gnu::cold]] void make_constant(std::byte* to) { ::new (to) C{}; }

template <class Cs> struct ConstantTypes;
template <> struct ConstantTypes<Constants<>> {
    static constexpr bool fit() { return true; }
    static constexpr ConstantNeeds needs() { return {}; }
};
template <class... Cs> struct ConstantTypes<Constants<Cs...>> {
    static consteval bool fit() { return (is_constant<Cs>() && ...); }
    static constexpr ConstantNeed need_table[sizeof...(Cs)] = {
        {&type_mark<Cs>, sizeof(Cs), alignof(Cs), type_name<Cs>, &make_constant<Cs>}...};
    static constexpr ConstantNeeds needs() { return {need_table, sizeof...(Cs)}; }
};

// What L, a layer or a loss, declares, and whether it may.
template <class L> constexpr ConstantNeeds constant_needs() {
    return ConstantTypes<constants_of<L>>::needs();
}
template <class L> consteval bool constants_fit() { return ConstantTypes<constants_of<L>>::fit(); }

} // namespace detail

/// The value of type C in this step, for a layer's forward and backward (or its halves) and for the
/// loss: in memory that work on their stream can read, so on a GPU in the GPU's. Work that is kept
/// as a graph is to read it there: the address stays, what is there changes from step to step.
template <class C, class Context> C const* constant(Context const& context) {
    constexpr bool is_call = requires { typename Context::ConstantTypes; };
    static_assert(is_call, "gpipe: gpipe::constant<C>(context) is for forward, backward and the "
                           "loss");
    if constexpr (is_call) {
        constexpr bool declared = detail::declares_constant<typename Context::ConstantTypes, C>;
        static_assert(declared, "gpipe: who works with gpipe::constant<C>(context) must declare "
                                "it: using Constants = gpipe::Constants<C>");
        if constexpr (declared) {
            StepConstants const& all = context.constants();
            return std::launder(reinterpret_cast<C const*>(
                all.values + all.table->offset_of(&detail::type_mark<C>)));
        }
    }
}

} // namespace gpipe
