#pragma once

#include <gpipe/layer/call_context.hpp>
#include <gpipe/layer/whole_context.hpp>

#include <cstddef>

namespace gpipe {

/// What a layer's forward gets as its first argument.
template <class Whole, class Saved, class Scratch, class Stream, class Given, class Skips>
class ForwardContext : public CallContext<Whole, Scratch, Stream, Given, Skips> {
  public:
    using CallContext<Whole, Scratch, Stream, Given, Skips>::CallContext;
    static constexpr Phase role = Phase::forward; ///< what it is for

    /// Where to leave what backward will read (declared as Layer::Saved): a BatchView per tensor.
    auto saved() const {
        return this->template views<Saved, detail::Access::write>(this->call_.saved);
    }
    /// False where no backward will read what this call saves: in evaluation, and where a
    /// recomputation will run before the backward. Filling saved() may then be left out.
    bool saving() const { return this->call_.saving; }
    /// Where to leave what there is to say of this micro-batch (declared as Layer::Statistics).
    auto statistics() const {
        using Statistics = typename detail::PartsOf<Whole>::Statistics;
        static_assert(TensorGroup<Statistics>::count > 0,
                      "gpipe: this layer declares no Statistics");
        return tensor_views<Statistics, detail::Access::write>(
            this->call_.buffers->part_of(this->frame_));
    }
    /// False where nobody will merge that: in evaluation and recomputation. Filling statistics()
    /// may then be left out.
    bool gathering() const { return this->frame_.phase == Phase::forward; }
};

/// What a layer's exchange gets as its first argument. It runs once of each micro-batch: what a
/// forward leaves beside its output, and leaves again when it is run again, is not for here.
template <class Whole, class Scratch, class Stream, class Given, class Skips>
class ExchangeContext : public CallContext<Whole, Scratch, Stream, Given, Skips> {
    using Base = CallContext<Whole, Scratch, Stream, Given, Skips>;

  public:
    using Base::Base;
    static constexpr Phase role = Phase::forward; ///< what it is for

    /// Nobody has told anything yet.
    void exchanged(std::size_t r) const = delete;

    /// For gpipe::pop<Tag>(context): what is popped may be read.
    template <class T, detail::Access access> auto skip(std::size_t at) const {
        static_assert(access == detail::Access::read,
                      "gpipe: a layer stashes in its forward, which may run again; its exchange "
                      "does not");
        return Base::template skip<T, access>(at);
    }
};

/// What a layer's backward gets as its first argument.
template <class Whole, class Saved, class Scratch, class Stream, class Given, class Skips>
class BackwardContext : public CallContext<Whole, Scratch, Stream, Given, Skips> {
  public:
    using CallContext<Whole, Scratch, Stream, Given, Skips>::CallContext;
    static constexpr Phase role = Phase::backward; ///< what it is for

    /// The gradients of the parameters, to be added to.
    auto gradients() const {
        return parameter_views<typename detail::PartsOf<Whole>::Parameters, detail::Access::write>(
            this->call_.gradients);
    }
    /// Whether anybody wants that of parameter tensor `tensor`: see gpipe::frozen_tensors.
    bool wants_gradient(std::size_t tensor) const {
        return tensor > 63 || (this->call_.unwanted >> tensor & 1) == 0;
    }
    /// What forward (or its recomputation) left for this micro-batch.
    auto saved() const {
        return this->template views<Saved, detail::Access::read>(this->call_.saved);
    }
    /// What replica r tells of this micro-batch (declared as Layer::ExchangedGradient).
    auto exchanged_gradient(std::size_t r) const { return this->told_gradient(r); }
};

/// What a layer's input_gradient gets as its first argument.
template <class Whole, class Saved, class Deferred, class Scratch, class Stream, class Given,
          class Skips>
class InputGradientContext : public CallContext<Whole, Scratch, Stream, Given, Skips> {
  public:
    using CallContext<Whole, Scratch, Stream, Given, Skips>::CallContext;
    static constexpr Phase role = Phase::input_gradient; ///< what it is for

    /// What forward (or its recomputation) left for this micro-batch.
    auto saved() const {
        return this->template views<Saved, detail::Access::read>(this->call_.saved);
    }
    /// Where to leave what weight_gradient will read (declared as Layer::Deferred).
    auto deferred() const {
        return this->template views<Deferred, detail::Access::write>(this->call_.deferred);
    }
    /// What replica r tells of this micro-batch (declared as Layer::ExchangedGradient).
    auto exchanged_gradient(std::size_t r) const { return this->told_gradient(r); }
};

/// What a layer's weight_gradient gets as its first argument.
template <class Whole, class Saved, class Deferred, class Scratch, class Stream, class Given,
          class Skips>
class WeightGradientContext : public BackwardContext<Whole, Saved, Scratch, Stream, Given, Skips> {
  public:
    using BackwardContext<Whole, Saved, Scratch, Stream, Given, Skips>::BackwardContext;
    static constexpr Phase role = Phase::weight_gradient; ///< what it is for

    /// What input_gradient left for this micro-batch.
    auto deferred() const {
        return this->template views<Deferred, detail::Access::read>(this->call_.deferred);
    }
    /// Is gone by then: leave in deferred() what is needed.
    void exchanged_gradient(std::size_t r) const = delete;
};

namespace detail {

template <class L, class Stream>
using ForwardContextOf =
    ForwardContext<typename WholeOf<L>::type, typename SavedOf<L>::type,
                   typename ScratchOf<L>::type, Stream, given_of<L>, skips_of<L>>;
template <class L, class Stream>
using ExchangeContextOf = ExchangeContext<typename WholeOf<L>::type, typename ScratchOf<L>::type,
                                          Stream, given_of<L>, skips_of<L>>;
template <class L, class Stream>
using BackwardContextOf =
    BackwardContext<typename WholeOf<L>::type, typename SavedOf<L>::type,
                    typename ScratchOf<L>::type, Stream, given_of<L>, skips_of<L>>;
template <class L, class Stream>
using InputGradientContextOf =
    InputGradientContext<typename WholeOf<L>::type, typename SavedOf<L>::type,
                         typename DeferredOf<L>::type, typename ScratchOf<L>::type, Stream,
                         given_of<L>, skips_of<L>>;
template <class L, class Stream>
using WeightGradientContextOf =
    WeightGradientContext<typename WholeOf<L>::type, typename SavedOf<L>::type,
                          typename DeferredOf<L>::type, typename ScratchOf<L>::type, Stream,
                          given_of<L>, skips_of<L>>;

} // namespace detail

} // namespace gpipe
