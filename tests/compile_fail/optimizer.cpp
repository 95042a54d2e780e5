// expect GPIPE_MAY_THROW: gpipe: an optimizer may not throw, for updates run after the commit of a step
// expect GPIPE_MAY_THROW: CheckOptimizer<(Mistake>|.*O=Mistake)
// expect GPIPE_NO_STATES: gpipe: an optimizer must say how many arrays it keeps for each parameter tens
// expect GPIPE_NO_STATES: CheckOptimizer<(Mistake>|.*O=Mistake)
// expect GPIPE_SIGNATURE: gpipe: the operator\(\) of the optimizer \(O\) takes other arguments: template <class T> void
// expect GPIPE_NOT_CONST: gpipe: the operator\(\) of the optimizer \(O\) is not const: template <class T> void
// expect GPIPE_RETURNS: gpipe: the operator\(\) of the optimizer \(O\) returns something: template <class T> void
// expect GPIPE_NOT_COPYABLE: gpipe: an optimizer must be copyable
// expect GPIPE_NOT_TRIVIAL: gpipe: an optimizer must be trivially copyable to be copied to this device
// expect GPIPE_NOT_TRIVIAL_IMMEDIATE: gpipe: with update::Immediate an optimizer must be trivially cop
// expect GPIPE_ALIGNED: gpipe: the alignment of the optimizer is more than 256 bytes
// expect GPIPE_REFERENCE: gpipe: the operator\(\) of the optimizer \(O\) takes other arguments
// expect GPIPE_RULE_COPIES: gpipe: the functor that rule<T>\(\) of the optimizer \(O\) returns takes the parameter by value, and would change a copy
// expect GPIPE_RULE_TAKES: gpipe: the functor that rule<T>\(\) of the optimizer \(O\) returns takes other arguments
// expect GPIPE_ONE_OF_NONE: gpipe: OneOf<...> chooses from optimizers: name at least one
// expect GPIPE_NO_DEFAULT: gpipe: optimizers that are chosen from need a default constructor
#include <gpipe/optimizer/one_of.hpp>
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

#include <memory>

#if defined(GPIPE_NOT_TRIVIAL) || defined(GPIPE_ALIGNED)
#include <support/remote.hpp>
using Device = toy::Remote;
#else
using Device = gpipe::device::Host;
#endif
#ifdef GPIPE_NOT_TRIVIAL_IMMEDIATE
using Update = gpipe::update::Immediate;
#else
using Update = gpipe::update::AfterCommit;
#endif

using gpipe::UpdateContext;
using gpipe::UpdateTensor;

#if defined(GPIPE_MAY_THROW)
struct Mistake {
    static constexpr std::size_t states = 1;
    template <class T> void operator()(UpdateContext, UpdateTensor<T, 1>) const {}
};
#elif defined(GPIPE_NO_STATES)
struct Mistake {
    template <class T> void operator()(UpdateContext, UpdateTensor<T, 0>) const noexcept {}
};
#elif defined(GPIPE_SIGNATURE)
struct Mistake {
    static constexpr std::size_t states = 1;
    template <class T> void operator()(UpdateTensor<T, 1>) const noexcept {}
};
#elif defined(GPIPE_NOT_CONST)
struct Mistake {
    static constexpr std::size_t states = 1;
    template <class T> void operator()(UpdateContext, UpdateTensor<T, 1>) noexcept {}
};
#elif defined(GPIPE_RETURNS)
struct Mistake {
    static constexpr std::size_t states = 1;
    template <class T> bool operator()(UpdateContext, UpdateTensor<T, 1>) const noexcept {
        return true;
    }
};
#elif defined(GPIPE_NOT_TRIVIAL) || defined(GPIPE_NOT_TRIVIAL_IMMEDIATE)
struct Mistake {
    static constexpr std::size_t states = 0;
    std::shared_ptr<int> rate;
    template <class T> void operator()(UpdateContext, UpdateTensor<T, 0>) const noexcept {}
};
#elif defined(GPIPE_NOT_COPYABLE)
struct Mistake {
    static constexpr std::size_t states = 0;
    std::unique_ptr<int> once;
    template <class T> void operator()(UpdateContext, UpdateTensor<T, 0>) const noexcept {}
};
#elif defined(GPIPE_REFERENCE)
struct Mistake {
    static constexpr int states = 0;
    template <class T> void operator()(UpdateContext, UpdateTensor<T, 0>&) const noexcept {}
};
#else
#if defined(GPIPE_ALIGNED)
struct alignas(512) Mistake {
#else
struct Mistake {
#endif
    static constexpr int states = 1;
    template <class T> auto rule(UpdateContext) const {
#if defined(GPIPE_RULE_COPIES)
        return [](T parameter, T gradient, T&) { parameter -= gradient; };
#elif defined(GPIPE_RULE_TAKES)
        return [](T& parameter, T gradient) { parameter -= gradient; };
#else
    return [](T& parameter, T gradient, T&) { parameter -= gradient; };
#endif
    }
    template <class T>
    void operator()(UpdateContext context, UpdateTensor<T, 1> tensor) const noexcept {
        gpipe::apply_to_all(*this, context, tensor);
    }
};
#endif
using Train = gpipe::Training<gpipe::Pipeline<blank::Linear<4>>, gpipe::Loss<blank::Loss<4>>,
                              gpipe::Optimizer<Mistake>, Update, Device>;
static_assert(Train::layer_count == 1);

// Of several that are chosen from.
struct WithRate : gpipe::SGD {
    explicit WithRate(float) {}
};
#if defined(GPIPE_ONE_OF_NONE)
using Chosen = gpipe::optimizer::OneOf<>;
#elif defined(GPIPE_NO_DEFAULT)
using Chosen = gpipe::optimizer::OneOf<gpipe::SGD, WithRate>;
#else
using Chosen = gpipe::optimizer::OneOf<gpipe::SGD, gpipe::Adam>;
#endif
static_assert(Chosen::states <= gpipe::Adam::states);
