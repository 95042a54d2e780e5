// expect GPIPE_NOT_TRIVIALLY_COPYABLE: gpipe: the element of a Tensor must be trivially copyable
// expect GPIPE_CONST_ELEMENT: gpipe: the element of a Tensor must be trivially copyable, and not const
// expect GPIPE_ZERO_EXTENT: gpipe: every extent of a Tensor must be positive
// expect GPIPE_IN_A_LAYER: gpipe: every extent of a Tensor must be positive
#include <gpipe/pipeline.hpp>
#include <support/blank_layers.hpp>

#include <string>

struct Half {
    unsigned short bits;
};

#if defined(GPIPE_NOT_TRIVIALLY_COPYABLE)
using Wrong = gpipe::Tensor<std::string, 2>;
#elif defined(GPIPE_CONST_ELEMENT)
using Wrong = gpipe::Tensor<float const, 2>;
#elif defined(GPIPE_ZERO_EXTENT)
using Wrong = gpipe::Tensor<float, 2, 0>;
#elif defined(GPIPE_IN_A_LAYER)
using Wrong = gpipe::Tensor<float, gpipe::Pipeline<blank::Map<4>, blank::Map<4, 0>>::size>;
#else
using Wrong = gpipe::Tensor<Half, 2, 3>;
#endif
[[maybe_unused]] constexpr std::size_t size = Wrong::size;
