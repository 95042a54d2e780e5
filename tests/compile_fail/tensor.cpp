// expect GPIPE_NOT_TRIVIALLY_COPYABLE: gpipe: the element of a Tensor must be trivially copyable
// expect GPIPE_CONST_ELEMENT: gpipe: the element of a Tensor must be trivially copyable, and not const
// expect GPIPE_ZERO_EXTENT: gpipe: every extent of a Tensor must be positive
// expect GPIPE_TOO_LARGE: gpipe: the extents of this Tensor multiply to more bytes than memory has
// expect GPIPE_WRAPS: gpipe: the extents of this Tensor multiply to more bytes than memory has
// expect GPIPE_ALIGNED: gpipe: the element of a Tensor is aligned to more than 256 bytes
// expect GPIPE_IN_A_LAYER: gpipe: every extent of a Tensor must be positive
// expect GPIPE_SECOND_OF_ONE: gpipe: there is one tensor
// expect GPIPE_SECOND_OF_OPTIONAL: gpipe: there is one tensor
// expect GPIPE_THIRD_OF_TWO: gpipe: there are not so many tensors
// expect GPIPE_NINTH_OF_EIGHT: gpipe: there are not so many tensors
// expect GPIPE_INDEX_MISSING: gpipe: an element of a micro-batch's tensor is at its sample and one index per extent
// expect GPIPE_INDEX_TOO_MANY: gpipe: an element of a sample's tensor is at one index per extent
#include <gpipe/pipeline.hpp>
#include <support/blank_layers.hpp>

#include <string>

template <std::size_t bytes> struct alignas(bytes) Wide { char value; };
struct Half {
    unsigned short bits;
};

#if defined(GPIPE_NOT_TRIVIALLY_COPYABLE)
using Wrong = gpipe::Tensor<std::string, 2>;
#elif defined(GPIPE_CONST_ELEMENT)
using Wrong = gpipe::Tensor<float const, 2>;
#elif defined(GPIPE_ZERO_EXTENT)
using Wrong = gpipe::Tensor<float, 2, 0>;
#elif defined(GPIPE_TOO_LARGE)
using Wrong = gpipe::Tensor<float, std::size_t{1} << 61>;
#elif defined(GPIPE_WRAPS)
using Wrong = gpipe::Tensor<float, std::size_t{1} << 33, (std::size_t{1} << 33) + 1>;
#elif defined(GPIPE_ALIGNED)
using Wrong = gpipe::Tensor<Wide<512>, 2>;
#elif defined(GPIPE_IN_A_LAYER)
using Wrong = gpipe::Tensor<float, gpipe::Pipeline<blank::Map<4>, blank::Map<4, 0>>::size>;
#else
using Wrong = gpipe::Tensor<Half, 2, 3>;
using Widest = gpipe::Tensor<Wide<256>, 2>;
using Largest = gpipe::Tensor<char, (std::size_t{1} << 63) - 1>;
static_assert(Widest::size == 2 && Largest::size > 0);
#endif
[[maybe_unused]] constexpr std::size_t size = Wrong::size;

// Of the views that a layer is given, one may be asked for that it has not.
#if defined(GPIPE_SECOND_OF_ONE) || defined(GPIPE_SECOND_OF_OPTIONAL)
constexpr std::size_t one = 1;
#else
constexpr std::size_t one = 0;
#endif
#if defined(GPIPE_THIRD_OF_TWO)
constexpr std::size_t two = 2;
#else
constexpr std::size_t two = 1;
#endif
#if defined(GPIPE_NINTH_OF_EIGHT)
constexpr std::size_t eight = 8;
#else
constexpr std::size_t eight = 7;
#endif
using View = gpipe::TensorView<float, 2>;
#if defined(GPIPE_SECOND_OF_OPTIONAL)
using Single = gpipe::OptionalView<float, 2>;
#else
using Single = View;
#endif
auto of_one(Single const& view) { return gpipe::get<one>(view); }
auto of_two(gpipe::Views<View, View> const& views) { return gpipe::get<two>(views); }
auto of_eight(gpipe::Views<View, View, View, View, View, View, View, View> const& views) {
    return gpipe::get<eight>(views);
}

// Indexed by a layer.
#if defined(GPIPE_INDEX_MISSING)
constexpr auto element = [](auto view) { return view(0); };
#elif defined(GPIPE_INDEX_TOO_MANY)
constexpr auto element = [](auto view) { return view[0](1, 0); };
#else
constexpr auto element = [](auto view) { return view(0, 1) + view[0](1); };
#endif
[[maybe_unused]] float first(gpipe::BatchView<float const, 2> view) { return element(view); }
