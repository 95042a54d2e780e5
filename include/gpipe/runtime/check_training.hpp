#pragma once

#include <gpipe/chain/check_chain.hpp>
#include <gpipe/runtime/chosen_policies.hpp>
#include <gpipe/runtime/training_options.hpp>

#include <concepts>
#include <cstddef>

namespace gpipe {

template <class Net, class... Policies> class Training;

namespace detail {

template <class Net, bool is_pipeline> struct CheckModel {
    static consteval bool ok() {
        static_assert(is_pipeline,
                      "gpipe: the first argument of Training is the model: a gpipe::Pipeline");
        return is_pipeline;
    }
};

// Whether a Training is what it should be; says what is not.
template <class Net, class... Policies> consteval bool check_training() {
    if constexpr (!CheckModel<Net, is_pipeline<Net>>::ok())
        return false;
    else if constexpr (!is_sound<Net>) // has been said
        return false;
    else
        return ChosenPolicies<Net, Policies...>::check();
}

// What a Training is given at construction, and what its type says that it takes.
template <class N, class Net, class F, class Loss, class O, class Optimizer>
inline constexpr bool are_taken =
    std::convertible_to<N, Net>&& std::convertible_to<F, Loss>&& std::convertible_to<O, Optimizer>;
struct Refused {};
template <class Net> struct CheckFour {
    static consteval Refused refuse() {
        static_assert(sizeof(Net) == 0,
                      "gpipe: a Training is given four things, in this order: the Net, the loss, "
                      "the optimizer (with {} as it is) and the Options");
        return {};
    }
};
template <class N, class Net, class F, class Loss, class O, class Optimizer> struct CheckArguments {
    static consteval Refused refuse() {
        static_assert(std::convertible_to<N, Net>,
                      "gpipe: what a Training is given first (N) is not the Net of its type");
        static_assert(std::convertible_to<F, Loss>,
                      "gpipe: what a Training is given second (F) is not the functor of the "
                      "Loss<...> in its type");
        static_assert(std::convertible_to<O, Optimizer>,
                      "gpipe: what a Training is given third (O) is not the functor of the "
                      "Optimizer<...> in its type, which without one is gpipe::SGD");
        return {};
    }
};

// A value that goes with everything.
struct Anything {
    template <class T> constexpr operator T() const { return T(); }
    float& operator[](auto const&) const;
    float& operator()(auto const&...) const;
    friend constexpr bool operator==(Anything, auto const&) { return true; }
    friend constexpr bool operator<(Anything, auto const&) { return true; }
    friend constexpr bool operator<=(Anything, auto const&) { return true; }
    friend constexpr bool operator>(Anything, auto const&) { return true; }
    friend constexpr bool operator>=(Anything, auto const&) { return true; }
};
// What is made of everything, in braces, too.
struct AnyBatch {
    template <class... From> AnyBatch(From&&...) {}
};
// The Options of a Training that joins these, if it could.
template <class Device, class Transport, class Else> struct OptionsFor { using type = Else; };
template <class Device, class Transport, class Else>
    requires requires { typename Transport::template Of<Device>::Options; }
struct OptionsFor<Device, Transport, Else> {
    using type = TrainingOptions<typename Transport::template Of<Device>>;
};
// A Training in which nothing is wrong: of a parameter, so that it is made only where it is wanted.
template <class> struct AnyTraining { using type = Training<Pipeline<AnyLayer>, Loss<AnyLoss>>; };

} // namespace detail

/// @cond
// What a Training with a mistake is, once the sentence about it has been said: it takes and gives
// everything, so that this sentence is the only error, whatever is written with the Training.
template <class Net, class... Policies>
    requires(!detail::check_training<Net, Policies...>())
class Training<Net, Policies...> : public detail::AnyTraining<Net>::type {
    using Base = typename detail::AnyTraining<Net>::type;
    using Anything = detail::Anything;
    template <class Kind, class Default>
    using Chosen = detail::policy_or<Kind, Default, Policies...>;
    template <class Kind, class Default> using Functor = typename Chosen<Kind, Default>::functor;
    using LossFunctor = Functor<policy::Loss, Loss<detail::AnyLoss>>;
    using OptimizerFunctor = Functor<policy::Optimizer, Optimizer<SGD>>;

  public:
    static constexpr Anything layer_count{}, device_count{}, cell_count{}, micro_batch_count{};
    static constexpr Anything first_layers() { return {}; }
    static constexpr Anything bubble(auto const&...) { return {}; }
    static constexpr Anything action_costs(auto const&...) { return {}; }
    static constexpr Anything peak_micro_batches(std::size_t) { return {}; }
    static constexpr Anything peak_bytes(std::size_t, std::size_t) { return {}; }

    using Options = typename detail::OptionsFor<Chosen<policy::Device, device::Host>,
                                                Chosen<policy::Transport, transport::Local>,
                                                typename Base::Options>::type;
    using typename Base::Pending;
    using typename Base::Result;

    template <class N = Net, class F = LossFunctor, class O = OptimizerFunctor>
    Training(N const&, F const&, O const&, Options const&);
    ~Training();
    Result step(detail::AnyBatch, detail::AnyBatch);
    Pending start(detail::AnyBatch, detail::AnyBatch, auto const&...);
    Result compute_gradients(detail::AnyBatch, detail::AnyBatch);
    void accumulate(detail::AnyBatch, detail::AnyBatch, auto const&...);
    Result evaluate(detail::AnyBatch, detail::AnyBatch);
    void predict(detail::AnyBatch, detail::AnyBatch);
    OptimizerFunctor& optimizer();
    OptimizerFunctor const& optimizer() const;
    template <std::size_t> Anything layer() const;
    template <class C> C& constant();
    template <std::size_t> void change_layer(auto const&) {}
    void change_loss(auto const&) {}
    template <std::size_t> Anything parameters();
    template <std::size_t> Anything gradients();
};
/// @endcond

} // namespace gpipe
