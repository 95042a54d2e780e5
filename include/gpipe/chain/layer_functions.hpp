#pragma once

#include <gpipe/chain/handle_table.hpp>
#include <gpipe/chain/thunk.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// The functions of one layer type as the engine needs them, for one kind of stream.
struct LayerFunctions {
    CallFunction forward = nullptr;         ///< in training and in evaluation
    CallFunction backward = nullptr;        ///< writes the gradient of its input
    CallFunction lowest_backward = nullptr; ///< where nobody wants that gradient
    /// The halves; of a layer that has none, its backward and nothing.
    CallFunction input_gradient = nullptr;
    CallFunction lowest_input_gradient = nullptr; ///< null if it leaves nothing behind
    CallFunction weight_gradient = nullptr;       ///< the second half
    /// Writes the parameters and buffers of layer `index` of `layers`.
    void (*initialize)(void const* layer, std::byte* parameters, std::byte* buffers,
                       std::uint64_t seed, std::size_t index, std::size_t layers) = nullptr;
    /// What the buffers become at the end of a mini-batch; null if there are none.
    BufferFunction update_buffers = nullptr;
    /// Adds `part` to the statistics; null if there are none.
    BufferFunction merge_statistics = nullptr;
    HandleSpecs handles; ///< that the layer declares
};

namespace detail {

template <class L>
[[gnu::cold]] void initialize_thunk(void const* layer, std::byte* parameters, std::byte* buffers,
                                    std::uint64_t seed, std::size_t index, std::size_t layers) {
    if constexpr (initializes<L>) {
        InitializeContextOf<L> context{parameters, buffers, seed, index, layers};
        static_cast<L const*>(layer)->initialize(context);
    }
}

template <class L, class Stream> constexpr LayerFunctions layer_functions() {
    LayerFunctions functions;
    functions.forward = &forward_thunk<L, Stream>;
    functions.initialize = &initialize_thunk<L>;
    functions.handles = handle_specs<L, Stream>();
    if constexpr (has_buffers<L>) functions.update_buffers = &buffers_thunk<L, Stream>;
    if constexpr (gathers<L>) functions.merge_statistics = &merge_thunk<L, Stream>;
    if constexpr (TensorGroup<typename L::Output>::carries_gradient && !only_evaluates<L>) {
        constexpr bool unwanted = !accepts_none<L>; // it has to write that all the same
        if constexpr (!splits_backward<L> || names_backward<L>) {
            functions.backward = &backward_thunk<L, Stream, true>;
            functions.lowest_backward = &backward_thunk<L, Stream, unwanted>;
        } else {
            functions.backward = &halves_thunk<L, Stream, true>;
            functions.lowest_backward = &halves_thunk<L, Stream, false>;
        }
        if constexpr (splits_backward<L>) {
            functions.input_gradient = &input_gradient_thunk<L, Stream, true>;
            if constexpr (LayerTraits<L>::defers)
                functions.lowest_input_gradient = &input_gradient_thunk<L, Stream, unwanted>;
            functions.weight_gradient = &weight_gradient_thunk<L, Stream>;
        } else {
            functions.input_gradient = functions.backward;
            functions.lowest_input_gradient = functions.lowest_backward;
        }
    }
    return functions;
}

} // namespace detail
} // namespace gpipe
