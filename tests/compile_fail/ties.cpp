// Parameters that are to be one tensor with others, and cannot.
// expect GPIPE_ALONE: gpipe: layer Index \(L\) ties a parameter tensor under Tag, but no other layer does
// expect GPIPE_ALONE: CheckTie<.*[ (]1, Table, Foo|Index=1, L=Table, Tag=Foo
// expect GPIPE_ALONE_TOO: gpipe: layer Index \(L\) ties a parameter tensor under Tag, but no other layer does
// expect GPIPE_ALONE_TOO: CheckTie<.*[ (]2, Both, Bar|Index=2, L=Both, Tag=Bar
// expect GPIPE_OTHER_TENSOR: gpipe: layer Index \(L\) ties a T under Tag, but layer First
// expect GPIPE_OTHER_TENSOR: CheckTie<.*[ (]2, Bias, Foo, 0, Table, gpipe::Tensor<float, 4>, gpipe::Tensor<float, 4, 4>|L=Bias, Tag=Foo, First=0.*T=gpipe::Tensor<float, 4>, OtherT=gpipe::Tensor<float, 4, 4>
// expect GPIPE_OTHER_IN_A_REPEAT: gpipe: layer Index \(L\) ties a T under Tag, but layer First
// expect GPIPE_NO_TIE: gpipe: what layer Index \(L\) calls Tied must be a gpipe::Tie<Tag, tensor>
// expect GPIPE_NO_TENSOR: gpipe: what layer Index \(L\) calls Tied must be a gpipe::Tie<Tag, tensor>
// expect GPIPE_NO_PARAMETERS: gpipe: what layer Index \(L\) calls Tied must be a gpipe::Tie<Tag, tensor>
// expect GPIPE_TWICE: gpipe: what layer Index \(L\) calls Tied must be a gpipe::Tie<Tag, tensor>
#include <gpipe/chain/chain.hpp>
#include <gpipe/pipeline.hpp>
#include <support/blank_layers.hpp>

struct Foo;
struct Bar;
using blank::Linear;
using blank::Map;
using gpipe::Tie;

struct Table : Linear<4> {
    using Tied = Tie<Foo>;
};
struct Bias : Linear<4> {
    using Tied = Tie<Foo, 1>;
};
struct Both : Linear<4> {
    using Tied = gpipe::Ties<Tie<Foo>, Tie<Bar, 1>>;
};
struct No : Linear<4> {
#ifdef GPIPE_NO_TIE
    using Tied = Foo;
#elif defined(GPIPE_NO_TENSOR)
    using Tied = Tie<Foo, 2>;
#elif defined(GPIPE_TWICE)
    using Tied = gpipe::Ties<Tie<Foo>, Tie<Bar>>;
#endif
};
struct Nothing : Map<4> {
#ifdef GPIPE_NO_PARAMETERS
    using Tied = Tie<Foo>;
#endif
};

#ifdef GPIPE_ALONE
using Net = gpipe::Pipeline<Linear<4>, Table, Linear<4>>;
#elif defined(GPIPE_ALONE_TOO)
using Net = gpipe::Pipeline<Table, Linear<4>, Both>;
#elif defined(GPIPE_OTHER_TENSOR)
using Net = gpipe::Pipeline<Table, Linear<4>, Bias>;
#elif defined(GPIPE_OTHER_IN_A_REPEAT)
using Net = gpipe::Pipeline<Bias, gpipe::Repeat<3, Linear<4>, Table>>;
#else
using Net = gpipe::Pipeline<Table, Both, No, gpipe::Repeat<2, Nothing, Both>>;
#endif

static_assert(Net::size > 0);
