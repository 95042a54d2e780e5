#pragma once

#include <gpipe/layer/context.hpp>

namespace gpipe {

/// Where a layer's forward leaves the tensor that it stashes under Tag: a BatchView.
template <class Tag, class Context> auto stash(Context const& context) {
    using Which = typename Context::SkipTypes::template Stash<Tag>;
    static_assert(Which::found, "gpipe: who works with gpipe::stash<Tag>(context) must declare it: "
                                "using Stash = gpipe::Skip<Tag, gpipe::Tensor<...>>");
    static_assert(Context::role == Phase::forward,
                  "gpipe: a layer stashes in its forward; a backward reads "
                  "gpipe::stash_gradient<Tag>(context)");
    if constexpr (Which::found)
        return context.template skip<typename Which::Tensor, detail::Access::write>(Which::at());
}

/// The tensor that a layer pops under Tag, as an earlier one has stashed it: a BatchView of const
/// elements. In its backward, too, unless `static constexpr bool backward_reads_pops = false` says
/// that this reads none; it is then not kept.
template <class Tag, class Context> auto pop(Context const& context) {
    using Skips = typename Context::SkipTypes;
    using Which = typename Skips::template Pop<Tag>;
    static_assert(Which::found, "gpipe: who works with gpipe::pop<Tag>(context) must declare it: "
                                "using Pop = gpipe::Skip<Tag, gpipe::Tensor<...>>");
    static_assert(Skips::reads || Context::role == Phase::forward,
                  "gpipe: a layer whose backward_reads_pops is false pops in its forward only");
    if constexpr (Which::found)
        return context.template skip<typename Which::Tensor, detail::Access::read>(Skips::stashes +
                                                                                   Which::at());
}

/// The gradient of the tensor that a layer has stashed under Tag, for its backward (or both halves
/// of it) to add to what it passes on: a BatchView of const elements; None of a tensor that carries
/// no gradient.
template <class Tag, class Context> auto stash_gradient(Context const& context) {
    using Which = typename Context::SkipTypes::template Stash<Tag>;
    static_assert(Which::found,
                  "gpipe: who works with gpipe::stash_gradient<Tag>(context) must declare it: "
                  "using Stash = gpipe::Skip<Tag, gpipe::Tensor<...>>");
    static_assert(Context::role != Phase::forward,
                  "gpipe: a forward knows no gradient: it writes gpipe::stash<Tag>(context)");
    if constexpr (Which::found)
        return context.template skip_gradient<typename Which::Tensor, detail::Access::read>(
            Which::at());
}

/// Where a layer's backward (of halves the first) leaves the gradient of what it has popped under
/// Tag; it must write that. A BatchView; None of a tensor that carries no gradient.
template <class Tag, class Context> auto pop_gradient(Context const& context) {
    using Skips = typename Context::SkipTypes;
    using Which = typename Skips::template Pop<Tag>;
    static_assert(Which::found,
                  "gpipe: who works with gpipe::pop_gradient<Tag>(context) must declare it: using "
                  "Pop = gpipe::Skip<Tag, gpipe::Tensor<...>>");
    static_assert(Context::role == Phase::backward || Context::role == Phase::input_gradient,
                  "gpipe: the gradient of what was popped is written by backward, or its half "
                  "input_gradient");
    if constexpr (Which::found)
        return context.template skip_gradient<typename Which::Tensor, detail::Access::write>(
            Skips::stashes + Which::at());
}

} // namespace gpipe
