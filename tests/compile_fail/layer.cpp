// expect GPIPE_NO_INPUT: gpipe: layer Index \(L\) must name its input: using Input = gpipe::Tensor<...>
// expect GPIPE_NO_INPUT: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_NO_OUTPUT: gpipe: layer Index \(L\) must name its output: using Output = gpipe::Tensor<...>
// expect GPIPE_NO_OUTPUT: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_B7_INPUT_IS_NO_TENSOR: gpipe: layer Index \(L\) must name its input: using Input = gpipe::Tensor<
// expect GPIPE_B8_NESTED_INPUT: gpipe: layer Index \(L\) must name its input: using Input = gpipe::Tensor<
// expect GPIPE_NO_FORWARD: gpipe: layer Index \(L\) has no forward: void forward\(auto& context, auto x, auto y\) const
// expect GPIPE_NO_FORWARD: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_FORWARD_NOT_CONST: gpipe: the forward of layer Index \(L\) is not const: void forward\(
// expect GPIPE_B7_FORWARD_RETURNS: gpipe: the forward of layer Index \(L\) returns something
// expect GPIPE_FORWARD_WRITABLE_INPUT: x is a view of const elements
// expect GPIPE_FORWARD_WRITABLE_INPUT: gpipe: the forward of layer Index \(L\) takes other arguments
// expect GPIPE_FORWARD_SHORT: gpipe: the forward of layer Index \(L\) takes other arguments
// expect GPIPE_FORWARD_PRIVATE: gpipe: the forward of layer Index \(L\) takes other arguments, or is private
// expect GPIPE_NO_BACKWARD: gpipe: layer Index \(L\) has no backward: void backward\(auto& context, auto x, auto dy, a
// expect GPIPE_NO_BACKWARD: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_BACKWARD_NOT_CONST: gpipe: the backward of layer Index \(L\) is not const: void backward\(
// expect GPIPE_BACKWARD_RETURNS: gpipe: the backward of layer Index \(L\) returns something
// expect GPIPE_BACKWARD_NO_DX: gpipe: the backward of layer Index \(L\) takes one argument less: dx is missing, or
// expect GPIPE_BACKWARD_READS_MORE: or what backward_reads says that it reads
// expect GPIPE_BACKWARD_REFUSES_NONE: gpipe: layer Index \(L\) declares accepts_none, but its backward does not take gpipe::none
// expect GPIPE_BACKWARD_REFERENCES: gpipe: the backward of layer Index \(L\) takes other arguments, or is private
// expect GPIPE_BACKWARD_ARGUMENTS: gpipe: the backward of layer Index \(L\) takes other arguments, or is private: void backward\(auto& context, auto x, auto dy, auto dx\)
// expect GPIPE_READS_NEITHER: gpipe: the backward of layer Index \(L\) takes other arguments, or is private: void backward\(auto& context, auto dy, auto dx\)
// expect GPIPE_READS_OUTPUT: gpipe: the backward of layer Index \(L\) takes other arguments, or is private: void backward\(auto& context, auto y, auto dy, auto dx\)
// expect GPIPE_READS_BOTH: gpipe: the backward of layer Index \(L\) takes other arguments, or is private: void backward\(auto& context, auto x, auto y, auto dy, a
// expect GPIPE_NO_INITIALIZE: gpipe: layer Index \(L\) has Parameters or Buffers, but no initialize: void initialize\(auto& context\) const
// expect GPIPE_NO_INITIALIZE: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_INITIALIZE_NOT_CONST: gpipe: the initialize of layer Index \(L\) is not const: void initialize\(
// expect GPIPE_INITIALIZE_ARGUMENTS: gpipe: the initialize of layer Index \(L\) takes other arguments, returns something or is private
// expect GPIPE_INITIALIZES_NOTHING: gpipe: layer Index \(L\) has an initialize, but declares neither Parameters nor Buffers
// expect GPIPE_INITIALIZES_NOTHING: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_NO_TENSORS: gpipe: what layer Index \(L\) calls Parameters, Buffers, Statistics, Saved, Deferred, Scratch
// expect GPIPE_SAVES_A_NUMBER: gpipe: what layer Index \(L\) calls Parameters, Buffers, Statistics, Saved, Deferred, Scratch
// expect GPIPE_BUFFERS_AN_ARRAY: gpipe: what layer Index \(L\) calls Parameters, Buffers, Statistics, Saved, Deferred, Scratch
// expect GPIPE_INTEGER_PARAMETERS: gpipe: the Parameters of layer Index \(L\) must be tensors of elements that carry a gradient
// expect GPIPE_INTEGER_PARAMETERS: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_DECAY_SHORT: gpipe: decay\[\] of layer Index \(L\) must have one entry for each of the layer's parameter tensors
// expect GPIPE_DECAY_SHORT_IN_TEMPLATE: gpipe: decay\[\] of layer Index \(L\) must have one entry for each of the layer's parameter tensors
// expect GPIPE_DECAY_LONG: gpipe: decay\[\] of layer Index \(L\) must have one entry for each of the layer's parameter tensors
// expect GPIPE_A10_NO_CLASS: gpipe: layer Index \(L\) is no copyable class, as a layer must be
// expect GPIPE_NOT_COPYABLE: gpipe: layer Index \(L\) is no copyable class, as a layer must be
// expect GPIPE_ONE_HALF: gpipe: the backward of layer Index \(L\) has two halves: void input_gradient\(auto& context
// expect GPIPE_OTHER_HALF: gpipe: the backward of layer Index \(L\) has two halves: void input_gradient\(auto& context
// expect GPIPE_HALF_TAKES_DX: gpipe: the backward of layer Index \(L\) has two halves: void input_gradient\(auto& context
// expect GPIPE_HALF_RETURNS: gpipe: the backward of layer Index \(L\) has two halves: void input_gradient\(auto& context
// expect GPIPE_HALF_READS: gpipe: the backward of layer Index \(L\) has two halves: void input_gradient\(auto& context
// expect GPIPE_HALF_WRONG_BESIDE_WHOLE: gpipe: the backward of layer Index \(L\) has two halves: void input_gradient\(auto& context
// expect GPIPE_ONE_HALF: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_DEFERS_NOTHING: gpipe: Deferred is what a layer's input_gradient leaves for its weight_g
// expect GPIPE_DEFERS_NOTHING: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_NO_INITIALIZE_OF_BUFFERS: gpipe: layer Index \(L\) has Parameters or Buffers, but no initialize
// expect GPIPE_NO_MERGE: gpipe: layer Index \(L\) declares Statistics, so it must have: void merge_statistics\(
// expect GPIPE_MERGE_WRITES_PART: gpipe: layer Index \(L\) declares Statistics, so it must have: void merge_statistics\(
// expect GPIPE_NO_UPDATE_OF_BUFFERS: gpipe: layer Index \(L\) declares Buffers, so it must have: void update_buffers\(
// expect GPIPE_NO_UPDATE_OF_BUFFERS: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_UPDATE_NOT_CONST: gpipe: layer Index \(L\) declares Buffers, so it must have: void update_buffers\(
// expect GPIPE_STATISTICS_OF_NOTHING: gpipe: layer Index \(L\) declares Statistics, but no Buffers that they would move
// expect GPIPE_NO_EXCHANGE: gpipe: layer Index \(L\) declares what replicas tell each other as Exchanged, so it must have: void exchange\(
// expect GPIPE_NO_EXCHANGE: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_EXCHANGE_SHORT: gpipe: layer Index \(L\) declares what replicas tell each other as Exchanged, so it must have: void exchange\(
// expect GPIPE_EXCHANGE_GRADIENT_READS: gpipe: layer Index \(L\) declares ExchangedGradient, so it must have: void exchange_gradient\(
// expect GPIPE_EXCHANGE_GRADIENT_READS: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_FREEZES_NOTHING: gpipe: what layer Index \(L\) calls FrozenTensors must be a std::index_sequence of numbers
// expect GPIPE_FREEZES_NOTHING: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_FREEZES_BY_A_VALUE: gpipe: what layer Index \(L\) calls FrozenTensors must be a std::index_sequence
// expect GPIPE_FREEZES_NO_NUMBERS: gpipe: what layer Index \(L\) calls FrozenTensors must be a std::index_sequence
// expect GPIPE_FINAL: gpipe: layer Index \(L\) must not be final: which functions it has is seen by deriving fr
// expect GPIPE_CHEAP_IS_NO_BOOL: gpipe: what layer Index \(L\) says by frozen, accepts_none, only_evaluates, .* static constexpr bool
// expect GPIPE_FROZEN_IN_OBJECT: gpipe: what layer Index \(L\) says by frozen, accepts_none, only_evaluates, .* static constexpr bool
// expect GPIPE_ACCEPTS_NONE_IN_OBJECT: gpipe: what layer Index \(L\) says by frozen, accepts_none, only_evaluates, .* static constexpr bool
// expect GPIPE_EVALUATES_IN_OBJECT: gpipe: what layer Index \(L\) says by frozen, accepts_none, only_evaluates, .* static constexpr bool
// expect GPIPE_WANTS_IN_OBJECT: gpipe: what layer Index \(L\) says by frozen, accepts_none, only_evaluates, .* static constexpr bool
// expect GPIPE_READS_IN_OBJECT: gpipe: what layer Index \(L\) says by frozen, accepts_none, only_evaluates, .* static constexpr bool
// expect GPIPE_READS_A_NUMBER: gpipe: what layer Index \(L\) says by frozen, accepts_none, only_evaluates, .* static constexpr bool
// expect GPIPE_READS_POPS_IN_OBJECT: gpipe: what layer Index \(L\) says by frozen, accepts_none, only_evaluates, .* static constexpr bool
// expect GPIPE_COST_IN_OBJECT: gpipe: what layer Index \(L\) says by frozen, accepts_none, only_evaluates, .* static constexpr bool
// expect GPIPE_COST_NEGATIVE: gpipe: what layer Index \(L\) says by frozen, accepts_none, only_evaluates, .* static constexpr bool
// expect GPIPE_DECAY_IN_OBJECT: gpipe: what layer Index \(L\) says by frozen, accepts_none, only_evaluates, .* static constexpr bool
// expect GPIPE_FORWARD_BY_REFERENCE: gpipe: the forward of layer Index \(L\) takes other arguments, or is private
// expect GPIPE_CHEAP_IS_NO_CONSTANT: CheckLayer<(1, Mistake>|.*Index=1, L=Mistake)
// expect GPIPE_CHEAP_IS_NO_CONSTANT: gpipe: what layer Index \(L\) says by frozen, accepts_none, only_evaluates, .* static constexpr bool
// expect GPIPE_REPEAT_IN_REPEAT: gpipe: layer Index \(L\) is a Repeat in a Repeat, or a Pipeline
// expect GPIPE_FROZEN_REPEAT: gpipe: layer Index \(L\) is a Repeat in a Repeat, or a Pipeline: .*, and Frozen is a layer
// expect GPIPE_PIPELINE_IN_PIPELINE: gpipe: layer Index \(L\) is a Repeat in a Repeat, or a Pipeline
// expect GPIPE_INSIDE_REPEAT: CheckLayer<(4, Mistake>|.*Index=4, L=Mistake)
// expect GPIPE_INSIDE_REPEAT: gpipe: layer Index \(L\) has no forward
#include <gpipe/pipeline.hpp>
#include <support/blank_layers.hpp>

#include <memory>

struct Four : blank::Map<4> {};
using Tensor = blank::Floats<4>;
using ReadView = gpipe::BatchView<float const, 4>;
using WriteView = gpipe::BatchView<float, 4>;

// The control: all that a layer may have, in its plainest spelling.
struct Whole {
    using Input = Tensor;
    using Output = gpipe::Tensors<Tensor>;
    using Parameters = gpipe::Tensors<Tensor, gpipe::Tensor<double>>;
    using Saved = Tensor;
    using Scratch = gpipe::Tensors<gpipe::Tensor<char, 3>, Tensor>;
    static constexpr auto backward_reads = gpipe::Reads::both;
    static constexpr bool recompute_is_cheap = true;
    static constexpr int cost = 3;
    static constexpr float decay[] = {1, 0};
    template <class C> void initialize(C& context) const { context.parameters(); }
    template <class C> void forward(C&, ReadView, WriteView) const {}
    template <class C> void backward(C&, ReadView, ReadView, ReadView, WriteView) const {}
};
// With buffers, but for what merges statistics.
struct Running : Four {
    using Buffers = gpipe::Tensors<Tensor, gpipe::Tensor<int>>;
    using Statistics = Tensor;
    template <class C> void initialize(C& context) const { context.buffers(); }
    void update_buffers(auto&, auto, auto) const {}
};
struct Merges : Running {
    template <class C>
    void merge_statistics(C&, gpipe::TensorView<float, 4>,
                          gpipe::TensorView<float const, 4>) const {}
};
struct Tells : Four {
    using Exchanged = gpipe::Tensors<Tensor, gpipe::Tensor<double>>;
    using ExchangedGradient = Tensor;
    template <class C>
    void exchange(C& context, ReadView,
                  gpipe::Views<gpipe::TensorView<float, 4>, gpipe::TensorView<double>>) const {
        context.exchanged(0);
    }
    template <class C>
    void exchange_gradient(C&, ReadView, ReadView, gpipe::TensorView<float, 4>) const {}
};
struct Counts : Four {
    using Buffers = gpipe::Tensor<int>;
    void initialize(auto&) const {}
    void update_buffers(auto&, gpipe::None, gpipe::TensorView<int>) const {}
};
struct Neither : blank::Map<4> {
    static constexpr auto backward_reads = gpipe::Reads::neither;
    static constexpr double cost = 0.5;
    void backward(auto&, auto, auto) const {}
};

// What is called with nothing but what it is called with: its type is deduced in its body.
struct Deduced : Four {
    using Buffers = gpipe::Tensors<>; // none
    auto forward(auto&, auto x, auto y) const { y(0, 0) = x(0, 0); }
    auto backward(auto&, auto, auto dy, auto dx) const { dx(0, 0) = dy(0, 0); }
};
struct DeducedHalves : Four {
    auto input_gradient(auto&, auto, auto dy, auto dx) const { dx(0, 0) = dy(0, 0); }
    auto weight_gradient(auto&, auto, auto) const {}
};

struct Parts {
    using Input = Tensor;
    using Output = Tensor;
};
struct Forward : Parts {
    void forward(auto&, auto, auto) const {}
};

// Controls whose backward comes in halves, only and also.
struct Halves : Forward {
    using Parameters = Tensor;
    using Deferred = gpipe::Tensors<gpipe::Tensor<char, 3>, Tensor>;
    static constexpr auto backward_reads = gpipe::Reads::both;
    static constexpr double cost = 2;
    void initialize(auto&) const {}
    void input_gradient(auto& context, auto, auto, auto, auto) const { context.deferred(); }
    void weight_gradient(auto& context, auto, auto, auto) const { context.gradients(); }
};
struct WholeAndHalves : blank::Map<4> {
    static constexpr double cost = 2;
    void backward(auto&, auto, auto, auto) const {}
    template <class C> void input_gradient(C&, ReadView, ReadView, WriteView) const {}
    template <class C> void weight_gradient(C&, ReadView, ReadView) const {}
};

#if defined(GPIPE_NO_INPUT)
struct Mistake {
    using Output = Tensor;
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};
#elif defined(GPIPE_NO_OUTPUT)
struct Mistake {
    using Input = Tensor;
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};
#elif defined(GPIPE_B7_INPUT_IS_NO_TENSOR)
struct Mistake : Four {
    using Input = float;
};
#elif defined(GPIPE_B8_NESTED_INPUT)
struct Mistake : Four {
    using Input = gpipe::Tensors<Tensor, gpipe::Tensors<Tensor, Tensor>>;
};
#elif defined(GPIPE_CHEAP_IS_NO_BOOL)
struct Mistake : Four {
    static constexpr double recompute_is_cheap = 0.5;
};
#elif defined(GPIPE_FROZEN_IN_OBJECT)
struct Mistake : Whole {
    bool frozen = true;
};
#elif defined(GPIPE_ACCEPTS_NONE_IN_OBJECT)
struct Mistake : Four {
    bool const accepts_none = true;
};
#elif defined(GPIPE_EVALUATES_IN_OBJECT)
struct Mistake : Four {
    bool only_evaluates = true;
};
#elif defined(GPIPE_WANTS_IN_OBJECT)
struct Mistake : Four {
    bool wants_gradient = true;
};
#elif defined(GPIPE_READS_IN_OBJECT)
struct Mistake : Four {
    gpipe::Reads backward_reads = gpipe::Reads::neither;
};
#elif defined(GPIPE_READS_A_NUMBER)
struct Mistake : Four {
    static constexpr int backward_reads = 0;
};
#elif defined(GPIPE_READS_POPS_IN_OBJECT)
struct Mistake : Four {
    bool backward_reads_pops = false;
};
#elif defined(GPIPE_COST_IN_OBJECT)
struct Mistake : Four {
    double cost = 2;
};
#elif defined(GPIPE_COST_NEGATIVE)
struct Mistake : Four {
    static constexpr double cost = -2;
};
#elif defined(GPIPE_DECAY_IN_OBJECT)
struct Mistake : Whole {
    float decay[2] = {1, 0};
};
#elif defined(GPIPE_FORWARD_BY_REFERENCE)
struct Mistake : Four {
    void forward(auto&, auto& x, auto& y) const { y(0, 0) = x(0, 0); }
};
#elif defined(GPIPE_CHEAP_IS_NO_CONSTANT)
struct Mistake : Four {
    static inline bool recompute_is_cheap = true;
};
#elif defined(GPIPE_NO_FORWARD)
struct Mistake : Parts {
    void backward(auto&, auto, auto, auto) const {}
};
#elif defined(GPIPE_FORWARD_NOT_CONST)
struct Mistake : Four {
    void forward(auto&, auto, auto) {}
};
#elif defined(GPIPE_B7_FORWARD_RETURNS)
struct Mistake : Four {
    int forward(auto&, auto, auto) const { return 0; }
};
#elif defined(GPIPE_FORWARD_WRITABLE_INPUT)
struct Mistake : Four {
    void forward(auto&, WriteView, WriteView) const {}
};
#elif defined(GPIPE_FORWARD_SHORT)
struct Mistake : Four {
    void forward(auto&, auto) const {}
};
#elif defined(GPIPE_FORWARD_PRIVATE)
class Mistake : public Four {
    void forward(auto&, auto, auto) const {}
};
#elif defined(GPIPE_NO_BACKWARD)
struct Mistake : Forward {};
#elif defined(GPIPE_BACKWARD_RETURNS)
struct Mistake : Forward {
    bool backward(auto&, auto, auto, auto) const { return true; }
};
#elif defined(GPIPE_BACKWARD_NOT_CONST)
struct Mistake : Forward {
    void backward(auto&, auto, auto, auto) {}
};
#elif defined(GPIPE_BACKWARD_NO_DX)
struct Mistake : Forward {
    void backward(auto&, auto, auto) const {}
};
#elif defined(GPIPE_BACKWARD_READS_MORE)
struct Mistake : Four {
    static constexpr auto backward_reads = gpipe::Reads::both;
};
#elif defined(GPIPE_BACKWARD_REFUSES_NONE)
struct Mistake : Forward {
    static constexpr bool accepts_none = true;
    template <class C> void backward(C&, ReadView, ReadView, WriteView) const {}
};
#elif defined(GPIPE_BACKWARD_REFERENCES)
struct Mistake : Forward {
    void backward(auto&, auto& x, auto& dy, auto& dx) const { dx(0, 0) = x(0, 0) * dy(0, 0); }
};
#elif defined(GPIPE_BACKWARD_ARGUMENTS)
struct Mistake : Forward {
    void backward(auto&, auto, auto, auto, auto) const {}
};
#elif defined(GPIPE_READS_NEITHER)
struct Mistake : Four {
    static constexpr auto backward_reads = gpipe::Reads::neither;
};
#elif defined(GPIPE_READS_OUTPUT)
struct Mistake : Forward {
    static constexpr auto backward_reads = gpipe::Reads::output;
    void backward(auto&, auto, auto, auto, auto) const {}
};
#elif defined(GPIPE_READS_BOTH)
struct Mistake : Neither {
    static constexpr auto backward_reads = gpipe::Reads::both;
};
#elif defined(GPIPE_NO_INITIALIZE)
struct Mistake : Four {
    using Parameters = Tensor;
};
#elif defined(GPIPE_INITIALIZE_NOT_CONST)
struct Mistake : Four {
    using Parameters = Tensor;
    void initialize(auto&) {}
};
#elif defined(GPIPE_INITIALIZE_ARGUMENTS)
struct Mistake : Four {
    using Parameters = Tensor;
    void initialize() const {}
};
#elif defined(GPIPE_INITIALIZES_NOTHING)
struct Mistake : Four {
    using Paramters = Tensor;
    void initialize(auto& context) const { context.parameters()[0] = 1; }
};
#elif defined(GPIPE_DECAY_SHORT)
struct Mistake : Whole {
    static constexpr float decay[] = {1};
};
#elif defined(GPIPE_DECAY_SHORT_IN_TEMPLATE)
template <int> struct Template : Whole { static constexpr float decay[] = {1}; };
struct Mistake : Template<1> {};
#elif defined(GPIPE_DECAY_LONG)
struct Mistake : Whole {
    static constexpr float decay[] = {1, 0, 1};
};
#elif defined(GPIPE_NO_TENSORS)
struct Mistake : Four {
    using Parameters = Four; // some class
    void initialize(auto&) const {}
};
#elif defined(GPIPE_SAVES_A_NUMBER)
struct Mistake : Four {
    using Saved = float;
};
#elif defined(GPIPE_BUFFERS_AN_ARRAY)
struct Mistake : Four {
    using Buffers = float[4];
    void initialize(auto&) const {}
    void update_buffers(auto&, auto, auto) const {}
};
#elif defined(GPIPE_INTEGER_PARAMETERS)
struct Mistake : Four {
    using Parameters = gpipe::Tensors<Tensor, gpipe::Tensor<int, 4>>;
    void initialize(auto&) const {}
};
#elif defined(GPIPE_A10_NO_CLASS)
using Mistake = int;
#elif defined(GPIPE_NOT_COPYABLE)
struct Mistake : Four {
    std::unique_ptr<int> once;
};
#elif defined(GPIPE_ONE_HALF)
struct Mistake : Forward {
    void input_gradient(auto&, auto, auto, auto) const {}
};
#elif defined(GPIPE_OTHER_HALF)
struct Mistake : Four {
    void weight_gradient(auto&, auto, auto) const {}
};
#elif defined(GPIPE_HALF_TAKES_DX)
struct Mistake : Forward {
    void input_gradient(auto&, auto, auto, auto) const {}
    void weight_gradient(auto&, auto, auto, auto) const {}
};
#elif defined(GPIPE_HALF_RETURNS)
struct Mistake : Forward {
    int input_gradient(auto&, auto, auto, auto) const { return 0; }
    void weight_gradient(auto&, auto, auto) const {}
};
#elif defined(GPIPE_HALF_READS)
struct Mistake : Forward {
    static constexpr auto backward_reads = gpipe::Reads::neither;
    void input_gradient(auto&, auto, auto, auto) const {}
    void weight_gradient(auto&, auto, auto) const {}
};
#elif defined(GPIPE_HALF_WRONG_BESIDE_WHOLE)
struct Mistake : Four {
    void input_gradient(auto&, auto, auto) const {}
    void weight_gradient(auto&, auto, auto) const {}
};
#elif defined(GPIPE_DEFERS_NOTHING)
struct Mistake : Four {
    using Deferred = Tensor;
};
#elif defined(GPIPE_NO_INITIALIZE_OF_BUFFERS)
struct Mistake : Four {
    using Buffers = Tensor;
    void update_buffers(auto&, auto, auto) const {}
};
#elif defined(GPIPE_NO_MERGE)
struct Mistake : Running {};
#elif defined(GPIPE_MERGE_WRITES_PART)
struct Mistake : Running {
    void merge_statistics(auto&, gpipe::TensorView<float, 4>, gpipe::TensorView<float, 4>) const {}
};
#elif defined(GPIPE_NO_UPDATE_OF_BUFFERS)
struct Mistake : Four {
    using Buffers = Tensor;
    void initialize(auto&) const {}
};
#elif defined(GPIPE_UPDATE_NOT_CONST)
struct Mistake : Four {
    using Buffers = Tensor;
    void initialize(auto&) const {}
    void update_buffers(auto&, auto, auto) {}
};
#elif defined(GPIPE_STATISTICS_OF_NOTHING)
struct Mistake : Four {
    using Statistics = Tensor;
    void initialize(auto&) const {}
    void merge_statistics(auto&, auto, auto) const {}
};
#elif defined(GPIPE_NO_EXCHANGE)
struct Mistake : Four {
    using Exchanged = Tensor;
};
#elif defined(GPIPE_EXCHANGE_SHORT)
struct Mistake : Four {
    using Exchanged = Tensor;
    void exchange(auto&, auto) const {}
};
#elif defined(GPIPE_EXCHANGE_GRADIENT_READS)
struct Mistake : Four {
    using ExchangedGradient = Tensor;
    static constexpr auto backward_reads = gpipe::Reads::both;
    void backward(auto&, auto, auto, auto, auto) const {}
    void exchange_gradient(auto&, auto, auto, auto) const {}
};
#elif defined(GPIPE_FREEZES_NOTHING)
struct Mistake : gpipe::FrozenParameters<Whole, 2> {};
#elif defined(GPIPE_FREEZES_BY_A_VALUE)
struct Mistake : Whole {
    static constexpr std::size_t FrozenTensors[] = {0};
};
#elif defined(GPIPE_FREEZES_NO_NUMBERS)
struct Mistake : Whole {
    using FrozenTensors = int;
};
#elif defined(GPIPE_FINAL)
struct Mistake final : Four {};
#elif defined(GPIPE_REPEAT_IN_REPEAT)
using Mistake = gpipe::Repeat<2, Four, gpipe::Repeat<3, Four>>;
#elif defined(GPIPE_FROZEN_REPEAT)
using Mistake = gpipe::Frozen<gpipe::Repeat<2, Four>>;
#elif defined(GPIPE_PIPELINE_IN_PIPELINE)
using Mistake = gpipe::Pipeline<Four>;
#elif defined(GPIPE_INSIDE_REPEAT)
struct Mistake : Parts {};
#else
using Mistake = Four;
#endif

#if defined(GPIPE_INSIDE_REPEAT)
using Net = gpipe::Pipeline<gpipe::Repeat<2, Four>, gpipe::Repeat<3, Four, Four, Mistake>>;
#else
using Net = gpipe::Pipeline<Four, Mistake, Four>;
#endif
static_assert(Net::size > 0);

using Control = gpipe::Pipeline<Whole, Neither, Halves, WholeAndHalves>;
static_assert(Control::size == 4);
static_assert(gpipe::Pipeline<Merges, Counts, Tells>::size == 3);
static_assert(gpipe::Pipeline<Deduced, DeducedHalves>::size == 2);
static_assert(gpipe::Pipeline<gpipe::FrozenParameters<Whole, 0>>::size == 1);
static_assert(!gpipe::splits_backward<Whole> && gpipe::splits_backward<Halves>);
