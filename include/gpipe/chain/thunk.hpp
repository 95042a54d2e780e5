#pragma once

#include <gpipe/chain/layer_fits.hpp>

namespace gpipe::detail {

// A stream that calls only enqueue on can say whether the last one could.
template <class Stream> void check_call([[maybe_unused]] Frame const& frame) {
    if constexpr (requires(Stream const& stream) { stream.check_launch(); })
        static_cast<Stream const*>(frame.shared->stream)->check_launch();
}

// The functions of a layer behind one signature: from here on a layer is a row of a table.

template <class T, Access access> auto views_in(Frame const& frame, GroupAddress at) {
    return group_as_there<T>(frame,
                             batch_views<T, access>(at, frame.samples, frame.shared->capacity));
}
template <class T, Access access> auto gradients_in(Frame const& frame, Place const& place) {
    return group_as_there<T>(
        frame, gradient_views<T, access>(place.in(frame), frame.samples, frame.shared->capacity));
}

// Adds to a layer's statistics those of one more micro-batch or replica.
template <class L, class Stream>
void merge_thunk(void const* layer, BufferMemory const& memory, void const* stream,
                 std::size_t index) {
    BufferContext<Stream> const context{*static_cast<Stream const*>(stream), index};
    static_cast<L const*>(layer)->merge_statistics(
        context, tensor_views<typename L::Statistics, Access::write>(memory.statistics),
        tensor_views<typename L::Statistics, Access::read>(memory.part));
}

// write(own part), and then the exchange. If that throws it is owed: once the failure is known,
// zeros are told.
template <class Stream, class F>
void exchange_part(Call const& call, Frame const& frame, bool backward, F write) {
    ExchangeMemory const& memory = call.buffers->exchange;
    if (frame.shared->exchange) frame.shared->exchange->owed = true;
    write(memory.own(frame, backward));
    check_call<Stream>(frame);
    memory.all_gather(frame, backward);
}

template <class L, class Stream> void forward_thunk(Call const& call, Frame const& frame) {
    ForwardContextOf<L, Stream> context{call, frame};
    auto const& layer = *static_cast<L const*>(call.layer);
    auto const x = views_in<typename L::Input, Access::read>(frame, call.input(frame));
    if constexpr (exchanges<L>)
        if (call.exchanges && context.training())
            exchange_part<Stream>(call, frame, false, [&](std::byte* part) {
                ExchangeContextOf<L, Stream> telling{call, frame};
                layer.exchange(telling, x,
                               tensor_views<typename L::Exchanged, Access::write>(part));
            });
    layer.forward(context, x,
                  views_in<typename L::Output, Access::write>(frame, {call.y.in(frame)}));
    check_call<Stream>(frame);
}

// What the buffers become, see Kind::next_buffers.
template <class L, class Stream>
void buffers_thunk(void const* layer, BufferMemory const& memory, void const* stream,
                   std::size_t index) {
    Stream const& on = *static_cast<Stream const*>(stream);
    BufferContext<Stream> const context{on, index};
    static_cast<L const*>(layer)->update_buffers(
        context, tensor_views<typename StatisticsOf<L>::type, Access::read>(memory.statistics),
        tensor_views<typename L::Buffers, Access::write>(memory.next));
    if constexpr (requires { on.check_launch(); }) on.check_launch();
}

// What a half of a layer's backward is called with: what backward_reads says, then `tail`.
template <class L, class Half, class Context, class... Tail>
void call_half(Call const& call, Frame const& frame, Tail... tail) {
    constexpr Access read = Access::read;
    constexpr Reads reads = declared_reads<L>;
    Context context{call, frame};
    auto const& layer = *static_cast<L const*>(call.layer);
    if constexpr (reads == Reads::neither)
        Half{}(layer, context, tail...);
    else if constexpr (reads == Reads::input)
        Half{}(layer, context, views_in<typename L::Input, read>(frame, call.input(frame)),
               tail...);
    else if constexpr (reads == Reads::output)
        Half{}(layer, context, views_in<typename L::Output, read>(frame, {call.y.in(frame)}),
               tail...);
    else
        Half{}(layer, context, views_in<typename L::Input, read>(frame, call.input(frame)),
               views_in<typename L::Output, read>(frame, {call.y.in(frame)}), tail...);
}

// What replicas tell each other before a backward, if anything.
template <class L, class Stream>
void exchange_gradient([[maybe_unused]] Call const& call, [[maybe_unused]] Frame const& frame) {
    if constexpr (exchanges_gradient<L>)
        if (call.exchanges)
            exchange_part<Stream>(call, frame, true, [&](std::byte* part) {
                call_half<L, CallExchangeGradient, BackwardContextOf<L, Stream>>(
                    call, frame, gradients_in<typename L::Output, Access::read>(frame, call.dy),
                    tensor_views<typename L::ExchangedGradient, Access::write>(part));
            });
}

template <class L, class Stream, bool wants_input_gradient>
void call_input_gradient(Call const& call, Frame const& frame) {
    constexpr bool leaves_out = !wants_input_gradient && accepts_none<L>;
    using DX = std::conditional_t<leaves_out, void, typename L::Input>;
    call_half<L, CallInputGradient, InputGradientContextOf<L, Stream>>(
        call, frame, gradients_in<typename L::Output, Access::read>(frame, call.dy),
        gradients_in<DX, Access::write>(frame, call.dx));
    check_call<Stream>(frame);
}
template <class L, class Stream, bool wants_input_gradient>
void input_gradient_thunk(Call const& call, Frame const& frame) {
    exchange_gradient<L, Stream>(call, frame);
    call_input_gradient<L, Stream, wants_input_gradient>(call, frame);
}

template <class L, class Stream> void weight_gradient_thunk(Call const& call, Frame const& frame) {
    call_half<L, CallWeightGradient, WeightGradientContextOf<L, Stream>>(
        call, frame, gradients_in<typename L::Output, Access::read>(frame, call.dy));
    check_call<Stream>(frame);
}

// Both halves, one behind the other, of a layer that has no other backward.
template <class L, class Stream, bool wants_input_gradient>
void halves_thunk(Call const& call, Frame const& frame) {
    exchange_gradient<L, Stream>(call, frame);
    if constexpr (wants_input_gradient || LayerTraits<L>::defers)
        call_input_gradient<L, Stream, wants_input_gradient>(call, frame);
    weight_gradient_thunk<L, Stream>(call, frame);
}

// As few functions as possible between a table's entry and the user's: each costs time to compile
// for every layer type.
template <class L, class Stream, bool wants_input_gradient>
void backward_thunk(Call const& call, Frame const& frame) {
    constexpr Access read = Access::read;
    constexpr bool leaves_out = !wants_input_gradient && accepts_none<L>;
    constexpr Reads reads = declared_reads<L>;
    using DX = std::conditional_t<leaves_out, void, typename L::Input>;
    exchange_gradient<L, Stream>(call, frame);
    BackwardContextOf<L, Stream> context{call, frame};
    auto const& layer = *static_cast<L const*>(call.layer);
    auto const dy = gradients_in<typename L::Output, read>(frame, call.dy);
    auto const dx = gradients_in<DX, Access::write>(frame, call.dx);
    if constexpr (reads == Reads::neither)
        layer.backward(context, dy, dx);
    else if constexpr (reads == Reads::input)
        layer.backward(context, views_in<typename L::Input, read>(frame, call.input(frame)), dy,
                       dx);
    else if constexpr (reads == Reads::output)
        layer.backward(context, views_in<typename L::Output, read>(frame, {call.y.in(frame)}), dy,
                       dx);
    else
        layer.backward(context, views_in<typename L::Input, read>(frame, call.input(frame)),
                       views_in<typename L::Output, read>(frame, {call.y.in(frame)}), dy, dx);
    check_call<Stream>(frame);
}

} // namespace gpipe::detail
