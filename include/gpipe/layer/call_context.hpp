#pragma once

#include <gpipe/layer/absent.hpp>
#include <gpipe/layer/given.hpp>
#include <gpipe/layer/random.hpp>
#include <gpipe/layer/skip.hpp>
#include <gpipe/layer/traits.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

namespace detail {

// Whether what is put on such a stream once may run in many steps.
template <class Stream> inline constexpr bool replays = requires {
    requires static_cast<bool>(Stream::replays);
};

} // namespace detail

/// What a layer's forward and backward both may ask their first argument for. Contexts depend on a
/// layer's tensors, not on its type, so layers with the same tensors (and handles) share them.
template <class Whole, class Scratch, class Stream, class Given, class Skips> class CallContext {
  public:
    /// What the layer declares under these names.
    ///@{
    using HandleTypes = typename detail::PartsOfGiven<Given>::Handles;
    using ConstantTypes = typename detail::PartsOfGiven<Given>::Constants;
    using Sides = detail::SideTypes<typename detail::PartsOfGiven<Given>::Sides>;
    using SkipTypes = Skips;
    ///@}

    /// Of a call.
    CallContext(Call const& call, Frame const& frame) : call_(call), frame_(frame) {}

    /// The parameters: a TensorView<T const, ...>, Views of them for several.
    auto parameters() const {
        return parameter_views<typename detail::PartsOf<Whole>::Parameters, detail::Access::read>(
            call_.parameters);
    }
    /// The buffers, as the last step that counted has left them (see LayerTraits::Buffers).
    auto buffers() const {
        using Buffers = typename detail::PartsOf<Whole>::Buffers;
        static_assert(TensorGroup<Buffers>::count > 0, "gpipe: this layer declares no Buffers");
        return tensor_views<Buffers, detail::Access::read>(call_.buffers->buffers);
    }
    /// What replica r tells of this micro-batch (declared as Layer::Exchanged): in training, else
    /// nobody has told anything.
    auto exchanged(std::size_t r) const {
        using Exchanged = typename detail::PartsOf<Whole>::Exchanged;
        static_assert(TensorGroup<Exchanged>::count > 0,
                      "gpipe: this layer declares nothing as Exchanged");
        return tensor_views<Exchanged, detail::Access::read>(call_.buffers->exchange.of(frame_, r));
    }
    /// Of a layer that declares any: how many replicas there are, and which one this is.
    ///@{
    std::size_t replicas() const { return exchange().replicas; }
    std::size_t replica() const { return exchange().replica; }
    ///@}
    /// Room for this call only (declared as Layer::Scratch), contents unspecified.
    auto scratch() const { return views<Scratch, detail::Access::write>(call_.scratch); }
    /// Samples in this micro-batch, at least 1.
    std::size_t samples() const { return frame_.samples; }
    /// The most that a micro-batch may have here.
    std::size_t most_samples() const { return frame_.shared->capacity - frame_.shared->spare; }
    /// Position of the micro-batch's first sample in the mini-batch.
    std::size_t first_sample() const { return frame_.first_sample; }
    /// Steps trained so far.
    std::uint64_t step() const {
        static_assert(!detail::replays<Stream>,
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
    /// What this call is for.
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
        if constexpr (detail::replays<Stream>)
            return StepRandom{frame_.shared->state, call_.index, frame_.first_sample};
        else
            return SampleRandom{frame_.shared->seed, frame_.shared->step, call_.index,
                                frame_.first_sample};
    }

    /// For gpipe::stash<Tag>(context) and those like it: of skip `at` of the layer, or of its
    /// gradient.
    ///@{
    template <class T, detail::Access access> auto skip(std::size_t at) const {
        return detail::as_there<T>(frame_,
                                   detail::batch_view<typename detail::ViewsOf<T, access>::Batch>(
                                       call_.skips[at].value.in(frame_), frame_.samples));
    }
    template <class T, detail::Access access> auto skip_gradient(std::size_t at) const {
        return detail::as_there<T>(
            frame_, detail::batch_view<typename detail::ViewsOf<T, access>::Gradient>(
                        call_.skips[at].gradient.in(frame_), frame_.samples));
    }
    ///@}
    /// For gpipe::side<Tag>(context).
    template <class T> auto side(void const* id) const {
        return detail::as_there<T>(
            frame_, detail::batch_view<typename detail::ViewsOf<T, detail::Access::read>::Batch>(
                        frame_.shared->sides.of(id, frame_.micro_batch), frame_.samples));
    }

  protected:
    /// @cond
    ExchangeMemory const& exchange() const {
        using Parts = detail::PartsOf<Whole>;
        static_assert(TensorGroup<typename Parts::Exchanged>::count +
                              TensorGroup<typename Parts::ExchangedGradient>::count >
                          0,
                      "gpipe: this layer declares nothing as Exchanged or ExchangedGradient, and "
                      "so knows nothing of other replicas");
        return call_.buffers->exchange;
    }
    auto told_gradient(std::size_t r) const {
        using Exchanged = typename detail::PartsOf<Whole>::ExchangedGradient;
        static_assert(TensorGroup<Exchanged>::count > 0,
                      "gpipe: this layer declares nothing as ExchangedGradient");
        return tensor_views<Exchanged, detail::Access::read>(
            call_.buffers->exchange.gradient_of(r));
    }
    template <class Tensors, detail::Access access> auto views(Place const& place) const {
        // One error, not two.
        static_assert(detail::always_there<detail::as_tensors<Tensors>>() || true);
        return batch_views<Tensors, access>({place.in(frame_)}, frame_.samples,
                                            frame_.shared->capacity);
    }

    Call const& call_;
    Frame const& frame_;
    /// @endcond
};

} // namespace gpipe
