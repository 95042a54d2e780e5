#pragma once

#include <gpipe/chain/layer_fits.hpp>
#include <gpipe/layer/loss.hpp>

#include <cstddef>
#include <type_traits>

namespace gpipe {

namespace detail {

template <class T> inline constexpr bool is_loss_value = false;
template <std::size_t n> inline constexpr bool is_loss_value<LossValue<n>> = true;

template <class Loss>
concept NamesTarget = requires {
    typename Loss::Target;
}
&&is_tensors<typename Loss::Target>;

// Output: the tensors that the last layer gives.
template <class Output> using OutputGradientOf = GradientViews<Output, Access::write>;

template <class Loss, class Output, class DY>
using LossResult = std::invoke_result_t<Loss const&, LossContext<Loss, AnyStream>&,
                                        BatchViews<Output, Access::read>,
                                        BatchViews<typename Loss::Target, Access::read>, DY>;

template <class Loss, class Output, class DY> consteval bool measures() {
    if constexpr (requires { typename LossResult<Loss, Output, DY>; })
        return is_loss_value<LossResult<Loss, Output, DY>> ||
               std::is_void_v<LossResult<Loss, Output, DY>>;
    else
        return false;
}

template <class Loss, class Output> consteval bool loss_fits() {
    if constexpr (!measures<Loss, Output, OutputGradientOf<Output>>())
        return false;
    else if constexpr (accepts_none<Loss>)
        return measures<Loss, Output, None>();
    else
        return true;
}
// Whether what is declared are constants.
template <class Loss> consteval bool loss_numbers_fit() {
    if constexpr (requires { Loss::accepts_none; })
        if constexpr (!requires { typename std::bool_constant<Loss::accepts_none>; }) return false;
    if constexpr (requires { Loss::metrics; }) return requires {
            typename std::enable_if_t<(Loss::metrics >= 0)>;
        };
    return true;
}
// How many metrics a loss returns; of one that returns nothing as many as it declares.
template <class Result, class Loss>
inline constexpr std::size_t metrics_of = declared_metrics<Loss>;
template <std::size_t n, class Loss>
inline constexpr std::size_t metrics_of<LossValue<n>, Loss> = n;
template <class Loss, class Output> consteval bool metrics_fit() {
    constexpr std::size_t n = metrics_of<LossResult<Loss, Output, OutputGradientOf<Output>>, Loss>;
    if constexpr (requires { Loss::metrics; })
        if (n != declared_metrics<Loss>) return false;
    if constexpr (accepts_none<Loss>)
        return metrics_of<LossResult<Loss, Output, None>, Loss> == n;
    else
        return true;
}

// Whether it can be called, const or not, whatever it returns.
template <class Loss, class Output, class DY = OutputGradientOf<Output>>
concept CallsLoss = std::is_invocable_v < Loss&,
        LossContext<Loss, AnyStream>
&, BatchViews<Output, Access::read>, BatchViews<typename Loss::Target, Access::read>, DY > ;

// What is wrong with a loss: the first of these.
enum class LossFault {
    none,
    no_target,
    numbers,
    metrics,
    not_const,
    returns,
    refuses_none,
    arguments,
    constants
};
template <class Loss, class Output> consteval LossFault loss_fault() {
    if constexpr (!NamesTarget<Loss>)
        return LossFault::no_target;
    else if constexpr (!loss_numbers_fit<Loss>())
        return LossFault::numbers;
    else if constexpr (!constants_fit<Loss>())
        return LossFault::constants;
    else if constexpr (loss_fits<Loss, Output>())
        return metrics_fit<Loss, Output>() ? LossFault::none : LossFault::metrics;
    else if constexpr (measures<Loss, Output, OutputGradientOf<Output>>())
        return LossFault::refuses_none;
    else if constexpr (CallsLoss<Loss const, Output>)
        return LossFault::returns;
    else if constexpr (CallsLoss<Loss, Output>)
        return LossFault::not_const;
    else
        return LossFault::arguments;
}

} // namespace detail

/// What a type must offer to be the loss of a chain; Net is the Pipeline.
template <class L, class Net, class Output = typename Net::Output> struct CheckLoss {
    static consteval bool ok() {
        using detail::LossFault;
        constexpr LossFault fault = detail::loss_fault<L, Output>();
        static_assert(fault != LossFault::no_target,
                      "gpipe: a loss must name its target: using Target = gpipe::Tensor<...>, the "
                      "shape of one sample");
        static_assert(fault != LossFault::numbers,
                      "gpipe: what the loss (L) says by accepts_none is a static constexpr bool, "
                      "by metrics a static constexpr std::size_t");
        static_assert(fault != LossFault::metrics,
                      "gpipe: the loss (L) returns a gpipe::LossValue<n> of another n than it "
                      "declares as metrics, or without dy of another n than with it");
        static_assert(fault != LossFault::not_const,
                      "gpipe: the operator() of the loss (L) is not const: gpipe::LossValue<n> "
                      "operator()(auto& context, auto y, auto target, auto dy) const");
        static_assert(fault != LossFault::returns,
                      "gpipe: the loss (L) returns something else than a gpipe::LossValue<n>: "
                      "gpipe::LossValue<n> operator()(auto& context, auto y, auto target, auto dy) "
                      "const");
        static_assert(fault != LossFault::refuses_none,
                      "gpipe: the loss (L) declares accepts_none, but does not take gpipe::none "
                      "for dy");
        static_assert(fault != LossFault::arguments,
                      "gpipe: the loss (L) takes other arguments: gpipe::LossValue<n> "
                      "operator()(auto& context, auto y, auto target, auto dy) const; y and dy "
                      "have the shape of the last layer's output, Output");
        static_assert(fault != LossFault::constants,
                      "gpipe: what the loss (L) calls Constants must be a class, or "
                      "gpipe::Constants<...> of several, each trivially copyable and default "
                      "constructible");
        return fault == LossFault::none;
    }
};

} // namespace gpipe
