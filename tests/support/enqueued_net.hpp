#pragma once

// The net of net.hpp as a CUDA user writes it, on the double of the CUDA runtime.

#include "enqueued.hpp"
#include "net.hpp"

#include <gpipe/pipeline.hpp>

namespace toy {

template <class L> using WatchedEnqueued = Watched<Enqueued<L>>;
template <class T>
using EnqueuedNet =
    gpipe::Pipeline<WatchedEnqueued<Linear<T, 5, 6>>, WatchedEnqueued<Tanh<T, 6>>,
                    WatchedEnqueued<Saver<T, 6>>, WatchedEnqueued<Tag<T, 6>>,
                    WatchedEnqueued<Carry<T, 6>>, WatchedEnqueued<Untag<T, 6>>,
                    WatchedEnqueued<Square<T, 6>>, WatchedEnqueued<Dropout<T, 6>>,
                    WatchedEnqueued<Scale<T, 6>>, WatchedEnqueued<StrictLinear<T, 6, 3>>>;
template <class T> EnqueuedNet<T> make_enqueued_net(Watch& watch) {
    auto const layer = [&]<class L>(L values) {
        return WatchedEnqueued<L>(watch, Enqueued<L>(values));
    };
    return EnqueuedNet<T>(layer(Linear<T, 5, 6>{}), layer(Tanh<T, 6>{}), layer(Saver<T, 6>{}),
                          layer(Tag<T, 6>{}), layer(Carry<T, 6>{}), layer(Untag<T, 6>{}),
                          layer(Square<T, 6>{}), layer(Dropout<T, 6>{}), layer(Scale<T, 6>{T(1.5)}),
                          layer(StrictLinear<T, 6, 3>{}));
}

} // namespace toy
