// expect GPIPE_NO_TARGET: gpipe: a loss must name its target: using Target = gpipe::Tensor<...>
// expect GPIPE_NO_TARGET: CheckLoss<(Mistake, |.*L=Mistake)
// expect GPIPE_TARGET_IS_NO_TENSOR: gpipe: a loss must name its target: using Target = gpipe::Tensor
// expect GPIPE_SIGNATURE: gpipe: the loss \(L\) takes other arguments: gpipe::LossValue<n> operator\(\)\(auto& context, auto y
// expect GPIPE_SIGNATURE: CheckLoss<(Mistake, |.*L=Mistake)
// expect GPIPE_RESULT: gpipe: the loss \(L\) returns something else than a gpipe::LossValue<n>
// expect GPIPE_NOT_CONST: gpipe: the operator\(\) of the loss \(L\) is not const
// expect GPIPE_OTHER_SHAPE: gpipe: the loss \(L\) takes other arguments.*the shape of the last layer's output, Output
// expect GPIPE_OTHER_SHAPE: (Output=|CheckLoss<.*)gpipe::Tensor<float, 4>
// expect GPIPE_WRITABLE_OUTPUT: gpipe: the loss \(L\) takes other arguments
// expect GPIPE_ACCEPTS_NONE_IN_OBJECT: gpipe: what the loss \(L\) says by accepts_none is a static constexpr bool, by metrics
// expect GPIPE_METRICS_IN_OBJECT: gpipe: what the loss \(L\) says by accepts_none is a static constexpr bool, by metrics
// expect GPIPE_OTHER_METRICS: gpipe: the loss \(L\) returns a gpipe::LossValue<n> of another n than it declares as metrics
// expect GPIPE_OTHER_METRICS_WITHOUT_DY: gpipe: the loss \(L\) returns a gpipe::LossValue<n> of another n than it declares as metrics
// expect GPIPE_REFUSES_NONE: gpipe: the loss \(L\) declares accepts_none, but does not take gpipe::none for dy
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
#elif defined(GPIPE_ACCEPTS_NONE_IN_OBJECT)
struct Mistake {
    using Target = ::Target;
    bool accepts_none = true;
    Value operator()(auto&, auto, auto, auto) const { return {}; }
};
#elif defined(GPIPE_METRICS_IN_OBJECT)
struct Mistake {
    using Target = ::Target;
    std::size_t metrics = 1;
    gpipe::LossValue<1> operator()(auto&, auto, auto, auto) const { return {}; }
};
#elif defined(GPIPE_OTHER_METRICS)
struct Mistake {
    using Target = ::Target;
    static constexpr std::size_t metrics = 3;
    gpipe::LossValue<1> operator()(auto&, auto, auto, auto) const { return {}; }
};
#elif defined(GPIPE_OTHER_METRICS_WITHOUT_DY)
struct Mistake {
    using Target = ::Target;
    static constexpr bool accepts_none = true;
    gpipe::LossValue<1> operator()(auto&, auto, auto, WriteView) const { return {}; }
    gpipe::LossValue<2> operator()(auto&, auto, auto, gpipe::None) const { return {}; }
};
#elif defined(GPIPE_REFUSES_NONE)
struct Mistake {
    using Target = ::Target;
    static constexpr bool accepts_none = true;
    template <class C> Value operator()(C&, ReadView, ReadView, WriteView) const { return {}; }
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
