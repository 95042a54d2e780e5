#pragma once

#include <gpipe/core/host_device.hpp>
#include <gpipe/core/type_list.hpp>
#include <gpipe/core/type_name.hpp>
#include <gpipe/optimizer/adam.hpp>
#include <gpipe/optimizer/optimizer.hpp>
#include <gpipe/optimizer/rmsprop.hpp>
#include <gpipe/optimizer/sgd.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

GPIPE_CALLS_USERS_BEGIN
namespace gpipe {

namespace detail {

template <std::size_t, class V> struct Alternative { V value; };
template <class Indices, class... Vs> struct Alternatives;
// All of them, so that it can be copied to a GPU as bytes, and used there.
template <std::size_t... i, class... Vs>
struct Alternatives<std::index_sequence<i...>, Vs...> : Alternative<i, Vs>... {
    template <std::size_t n, class V> V& get() {
        return static_cast<Alternative<n, V>&>(*this).value;
    }
    template <std::size_t n, class V> V const& get() const {
        return static_cast<Alternative<n, V> const&>(*this).value;
    }
};

// The rules of all for one element, of which the chosen one is applied.
template <class T, class O> using RuleOf = decltype(O{}.template rule<T>(UpdateContext{}));
template <class T, class Indices, class... Os> struct ChosenRule;
template <class T, std::size_t... i, class... Os>
struct ChosenRule<T, std::index_sequence<i...>, Os...> : Alternative<i, RuleOf<T, Os>>... {
    std::size_t chosen;

    template <class All>
    GPIPE_HOST_DEVICE ChosenRule(All const& all, std::size_t which, UpdateContext context)
        : Alternative<i, RuleOf<T, Os>>{static_cast<Alternative<i, Os> const&>(all)
                                            .value.template rule<T>(context)}...,
          chosen(which) {}
    template <class... States>
    GPIPE_HOST_DEVICE void operator()(T& parameter, T gradient, States&... states) const {
        T* const all[] = {&states..., nullptr};
        (apply<i, Os>(parameter, gradient, all, std::make_index_sequence<Os::states>{}), ...);
    }

  private:
    template <std::size_t n, class O, std::size_t... s>
    GPIPE_HOST_DEVICE void apply(T& parameter, T gradient, T* const* states,
                                 std::index_sequence<s...>) const {
        if (chosen == n)
            static_cast<Alternative<n, RuleOf<T, O>> const&>(*this).value(parameter, gradient,
                                                                          *states[s]...);
    }
};

} // namespace detail

namespace optimizer {

/// One of several optimizers, chosen at construction; also the type that holds the choice. A
/// Training with Optimizer<OneOf<...>> plans the state of the chosen one only (constants such as
/// peak_bytes() hold for the one with most), trains bit by bit as with that one, and cannot change
/// to another. By name: see optimizers() in optimizer_catalogue.hpp.
template <class... Os> class OneOf {
    static_assert(sizeof...(Os) > 0,
                  "gpipe: OneOf<...> chooses from optimizers: name at least one");
    static_assert((CheckOptimizer<Os>::ok() && ...));
    static_assert((std::default_initializable<Os> && ...),
                  "gpipe: optimizers that are chosen from need a default constructor");
    using Indices = std::index_sequence_for<Os...>;

  public:
    static constexpr std::size_t states =
        std::max({std::size_t{0}, std::size_t{Os::states}...}); ///< the most of any

    /// Chosen from more: of a program's own, beside the library's in optimizer::Dynamic.
    template <class... More> using with = OneOf<Os..., More...>;

    OneOf() = default;
    /// Chooses the optimizer of that type, as it is.
    template <class O>
        requires(std::is_same_v<O, Os> || ...)
    OneOf(O chosen) : chosen_(index_of<O>()) {
        all_.template get<index_of<O>(), O>() = std::move(chosen);
    }

    /// Chooses the first with `states` arrays of state, as it is: for plans that hold for any.
    void choose_most() {
        constexpr std::size_t each[] = {Os::states...};
        chosen_ = static_cast<std::size_t>(std::find(each, each + sizeof...(Os), states) - each);
        visit([](auto& chosen) {
            if constexpr (requires { chosen.choose_most(); }) chosen.choose_most();
        });
    }
    /// Calls f with the chosen optimizer, e.g. to set its learning rate.
    template <class F> void visit(F&& f) { visit_in(*this, f, Indices{}); }
    /// The same to be looked at.
    template <class F> void visit(F&& f) const { visit_in(*this, f, Indices{}); }
    /// Of the chosen one: how many arrays of state it has.
    std::size_t chosen_states() const {
        std::size_t result = 0;
        visit([&](auto const& chosen) { result = states_of(chosen); });
        return result;
    }
    /// The name of its type.
    std::string_view chosen_name() const {
        constexpr std::string_view each[] = {type_name<Os>...};
        return each[chosen_];
    }

    /// The chosen one is asked, if it answers: see OptimizerFunctor.
    void check_layers(std::size_t layers) const {
        visit([&](auto const& chosen) {
            if constexpr (requires { chosen.check_layers(layers); }) chosen.check_layers(layers);
        });
    }

    /// Likewise.
    void check_tensors(std::span<UpdateContext const> tensors) const {
        visit([&](auto const& chosen) {
            if constexpr (requires { chosen.check_tensors(tensors); })
                chosen.check_tensors(tensors);
        });
    }

    /// That of the chosen one.
    template <class T>
    GPIPE_HOST_DEVICE auto rule(UpdateContext context) const requires(HasRule<Os, T>&&...) {
        return detail::ChosenRule<T, Indices, Os...>(all_, chosen_, context);
    }
    /// Updates one tensor.
    template <class T>
    void operator()(UpdateContext context, UpdateTensor<T, states> tensor) const noexcept
        requires(detail::Updates<Os, T>&&...) {
        visit([&]<class O>(O const& chosen) { chosen(context, first_states<O::states>(tensor)); });
    }

  private:
    template <class O> static constexpr std::size_t index_of() {
        return detail::first_true({std::is_same_v<O, Os>...});
    }
    template <class Self, class F, std::size_t... i>
    static void visit_in(Self& self, F& f, std::index_sequence<i...>) {
        static_cast<void>(
            ((i == self.chosen_ && (f(self.all_.template get<i, Os>()), true)) || ...));
    }

    detail::Alternatives<Indices, Os...> all_{};
    std::size_t chosen_ = 0;
};

/// One of the library's.
using Dynamic = OneOf<SGD, RMSProp, Adam, AdamW>;

} // namespace optimizer
} // namespace gpipe
GPIPE_CALLS_USERS_END
