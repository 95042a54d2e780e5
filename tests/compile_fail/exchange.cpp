// expect GPIPE_REPLICAS_OF_NOTHING: gpipe: this layer declares nothing as Exchanged or ExchangedGradient
// expect GPIPE_REPLICAS_OF_NOTHING: and so knows nothing of other replicas
// expect GPIPE_EXCHANGED_OF_NOTHING: gpipe: this layer declares nothing as Exchanged
// expect GPIPE_GRADIENT_OF_NOTHING: gpipe: this layer declares nothing as ExchangedGradient
// expect GPIPE_EXCHANGE_STASHES: gpipe: a layer stashes in its forward, which may run again; its exchange does not
#include <gpipe/chain/thunk.hpp>
#include <gpipe/layer/stash.hpp>
#include <support/blank_layers.hpp>

struct Stream {};
struct Tag;

// The control: it asks for what it declares, and stashes in its forward.
struct Asks : blank::Map<4> {
    using Stash = gpipe::Skip<Tag, gpipe::Tensor<float, 4>>;
#ifndef GPIPE_REPLICAS_OF_NOTHING
#ifndef GPIPE_EXCHANGED_OF_NOTHING
    using Exchanged = gpipe::Tensor<float>;
#endif
#ifndef GPIPE_GRADIENT_OF_NOTHING
    using ExchangedGradient = gpipe::Tensor<float>;
#endif
#endif
    void exchange([[maybe_unused]] auto& context, auto, auto) const {
#ifdef GPIPE_EXCHANGE_STASHES
        static_cast<void>(gpipe::stash<Tag>(context));
#endif
    }
    void exchange_gradient(auto&, auto, auto, auto) const {}
    void forward(auto& context, auto, auto) const {
        static_cast<void>(gpipe::stash<Tag>(context));
        static_cast<void>(context.replicas());
#ifndef GPIPE_REPLICAS_OF_NOTHING
        static_cast<void>(context.exchanged(0));
#endif
    }
    void backward([[maybe_unused]] auto& context, auto, auto, auto) const {
#ifndef GPIPE_REPLICAS_OF_NOTHING
        static_cast<void>(context.exchanged_gradient(0));
#endif
    }
};
template void gpipe::detail::forward_thunk<Asks, Stream>(gpipe::Call const&, gpipe::Frame const&);
template void gpipe::detail::backward_thunk<Asks, Stream, true>(gpipe::Call const&,
                                                                gpipe::Frame const&);
