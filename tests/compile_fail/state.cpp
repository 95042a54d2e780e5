// What a layer says of its parameters for saved states.
// expect GPIPE_PARAMETER_WITHOUT_NAME: gpipe: parameter_names of this layer must have one name for each
// expect GPIPE_SAME_NAMES: gpipe: parameter_names of this layer must differ, and have letters
// expect GPIPE_NAME_LIKE_A_PATTERN: gpipe: parameter_names of this layer must differ, and have letters
// expect GPIPE_BUFFER_WITHOUT_NAME: gpipe: buffer_names of this layer must have one name for each of its buffers
// expect GPIPE_ONE_NAME: gpipe: a parameter and a buffer of this layer have one name
// expect GPIPE_NAMED_LIKE_A_BUFFER: gpipe: a parameter and a buffer of this layer have one name
// expect GPIPE_NAMED_LIKE_A_PARAMETER: gpipe: a parameter and a buffer of this layer have one name
// expect GPIPE_UNKNOWN_ELEMENTS: gpipe: a parameter or buffer has elements of a type that files do not know
// expect GPIPE_ONE_TEXT: gpipe: parameter_names of this layer must be a constant array: static constexpr char const. parameter_names\[\]
// expect GPIPE_NAMES_IN_OBJECT: gpipe: parameter_names of this layer must be a constant array
// expect GPIPE_BUFFER_NAMES_CHANGE: gpipe: buffer_names of this layer must be a constant array
#include <gpipe/state/layer_state.hpp>
#include <support/blank_layers.hpp>

#include <type_traits>

struct Brief {
    short bits;
    Brief(float);
    explicit operator float() const;
};
template <> struct gpipe::CarriesGradient<Brief> : std::true_type {};
#ifndef GPIPE_UNKNOWN_ELEMENTS
template <> struct gpipe::DtypeOf<Brief> : std::integral_constant<gpipe::Dtype, Dtype::BF16> {};
#endif

struct Layer : blank::Linear<4> {
    using Parameters = gpipe::Tensors<gpipe::Tensor<Brief, 4, 4>, gpipe::Tensor<float, 4>>;
#if defined GPIPE_PARAMETER_WITHOUT_NAME
    static constexpr char const* parameter_names[] = {"weight"};
#elif defined GPIPE_SAME_NAMES
    static constexpr char const* parameter_names[] = {"weight", "weight"};
#elif defined GPIPE_NAME_LIKE_A_PATTERN
    static constexpr char const* parameter_names[] = {"weight", "b*"};
#elif defined GPIPE_ONE_TEXT
    static constexpr char const* parameter_names = "weight";
#elif defined GPIPE_NAMES_IN_OBJECT
    char const* parameter_names[2] = {"weight", "bias"};
#else
    static constexpr char const* parameter_names[] = {"weight", "bias"};
#endif
};
struct Running : blank::Linear<4> {
    using Buffers = gpipe::Tensors<gpipe::Tensor<float, 4>, gpipe::Tensor<int>>;
#if defined GPIPE_BUFFER_WITHOUT_NAME
    static constexpr char const* buffer_names[] = {"mean"};
#elif defined GPIPE_BUFFER_NAMES_CHANGE
    static inline char const* buffer_names[] = {"mean", "count"};
#else
    static constexpr char const* buffer_names[] = {"mean", "count"};
#endif
};
// With a parameter of its own.
struct Both : blank::Linear<4> {
    using Parameters = gpipe::Tensors<gpipe::Tensor<float, 4>, gpipe::Tensor<float>>;
    using Buffers = gpipe::Tensors<gpipe::Tensor<float, 4>, gpipe::Tensor<int>>;
#if defined GPIPE_ONE_NAME
    static constexpr char const* parameter_names[] = {"weight", "mean"};
    static constexpr char const* buffer_names[] = {"mean", "count"};
#elif defined GPIPE_NAMED_LIKE_A_BUFFER
    static constexpr char const* parameter_names[] = {"weight", "buffer.1"};
#elif defined GPIPE_NAMED_LIKE_A_PARAMETER
    static constexpr char const* buffer_names[] = {"mean", "1"};
#else
    static constexpr char const* parameter_names[] = {"buffer.2", "buffer.01"};
#endif
};
static_assert(gpipe::detail::StateOfLayer::of<Both>().buffers.size() == 2);
static_assert(gpipe::detail::StateOfLayer::of<Running>().buffers.size() == 2);
static_assert(gpipe::detail::StateOfLayer::of<Layer>().parameters.size() == 2);
