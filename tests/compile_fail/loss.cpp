// expect GPIPE_NO_TARGET: gpipe: a loss must name its target: using Target = gpipe::Tensor<...>
// expect GPIPE_NO_TARGET: CheckLoss<(Mistake, |.*L=Mistake)
// expect GPIPE_TARGET_IS_NO_TENSOR: gpipe: a loss must name its target: using Target = gpipe::Tensor
// expect GPIPE_SIGNATURE: gpipe: a loss needs: gpipe::LossValue<n> operator\(\)\(auto& context, auto y
// expect GPIPE_SIGNATURE: CheckLoss<(Mistake, |.*L=Mistake)
// expect GPIPE_RESULT: gpipe: a loss needs: gpipe::LossValue<n> operator\(\)\(auto& context, auto y
// expect GPIPE_NOT_CONST: gpipe: a loss needs: gpipe::LossValue<n> operator\(\)\(auto& context, auto y
// expect GPIPE_OTHER_SHAPE: gpipe: a loss needs: gpipe::LossValue<n> operator\(\)\(auto& context, auto y
// expect GPIPE_WRITABLE_OUTPUT: y and dy have the shape of the last layer's output
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>

using Target = blank::Floats<4>;
using Value = gpipe::LossValue<>;
using ReadView = gpipe::BatchView<float const, 4>;
using WriteView = gpipe::BatchView<float, 4>;

#if defined(GPIPE_NO_TARGET)
struct Mistake {
    Value operator()(auto&, auto, auto, auto) const { return {}; }
};
#elif defined(GPIPE_TARGET_IS_NO_TENSOR)
struct Mistake {
    using Target = float;
    Value operator()(auto&, auto, auto, auto) const { return {}; }
};
#elif defined(GPIPE_SIGNATURE)
struct Mistake {
    using Target = ::Target;
    Value operator()(auto&, auto, auto) const { return {}; }
};
#elif defined(GPIPE_RESULT)
struct Mistake {
    using Target = ::Target;
    double operator()(auto&, auto, auto, auto) const { return 0; }
};
#elif defined(GPIPE_NOT_CONST)
struct Mistake {
    using Target = ::Target;
    Value operator()(auto&, auto, auto, auto) { return {}; }
};
#elif defined(GPIPE_OTHER_SHAPE)
struct Mistake {
    using Target = ::Target;
    template <class C>
    Value operator()(C&, gpipe::BatchView<float const, 5>, ReadView, WriteView) const {
        return {};
    }
};
#elif defined(GPIPE_WRITABLE_OUTPUT)
struct Mistake {
    using Target = ::Target;
    template <class C> Value operator()(C&, WriteView, ReadView, WriteView) const { return {}; }
};
#else
struct Mistake {
    using Target = ::Target;
    using Scratch = gpipe::Tensor<double, 2>;
    template <class C> gpipe::LossValue<2> operator()(C&, ReadView, ReadView, WriteView) const {
        return {};
    }
};
#endif
using Train = gpipe::Training<gpipe::Pipeline<blank::Linear<4>>, gpipe::Loss<Mistake>>;
static_assert(Train::layer_count == 1);
