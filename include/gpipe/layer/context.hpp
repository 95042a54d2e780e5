#pragma once

#include <gpipe/layer/absent.hpp>
#include <gpipe/layer/given.hpp>
#include <gpipe/layer/random.hpp>
#include <gpipe/layer/skip.hpp>
#include <gpipe/layer/traits.hpp>
#include <gpipe/layer/whole_context.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

namespace detail {

// Whether what is put on such a stream once may run in many steps.
template <class Stream> inline constexpr bool replays = false;
template <class Stream>
    requires(static_cast<bool>(Stream::replays))
inline constexpr bool replays<Stream> = true;

// What forward and backward both may ask for. Contexts depend on a layer's tensors, not on its
// type, so layers with the same tensors (and handles) share them.
template <class Whole, class Stream, class Given, class Skips> class CallContext {
  public:
    using HandleTypes = typename PartsOfGiven<Given>::Handles;
    using ConstantTypes = typename PartsOfGiven<Given>::Constants;
    using Sides = SideTypes<typename PartsOfGiven<Given>::Sides>;
    using SkipTypes = Skips;

    CallContext(Call const& call, Frame const& frame) : call_(call), frame_(frame) {}

    /// The parameters: a TensorView<T const, ...>, Views of them for several.
    auto parameters() const {
        return parameter_views<typename PartsOf<Whole>::Parameters, Access::read>(call_.parameters);
    }
    /// The buffers, as the last step that counted has left them (see LayerTraits::Buffers).
    auto buffers() const {
        using Buffers = typename PartsOf<Whole>::Buffers;
        static_assert(TensorGroup<Buffers>::count > 0, "gpipe: this layer declares no Buffers");
        return tensor_views<Buffers, Access::read>(call_.buffers->buffers);
    }
    /// What replica r tells of this micro-batch (declared as Layer::Exchanged): in training, else
    /// nobody has told anything.
    auto exchanged(std::size_t r) const {
        using Exchanged = typename PartsOf<Whole>::Exchanged;
        static_assert(TensorGroup<Exchanged>::count > 0,
                      "gpipe: this layer declares nothing as Exchanged");
        return tensor_views<Exchanged, Access::read>(call_.buffers->exchange.of(frame_, r));
    }
    /// Of a layer that declares any: how many replicas there are, and which one this is.
    ///@{
    std::size_t replicas() const { return exchange().replicas; }
    std::size_t replica() const { return exchange().replica; }
    ///@}
    /// Samples in this micro-batch, at least 1.
    std::size_t samples() const { return frame_.samples; }
    /// Position of the micro-batch's first sample in the mini-batch.
    std::size_t first_sample() const { return frame_.first_sample; }
    /// Steps trained so far.
    std::uint64_t step() const {
        static_assert(!replays<Stream>,
                      "gpipe: on this device the work of one step is replayed in others, in which "
                      "context.step() would not change: have it read context.state()->step");
        return frame_.shared->step;
    }
    /// Seed and number of the step, to be read by the work on the stream.
    StepState const* state() const { return frame_.shared->state; }
    /// Whether this is no call of a step, but of check_gradients() or profile(), on made up
    /// numbers: who writes anywhere but where the context says does not then.
    bool is_probe() const { return frame_.shared->is_probe; }
    /// Position of the layer in the chain.
    std::size_t layer() const { return call_.index; }
    Phase phase() const { return call_.again ? Phase::recompute : frame_.phase; }
    /// False in evaluate() and predict(): no dropout.
    bool training() const { return frame_.phase != Phase::evaluate; }
    /// The stream that the layer's work goes on.
    Stream const& stream() const { return *static_cast<Stream const*>(frame_.shared->stream); }
    /// For gpipe::handle<H>(context).
    HandleSet const* handles() const { return frame_.shared->handles; }
    /// For gpipe::constant<C>(context).
    StepConstants const& constants() const { return frame_.shared->constants; }
    /// This layer's random numbers in this step, by sample: the same in forward, recompute and
    /// backward. A StepRandom where the work of one step is replayed in others.
    auto random() const {
        if constexpr (replays<Stream>)
            return StepRandom{frame_.shared->state, call_.index, frame_.first_sample};
        else
            return SampleRandom{frame_.shared->seed, frame_.shared->step, call_.index,
                                frame_.first_sample};
    }

    // For gpipe::stash<Tag>(context) and those like it: of skip `at` of the layer, or of its
    // gradient.
    template <class T, Access access> auto skip(std::size_t at) const {
        return as_there<T>(frame_, batch_view<typename ViewsOf<T, access>::Batch>(
                                       call_.skips[at].value.in(frame_), frame_.samples));
    }
    template <class T, Access access> auto skip_gradient(std::size_t at) const {
        return as_there<T>(frame_, batch_view<typename ViewsOf<T, access>::Gradient>(
                                       call_.skips[at].gradient.in(frame_), frame_.samples));
    }
    // For gpipe::side<Tag>(context).
    template <class T> auto side(void const* id) const {
        return as_there<T>(frame_,
                           batch_view<typename ViewsOf<T, Access::read>::Batch>(
                               frame_.shared->sides.of(id, frame_.micro_batch), frame_.samples));
    }

  protected:
    ExchangeMemory const& exchange() const {
        using Parts = PartsOf<Whole>;
        static_assert(TensorGroup<typename Parts::Exchanged>::count +
                              TensorGroup<typename Parts::ExchangedGradient>::count >
                          0,
                      "gpipe: this layer declares nothing as Exchanged or ExchangedGradient, and "
                      "so knows nothing of other replicas");
        return call_.buffers->exchange;
    }
    auto told_gradient(std::size_t r) const {
        using Exchanged = typename PartsOf<Whole>::ExchangedGradient;
        static_assert(TensorGroup<Exchanged>::count > 0,
                      "gpipe: this layer declares nothing as ExchangedGradient");
        return tensor_views<Exchanged, Access::read>(call_.buffers->exchange.gradient_of(r));
    }
    template <class Tensors, Access access> auto views(Place const& place) const {
        static_assert(always_there<as_tensors<Tensors>>() || true); // one error, not two
        return batch_views<Tensors, access>({place.in(frame_)}, frame_.samples,
                                            frame_.shared->capacity);
    }

    Call const& call_;
    Frame const& frame_;
};

} // namespace detail

/// What a layer's forward gets as its first argument.
template <class Whole, class Saved, class Scratch, class Stream, class Given, class Skips>
class ForwardContext : public detail::CallContext<Whole, Stream, Given, Skips> {
  public:
    using detail::CallContext<Whole, Stream, Given, Skips>::CallContext;
    static constexpr Phase role = Phase::forward; ///< what it is for

    /// Where to leave what backward will read (declared as Layer::Saved): a BatchView per tensor.
    auto saved() const {
        return this->template views<Saved, detail::Access::write>(this->call_.saved);
    }
    /// Room for this call only (declared as Layer::Scratch), contents unspecified.
    auto scratch() const {
        return this->template views<Scratch, detail::Access::write>(this->call_.scratch);
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
class ExchangeContext : public detail::CallContext<Whole, Stream, Given, Skips> {
    using Base = detail::CallContext<Whole, Stream, Given, Skips>;

  public:
    using Base::Base;
    static constexpr Phase role = Phase::forward; ///< what it is for

    /// Room for this call only (declared as Layer::Scratch), contents unspecified.
    auto scratch() const {
        return this->template views<Scratch, detail::Access::write>(this->call_.scratch);
    }
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
class BackwardContext : public detail::CallContext<Whole, Stream, Given, Skips> {
  public:
    using detail::CallContext<Whole, Stream, Given, Skips>::CallContext;
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
    /// Room for this call only (declared as Layer::Scratch), contents unspecified.
    auto scratch() const {
        return this->template views<Scratch, detail::Access::write>(this->call_.scratch);
    }
    /// What replica r tells of this micro-batch (declared as Layer::ExchangedGradient).
    auto exchanged_gradient(std::size_t r) const { return this->told_gradient(r); }
};

/// What a layer's input_gradient gets as its first argument.
template <class Whole, class Saved, class Deferred, class Scratch, class Stream, class Given,
          class Skips>
class InputGradientContext : public detail::CallContext<Whole, Stream, Given, Skips> {
  public:
    using detail::CallContext<Whole, Stream, Given, Skips>::CallContext;
    static constexpr Phase role = Phase::input_gradient; ///< what it is for

    /// What forward (or its recomputation) left for this micro-batch.
    auto saved() const {
        return this->template views<Saved, detail::Access::read>(this->call_.saved);
    }
    /// Where to leave what weight_gradient will read (declared as Layer::Deferred).
    auto deferred() const {
        return this->template views<Deferred, detail::Access::write>(this->call_.deferred);
    }
    /// Room for this call only (declared as Layer::Scratch), contents unspecified.
    auto scratch() const {
        return this->template views<Scratch, detail::Access::write>(this->call_.scratch);
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
    /// Room for this call only (declared as Layer::Scratch), contents unspecified.
    auto scratch() const {
        return this->template views<Scratch, detail::Access::write>(this->call_.scratch);
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
