#pragma once

#include <gpipe/layer/check.hpp>

namespace gpipe::detail {

// The two functions of a layer behind one signature each: from here on a layer is a row of a table.

template <class L, class Stream>
void forward_thunk(LayerRow const& row, Frame const& frame, GroupAddress x, std::byte* y) {
    ForwardContextOf<L, Stream> context{row, frame};
    static_cast<L const*>(row.layer)->forward(
        context, batch_views<typename L::Input, Access::read>(x, frame.samples, frame.capacity),
        batch_views<typename L::Output, Access::write>({y}, frame.samples, frame.capacity));
}

template <class L, class Stream, bool wants_input_gradient>
void backward_thunk(LayerRow const& row, Frame const& frame, GroupAddress x, std::byte* y,
                    std::byte* dy, std::byte* dx) {
    BackwardContextOf<L, Stream> context{row, frame};
    auto const input_gradient = [&] {
        if constexpr (!wants_input_gradient && accepts_none<L>)
            return None{};
        else
            return gradient_views<typename L::Input, Access::write>(dx, frame.samples,
                                                                    frame.capacity);
    }();
    call_backward(
        *static_cast<L const*>(row.layer), context,
        batch_views<typename L::Input, Access::read>(x, frame.samples, frame.capacity),
        batch_views<typename L::Output, Access::read>({y}, frame.samples, frame.capacity),
        gradient_views<typename L::Output, Access::read>(dy, frame.samples, frame.capacity),
        input_gradient);
}

} // namespace gpipe::detail
