#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/registry.hpp>
#include <gpipe/optimizer/one_of.hpp>

#include <string_view>

namespace gpipe::optimizer {

/// Every optimizer of the library by its name, with its default numbers, for a Training with
/// Optimizer<Dynamic>, or with Dynamic::with more:
///
///     using Mine = gpipe::optimizer::Dynamic::with<Lion>;
///     constexpr gpipe::Named<Mine> lion[] = {
///         {"lion", "signs", [](gpipe::Numbers const&) -> Mine { return Lion{}; }}};
///     auto const chosen = gpipe::optimizer::optimizers<Mine>().with(lion).find("lion");
template <class Choice = Dynamic> Registry<Choice> optimizers() {
    constexpr auto made = []<class O>(O) { return +[](Numbers const&) -> Choice { return O{}; }; };
    Named<Choice> const all[] = {
        {"sgd", "stochastic gradient descent", made(SGD{})},
        {"rmsprop", "gradients over the root of their mean square", made(RMSProp{})},
        {"adam", "the same with momentum and bias correction", made(Adam{})},
        {"adamw", "Adam whose weight decay is apart from the gradient", made(AdamW{})}};
    return Registry<Choice>("optimizer", all);
}

/// The optimizer of that name. Throws std::invalid_argument, listing what there is, if there is
/// none.
GPIPE_INLINE Dynamic find_optimizer(std::string_view name) { return optimizers().find(name); }

} // namespace gpipe::optimizer
