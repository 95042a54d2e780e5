#pragma once

#include <gpipe/layer/check.hpp>

namespace gpipe::detail {

// A stream that calls only enqueue on can say whether the last one could.
template <class Stream> void check_call([[maybe_unused]] Frame const& frame) {
    if constexpr (requires(Stream const& stream) { stream.check_launch(); })
        static_cast<Stream const*>(frame.shared->stream)->check_launch();
}

// The functions of a layer behind one signature each: from here on a layer is a row of a table.

template <class L, class Stream>
void forward_thunk(LayerRow const& row, Frame const& frame, GroupAddress x, std::byte* y) {
    ForwardContextOf<L, Stream> context{row, frame};
    static_cast<L const*>(row.layer)->forward(
        context,
        batch_views<typename L::Input, Access::read>(x, frame.samples, frame.shared->capacity),
        batch_views<typename L::Output, Access::write>({y}, frame.samples, frame.shared->capacity));
    check_call<Stream>(frame);
}

// What a half of a layer's backward is called with: what backward_reads says, then `tail`.
template <class L, class Call, class Context, class... Tail>
void call_half(LayerRow const& row, Frame const& frame, GroupAddress x, std::byte* y,
               Tail... tail) {
    constexpr Access read = Access::read;
    constexpr Reads reads = declared_reads<L>;
    std::size_t const n = frame.samples;
    std::size_t const room = frame.shared->capacity;
    Context context{row, frame};
    auto const& layer = *static_cast<L const*>(row.layer);
    if constexpr (reads == Reads::neither)
        Call{}(layer, context, tail...);
    else if constexpr (reads == Reads::input)
        Call{}(layer, context, batch_views<typename L::Input, read>(x, n, room), tail...);
    else if constexpr (reads == Reads::output)
        Call{}(layer, context, batch_views<typename L::Output, read>({y}, n, room), tail...);
    else
        Call{}(layer, context, batch_views<typename L::Input, read>(x, n, room),
               batch_views<typename L::Output, read>({y}, n, room), tail...);
}

template <class L, class Stream, bool wants_input_gradient>
void input_gradient_thunk(LayerRow const& row, Frame const& frame, GroupAddress x, std::byte* y,
                          std::byte* dy, std::byte* dx) {
    constexpr bool leaves_out = !wants_input_gradient && accepts_none<L>;
    using DX = std::conditional_t<leaves_out, void, typename L::Input>;
    call_half<L, CallInputGradient, InputGradientContextOf<L, Stream>>(
        row, frame, x, y,
        gradient_views<typename L::Output, Access::read>(dy, frame.samples, frame.shared->capacity),
        gradient_views<DX, Access::write>(dx, frame.samples, frame.shared->capacity));
    check_call<Stream>(frame);
}

template <class L, class Stream>
void weight_gradient_thunk(LayerRow const& row, Frame const& frame, GroupAddress x, std::byte* y,
                           std::byte* dy, std::byte*) {
    call_half<L, CallWeightGradient, WeightGradientContextOf<L, Stream>>(
        row, frame, x, y,
        gradient_views<typename L::Output, Access::read>(dy, frame.samples,
                                                         frame.shared->capacity));
    check_call<Stream>(frame);
}

// Both halves, one behind the other, of a layer that has no other backward.
template <class L, class Stream, bool wants_input_gradient>
void halves_thunk(LayerRow const& row, Frame const& frame, GroupAddress x, std::byte* y,
                  std::byte* dy, std::byte* dx) {
    if constexpr (wants_input_gradient || LayerTraits<L>::defers)
        input_gradient_thunk<L, Stream, wants_input_gradient>(row, frame, x, y, dy, dx);
    weight_gradient_thunk<L, Stream>(row, frame, x, y, dy, dx);
}

// As few functions as possible between a table's entry and the user's: each costs time to compile
// for every layer type.
template <class L, class Stream, bool wants_input_gradient>
void backward_thunk(LayerRow const& row, Frame const& frame, GroupAddress x, std::byte* y,
                    std::byte* dy, std::byte* dx) {
    constexpr Access read = Access::read;
    constexpr bool leaves_out = !wants_input_gradient && accepts_none<L>;
    constexpr Reads reads = declared_reads<L>;
    using DX = std::conditional_t<leaves_out, void, typename L::Input>;
    std::size_t const n = frame.samples;
    std::size_t const room = frame.shared->capacity;
    BackwardContextOf<L, Stream> context{row, frame};
    auto const& layer = *static_cast<L const*>(row.layer);
    if constexpr (reads == Reads::neither)
        layer.backward(context, gradient_views<typename L::Output, read>(dy, n, room),
                       gradient_views<DX, Access::write>(dx, n, room));
    else if constexpr (reads == Reads::input)
        layer.backward(context, batch_views<typename L::Input, read>(x, n, room),
                       gradient_views<typename L::Output, read>(dy, n, room),
                       gradient_views<DX, Access::write>(dx, n, room));
    else if constexpr (reads == Reads::output)
        layer.backward(context, batch_views<typename L::Output, read>({y}, n, room),
                       gradient_views<typename L::Output, read>(dy, n, room),
                       gradient_views<DX, Access::write>(dx, n, room));
    else
        layer.backward(context, batch_views<typename L::Input, read>(x, n, room),
                       batch_views<typename L::Output, read>({y}, n, room),
                       gradient_views<typename L::Output, read>(dy, n, room),
                       gradient_views<DX, Access::write>(dx, n, room));
    check_call<Stream>(frame);
}

} // namespace gpipe::detail
