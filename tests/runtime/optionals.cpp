// Tensors that a mini-batch may come without, see gpipe::Optional. On streams:
// cuda_double/optionals.cpp; what must not compile: compile_fail/optionals.cpp.
#include "support/optional_layers.hpp"
#include "support/ranks.hpp"
#include "support/ways.hpp"

#include <gpipe/check_gradients.hpp>
#include <gpipe/inference.hpp>
#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::dynamic;
using gpipe::none;
using gpipe::device::Host;
using toy::Remote;
using Real = float;

using Net = toy::HintedNet<Real, toy::Maybe<Real>>;
using Loss = toy::MeanSquare<Real, 3>;
using Data = toy::HintedData<Real>;
template <class N, class Device> using Train = toy::Training<N, Loss, Adam, Device>;
constexpr std::size_t L = Net::size, M = 6;

template <class T> typename T::Options options(std::size_t cells) {
    return {.samples = 13, .seed = 7, .cells = cells, .micro_batches = M};
}
template <class N> Train<N, Host> on_one(gpipe::schedule::Dynamic schedule) {
    using T = Train<N, Host>;
    auto o = options<T>(1);
    o.schedule = schedule;
    o.device.threads = 1;
    return {N{}, {}, Adam{1e-2f}, o};
}
// What all that can be asked of a training gives, by mini-batches with and without: `with` has a
// bit for each of these.
template <class T> std::vector<double> numbers(T& train, std::uint32_t with = 0x9A6) {
    std::vector<double> result;
    auto const next = [&] { return ((with = with >> 1 | (with & 1) << 11) & 1) != 0; };
    for (std::size_t const size : std::vector<std::size_t>{13, 7, 3}) {
        Data const data(size, static_cast<std::uint32_t>(size));
        Data const part(size / 2, static_cast<std::uint32_t>(size + 2));
        train.accumulate(part.template batch<T>(next()), part.targets);
        result.push_back(train.step(data.template batch<T>(next()), data.targets).loss);
        result.push_back(
            train.compute_gradients(data.template batch<T>(next()), data.targets).loss);
        toy::add_state<Net>(train, result, true);
        Data const more(29, static_cast<std::uint32_t>(size + 1));
        auto const batch = more.template batch<T>(next());
        result.push_back(train.evaluate(batch, more.targets).loss);
        std::vector<Real> outputs(29 * 3);
        train.predict(batch, outputs);
        result.insert(result.end(), outputs.begin(), outputs.end());
    }
    return result;
}

} // namespace

TEST_CASE("an optional tensor that is there is a tensor, and one that is not is nothing") {
    for (gpipe::schedule::Dynamic const& schedule :
         {gpipe::schedule::Dynamic(gpipe::schedule::GPipe{}),
          gpipe::schedule::Dynamic(gpipe::schedule::GPipeAscending{})}) {
        auto with = on_one<Net>(schedule);
        auto there = on_one<toy::HintedNet<Real, toy::There<Real>>>(schedule);
        auto const always = numbers(there);
        CHECK((numbers(with, 0xFFF) == always));
        auto without = on_one<Net>(schedule);
        auto gone = on_one<toy::HintedNet<Real, toy::Gone<Real>>>(schedule);
        auto const never = numbers(gone);
        CHECK((numbers(without, 0) == never));
        CHECK(always != never);
    }
}

TEST_CASE_TEMPLATE("P1 optional tensors: every schedule, checkpointing, number of devices and link "
                   "trains by mini-batches with and without them as one device does",
                   Device, Host, Remote) {
    auto first = on_one<Net>(gpipe::schedule::GPipe{});
    auto second = on_one<Net>(gpipe::schedule::GPipeAscending{});
    auto const descending = numbers(first), ascending = numbers(second);
    toy::each_training<Device>(L, L, M, 101, [&](toy::Way<Device> const& way) {
        using T = Train<Net, Device>;
        auto o = way.chosen(options<T>(way.cells));
        o.debug = way.number % 4 == 1;
        T train(Net{}, {}, Adam{1e-2f}, o);
        CHECK((numbers(train) == (way.descends() ? descending : ascending)));
        CHECK(train.used_bytes() == train.planned_bytes());
    });
}

TEST_CASE("optional tensors: steps with and without overlap where updates are immediate") {
    using Immediate =
        gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>, gpipe::Loss<Loss>,
                        gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                        gpipe::checkpoint::Dynamic, gpipe::update::Immediate>;
    auto const run = [](auto& train) {
        using T = std::remove_reference_t<decltype(train)>;
        std::vector<typename T::Pending> pending;
        std::vector<double> result;
        for (std::uint32_t i = 0; i < 12; ++i) {
            Data data(13, i);
            pending.push_back(train.start(data.batch<T>(i % 3 == 1), data.targets));
            std::fill(data.marks.begin(), data.marks.end(), 99);
        }
        for (auto& step : pending) result.push_back(step.result().loss);
        toy::add_state<Net>(train, result, true);
        return result;
    };
    auto plain = on_one<Net>(gpipe::schedule::GPipeAscending{});
    auto const expected = run(plain);
    for (std::size_t const threads : std::vector<std::size_t>{1, 2, 3}) {
        auto o = options<Immediate>(3);
        o.schedule = gpipe::schedule::OneForwardOneBackward{};
        o.device.threads = threads;
        Immediate train(Net{}, {}, Adam{1e-2f}, o);
        CHECK((run(train) == expected));
    }
}

TEST_CASE_TEMPLATE("optional tensors take the bytes of tensors that are always there", Device, Host,
                   Remote) {
    using There = toy::HintedNet<Real, toy::There<Real>>;
    auto const planned = []<class N>(N) {
        using T = Train<N, Device>;
        auto o = options<T>(3);
        o.schedule = gpipe::schedule::OneForwardOneBackward{};
        return T(N{}, {}, Adam{1e-2f}, o).planned_bytes();
    };
    CHECK(planned(Net{}) == planned(There{}));
}

TEST_CASE_TEMPLATE("optional tensors: gradients are checked with and without, and layers timed",
                   Device, Host, Remote) {
    using D = toy::HintedNet<double, toy::Maybe<double>>;
    using T = toy::Training<D, toy::MeanSquare<double, 3>, Adam, Device>;
    auto o = options<T>(2);
    // runtime/check_gradients.cpp looks at what touches the memory
    if constexpr (std::is_same_v<Device, Remote>) o.device.guards = false;
    T train(D{}, {}, Adam{1e-2f}, o);
    toy::HintedData<double> const data(13);
    std::size_t rows[2];
    for (bool const with : {false, true}) {
        auto const report =
            gpipe::check_gradients(train, data.batch<T>(with), data.targets, {.samples = 5});
        CHECK(report.passed());
        rows[with] = report.rows.size();
        for (auto const& row : report.rows) CHECK(row.checked > 0);
    }
    CHECK(rows[true] == rows[false] + 4); // three layers take it, and one pops it
}

namespace {

using Short = gpipe::Pipeline<toy::Linear<Real, 5, 6>, toy::Linear<Real, 6, 3>>;

} // namespace

namespace {

// Two tensors that may be absent, each by itself, beside one that is there.
struct First;
struct Second;
struct PassesTwo {
    using One = toy::Tensor<Real>;
    using Input = gpipe::Tensors<One, gpipe::Optional<First, One>, gpipe::Optional<Second, One>>;
    using Output = Input;
    static constexpr bool only_evaluates = true;
    void forward(auto&, auto x, auto y) const {
        auto const& [a, b, c] = x;
        std::copy(a.begin(), a.end(), gpipe::get<0>(y).begin());
        std::copy(b.begin(), b.end(), gpipe::get<1>(y).begin());
        std::copy(c.begin(), c.end(), gpipe::get<2>(y).begin());
    }
};
struct AddsTwo {
    using Input = PassesTwo::Output;
    using Output = toy::Tensor<Real>;
    static constexpr bool only_evaluates = true;
    void forward(auto&, auto x, auto y) const {
        auto const& [a, b, c] = x;
        for (std::size_t s = 0; s < y.samples(); ++s) y(s) = a(s) + (b ? b(s) : 0) + (c ? c(s) : 0);
    }
};

} // namespace

TEST_CASE("tensors of different tags are absent each by itself") {
    using N = gpipe::Pipeline<PassesTwo, AddsTwo>;
    gpipe::Inference<N, gpipe::Cells<2>, gpipe::MicroBatches<2>> inference(N{}, {.samples = 3});
    std::vector<Real> const a(3, Real(1)), b(3, Real(10)), c(3, Real(100));
    std::vector<Real> y(3);
    inference.predict({a, b, c}, y);
    CHECK(y == std::vector<Real>(3, Real(111)));
    inference.predict({a, none, c}, y);
    CHECK(y == std::vector<Real>(3, Real(101)));
    inference.predict({a, b, none}, y);
    CHECK(y == std::vector<Real>(3, Real(11)));
    inference.predict({a, none, none}, y);
    CHECK(y == a);
}

TEST_CASE("a target may be absent, for all that the layers know") {
    using T = toy::Training<Short, toy::Weighted<Real>, Adam, Host>;
    auto const make = [] {
        return std::make_unique<T>(Short{}, toy::Weighted<Real>{}, Adam{}, options<T>(2));
    };
    toy::Data<Real> const data(13);
    std::vector<Real> const ones(13, Real(1)), twos(13, Real(2));
    auto const with = make(), without = make(), other = make();
    for (int i = 0; i < 3; ++i) {
        double const loss = without->step(data.inputs, {data.targets, none}).loss;
        CHECK(with->step(data.inputs, {data.targets, ones}).loss == loss);
        CHECK(other->step(data.inputs, {data.targets, twos}).weight == 26);
        CHECK(without->evaluate(data.inputs, {data.targets, none}).loss ==
              with->evaluate(data.inputs, {data.targets, ones}).loss);
    }
}

TEST_CASE("P1 optional tensors: replicas, and ranks that are all told the same, train as one") {
    using One = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>, gpipe::Loss<Loss>,
                                gpipe::Optimizer<Adam>, gpipe::Replicas<2>>;
    using There = gpipe::Training<toy::HintedNet<Real, toy::There<Real>>, gpipe::Cells<2>,
                                  gpipe::MicroBatches<4>, gpipe::Loss<Loss>, gpipe::Optimizer<Adam>,
                                  gpipe::Replicas<2>>;
    using Gone = gpipe::Training<toy::HintedNet<Real, toy::Gone<Real>>, gpipe::Cells<2>,
                                 gpipe::MicroBatches<4>, gpipe::Loss<Loss>, gpipe::Optimizer<Adam>,
                                 gpipe::Replicas<2>>;
    auto const run = []<class T>(T* /*type*/, auto net, bool with) {
        typename T::Options o;
        o.samples = 8;
        o.seed = 7;
        T train(net, Loss{}, Adam{1e-2f}, o);
        return numbers(train, with ? 0xFFF : 0);
    };
    auto* const one = static_cast<One*>(nullptr);
    using toy::HintedNet;
    CHECK((run(one, Net{}, true) ==
           run(static_cast<There*>(nullptr), HintedNet<Real, toy::There<Real>>{}, true)));
    CHECK((run(one, Net{}, false) ==
           run(static_cast<Gone*>(nullptr), HintedNet<Real, toy::Gone<Real>>{}, false)));

    using T = gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>,
                              gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                              gpipe::checkpoint::Dynamic, toy::Wired>;
    auto plain = on_one<Net>(gpipe::schedule::GPipeAscending{});
    toy::Crew<T> crew({2, 1, 1}, true, 2, [&](std::size_t, toy::Rank::Options device) {
        auto of = options<T>(4);
        of.schedule = gpipe::schedule::ZeroBubbleH1{};
        of.device = device;
        return std::make_unique<T>(Net{}, Loss{}, Adam{1e-2f}, of);
    });
    for (std::size_t i = 0; i < 6; ++i) {
        Data const data(13 - i, static_cast<std::uint32_t>(i));
        bool const with = i % 3 == 1;
        CHECK(crew.step(data.batch<T>(with), data.targets).loss ==
              plain.step(data.batch<Train<Net, Host>>(with), data.targets).loss);
        CHECK(crew.evaluate(data.batch<T>(!with), data.targets).loss ==
              plain.evaluate(data.batch<Train<Net, Host>>(!with), data.targets).loss);
    }
    std::vector<double> expected, found;
    toy::add_state<Net>(plain, expected, true);
    toy::add_state<Net>(crew, found, true);
    CHECK((expected == found));
    Data const data(13);
    crew.each([&](std::size_t r) { crew[r].step(data.batch<T>(r > 0), data.targets); });
    std::string const words = toy::thrown_by([&] { crew.rethrow(); });
    CHECK_MESSAGE(toy::has(words, "train on 13 samples without tensors 1, 2 (of the inputs, then "
                                  "the targets) after"),
                  words);
}

namespace {

// The first two layers: what goes in and may be absent comes out.
using Through = gpipe::Pipeline<toy::Hinted<Real, 5, 6, toy::Maybe<Real>>,
                                toy::Hinted<Real, 6, 6, toy::Maybe<Real>>>;

} // namespace

TEST_CASE(
    "an Inference puts out what is there, and several mini-batches under way differ in that") {
    using I = gpipe::Inference<Through, gpipe::Cells<2>, gpipe::MicroBatches<4>>;
    using Plain = gpipe::Inference<Through>;
    Plain plain(Through{}, {.samples = 40});
    I inference(Through{}, {.samples = 13});
    std::vector<std::vector<Real>> expected, found;
    std::vector<I::Pending> pending;
    for (std::uint32_t i = 0; i < 6; ++i) {
        Data const data(13 - i, i);
        std::size_t const n = data.targets.size() / 3;
        std::vector<Real> y(n * 6), hint(n * 4, Real(5));
        found.insert(found.end(), {y, hint});
        if (i % 2 == 0) {
            plain.predict({data.inputs, data.hints}, {y, hint});
            CHECK(hint[0] != 5);
        } else
            plain.predict({data.inputs, none}, {y, none});
        expected.insert(expected.end(), {y, hint});
    }
    for (std::uint32_t i = 0; i < 6; ++i) {
        Data const data(13 - i, i);
        auto& y = found[2 * i];
        auto& hint = found[2 * i + 1];
        pending.push_back(i % 2 == 0 ? inference.start({data.inputs, data.hints}, {y, hint})
                                     : inference.start({data.inputs, none}, {y, none}));
    }
    for (I::Pending& run : pending) run.wait();
    CHECK((found == expected));
    Data const more(40);
    std::vector<Real> at_once(240), by_parts(240);
    plain.predict({more.inputs, none}, {at_once, none});
    inference.predict({more.inputs, none}, {by_parts, none});
    CHECK((at_once == by_parts));
}

TEST_CASE("what a caller says wrongly of what is absent is an error, and nothing has changed") {
    using T = Train<Net, Host>;
    T train(Net{}, {}, Adam{1e-2f}, options<T>(2));
    Data const data(13);
    std::vector<double> before, after;
    toy::add_state<Net>(train, before);
    CHECK_THROWS_WITH_AS(train.step({data.inputs, none, data.marks}, data.targets),
                         "gpipe: tensor 2 of the inputs is there, but tensor 1 of the inputs, of "
                         "the same tag, is absent",
                         std::invalid_argument);
    std::vector<std::int32_t> marks(24);
    CHECK_THROWS_WITH_AS(train.step({data.inputs, data.hints, marks}, data.targets),
                         "gpipe: the tensors of the inputs hold 13 and 12 samples",
                         std::invalid_argument);
    toy::add_state<Net>(train, after);
    CHECK(before == after);

    gpipe::Inference<Through> inference(Through{}, {.samples = 13});
    std::vector<Real> y(78), hint(52);
    CHECK_THROWS_WITH_AS(inference.predict({data.inputs, data.hints}, {y, none}),
                         "gpipe: tensor 1 of the outputs is absent, but tensor 1 of the inputs, of "
                         "the same tag, is there",
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(inference.predict({data.inputs, none}, {y, hint}),
                         "gpipe: tensor 1 of the outputs is there, but tensor 1 of the inputs, of "
                         "the same tag, is absent",
                         std::invalid_argument);
}

namespace {

// What makes a hint that nobody gives: its tag is always there.
struct Makes {
    using Input = toy::Tensor<Real, 5>;
    using Output = gpipe::Tensors<toy::Tensor<Real, 5>, toy::Maybe<Real>::type>;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    void forward(auto& ctx, auto x, auto y) const {
        std::copy(x.begin(), x.end(), gpipe::get<0>(y).begin());
        for (std::size_t s = 0; s < ctx.samples(); ++s)
            for (std::size_t i = 0; i < 4; ++i) gpipe::get<1>(y)(s, i) = x(s, i);
    }
    void backward(auto&, auto dy, auto dx) const {
        auto const& [own, hint] = dy;
        std::copy(own.begin(), own.end(), dx.begin());
        for (std::size_t s = 0; s < dx.samples(); ++s)
            for (std::size_t i = 0; i < 4; ++i) dx(s, i) += hint(s, i);
    }
};
// Takes nothing but what may be absent.
struct AllAbsent {
    using Input = toy::Maybe<Real>::type;
    using Output = toy::Tensor<Real>;
    void forward(auto&, auto, auto y) const { std::fill(y.begin(), y.end(), Real(0)); }
    void backward(auto&, auto, auto, auto dx) const { std::fill(dx.begin(), dx.end(), Real(0)); }
};
template <class Indices> struct Many;
template <std::size_t... is> struct Many<std::index_sequence<is...>> {
    using Input =
        gpipe::Tensors<toy::Tensor<Real>, gpipe::Optional<std::integral_constant<std::size_t, is>,
                                                          toy::Tensor<Real>>...>;
    using Output = toy::Tensor<Real>;
    static constexpr bool only_evaluates = true;
    void forward(auto&, auto x, auto y) const {
        std::copy(std::get<0>(x).begin(), std::get<0>(x).end(), y.begin());
        if (auto const last = std::get<63>(x)) y(0) = last(0);
    }
};
template <std::size_t n> using ManyNet = gpipe::Pipeline<Many<std::make_index_sequence<n>>>;

} // namespace

TEST_CASE("a tag that no array is given for is always there, and one must be") {
    using N = gpipe::Pipeline<Makes, toy::Hinted<Real, 5, 6, toy::Maybe<Real>>>;
    using I = gpipe::Inference<N>;
    I inference(N{}, {.samples = 4});
    Data const data(4);
    std::vector<Real> y(24), hint(16);
    inference.predict(data.inputs, {y, hint});
    CHECK(hint[1] == 2 * data.inputs[1] + Real(0.25));
    CHECK_THROWS_WITH_AS(inference.predict(data.inputs, {y, none}),
                         "gpipe: tensor 1 of the outputs is absent, but no input of its tag: it "
                         "would be written",
                         std::invalid_argument);
    gpipe::Inference<gpipe::Pipeline<AllAbsent>> absent({}, {.samples = 4});
    CHECK_THROWS_WITH_AS(absent.predict(none, y),
                         "gpipe: none of the tensors of the inputs is there, and so nothing says "
                         "how many samples there are",
                         std::invalid_argument);
}

namespace {

// Nothing, beside integers, flags and a number that is scaled by w; the first of them stashes
// nothing, too, and the last pops it.
struct Nothing;
using AnyTensor = gpipe::Optional<Nothing, toy::Tensor<Real, 3>>;
struct PastTag;
struct PassesNothing {
    using Input = gpipe::Tensors<toy::Tensor<std::int32_t, 2>, toy::Tensor<Real>, toy::Tensor<bool>,
                                 AnyTensor>;
    using Output = Input;
    using Parameters = toy::Tensor<Real>;
    void initialize(auto& ctx) const { ctx.parameters()[0] = 2; }
    void forward(auto& ctx, auto x, auto y) const {
        auto const& [a, b, c, d] = x;
        CHECK(!d);
        CHECK(!gpipe::get<3>(y));
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            for (std::size_t i = 0; i < 2; ++i) gpipe::get<0>(y)(s, i) = a(s, i);
            gpipe::get<1>(y)(s) = ctx.parameters()[0] * b(s);
            gpipe::get<2>(y)(s) = c(s);
        }
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        CHECK(!gpipe::get<3>(dy));
        CHECK(!gpipe::get<3>(dx));
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            ctx.gradients()[0] += gpipe::get<1>(dy)(s) * gpipe::get<1>(x)(s);
            gpipe::get<1>(dx)(s) = ctx.parameters()[0] * gpipe::get<1>(dy)(s);
        }
    }
};
struct StashesNothing : PassesNothing {
    using Stash = gpipe::Skip<PastTag, AnyTensor>;
    void forward(auto& ctx, auto x, auto y) const {
        CHECK(!gpipe::stash<PastTag>(ctx));
        PassesNothing::forward(ctx, x, y);
    }
};
struct PopsNothing : PassesNothing {
    using Pop = gpipe::Skip<PastTag, AnyTensor>;
    void forward(auto& ctx, auto x, auto y) const {
        CHECK(!gpipe::pop<PastTag>(ctx));
        PassesNothing::forward(ctx, x, y);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        CHECK(!gpipe::pop_gradient<PastTag>(ctx));
        PassesNothing::backward(ctx, x, dy, dx);
    }
};
struct SumOfNumbers {
    using Target = gpipe::Tensors<>;
    gpipe::LossValue<> operator()(auto& ctx, auto y, auto, auto dy) const {
        gpipe::LossValue<> value{0, static_cast<double>(ctx.samples())};
        for (std::size_t s = 0; s < ctx.samples(); ++s) {
            value.sum += static_cast<double>(gpipe::get<1>(y)(s));
            if constexpr (!gpipe::is_none<decltype(dy)>) gpipe::get<1>(dy)(s) = 1;
        }
        return value;
    }
};

} // namespace

TEST_CASE("B9 H6 Lingvo P4 nothing passes four cells beside tensors, is stashed and popped, and "
          "gradients come back past it") {
    using N = gpipe::Pipeline<StashesNothing, PassesNothing, PassesNothing, PopsNothing>;
    using T = toy::Training<N, SumOfNumbers, gpipe::SGD, Host>;
    std::vector<std::int32_t> a(20);
    std::vector<Real> b(10);
    bool c[10] = {};
    for (std::size_t i = 0; i < 10; ++i) {
        a[2 * i] = static_cast<std::int32_t>(i);
        b[i] = static_cast<Real>(i);
        c[i] = i % 3 == 0;
    }
    for (std::size_t const cells : std::vector<std::size_t>{1, 4})
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing()) {
            typename T::Options o;
            o.samples = 10;
            o.cells = cells;
            o.micro_batches = 5;
            o.checkpointing = checkpointing.policy;
            T train(N{}, {}, gpipe::SGD{0}, o);
            CHECK(train.step({a, b, c, none}, gpipe::Batch<gpipe::Tensors<>>{}).loss == 16 * 4.5);
            for (std::size_t l = 0; l < 4; ++l)
                CHECK(train.gradient<Real>(l, 0)[0] == 8 * Real(4.5));
            std::vector<std::int32_t> integers(20);
            std::vector<Real> numbers(10);
            bool flags[10] = {};
            train.predict({a, b, c, none}, {integers, numbers, flags, none});
            CHECK(integers == a);
            CHECK(numbers[9] == 16 * 9);
            CHECK(std::equal(std::begin(c), std::end(c), flags));
        }
}

TEST_CASE("of at most 64 tensors of a mini-batch some may be absent") {
    using Most = gpipe::Inference<ManyNet<63>>;
    Most inference(ManyNet<63>{}, {.samples = 1});
    Real const x[] = {1}, last[] = {7};
    Real y[1];
    [&]<std::size_t... is>(std::index_sequence<is...>) {
        inference.predict({x, (static_cast<void>(is), none)..., last}, y);
        CHECK(y[0] == 7);
        inference.predict({x, (static_cast<void>(is), none)..., none}, y);
        CHECK(y[0] == 1);
    }
    (std::make_index_sequence<62>{});
    using More = gpipe::Inference<ManyNet<64>>;
    CHECK_THROWS_WITH_AS(More(ManyNet<64>{}, {.samples = 1}),
                         "gpipe: a mini-batch has 65 tensors, of which some may be absent: then it "
                         "may have at most 64",
                         std::invalid_argument);
}
