// layer/, chain/: what follows from the types of tensors, layers and chains.
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

#include <gpipe/chain/check_loss.hpp>
#include <gpipe/layers/batch_norm.hpp>
#include <gpipe/pipeline.hpp>

#include <cstddef>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

namespace {

using gpipe::Pipeline;
using gpipe::Repeat;
using gpipe::Tensor;
using gpipe::Tensors;

// Tensors and groups of them.
static_assert(Tensor<float, 3, 4>::size == 12 && Tensor<float, 3, 4>::bytes == 48);
static_assert(Tensor<double>::size == 1 && Tensor<double>::rank == 0);
static_assert(Tensor<short, 5>::extents[0] == 5);
using Group = gpipe::TensorGroup<Tensors<Tensor<float, 3>, Tensor<int, 2>, Tensor<double>>>;
static_assert(Group::count == 3 && Group::elements == 6);
static_assert(Group::gradient_bytes[0] == 12 && Group::gradient_bytes[1] == 0);
static_assert(Group::gradient_bytes[2] == 8 && Group::carries_gradient);
static_assert(!gpipe::TensorGroup<Tensor<int, 2>>::carries_gradient);
static_assert(gpipe::TensorGroup<void>::count == 0 && gpipe::TensorGroup<Tensors<>>::count == 0);
static_assert(std::is_same_v<Group::at<1>, Tensor<int, 2>>);

// An element type of the user's own carries what its trait says.
struct Half {
    unsigned short bits;
};
static_assert(!gpipe::CarriesGradient<Half>::value);

// Traits and their defaults.
struct Plain : blank::Map<4, 2> {};
struct Plain4 : blank::Map<4> {};
using PlainTraits = gpipe::LayerTraits<Plain>;
static_assert(std::is_same_v<PlainTraits::Parameters, Tensors<>>);
static_assert(std::is_same_v<PlainTraits::Output, Tensors<blank::Floats<2>>>);
static_assert(PlainTraits::reads_input && !PlainTraits::reads_output && !PlainTraits::has_cost);
static_assert(PlainTraits::cost == 1 && !gpipe::accepts_none<Plain>);
struct Whole : blank::Costly<4, 2> {
    using Saved = Tensor<int, 3>;
    using Scratch = Tensors<Tensor<float, 7>, Tensor<char>>;
    static constexpr auto backward_reads = gpipe::Reads::output;
    static constexpr float decay[] = {0.5f, 0};
    static constexpr bool accepts_none = true;
    static constexpr bool recompute_is_cheap = true;
};
using WholeTraits = gpipe::LayerTraits<Whole>;
static_assert(WholeTraits::has_cost && WholeTraits::cost == 16);
static_assert(!WholeTraits::reads_input && WholeTraits::reads_output);
static_assert(WholeTraits::decay(0) == 0.5f && WholeTraits::decay(1) == 0);
static_assert(gpipe::LayerTraits<blank::Linear<4>>::decay(1) == 1);
static_assert(gpipe::accepts_none<Whole>);
static_assert(gpipe::recompute_is_cheap<Whole> && !gpipe::recompute_is_cheap<Plain>);
struct Dear : Plain {
    static constexpr bool recompute_is_cheap = false;
};
static_assert(!gpipe::recompute_is_cheap<Dear>);
static_assert(gpipe::Pipeline<Whole>::leaf_info[0].recompute_is_cheap);
static_assert(!gpipe::Pipeline<Plain>::leaf_info[0].recompute_is_cheap);

// The same as values.
constexpr gpipe::LayerInfo info = gpipe::detail::layer_info<Whole>();
static_assert(info.input.slots(1) == 256 && info.input.slots(17) == 512);
static_assert(info.parameters.count == 2 && info.parameter_elements == 10);
static_assert(info.scratch.count == 2 && info.saved.bytes[0] == 12);
static_assert(info.output_gradient.bytes[0] == 8 && info.output_carries_gradient);
static_assert(info.name.find("Whole") != std::string_view::npos);

// A chain: sizes, leaves, layers by position, parameters, bytes, boundaries.
struct First : blank::Linear<4, 8> {};
struct Up : blank::Linear<8, 16> {};
struct Down : blank::Linear<16, 8> {};
struct Last : blank::Map<8, 2> {};
using Net = Pipeline<First, Repeat<3, Up, Down>, Last>;
static_assert(Net::size == 8 && Net::leaves == 4);
static_assert(std::is_same_v<Net::Layer<0>, First> && std::is_same_v<Net::Layer<1>, Up>);
static_assert(std::is_same_v<Net::Layer<2>, Down> && std::is_same_v<Net::Layer<5>, Up>);
static_assert(std::is_same_v<Net::Layer<6>, Down> && std::is_same_v<Net::Layer<7>, Last>);
static_assert(std::is_same_v<Net::Input, blank::Floats<4>>);
static_assert(std::is_same_v<Net::Output, blank::Floats<2>>);
constexpr std::size_t expected_parameters = (32 + 8) + 3 * (128 + 16 + 128 + 8);
static_assert(Net::parameters() == expected_parameters);
static_assert(Net::parameter_bytes() == 4 * expected_parameters);
static_assert(Net::layers().size() == 8 && Net::layers()[5].parameter_elements == 144);
static_assert(Net::layers()[7].parameter_elements == 0);
static_assert(Net::costs().size() == 8 && Net::costs()[3] == 1);
static_assert(Pipeline<blank::Costly<3, 5>, blank::Costly<5, 2>>::costs()[0] == 30);
static_assert(Pipeline<First>::size == 1 && Pipeline<Repeat<7, Plain4>>::leaves == 1);
constexpr std::size_t sum_of_positions() {
    std::size_t sum = 0;
    Net::for_each_layer([&](std::size_t layer, std::size_t leaf) { sum += 100 * layer + leaf; });
    return sum;
}
static_assert(sum_of_positions() == 100 * 28 + (0 + 1 + 2 + 1 + 2 + 1 + 2 + 3));

// A long chain costs what its leaves cost.
using Deep = Pipeline<First, Repeat<2047, Up, Down>, Last>;
static_assert(Deep::size == 4096 && Deep::leaves == 4);
static_assert(std::is_same_v<Deep::Layer<4094>, Down> && std::is_same_v<Deep::Layer<4095>, Last>);
static_assert(Deep::parameters() == 40 + std::size_t{2047} * 280);

// What is no layer: each lacks one thing.
struct NoForward {
    using Input = blank::Floats<4>;
    using Output = blank::Floats<4>;
    void backward(auto&, auto, auto, auto) const {}
};
struct NoBackward {
    using Input = blank::Floats<4>;
    using Output = blank::Floats<4>;
    void forward(auto&, auto, auto) const {}
};
struct NoBackwardToIntegers : NoBackward {
    using Output = Tensor<int, 4>;
};
struct NoInput {
    using Output = blank::Floats<4>;
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};
struct NoInitialize : blank::Map<4> {
    using Parameters = blank::Floats<4>;
};
struct NotCopyable : blank::Map<4> {
    std::unique_ptr<int> once;
};
struct TakesWritable : blank::Map<4> {
    template <class C>
    void forward(C&, gpipe::BatchView<float, 4>, gpipe::BatchView<float, 4>) const {}
};
struct TakesNoNone : blank::Map<4> {
    static constexpr bool accepts_none = true;
    template <class C> void backward(C&, auto, auto, gpipe::BatchView<float, 4>) const {}
};
template <class L> constexpr bool fits = gpipe::detail::layer_fits<L>();
static_assert(fits<Plain> && fits<Whole> && fits<First> && fits<blank::Embedding<3, 4>>);
static_assert(fits<NoBackwardToIntegers>); // it would never be called
static_assert(!fits<NoForward> && !fits<NoBackward> && !fits<NoInput> && !fits<NoInitialize>);
static_assert(!fits<NotCopyable> && !fits<TakesWritable> && !fits<TakesNoNone> && !fits<int>);
static_assert(gpipe::detail::layers_fit<First, Up>() && !gpipe::detail::layers_fit<First, Down>());
static_assert(gpipe::detail::layers_fit<blank::Map<4>, blank::Map<4, 9>>());

// Random numbers: read when they are drawn where the work of one step is replayed in others.
struct Replaying {
    static constexpr bool replays = true;
};
template <class Stream>
using RandomOn = decltype(std::declval<gpipe::detail::ForwardContextOf<Plain, Stream>>().random());
static_assert(std::is_same_v<RandomOn<gpipe::AnyStream>, gpipe::SampleRandom>);
static_assert(std::is_same_v<RandomOn<Replaying>, gpipe::StepRandom>);
static_assert(std::is_trivially_copyable_v<gpipe::SampleRandom>);
static_assert(std::is_trivially_copyable_v<gpipe::StepRandom>);
constexpr gpipe::StepState seventh_step{5, 7, 0, 0};
static_assert(gpipe::StepRandom(&seventh_step, 2, 30).bits(1, 4) ==
              gpipe::SampleRandom(5, 7, 2, 30).bits(1, 4));
static_assert(gpipe::StepRandom(&seventh_step, 2, 30).uniform(1, 4) ==
              gpipe::SampleRandom(5, 7, 2, 31).uniform(0, 4));

// What is no loss.
struct NoTarget {
    gpipe::LossValue<> operator()(auto&, auto, auto, auto) const { return {}; }
};
struct ReturnsFloat {
    using Target = blank::Floats<2>;
    float operator()(auto&, auto, auto, auto) const { return 0; }
};
struct WithMetrics {
    using Target = Tensors<Tensor<int>, Tensor<float>>;
    gpipe::LossValue<3> operator()(auto&, auto, auto, auto) const { return {}; }
};
template <class L>
constexpr bool fits_as_loss = gpipe::detail::loss_fits<L, typename Net::Output>();
static_assert(fits_as_loss<blank::Loss<2>> && fits_as_loss<WithMetrics>);
static_assert(!gpipe::detail::NamesTarget<NoTarget> && !fits_as_loss<ReturnsFloat>);

// Ties: ends in the order of the chain, tie by tie; a tag means the same in every Repeat. All of a
// tie count once.
struct Table;
struct Bias;
template <int n> struct TiesTable : blank::Linear<n> { using Tied = gpipe::Tie<Table>; };
struct TiesBoth : blank::Linear<4> {
    using Tied = gpipe::Ties<gpipe::Tie<Bias, 1>, gpipe::Tie<Table, 0>>;
};
using Tied = Pipeline<blank::Linear<4>, TiesTable<4>, Repeat<3, blank::Linear<4>, TiesBoth>>;
template <std::size_t end>
constexpr bool is_end(std::uint32_t tie, std::uint32_t layer, std::uint32_t tensor, bool first) {
    constexpr gpipe::TiedTensor found = Tied::ties[end];
    return found.tie == tie && found.layer == layer && found.tensor == tensor &&
           found.is_first == first && found.bytes == (tensor == 0 ? 64 : 16);
}
static_assert(Tied::ties.size() == 7 && Pipeline<blank::Linear<4>>::ties.size() == 0);
static_assert(is_end<0>(0, 1, 0, true) && is_end<1>(0, 3, 0, false));
static_assert(is_end<2>(0, 5, 0, false) && is_end<3>(0, 7, 0, false));
static_assert(is_end<4>(1, 3, 1, true) && is_end<5>(1, 5, 1, false) && is_end<6>(1, 7, 1, false));
static_assert(Tied::parameters() == 8 * 20 - 3 * 16 - 2 * 4);
static_assert(Tied::parameter_bytes() == 4 * Tied::parameters());
static_assert(Pipeline<Repeat<1000, TiesTable<4>>>::parameters() == 1000 * 4 + 16);

} // namespace

// Any element type may carry a gradient that its trait says does.
struct Quarter {
    unsigned char bits;
};
template <> struct gpipe::CarriesGradient<Quarter> : std::true_type {};
static_assert(gpipe::TensorGroup<gpipe::Tensor<Quarter, 6>>::gradient_bytes[0] == 6);

// K8 what batch normalization gathers has no gradient: there is none but of its parameters.
using Norm = gpipe::BatchNorm<gpipe::Tensor<float, 3, 4>>;
static_assert(gpipe::detail::layer_info<Norm>().parameters.count == 2);
static_assert(gpipe::detail::layer_info<Norm>().parameter_elements == 6);
static_assert(gpipe::detail::layer_info<Norm>().buffers.count == 3);
static_assert(gpipe::detail::layer_info<Norm>().statistics.count == 1);
