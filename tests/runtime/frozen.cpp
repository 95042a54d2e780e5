// Frozen layers: they stay as they are, and nothing is computed, kept or planned for that.
#include "support/buffer_layers.hpp"
#include "support/folder.hpp"
#include "support/net.hpp"
#include "support/skip_layers.hpp"

#include <gpipe/check_gradients.hpp>
#include <gpipe/inference.hpp>
#include <gpipe/replicas.hpp>
#include <gpipe/state/state.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Backward;
using toy::Phase;
using toy::Remote;
using Real = float;
using Loss = toy::MeanSquare<Real, 3>;
using Net = toy::Net<Real>;
// What is frozen.
struct Choice {
    std::vector<std::size_t> layers{};
    std::vector<gpipe::FrozenParameter> tensors{};
};

constexpr std::size_t L = Net::size;
// Of these the second comes as a whole, the others in halves.
constexpr std::size_t learners[] = {0, 4, 6, 9};

bool has(Choice const& frozen, std::size_t layer, std::size_t tensor) {
    auto const is = [&](gpipe::FrozenParameter one) {
        return one.layer == layer && one.tensor == tensor;
    };
    return std::ranges::find(frozen.layers, layer) != frozen.layers.end() ||
           std::ranges::any_of(frozen.tensors, is);
}
bool has(Choice const& frozen, std::size_t layer) {
    std::size_t const count = Net::leaf_info[layer].parameters.count;
    bool all = count > 0 || has(frozen, layer, 0);
    for (std::size_t t = 0; t < count; ++t) all = all && has(frozen, layer, t);
    return all;
}

// Adam of all layers but some, in a plain loop that knows nothing of frozen ones.
struct AdamOfOthers {
    static constexpr std::size_t states = Adam::states;
    Adam adam{1e-2f};
    Choice frozen{};
    template <class T>
    void operator()(gpipe::UpdateContext context, gpipe::UpdateTensor<T, states> tensor) const {
        if (!has(frozen, context.layer, context.tensor)) adam(context, tensor);
    }
};
using Plain = toy::Reference<Net, Loss, AdamOfOthers>;
template <class Device> using Train = toy::Train<Real, Device>;

struct Expected {
    toy::Watch watch;
    Plain plain;
    Choice frozen;
    std::vector<double> losses;

    Expected(Choice choice, Backward order)
        : plain(toy::make_net<Real>(watch), {}, AdamOfOthers{Adam{1e-2f}, choice}, 7, 8, order),
          frozen(std::move(choice)) {
        for (std::size_t const size : {13, 7, 13}) {
            toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
            losses.push_back(plain.step(data.inputs, data.targets));
        }
    }
    template <class T> std::string differs(T& train) {
        std::size_t step = 0;
        for (std::size_t const size : {13, 7, 13}) {
            toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
            if (train.step(data.inputs, data.targets).loss != losses[step++])
                return "the loss of step " + std::to_string(step - 1);
        }
        for (std::size_t layer = 0; layer < L; ++layer)
            for (std::size_t t = 0; t < train.tensors(layer); ++t) {
                std::vector<std::byte> own(plain.parameter(layer, t).size());
                train.read_parameter(layer, t, std::span(own));
                if (own != plain.parameter(layer, t))
                    return "parameters of layer " + std::to_string(layer);
                if (has(frozen, layer, t)) continue;
                train.read_gradient(layer, t, std::span(own));
                if (own != plain.gradient(layer, t))
                    return "gradient of layer " + std::to_string(layer);
            }
        return {};
    }
};

template <class T> typename T::Options options(std::size_t cells, Choice frozen) {
    typename T::Options o;
    o.samples = 13;
    o.seed = 7;
    o.cells = cells;
    o.micro_batches = 8;
    o.frozen = std::move(frozen.layers);
    o.frozen_parameters = std::move(frozen.tensors);
    return o;
}
struct Shared;
using TiedNet = gpipe::Pipeline<toy::TiedTo<toy::Linear<Real, 5, 5>, Shared>,
                                toy::TiedTo<toy::Linear<Real, 5, 5>, Shared>>;
std::size_t lowest_of(Choice const& frozen) {
    for (std::size_t const layer : learners)
        if (!has(frozen, layer)) return layer;
    return L;
}

} // namespace

TEST_CASE_TEMPLATE(
    "P1 P9 frozen layers stay as they are, others train as in a plain loop, under every "
    "schedule, checkpointing, number of devices and link; nothing else is called, and "
    "no byte planned",
    Device, Host, Remote) {
    std::size_t point = 0, trained = 0;
    for (Choice const& frozen : std::vector<Choice>{{{0}},
                                                    {{4}},
                                                    {{0, 4}},
                                                    {{6}},
                                                    {{0, 4, 6}},
                                                    {{9}},
                                                    {{4, 6, 9}},
                                                    {{1, 2, 3}},
                                                    {{}, {{0, 0}}},
                                                    {{}, {{0, 1}, {9, 0}}},
                                                    {{4}, {{9, 1}, {9, 1}}},
                                                    {{}, {{0, 0}, {0, 1}}},
                                                    {{0, 6}, {{4, 0}, {9, 0}, {0, 1}}}}) {
        Expected descending(frozen, Backward::descending);
        Expected ascending(frozen, Backward::ascending);
        std::size_t const lowest = lowest_of(frozen);
        toy::each_of_catalogue(L, L, 8, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
                for (auto const& run : toy::runs<Device>()) {
                    if (point++ % toy::one_of(587) != 0) continue;
                    auto o = options<Train<Device>>(k, frozen);
                    o.schedule = schedule;
                    o.checkpointing = checkpointing.policy;
                    o.device = run;
                    o.debug = point % 2 == 0;
                    INFO(schedule.name(), " of ", schedule.cells_per_device(),
                         " cells per device, ", checkpointing.name, ", K = ", k, ", ",
                         toy::describe(run), ", lowest ", lowest);
                    toy::Watch watch;
                    Train<Device> train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
                    bool const descends = schedule.name() == "GPipe";
                    CHECK((descends ? descending : ascending).differs(train) == "");
                    CHECK(train.used_bytes() == train.planned_bytes());
                    for (std::size_t layer = 0; layer < L; ++layer) {
                        std::size_t const whole = watch.count(layer, Phase::backward);
                        std::size_t const first = watch.count(layer, Phase::input_gradient);
                        std::size_t const second = watch.count(layer, Phase::weight_gradient);
                        if (layer < lowest) CHECK(whole + first + second == 0);
                        if (layer > lowest && has(frozen, layer) && layer != 4) {
                            CHECK(second == 0);
                            CHECK(whole + first > 0);
                        }
                    }
                    std::size_t gradients = 0, states = 0, learned = 0;
                    for (auto const& bytes : train.plan().devices) {
                        gradients += bytes.gradients;
                        states += bytes.optimizer;
                    }
                    for (std::size_t const layer : learners)
                        for (std::size_t t = 0; t < train.tensors(layer); ++t)
                            if (!has(frozen, layer, t))
                                learned +=
                                    gpipe::slot_bytes(Net::leaf_info[layer].parameters.bytes[t]);
                    CHECK(states == 2 * learned);
                    if (!o.debug) CHECK(gradients == learned); // else something lies behind
                    ++trained;
                }
        });
    }
    MESSAGE(trained << " trainings");
    CHECK(trained > 3); // under sanitizers, too
}

namespace {

// What a training of other policies makes of some steps other than the plain loop.
template <class T>
std::string differs(T& train, Choice const& frozen, std::size_t replicas, bool shards) {
    toy::Watch watch;
    Plain plain(toy::make_net<Real>(watch), {}, AdamOfOthers{Adam{1e-2f}, frozen}, 7, 8,
                Backward::ascending, replicas);
    for (std::size_t const size : {13, 7, 13}) {
        toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
        if (train.step(data.inputs, data.targets).loss != plain.step(data.inputs, data.targets))
            return "a loss";
    }
    for (std::size_t layer = 0; layer < L; ++layer)
        for (std::size_t t = 0; t < train.tensors(layer); ++t) {
            std::vector<std::byte> own(plain.parameter(layer, t).size());
            train.read_parameter(layer, t, std::span(own));
            if (own != plain.parameter(layer, t))
                return "parameters of layer " + std::to_string(layer);
            if (shards || has(frozen, layer, t)) continue;
            train.read_gradient(layer, t, std::span(own));
            if (own != plain.gradient(layer, t))
                return "gradient of layer " + std::to_string(layer);
        }
    return {};
}
template <class Device, class... Policies>
using TrainWith =
    gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                    gpipe::checkpoint::Dynamic, Device, Policies...>;

} // namespace

TEST_CASE_TEMPLATE(
    "P1 frozen layers in replicas, with state that is sharded, and with updates that "
    "wait for no other device",
    Policy, gpipe::Replicas<2>, gpipe::Replicas<3, gpipe::shard::OptimizerState>,
    gpipe::update::Immediate) {
    constexpr bool immediate = std::is_same_v<Policy, gpipe::update::Immediate>;
    constexpr bool shards =
        std::is_same_v<Policy, gpipe::Replicas<3, gpipe::shard::OptimizerState>>;
    using Device = std::conditional_t<immediate, Remote, Host>;
    using T = TrainWith<Device, Policy>;
    for (Choice const& frozen : std::vector<Choice>{
             {{0, 4}}, {{4}}, {{9}}, {{0, 4, 6}}, {{}, {{0, 0}, {9, 1}}}, {{6}, {{9, 0}}}})
        for (std::size_t cells : {1, 2, 3}) {
            INFO("K = ", cells, ", ", frozen.layers.size(), " layers frozen and ",
                 frozen.tensors.size(), " tensors");
            auto o = options<T>(cells, frozen);
            o.schedule = gpipe::schedule::OneForwardOneBackward{};
            toy::Watch watch;
            T train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, o);
            CHECK(differs(train, frozen, immediate ? 1 : shards ? 3 : 2, shards) == "");
            CHECK(train.used_bytes() == train.planned_bytes());
        }
}

TEST_CASE("frozen by type is frozen by number, and known to constants") {
    using First = toy::Linear<Real, 5, 6>;
    using Last = toy::Linear<Real, 6, 3>;
    using Open = gpipe::Pipeline<First, toy::Tanh<Real, 6>, toy::Linear<Real, 6, 6>, Last>;
    using Closed = gpipe::Pipeline<gpipe::Frozen<First>, toy::Tanh<Real, 6>,
                                   gpipe::Frozen<toy::Linear<Real, 6, 6>>, Last>;
    static_assert(gpipe::is_frozen<gpipe::Frozen<First>> && !gpipe::is_frozen<First>);
    // Gradients and two states of Adam for each, in slots of 256 bytes.
    using Of = gpipe::Cells<1>;
    using M = gpipe::MicroBatches<2>;
    constexpr std::size_t saved =
        gpipe::Training<Open, Of, M, gpipe::Loss<Loss>, gpipe::Optimizer<Adam>>::peak_bytes(0, 4) -
        gpipe::Training<Closed, Of, M, gpipe::Loss<Loss>, gpipe::Optimizer<Adam>>::peak_bytes(0, 4);
    static_assert(saved >= 4 * 3 * 256);
    using A = toy::Training<Open, Loss, Adam, Host>;
    using B = toy::Training<Closed, Loss, Adam, Host>;
    for (std::size_t cells = 1; cells <= 4; ++cells) {
        A a({}, {}, Adam{1e-2f}, options<A>(cells, {{0, 2}}));
        B b({}, {}, Adam{1e-2f}, options<B>(cells, {}));
        toy::Data<Real> const data(13);
        for (int step = 0; step < 3; ++step)
            CHECK(a.step(data.inputs, data.targets).loss == b.step(data.inputs, data.targets).loss);
        CHECK(a.planned_bytes() == b.planned_bytes());
        CHECK(std::ranges::equal(a.parameter<Real>(3, 0), b.parameter<Real>(3, 0)));
        CHECK(b.summary().find("; frozen") != std::string::npos);
        CHECK(a.summary().find("; frozen") != std::string::npos);
    }
    // Single parameters, likewise.
    using Biases = gpipe::Pipeline<gpipe::FrozenParameters<First, 0>, toy::Tanh<Real, 6>,
                                   gpipe::FrozenParameters<toy::Linear<Real, 6, 6>, 0, 1>,
                                   gpipe::FrozenParameters<Last, 0>>;
    static_assert(gpipe::frozen_tensors<gpipe::FrozenParameters<First, 0, 2>> == 5 &&
                  gpipe::frozen_tensors<First> == 0);
    static_assert(Biases::leaf_info[0].frozen_slots() == 256 && Biases::leaf_info[2].frozen);
    constexpr std::size_t saved_by_biases =
        gpipe::Training<Open, Of, M, gpipe::Loss<Loss>, gpipe::Optimizer<Adam>>::peak_bytes(0, 4) -
        gpipe::Training<Biases, Of, M, gpipe::Loss<Loss>, gpipe::Optimizer<Adam>>::peak_bytes(0, 4);
    // Where gradients go that nobody wants there is room for one layer's, of 256 bytes.
    static_assert(saved_by_biases == 3 * (256 + 256 + 256 + 256) - 256);
    using C = toy::Training<Biases, Loss, Adam, Host>;
    for (std::size_t cells = 1; cells <= 4; ++cells) {
        A a({}, {}, Adam{1e-2f}, options<A>(cells, {{2}, {{0, 0}, {3, 0}}}));
        C c({}, {}, Adam{1e-2f}, options<C>(cells, {}));
        toy::Data<Real> const data(13);
        for (int step = 0; step < 3; ++step)
            CHECK(a.step(data.inputs, data.targets).loss == c.step(data.inputs, data.targets).loss);
        CHECK(a.planned_bytes() == c.planned_bytes());
        CHECK(
            std::ranges::equal(gpipe::get<1>(a.parameters<3>()), gpipe::get<1>(c.parameters<3>())));
        CHECK(a.summary().find("; 0 frozen") != std::string::npos);
        gpipe::Inference<Biases> infer({}, {.samples = 13});
        infer.copy_from(c);
        std::vector<Real> found(13 * 3), expected(13 * 3);
        infer.predict(data.inputs, found);
        c.predict(data.inputs, expected);
        CHECK(found == expected);
    }
    // Cuts balance what there is to do: forwards alone below.
    using Deep = gpipe::Pipeline<gpipe::Repeat<6, gpipe::Frozen<toy::Linear<Real, 3, 3>>>,
                                 gpipe::Repeat<6, toy::Linear<Real, 3, 3>>>;
    using T = gpipe::Training<Deep, gpipe::Cells<2>, gpipe::MicroBatches<2>,
                              gpipe::Loss<toy::MeanSquare<Real, 3>>>;
    T deep({}, {}, {}, {.samples = 4});
    CHECK(deep.plan().first[1] == 8); // 6 + 2 * 3 of 24 thirds
}

TEST_CASE("cells below all that learns keep nothing for a recompute, which calls none of them") {
    constexpr std::size_t wide = 64, samples = 16;
    using Layer = toy::Linear<Real, wide, wide>;
    using Deep = gpipe::Pipeline<gpipe::Repeat<6, gpipe::Frozen<Layer>>, gpipe::Repeat<2, Layer>>;
    auto const bytes = [&](auto checkpointing) {
        gpipe::Training<Deep, gpipe::Balance<2, 2, 2, 2>, gpipe::MicroBatches<samples>,
                        gpipe::schedule::ZeroBubbleV, gpipe::Loss<toy::MeanSquare<Real, wide>>,
                        decltype(checkpointing)>
            train({}, {}, {}, {.samples = samples});
        CHECK(train.used_bytes() == train.planned_bytes());
        auto const& of = train.plan().devices[1]; // two cells, one behind the other
        return of.boundary + of.activations;
    };
    CHECK(bytes(gpipe::checkpoint::Always{}) == bytes(gpipe::checkpoint::Never{}));
}

namespace {

/// More parameter tensors than can be frozen one by one.
template <class Indices> struct ManyTensors;
template <std::size_t... i> struct ManyTensors<std::index_sequence<i...>> {
    using Input = gpipe::Tensor<Real, 3>;
    using Output = gpipe::Tensor<Real, 3>;
    using Parameters = gpipe::Tensors<gpipe::Tensor<Real, 1 + 0 * i>...>;
    void initialize(auto&) const {}
    void forward(auto&, auto, auto) const {}
    void backward(auto&, auto, auto, auto) const {}
};
using Many = ManyTensors<std::make_index_sequence<65>>;

} // namespace

TEST_CASE("what is asked of frozen layers in vain is refused") {
    using T = Train<Host>;
    toy::Watch watch;
    auto const says = [](auto f) {
        try {
            f();
        } catch (std::exception const& error) {
            return std::string(error.what());
        }
        return std::string("nothing");
    };
    auto const make = [&](Choice frozen) {
        return std::make_unique<T>(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f},
                                   options<T>(2, std::move(frozen)));
    };
    CHECK(says([&] {
              make({{1, 10}});
          }) == "gpipe: Options::frozen names layer 10: the layers of the pipeline are 0 to 9");
    auto const train = make({{0, 6}});
    std::vector<Real> values(30);
    for (auto const& said : {says([&] { train->read_gradient(0, 0, std::span(values)); }),
                             says([&] { (void)train->gradient<Real>(0, 0); }),
                             says([&] { (void)train->gradients<0>(); })})
        CHECK(said.find("gpipe: layer 0 (") == 0);
    CHECK(says([&] { (void)train->gradients<0>(); }).find(") is frozen: it has no gradients") !=
          std::string::npos);
    train->read_parameter(0, 0, std::span(values));
    train->write_parameter(0, 0, std::span<Real const>(values));
    auto const bias = make({{}, {{0, 1}}});
    std::vector<Real> six(6);
    for (auto const& said : {says([&] { bias->read_gradient(0, 1, std::span(six)); }),
                             says([&] { (void)bias->gradient<Real>(0, 1); })}) {
        CHECK(said.find("gpipe: parameter tensor 1 of layer 0 (") == 0);
        CHECK(said.find(") is frozen: it has no gradient") != std::string::npos);
    }
    bias->read_gradient(0, 0, std::span(values));
    // Views of all are there, and where gradients go that nobody wants is no parameter's.
    auto const weight = make({{}, {{0, 0}}});
    CHECK(gpipe::get<1>(weight->gradients<0>()).data() == weight->gradient<Real>(0, 1).data());
    CHECK(says([&] {
              make({{}, {{10, 0}}});
          }) == "gpipe: Options::frozen_parameters names layer "
                "10: the layers of the pipeline are 0 to 9");
    for (auto const& [layer, tensor, has] :
         {std::array<std::size_t, 3>{0, 2, 2}, {0, 64, 2}, {1, 0, 0}}) {
        std::string const begin = "gpipe: Options::frozen_parameters names parameter tensor " +
                                  std::to_string(tensor) + " of layer " + std::to_string(layer) +
                                  " (";
        std::string const end = "), which has " + std::to_string(has) +
                                "; those from 64 on are frozen with their layer only";
        std::string const said = says([&, layer = layer, tensor = tensor] {
            make({{}, {{layer, tensor}}});
        });
        CHECK(said == begin + std::string(Net::layers()[layer].name) + end);
    }
    using OfMany = toy::Training<gpipe::Pipeline<Many>, Loss, Adam, Host>;
    std::string const last = says([&] {
        OfMany({}, {}, Adam{}, options<OfMany>(1, {{}, {{0, 64}}}));
    });
    CHECK(last.find("gpipe: Options::frozen_parameters names parameter tensor 64 of layer 0 (") ==
          0);
    CHECK(last.find("), which has 65; those from 64 on are frozen with their layer only") !=
          std::string::npos);
    OfMany({}, {}, Adam{}, options<OfMany>(1, {{}, {{0, 63}}}));
    using OfTies = toy::Training<TiedNet, toy::MeanSquare<Real, 5>, Adam, Host>;
    CHECK(says([&] { OfTies({}, {}, Adam{}, options<OfTies>(1, {{1}})); }) ==
          "gpipe: parameter tensor 0 of layer 1 is frozen, but tensor 0 of layer 0 is tied to it "
          "and is not: they are one parameter");
    CHECK(says([&] {
              OfTies({}, {}, Adam{}, options<OfTies>(1, {{}, {{0, 0}}}));
          }) == "gpipe: parameter tensor 0 of layer 0 is frozen, but tensor 0 of layer 1 is tied "
                "to it and is not: they are one parameter");
    // All ends may be, and the others of a layer with tied ones.
    OfTies({}, {}, Adam{}, options<OfTies>(1, {{1}, {{0, 0}}}));
    OfTies({}, {}, Adam{}, options<OfTies>(1, {{}, {{0, 1}, {1, 1}}}));
}

TEST_CASE("all layers frozen: losses and nothing else") {
    using T = Train<Host>;
    toy::Watch watch;
    for (std::size_t cells : {1, 3}) {
        T train(toy::make_net<Real>(watch), {}, Adam{1e-2f}, options<T>(cells, {{0, 4, 6, 9}}));
        toy::Data<Real> const data(13);
        std::vector<Real> before(30), after(30);
        train.read_parameter(0, 0, std::span(before));
        (void)train.step(data.inputs, data.targets);
        (void)train.step(data.inputs, data.targets);
        train.read_parameter(0, 0, std::span(after));
        CHECK(before == after);
        CHECK(train.steps() == 2);
    }
}

TEST_CASE("gradients of what learns are checked, and those of frozen layers' inputs") {
    using Exact = toy::BufferNet<double>;
    using T = toy::Training<Exact, toy::MeanSquare<double, 3>, Adam, Host>;
    T train({}, {}, Adam{1e-2f}, options<T>(2, {{0, 4}, {{8, 1}}}));
    toy::Data<double> const data(12, 3);
    auto const report = gpipe::check_gradients(train, data.inputs, data.targets);
    INFO(to_string(report));
    CHECK(report.passed());
    for (auto const& row : report.rows)
        if (row.layer == 0 || row.layer == 4 || row.layer == 8)
            CHECK((row.tensor.find("parameter") != 0 || row.tensor == "parameter 0"));
}

TEST_CASE("fine-tuning: all but the head is loaded and frozen, and goes on from a saved state") {
    using T = Train<Host>;
    toy::Folder const folder;
    toy::Watch watch;
    toy::Data<Real> const data(13);
    auto const make = [&](Choice frozen, std::uint64_t seed, std::size_t cells) {
        auto o = options<T>(cells, std::move(frozen));
        o.seed = seed;
        o.snapshot = true;
        return std::make_unique<T>(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, o);
    };
    auto const trained = make({}, 7, 2);
    (void)trained->step(data.inputs, data.targets);
    gpipe::save(*trained, folder / "trained");
    std::vector<Real> body(30), head(18), now(30), tuned(18);
    trained->read_parameter(0, 0, std::span(body));
    std::vector<double> losses;
    for (std::size_t cells : {1, 3}) {
        auto const tunes = make({{0, 4, 6}}, 9, cells);
        tunes->read_parameter(9, 0, std::span(head));
        gpipe::load(*tunes, folder / "trained", {.only = {"layer."}, .except = {"layer.0009."}});
        tunes->read_parameter(9, 0, std::span(tuned));
        CHECK(tuned == head);
        for (int step = 0; step < 2; ++step) (void)tunes->step(data.inputs, data.targets);
        tunes->read_parameter(0, 0, std::span(now));
        CHECK(now == body);
        gpipe::save(*tunes, folder / "tuned");
        gpipe::start_save(*tunes, folder / "copy").wait();
        CHECK(folder.content("tuned") == folder.content("copy"));
        CHECK(folder.content("tuned").find("optimizer.0.layer.0009.0") != std::string::npos);
        CHECK(folder.content("tuned").find("optimizer.0.layer.0000.0") == std::string::npos);
        auto const goes_on = make({{0, 4, 6}}, 1, 4 - cells);
        gpipe::load(*goes_on, folder / "tuned");
        losses.push_back(tunes->step(data.inputs, data.targets).loss);
        CHECK(goes_on->step(data.inputs, data.targets).loss == losses.back());
    }
    CHECK(losses[0] == losses[1]);
}

namespace {

// W x + B A x, as Hu et al. (LoRA, 2021) have it: a frozen matrix, and two of rank 1 that learn.
struct Adapted {
    using Input = gpipe::Tensor<Real, 5>;
    using Output = gpipe::Tensor<Real, 3>;
    using Parameters =
        gpipe::Tensors<gpipe::Tensor<Real, 3, 5>, gpipe::Tensor<Real, 5>, gpipe::Tensor<Real, 3>>;
    using FrozenTensors = std::index_sequence<0>;

    void initialize(auto& ctx) const {
        auto [w, a, b] = ctx.parameters();
        for (std::size_t i = 0; i < w.size(); ++i) w.data()[i] = Real(0.5) - Real(i % 4) / 4;
        for (std::size_t i = 0; i < 5; ++i) a(i) = Real(i) / 8;
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto [w, a, b] = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s) {
            Real low = 0;
            for (std::size_t i = 0; i < 5; ++i) low += a(i) * x(s, i);
            for (std::size_t o = 0; o < 3; ++o) {
                y(s, o) = b(o) * low;
                for (std::size_t i = 0; i < 5; ++i) y(s, o) += w(o, i) * x(s, i);
            }
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto [w, a, b] = ctx.parameters();
        auto [dw, da, db] = ctx.gradients();
        bool const all = ctx.wants_gradient(0);
        for (std::size_t s = 0; s < x.samples(); ++s) {
            Real low = 0;
            for (std::size_t i = 0; i < 5; ++i) low += a(i) * x(s, i), dx(s, i) = 0;
            for (std::size_t o = 0; o < 3; ++o) {
                db(o) += low * dy(s, o);
                for (std::size_t i = 0; i < 5; ++i) {
                    da(i) += b(o) * dy(s, o) * x(s, i);
                    dx(s, i) += (w(o, i) + b(o) * a(i)) * dy(s, o);
                    if (all) dw(o, i) += dy(s, o) * x(s, i), ++computed;
                }
            }
        }
        if (ctx.wants_gradient(1) && ctx.wants_gradient(2)) ++asked;
    }
    static inline std::size_t computed = 0, asked = 0;
};

} // namespace

TEST_CASE("a layer that knows which of its parameters are frozen computes no gradient of them") {
    using T = toy::Training<gpipe::Pipeline<Adapted>, Loss, gpipe::SGD, Host>;
    T train({}, {}, gpipe::SGD{1e-1f}, options<T>(1, {}));
    toy::Data<Real> const data(13);
    std::vector<Real> before(15), after(15), changed(3);
    train.read_parameter(0, 0, std::span(before));
    double const first = train.step(data.inputs, data.targets).loss;
    for (int step = 0; step < 20; ++step) (void)train.step(data.inputs, data.targets);
    CHECK(train.step(data.inputs, data.targets).loss < first);
    train.read_parameter(0, 0, std::span(after));
    CHECK(before == after);
    train.read_parameter(0, 2, std::span(changed));
    CHECK(changed != std::vector<Real>(3));
    CHECK(Adapted::computed == 0);
    CHECK(Adapted::asked > 0);
    auto const report = gpipe::check_gradients(train, data.inputs, data.targets);
    INFO(to_string(report));
    CHECK(report.passed());
    CHECK(Adapted::computed == 0);
}

TEST_CASE("of a frozen parameter the saved state has itself and no optimizer's") {
    using T = Train<Host>;
    toy::Folder const folder;
    toy::Watch watch;
    toy::Data<Real> const data(13);
    auto const make = [&](std::size_t cells) {
        auto o = options<T>(cells, {{4}, {{0, 0}, {9, 1}}});
        o.snapshot = true;
        return std::make_unique<T>(toy::make_net<Real>(watch), Loss{}, Adam{1e-2f}, o);
    };
    auto const train = make(2);
    (void)train->step(data.inputs, data.targets);
    gpipe::save(*train, folder / "state");
    gpipe::start_save(*train, folder / "copy").wait();
    std::string const saved = folder.content("state");
    CHECK(folder.content("copy") == saved);
    for (char const* there : {"\"layer.0000.0\"", "optimizer.0.layer.0000.1",
                              "optimizer.1.layer.0009.0", "\"layer.0009.1\""})
        CHECK(saved.find(there) != std::string::npos);
    for (char const* absent : {"optimizer.0.layer.0000.0", "optimizer.0.layer.0009.1"})
        CHECK(saved.find(absent) == std::string::npos);
    auto const other = make(3);
    gpipe::load(*other, folder / "state");
    for (int step = 0; step < 2; ++step)
        CHECK(other->step(data.inputs, data.targets).loss ==
              train->step(data.inputs, data.targets).loss);
}

TEST_CASE_TEMPLATE("P1 tied parameters are frozen together: they begin as one, are one in what is "
                   "written, saved and counted, and others of their layers train on",
                   Device, Host, Remote) {
    using Skips = toy::SkipNet<Real>;
    using T = toy::Training<Skips, Loss, Adam, Device>;
    // Of the two ties one, and both; a layer's only parameter, and one of two.
    std::vector<gpipe::FrozenParameter> const offsets{{4, 1}, {9, 0}, {16, 0}};
    toy::Folder const folder;
    std::size_t point = 0;
    for (Choice const& frozen :
         std::vector<Choice>{{{}, offsets}, {{1, 5, 10, 13}}, {{1, 5, 10, 13}, offsets}}) {
        auto const make = [&](std::size_t k, auto schedule, auto const& run) {
            auto o = options<T>(k, frozen);
            o.schedule = schedule;
            o.device = run;
            o.debug = k == 2;
            o.snapshot = true;
            return std::make_unique<T>(Skips{}, Loss{}, Adam{1e-2f}, o);
        };
        toy::each_of_catalogue(
            4, Skips::size, 8, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
                for (auto const& run : toy::runs<Device>()) {
                    if (point++ % toy::one_of(29) != 0) continue;
                    INFO(schedule.name(), ", K = ", k, ", ", toy::describe(run));
                    bool const descends = schedule.name() == "GPipe";
                    toy::Reference<Skips, Loss, AdamOfOthers> plain(
                        {}, {}, {Adam{1e-2f}, frozen}, 7, 8,
                        descends ? Backward::descending : Backward::ascending);
                    auto const train = make(k, schedule, run);
                    auto const alike = [&](T& other) {
                        std::string wrong;
                        for (std::size_t layer = 0; layer < Skips::size; ++layer)
                            for (std::size_t t = 0; t < other.tensors(layer); ++t) {
                                std::vector<std::byte> own(plain.parameter(layer, t).size());
                                other.read_parameter(layer, t, std::span(own));
                                if (own != plain.parameter(layer, t))
                                    wrong += std::to_string(layer) + ' ';
                            }
                        return wrong;
                    };
                    CHECK(alike(*train) == "");
                    for (std::size_t const size : {13, 7}) {
                        toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
                        CHECK(train->step(data.inputs, data.targets).loss ==
                              plain.step(data.inputs, data.targets));
                    }
                    CHECK(alike(*train) == "");
                    CHECK(train->used_bytes() == train->planned_bytes());

                    gpipe::start_save(*train, folder / "copy").wait();
                    gpipe::save(*train, folder / "state");
                    std::string const saved = folder.content("state");
                    CHECK(folder.content("copy") == saved);
                    CHECK((saved.find("\"layer.0004.1\"") != std::string::npos));
                    CHECK(saved.find("layer.0009.0") == std::string::npos);
                    CHECK((saved.find("optimizer.0.layer.0004.1") == std::string::npos) ==
                          !frozen.tensors.empty());
                    auto const other = make(5 - k, gpipe::schedule::OneForwardOneBackward{}, run);
                    std::vector<Real> values(5, 0.25f);
                    other->write_parameter(9, 0, std::span<Real const>(values));
                    for (std::size_t const layer : {16, 4}) {
                        std::vector<Real> read(5);
                        other->read_parameter(layer, layer == 4, std::span(read));
                        CHECK(read == values);
                    }
                    gpipe::load(*other, folder / "state");
                    CHECK(alike(*other) == "");
                }
            });
    }
}

TEST_CASE("of many ties all but the last are frozen, and updates wait for no other device") {
    struct A;
    struct B;
    struct C;
    struct D;
    using Layer = toy::Linear<Real, 5, 5>;
    using Ties =
        gpipe::Pipeline<toy::TiedTo<Layer, A>, toy::TiedTo<Layer, B>, toy::TiedTo<Layer, C>,
                        toy::TiedTo<Layer, D>, toy::TiedTo<Layer, A>, toy::TiedTo<Layer, B>,
                        toy::TiedTo<Layer, C>, toy::TiedTo<Layer, D>>;
    auto const train = [&]<class Update>(Update) {
        using T = gpipe::Training<Ties, gpipe::Cells<2>, gpipe::MicroBatches<2>,
                                  gpipe::Loss<toy::MeanSquare<Real, 5>>, gpipe::Optimizer<Adam>,
                                  gpipe::schedule::OneForwardOneBackward, Update>;
        typename T::Options o;
        o.samples = 4;
        o.frozen_parameters = {{0, 0}, {1, 0}, {2, 0}, {4, 0}, {5, 0}, {6, 0}};
        T training(Ties{}, {}, Adam{1e-2f}, o);
        auto const x = toy::numbers<Real>(20, 1), target = toy::numbers<Real>(20, 2);
        std::vector<double> seen;
        for (int step = 0; step < 3; ++step) seen.push_back(training.step(x, target).loss);
        toy::add_state<Ties>(training, seen);
        return seen;
    };
    CHECK(train(gpipe::update::Immediate{}) == train(gpipe::update::AfterCommit{}));
}
