// The sentences of torchgpipe's verify_skippables (I2 to I8), in their order, and of the functions.
// I8's two complaints are one here: the first, for nobody reads the second.
// expect GPIPE_I2_NEVER_POPPED: gpipe: layer Index \(L\) stashes a tensor under Tag, but no layer pops
// expect GPIPE_I2_NEVER_POPPED: CheckSkip<.*[ (]0, Gives, Foo|Index=0, L=Gives, Tag=Foo
// expect GPIPE_I3_NEVER_STASHED: gpipe: layer Index \(L\) pops a tensor under Tag, but no layer stashes
// expect GPIPE_I3_NEVER_STASHED: CheckSkip<.*[ (]1, Takes, Foo|Index=1, L=Takes, Tag=Foo
// expect GPIPE_I4_STASHED_AGAIN: gpipe: layer Index \(L\) stashes a tensor under Tag, as layer Other
// expect GPIPE_I4_STASHED_AGAIN: CheckSkip<.*[ (]1, Gives, Foo, 0, Gives|Index=1, L=Gives, Tag=Foo, Other=0
// expect GPIPE_I5_POPPED_AGAIN: gpipe: layer Index \(L\) pops a tensor under Tag, as layer Other
// expect GPIPE_I5_POPPED_AGAIN: CheckSkip<.*[ (]3, Takes, Foo, 1, Takes|Index=3, L=Takes, Tag=Foo, Other=1
// expect GPIPE_I7_BOTH: gpipe: layer Index \(L\) both stashes and pops a tensor under Tag
// expect GPIPE_I7_BOTH: CheckSkip<.*[ (]1, Both, Foo|Index=1, L=Both, Tag=Foo
// expect GPIPE_I8_TWICE: gpipe: layer Index \(L\) stashes a tensor under Tag, as layer Other
// expect GPIPE_I8_TWICE: CheckSkip<.*[ (]2, Gives, Foo, 0, Gives|Index=2, L=Gives, Tag=Foo, Other=0
// expect GPIPE_H5_POPPED_BEFORE: gpipe: layer Other \(OtherLayer\) pops a tensor under Tag before layer
// expect GPIPE_H5_POPPED_BEFORE: CheckSkip<.*[ (]2, Gives, Foo, 0, Takes|Index=2, L=Gives, Tag=Foo, Other=0
// expect GPIPE_OTHER_TENSOR: gpipe: layer Index \(L\) pops a T under Tag, but layer Other \(OtherLayer\) stashes an OtherT
// expect GPIPE_OTHER_TENSOR: CheckSkip<.*[ (]1, TakesOther, Foo, 0, Gives, gpipe::Tensor<float, 3>, gpipe::Tensor<float, 4>|T=gpipe::Tensor<float, 3>.*OtherT=(Floats|gpipe::Tensor<float, 4>)
// expect GPIPE_OUT_OF_A_REPEAT: gpipe: layer Index \(L\) stashes a tensor under Tag, but no layer pops
// expect GPIPE_NO_SKIP: gpipe: what layer Index \(L\) stashes or pops must be a gpipe::Skip<Tag
// expect GPIPE_NO_TENSOR: gpipe: what layer Index \(L\) stashes or pops must be a gpipe::Skip<Tag
// expect GPIPE_H4_STASH_UNDECLARED: gpipe: who works with gpipe::stash<Tag>\(context\) must declare it
// expect GPIPE_H4_POP_UNDECLARED: gpipe: who works with gpipe::pop<Tag>\(context\) must declare it
// expect GPIPE_STASH_IN_BACKWARD: gpipe: a layer stashes in its forward
// expect GPIPE_POP_UNREAD: gpipe: a layer whose backward_reads_pops is false pops in its forward only
// expect GPIPE_GRADIENT_IN_FORWARD: gpipe: a forward knows no gradient
// expect GPIPE_POP_GRADIENT_IN_FORWARD: gpipe: the gradient of what was popped is written by backward
#include <gpipe/chain/chain.hpp>
#include <gpipe/layer/stash.hpp>
#include <gpipe/pipeline.hpp>
#include <support/blank_layers.hpp>

struct Foo;
struct Bar;
using blank::Map;
using gpipe::Repeat;
using gpipe::Skip;
using Floats = blank::Floats<4>;

struct Gives : Map<4> {
    using Stash = Skip<Foo, Floats>;
};
struct Takes : Map<4> {
    using Pop = Skip<Foo, Floats>;
};
struct TakesOther : Map<4> {
    using Pop = Skip<Foo, blank::Floats<3>>;
};
struct Both : Map<4> {
    using Stash = Skip<Foo, Floats>;
    using Pop = Skip<Foo, Floats>;
};
struct No : Map<4> {
#ifdef GPIPE_NO_SKIP
    using Stash = Floats;
#elif defined(GPIPE_NO_TENSOR)
    using Pop = gpipe::Skips<Skip<Foo, float>>;
#endif
};
// I6: one layer takes and gives on.
struct Passes : Map<4> {
    using Stash = Skip<Bar, Floats>;
    using Pop = Skip<Foo, Floats>;
    static constexpr bool backward_reads_pops = false;
    void forward(auto& context, auto, auto) const {
        gpipe::stash<Bar>(context);
        gpipe::pop<Foo>(context);
#ifdef GPIPE_H4_STASH_UNDECLARED
        gpipe::stash<Foo>(context);
#elif defined(GPIPE_H4_POP_UNDECLARED)
        gpipe::pop<Bar>(context);
#elif defined(GPIPE_GRADIENT_IN_FORWARD)
        gpipe::stash_gradient<Bar>(context);
#elif defined(GPIPE_POP_GRADIENT_IN_FORWARD)
        gpipe::pop_gradient<Foo>(context);
#endif
    }
    void backward(auto& context, auto, auto, auto) const {
        gpipe::stash_gradient<Bar>(context);
        gpipe::pop_gradient<Foo>(context);
#ifdef GPIPE_STASH_IN_BACKWARD
        gpipe::stash<Bar>(context);
#elif defined(GPIPE_POP_UNREAD)
        gpipe::pop<Foo>(context);
#endif
    }
};
constexpr auto functions = gpipe::detail::layer_functions<Passes, gpipe::AnyStream>();
static_assert(functions.handles.size() == 0);
struct TakesOn : Map<4> {
    using Pop = Skip<Bar, Floats>;
};

#if defined(GPIPE_I2_NEVER_POPPED)
using Net = gpipe::Pipeline<Gives, Map<4>>;
#elif defined(GPIPE_I3_NEVER_STASHED)
using Net = gpipe::Pipeline<Map<4>, Takes>;
#elif defined(GPIPE_I4_STASHED_AGAIN)
using Net = gpipe::Pipeline<Gives, Gives, Takes>;
#elif defined(GPIPE_I5_POPPED_AGAIN)
using Net = gpipe::Pipeline<Gives, Takes, Map<4>, Takes>;
#elif defined(GPIPE_I7_BOTH)
using Net = gpipe::Pipeline<Map<4>, Both>;
#elif defined(GPIPE_I8_TWICE)
using Net = gpipe::Pipeline<Gives, Takes, Gives, Takes>;
#elif defined(GPIPE_H5_POPPED_BEFORE)
using Net = gpipe::Pipeline<Takes, Map<4>, Gives>;
#elif defined(GPIPE_OTHER_TENSOR)
using Net = gpipe::Pipeline<Gives, TakesOther>;
#elif defined(GPIPE_OUT_OF_A_REPEAT)
using Net = gpipe::Pipeline<Repeat<2, Gives>, Takes>;
#else
using Net = gpipe::Pipeline<Gives, Passes, No, TakesOn>;
#endif
static_assert(Net::skips.size() == 2);
