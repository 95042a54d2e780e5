// expect GPIPE_NEXT: gpipe: layer Index \(Left\) gives Output, but the next layer \(Right\) takes Input
// expect GPIPE_NEXT: CheckNeighbours<(1, Four, Eight, |.*Index=1, Left=Four, Right=Eight, )
// expect GPIPE_NEXT: (gpipe::Tensor<float, 4>, gpipe::Tensor<float, 8>>|Output=gpipe::Tensor<float, 4>, Input=gpipe::Tensor<float, 8>[],])
// expect GPIPE_ELEMENT: gpipe: layer Index \(Left\) gives Output, but the next layer \(Right\) takes Input
// expect GPIPE_ELEMENT: CheckNeighbours<(1, Four, Doubles, |.*Index=1, Left=Four, Right=Doubles, )
// expect GPIPE_ELEMENT: (gpipe::Tensor<float, 4>, gpipe::Tensor<double, 4>>|Output=gpipe::Tensor<float, 4>, Input=gpipe::Tensor<double, 4>[],])
// expect GPIPE_RANK: gpipe: layer Index \(Left\) gives Output, but the next layer \(Right\) takes Input
// expect GPIPE_RANK: CheckNeighbours<(1, Four, Square, |.*Index=1, Left=Four, Right=Square, )
// expect GPIPE_RANK: (gpipe::Tensor<float, 4>, gpipe::Tensor<float, 2, 2>>|Output=gpipe::Tensor<float, 4>, Input=gpipe::Tensor<float, 2, 2>[],])
// expect GPIPE_B6_COUNT: gpipe: layer Index \(Left\) gives Output, but the next layer \(Right\) takes Input
// expect GPIPE_B6_COUNT: CheckNeighbours<(1, Four, Pair, |.*Index=1, Left=Four, Right=Pair, )
// expect GPIPE_B6_COUNT: (gpipe::Tensor<float, 4>, gpipe::Tensors<gpipe::Tensor<float, 4>, gpipe::Tensor<float, 4>>|Output=gpipe::Tensor<float, 4>, Input=gpipe::Tensors<gpipe::Tensor<float, 4>, gpipe::Tensor<float, 4> ?>[],])
// expect GPIPE_BEFORE_REPEAT: gpipe: layer Index \(Left\) gives Output, but the next layer \(Right\) takes Input
// expect GPIPE_BEFORE_REPEAT: CheckNeighbours<(1, Four, Widen, |.*Index=1, Left=Four, Right=Widen, )
// expect GPIPE_BEFORE_REPEAT: (gpipe::Tensor<float, 4>, gpipe::Tensor<float, 5>>|Output=gpipe::Tensor<float, 4>, Input=gpipe::Tensor<float, 5>[],])
// expect GPIPE_INSIDE_REPEAT: gpipe: layer Index \(Left\) gives Output, but the next layer \(Right\) takes Input
// expect GPIPE_INSIDE_REPEAT: CheckNeighbours<(3, Widen, Four, |.*Index=3, Left=Widen, Right=Four, )
// expect GPIPE_INSIDE_REPEAT: (gpipe::Tensor<float, 6>, gpipe::Tensor<float, 4>>|Output=gpipe::Tensor<float, 6>, Input=gpipe::Tensor<float, 4>[],])
// expect GPIPE_ACROSS_REPETITIONS: gpipe: layer Index \(Left\) gives Output, but the next layer \(Right\) takes Input
// expect GPIPE_ACROSS_REPETITIONS: CheckNeighbours<(3, Widen, Four, |.*Index=3, Left=Widen, Right=Four, )
// expect GPIPE_ACROSS_REPETITIONS: (gpipe::Tensor<float, 6>, gpipe::Tensor<float, 4>>|Output=gpipe::Tensor<float, 6>, Input=gpipe::Tensor<float, 4>[],])
// expect GPIPE_ONE_REPEATED: gpipe: layer Index \(Left\) gives Output, but the next layer \(Right\) takes Input
// expect GPIPE_ONE_REPEATED: CheckNeighbours<(2, Widen, Widen, |.*Index=2, Left=Widen, Right=Widen, )
// expect GPIPE_ONE_REPEATED: (gpipe::Tensor<float, 6>, gpipe::Tensor<float, 5>>|Output=gpipe::Tensor<float, 6>, Input=gpipe::Tensor<float, 5>[],])
// expect GPIPE_AFTER_REPEAT: gpipe: layer Index \(Left\) gives Output, but the next layer \(Right\) takes Input
// expect GPIPE_AFTER_REPEAT: CheckNeighbours<(8, Four, Eight, |.*Index=8, Left=Four, Right=Eight, )
// expect GPIPE_AFTER_REPEAT: (gpipe::Tensor<float, 4>, gpipe::Tensor<float, 8>>|Output=gpipe::Tensor<float, 4>, Input=gpipe::Tensor<float, 8>[],])
// expect GPIPE_BETWEEN_REPEATS: gpipe: layer Index \(Left\) gives Output, but the next layer \(Right\) takes Input
// expect GPIPE_BETWEEN_REPEATS: CheckNeighbours<(4, Four, Eight, |.*Index=4, Left=Four, Right=Eight, )
// expect GPIPE_BETWEEN_REPEATS: (gpipe::Tensor<float, 4>, gpipe::Tensor<float, 8>>|Output=gpipe::Tensor<float, 4>, Input=gpipe::Tensor<float, 8>[],])
#include <gpipe/pipeline.hpp>
#include <support/blank_layers.hpp>

using gpipe::Repeat;

struct Four : blank::Map<4> {};
struct Eight : blank::Map<8> {};
struct Widen : blank::Map<5, 6> {};
struct Narrow : blank::Map<6, 5> {};
struct FourToFive : blank::Map<4, 5> {};
struct FiveToFour : blank::Map<5, 4> {};
struct Doubles : blank::Map<4> {
    using Input = gpipe::Tensor<double, 4>;
};
struct Square : blank::Map<4> {
    using Input = gpipe::Tensor<float, 2, 2>;
};
struct Pair : blank::Map<4> {
    using Input = gpipe::Tensors<blank::Floats<4>, blank::Floats<4>>;
};

// The control: one tensor and a group of one tensor are the same; a Repeat<1> need not fit itself.
struct GroupOfOne : blank::Map<4> {
    using Input = gpipe::Tensors<blank::Floats<4>>;
};
static_assert(gpipe::CheckNeighbours<0, Four, GroupOfOne>::ok());
using Net = gpipe::Pipeline<Four, GroupOfOne, Repeat<1, FourToFive, Widen>, Repeat<1, Narrow>,
                            Repeat<2, FiveToFour, FourToFive>>;
static_assert(Net::size == 9);

#if defined(GPIPE_NEXT)
using Wrong = gpipe::Pipeline<Four, Four, Eight>;
#elif defined(GPIPE_ELEMENT)
using Wrong = gpipe::Pipeline<Four, Four, Doubles>;
#elif defined(GPIPE_RANK)
using Wrong = gpipe::Pipeline<Four, Four, Square>;
#elif defined(GPIPE_B6_COUNT)
using Wrong = gpipe::Pipeline<Four, Four, Pair>;
#elif defined(GPIPE_BEFORE_REPEAT)
using Wrong = gpipe::Pipeline<Four, Four, Repeat<3, Widen, Narrow>>;
#elif defined(GPIPE_INSIDE_REPEAT)
using Wrong = gpipe::Pipeline<Four, Four, Repeat<3, FourToFive, Widen, Four>>;
#elif defined(GPIPE_ACROSS_REPETITIONS)
using Wrong = gpipe::Pipeline<Four, Repeat<3, Four, FourToFive, Widen>>;
#elif defined(GPIPE_ONE_REPEATED)
using Wrong = gpipe::Pipeline<Four, FourToFive, Repeat<2, Widen>>;
#elif defined(GPIPE_AFTER_REPEAT)
using Wrong = gpipe::Pipeline<Four, Repeat<4, Four, Four>, Eight>;
#elif defined(GPIPE_BETWEEN_REPEATS)
using Wrong = gpipe::Pipeline<Four, Repeat<2, Four, Four>, Repeat<2, Eight>>;
#else
using Wrong = Net;
#endif
static_assert(Wrong::size > 0);
