// Options::debug: it says what a layer leaves unwritten, or writes beyond its end, and changes no
// bit of anything else.

#include "support/expected.hpp"
#include "support/skip_layers.hpp"

#include <gpipe/runtime/poison.hpp>

#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace {

using gpipe::Tensor;
using gpipe::Tensors;
using gpipe::device::Host;
using toy::Backward;
using toy::Remote;

// What a layer does wrong, and how many elements beyond the end it writes.
enum class Fault { nothing, output, mark, flags, saved, stash, dx, deferred, popped, dy, value };
struct Mistake {
    Fault leaves = Fault::nothing;
    Fault beyond = Fault::nothing;
    std::size_t by = 1;
    std::size_t at = 3;    // the micro-batch that begins with this sample; that at 0 is the largest
    bool again = false;    // in a recompute only
    bool gradient = false; // writes beyond those of parameters
    bool scratch = false;  // writes beyond it
    bool reads_scratch = false;  // that nobody has written
    Fault adds = Fault::nothing; // writes by +=

    // Writes all but element `first` of sample 4 of the mini-batch and what is behind.
    void write(auto& ctx, Fault tensor, auto view, auto value, std::size_t first = 1) const {
        using T = std::remove_reference_t<decltype(*view.data())>;
        std::size_t const size = view.size() / view.samples();
        std::size_t end = view.size();
        bool const now = !again || phase(ctx) == gpipe::Phase::recompute;
        if (tensor == leaves && ctx.first_sample() == at && now) end = size + first;
        if (tensor == beyond && ctx.first_sample() == at && now) end += by;
        bool const sums = tensor == adds && ctx.first_sample() == at && now;
        for (std::size_t i = 0; i < end; ++i)
            view.data()[i] = static_cast<T>(sums ? view.data()[i] + static_cast<T>(value)
                                                 : static_cast<T>(value));
    }

  private:
    static gpipe::Phase phase(auto& ctx) {
        if constexpr (requires { ctx.phase(); }) return ctx.phase();
        return gpipe::Phase::evaluate;
    }
};

struct Tag;

// 64 floats, and 3 x 64: nothing of their slots is left over.
struct First {
    using Input = Tensor<float, 2>;
    using Output = Tensors<Tensor<float, 64>, Tensor<std::int32_t, 2>, Tensor<std::uint8_t, 24>>;
    using Parameters = Tensors<Tensor<float>, Tensor<float, 64>>;
    using Saved = Tensor<double, 2>;
    using Scratch = Tensor<float, 4>;
    using Stash = gpipe::Skip<Tag, Tensor<float, 64>>;
    Mistake mistake{};

    void initialize(auto& ctx) const {
        auto const [a, b] = ctx.parameters();
        a[0] = b[0] = 1;
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const [out, mark, flags] = y;
        float const sum = x(0, 0) + x(0, 1);
        mistake.write(ctx, Fault::output, out, sum);
        mistake.write(ctx, Fault::mark, mark, 7);
        mistake.write(ctx, Fault::flags, flags, 0x33, 8);
        if (ctx.saving()) mistake.write(ctx, Fault::saved, ctx.saved(), sum);
        mistake.write(ctx, Fault::stash, gpipe::stash<Tag>(ctx), sum);
        auto const scratch = ctx.scratch();
        if (mistake.scratch) *scratch.end() = 1;
        if (mistake.reads_scratch) out(0, 0) += scratch(0, 0);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto const [da, db] = ctx.gradients();
        auto const [dout, dmark, dflags] = dy;
        db[63] += dout(0, 0) * static_cast<float>(ctx.saved()(0, 0)) * x(0, 0);
        if (mistake.gradient) *db.end() += 1;
        mistake.write(ctx, Fault::dx, dx, da[0]);
    }
};
// Halves alone; nobody below it wants gradients of integers.
struct Last {
    using Input = First::Output;
    using Output = Tensor<float, 2>;
    using Parameters = Tensor<float>;
    using Deferred = Tensor<float, 2>;
    using Pop = gpipe::Skip<Tag, Tensor<float, 64>>;
    Mistake mistake{};

    void initialize(auto& ctx) const { ctx.parameters()[0] = 1; }
    void forward(auto& ctx, auto x, auto y) const {
        mistake.write(ctx, Fault::output, y, gpipe::get<0>(x)(0, 0) * ctx.parameters()[0]);
    }
    void input_gradient(auto& ctx, auto, auto dy, auto dx) const {
        auto const [dout, dmark, dflags] = dx;
        static_assert(gpipe::is_none<decltype(dmark)>);
        mistake.write(ctx, Fault::dx, dout, dy(0, 0));
        mistake.write(ctx, Fault::deferred, ctx.deferred(), dy(0, 1));
        mistake.write(ctx, Fault::popped, gpipe::pop_gradient<Tag>(ctx), dy(0, 0));
    }
    void weight_gradient(auto& ctx, auto, auto) const {
        auto const gradient = ctx.gradients();
        gradient[0] += ctx.deferred()(0, 0);
        if (mistake.gradient) gradient.data()[3] += 1; // within the slot
    }
};
struct Mean {
    using Target = Tensors<>;
    Mistake mistake{};

    void operator()(auto& ctx, auto y, auto, auto dy) const {
        if (mistake.beyond == Fault::value && ctx.first_sample() == mistake.at)
            *(&ctx.value()[0] + 2) = 3; // of one metric too many
        // In an evaluation nobody reads them.
        if (ctx.training()) mistake.write(ctx, Fault::dy, dy, 1);
        ctx.value()[0] = y(0, 0);
        if (mistake.leaves != Fault::value) ctx.value()[1] = 1;
    }
};

using Below = toy::Linear<float, 2, 2>; // somebody wants the gradient of First's input
using Net = gpipe::Pipeline<Below, First, Last>;
using Train = toy::Training<Net, Mean, gpipe::Adam, Host>;

Train::Options options(std::size_t cells, bool debug = true) {
    Train::Options o;
    o.samples = 7; // micro-batches of 3, 2 and 2
    o.cells = cells;
    o.micro_batches = 3;
    o.checkpointing = gpipe::checkpoint::Always{};
    o.debug = debug;
    return o;
}
std::vector<float> const inputs = toy::numbers<float>(14, 5);

std::vector<float> parameters_of(Train& train) {
    std::vector<float> all;
    for (std::size_t layer = 0; layer < Train::layer_count; ++layer)
        for (std::size_t t = 0; t < train.tensors(layer); ++t) {
            auto const values = train.parameter<float>(layer, t);
            all.insert(all.end(), values.begin(), values.end());
        }
    return all;
}
void make(Train& train, std::size_t layer, Mistake const& mistake) {
    auto const change = [&](auto& of) { of.mistake = mistake; };
    if (layer == 1) train.change_layer<1>(change);
    if (layer == 2) train.change_layer<2>(change);
    if (layer == 3) train.change_loss(change);
}
// What a step says, up to the layer's name.
std::string complaint(Train& train) {
    try {
        train.step(inputs, {});
    } catch (std::logic_error const& error) {
        std::string const text = error.what();
        return text.substr(0, text.rfind(" ("));
    }
    return "nothing";
}

struct Case {
    std::size_t layer;
    Mistake mistake;
    std::string says;
};
std::string left(std::string const& tensor, std::string const& who) {
    return "gpipe: " + tensor +
           " is left unwritten, first at element 1 of sample 4 of the mini-batch, by the " + who;
}
std::string computed(std::string const& tensor, std::string const& who) {
    return "gpipe: " + tensor +
           " is computed from what is unwritten (by += for =, say), first at element 0 of sample 3 "
           "of the mini-batch, by the " +
           who;
}
std::string beyond(std::string const& tensor, std::size_t bytes, std::string const& who) {
    return "gpipe: " + tensor + " is written up to " + std::to_string(bytes) +
           " bytes beyond its end, by the " + who;
}
std::string const tag = std::string(gpipe::type_name<Tag>);
// How a function of layer 1 or 2 is named.
std::vector<Case> const cases{
    {1, {Fault::output}, left("output 0", "forward of layer 1")},
    {1, {Fault::mark}, left("output 1", "forward of layer 1")},
    {1, {Fault::saved}, left("saved 0", "forward of layer 1")},
    {1, {Fault::stash}, left("stash " + tag, "forward of layer 1")},
    {1, {Fault::dx}, left("dx 0", "backward of layer 1")},
    {2, {Fault::output}, left("output 0", "forward of layer 2")},
    {2, {Fault::dx}, left("dx 0", "input_gradient of layer 2")},
    {2, {Fault::deferred}, left("deferred 0", "input_gradient of layer 2")},
    {2, {Fault::popped}, left("gradient of pop " + tag, "input_gradient of layer 2")},
    {3, {Fault::dy}, left("dy 0", "call of layer 3")},
    {3,
     {Fault::value},
     "gpipe: value 0 is left unwritten, first at element 1, by the call of layer 3"},
    {1, {.adds = Fault::output}, computed("output 0", "forward of layer 1")},
    {1, {.adds = Fault::saved}, computed("saved 0", "forward of layer 1")},
    {1, {.adds = Fault::stash}, computed("stash " + tag, "forward of layer 1")},
    {1, {.adds = Fault::dx}, computed("dx 0", "backward of layer 1")},
    {2, {.adds = Fault::dx}, computed("dx 0", "input_gradient of layer 2")},
    {2, {.adds = Fault::deferred}, computed("deferred 0", "input_gradient of layer 2")},
    {3, {.adds = Fault::dy}, computed("dy 0", "call of layer 3")},
    {3, {.beyond = Fault::value}, beyond("value 0", 8, "call of layer 3")},
    {3, {.beyond = Fault::value, .at = 0}, beyond("value 0", 8, "call of layer 3")},
    {3, {.beyond = Fault::value, .at = 5}, beyond("value 0", 8, "call of layer 3")},
    {1, {.beyond = Fault::output}, beyond("output 0", 4, "forward of layer 1")},
    {1, {.beyond = Fault::output, .at = 0}, beyond("output 0", 4, "forward of layer 1")},
    {1, {.beyond = Fault::stash, .at = 0}, beyond("stash " + tag, 4, "forward of layer 1")},
    {1, {.beyond = Fault::mark, .by = 2}, beyond("output 1", 8, "forward of layer 1")},
    {1, {.beyond = Fault::flags}, beyond("output 2", 1, "forward of layer 1")},
    {1, {.beyond = Fault::saved}, beyond("saved 0", 8, "forward of layer 1")},
    {1, {.beyond = Fault::stash}, beyond("stash " + tag, 4, "forward of layer 1")},
    {1, {.beyond = Fault::dx, .by = 4}, beyond("dx 0", 16, "backward of layer 1")},
    {1, {.scratch = true}, beyond("scratch 0", 4, "forward of layer 1")},
    {1, {.gradient = true}, beyond("gradient of parameter tensor 1", 4, "backward of layer 1")},
    {2,
     {.gradient = true},
     beyond("gradient of parameter tensor 0", 12, "weight_gradient of layer 2")},
    {2, {.beyond = Fault::dx}, beyond("dx 0", 4, "input_gradient of layer 2")},
    {2, {.beyond = Fault::deferred}, beyond("deferred 0", 4, "input_gradient of layer 2")},
    {2,
     {.beyond = Fault::popped},
     beyond("gradient of pop " + tag, 4, "input_gradient of layer 2")},
    {3, {.beyond = Fault::dy}, beyond("dy 0", 4, "call of layer 3")}};

} // namespace

TEST_CASE(
    "H3 what is left unwritten, or written beyond its end, is named, nothing has changed, and "
    "the object trains on") {
    for (auto const& schedule : toy::schedules)
        for (std::size_t cells = 1; cells <= 3; ++cells) {
            auto o = options(cells);
            o.schedule = schedule.policy;
            Train train({}, {}, {}, o);
            Train plain({}, {}, {}, options(1, false));
            auto const before = parameters_of(train);
            for (Case const& one : cases) {
                INFO(schedule.name, ", K = ", cells);
                make(train, one.layer, one.mistake);
                CHECK(complaint(train) == one.says);
                REQUIRE(train.failure());
                CHECK(train.failure()->layer == one.layer);
                CHECK(train.failure()->micro_batch == (one.says.find("sample 4") == one.says.npos
                                                           ? train.failure()->micro_batch
                                                           : 1));
                make(train, one.layer, {});
                CHECK(parameters_of(train) == before);
                CHECK(train.steps() == 0);
            }
            CHECK(train.step(inputs, {}).loss == plain.step(inputs, {}).loss);
        }
}

TEST_CASE("a recompute is looked at, too, and an evaluation; without debug nothing is") {
    Train train({}, {}, {}, options(2));
    make(train, 1, {.leaves = Fault::mark, .again = true});
    CHECK(complaint(train) == left("output 1", "forward of layer 1"));
    REQUIRE(train.failure());
    CHECK(train.failure()->action == gpipe::Kind::recompute);
    CHECK_NOTHROW(train.evaluate(inputs, {}));
    make(train, 1, {.leaves = Fault::stash});
    CHECK_THROWS_AS(train.evaluate(inputs, {}), std::logic_error);
    std::vector<float> outputs(14);
    CHECK_THROWS_AS(train.predict(inputs, outputs), std::logic_error);

    Train quiet({}, {}, {}, options(2, false));
    for (Case const& one : cases) {
        if (one.mistake.beyond != Fault::nothing || one.mistake.gradient || one.mistake.scratch)
            continue; // who knows what that destroys
        make(quiet, one.layer, one.mistake);
        CHECK(complaint(quiet) == "nothing");
        make(quiet, one.layer, {});
    }
}

TEST_CASE("what a layer reads of its scratch before it has written that is no number") {
    Train train({}, {}, {}, options(2));
    make(train, 1, {.reads_scratch = true});
    CHECK(complaint(train) ==
          "gpipe: output 0 is computed from what is unwritten (by += for =, say), "
          "first at element 0 of sample 0 of the mini-batch, by the forward of "
          "layer 1");
    Train quiet({}, {}, {}, options(2, false));
    make(quiet, 1, {.reads_scratch = true});
    CHECK_NOTHROW(quiet.step(inputs, {}));
}

namespace {

// What a layer tells at the end of a mini-batch, and to other replicas: each its first tensor as a
// whole, of the second all but what is left or more.
enum class Tells { nothing, statistics, exchanged, exchanged_gradient };
template <std::size_t all> struct Telling {
    using Input = Tensor<float, 2>;
    using Output = Tensor<float, 2>;
    using Buffers = Tensor<double>;
    using Statistics = Tensors<Tensor<float, 3>, Tensor<double, all>>;
    using Exchanged = Tensors<Tensor<float, 3>, Tensor<double, 4>>;
    using ExchangedGradient = Tensors<Tensor<float, 3>, Tensor<double, 4>>;
    static constexpr bool wants_gradient = true;
    Tells wrong = Tells::nothing;
    std::size_t written = all;      // elements, by what is wrong
    std::size_t at = 3;             // by the micro-batch that begins with this sample
    bool leaves_ungathered = false; // writes no statistics that nobody merges

    void write(auto& ctx, Tells what, auto views) const {
        auto const [a, b] = views;
        for (float& v : a) v = 1;
        std::size_t const count = what == Tells::statistics ? all : 4;
        std::size_t const end = what == wrong && ctx.first_sample() == at ? written : count;
        for (std::size_t i = 0; i < end; ++i) b.data()[i] = 1;
    }
    void initialize(auto& ctx) const { ctx.buffers()[0] = 0; }
    void exchange(auto& ctx, auto, auto part) const { write(ctx, Tells::exchanged, part); }
    void forward(auto& ctx, auto x, auto y) const {
        std::copy(x.begin(), x.end(), y.begin());
        if (ctx.gathering() || !leaves_ungathered) write(ctx, Tells::statistics, ctx.statistics());
    }
    void exchange_gradient(auto& ctx, auto, auto, auto part) const {
        write(ctx, Tells::exchanged_gradient, part);
    }
    void backward(auto&, auto, auto dy, auto dx) const {
        std::copy(dy.begin(), dy.end(), dx.begin());
    }
    void merge_statistics(auto&, auto sum, auto part) const {
        gpipe::get<1>(sum)[0] += gpipe::get<1>(part)[0];
    }
    void update_buffers(auto&, auto statistics, auto buffers) const {
        buffers[0] += gpipe::get<1>(statistics)[0];
    }
};
// Halves, the first of which is told.
struct TellingInHalves : Telling<4> {
    void input_gradient(auto& ctx, auto x, auto dy, auto dx) const { backward(ctx, x, dy, dx); }
    void weight_gradient(auto&, auto, auto) const {}
};

} // namespace

TEST_CASE_TEMPLATE("what statistics, and what replicas tell each other, leave unwritten or write "
                   "beyond their end is named, too",
                   Layer, Telling<4>, Telling<32>, TellingInHalves) {
    using OfLayer = toy::Training<gpipe::Pipeline<Below, Layer>, Mean, gpipe::Adam, Host>;
    for (auto const& schedule : toy::schedules)
        for (std::size_t cells = 1; cells <= 2; ++cells) {
            typename OfLayer::Options o;
            o.samples = 7;
            o.cells = cells;
            o.micro_batches = 3;
            o.schedule = schedule.policy;
            o.checkpointing = gpipe::checkpoint::Always{};
            o.debug = true;
            OfLayer train({}, {}, {}, o);
            o.debug = false;
            OfLayer plain({}, {}, {}, o);
            struct Wrong {
                Tells what;
                char const* tensor;
                char const* function;
            };
            for (Wrong const& wrong :
                 {Wrong{Tells::statistics, "statistics 1", "forward"},
                  {Tells::exchanged, "exchanged 1", "exchange"},
                  {Tells::exchanged_gradient, "exchanged_gradient 1", "exchange_gradient"}})
                for (std::size_t const change : {0, 1}) {
                    std::size_t const all =
                        wrong.what == Tells::statistics ? Layer{}.written : std::size_t{4};
                    std::size_t const written = change == 0 ? 2 : all + 1;
                    INFO(schedule.name, ", K = ", cells, ", ", wrong.tensor, ", ", written);
                    train.template change_layer<1>([&](Layer& layer) {
                        layer.wrong = wrong.what;
                        layer.written = written;
                    });
                    std::string says;
                    try {
                        train.step(inputs, {});
                    } catch (std::logic_error const& error) {
                        says = error.what();
                    }
                    std::string const by =
                        std::string(", by the ") + wrong.function + " of layer 1 (";
                    CHECK(says.find(std::string("gpipe: ") + wrong.tensor +
                                    (written < all ? " is left unwritten, first at element 2"
                                                   : " is written up to 8 bytes beyond its end") +
                                    by) == 0);
                    REQUIRE(train.failure());
                    CHECK(train.failure()->micro_batch == 1);
                }
            train.template change_layer<1>([&](Layer& layer) {
                layer.wrong = Tells::nothing;
                layer.leaves_ungathered = true;
            });
            for (int step = 0; step < 2; ++step)
                CHECK(train.step(inputs, {}).loss == plain.step(inputs, {}).loss);
            CHECK_NOTHROW(train.evaluate(inputs, {}));
            std::vector<double> ours(1), theirs(1);
            train.read_buffer(1, 0, std::span(ours));
            plain.read_buffer(1, 0, std::span(theirs));
            CHECK(ours == theirs);
            CHECK(ours[0] == 6); // 3 micro-batches, twice
        }
}

TEST_CASE("of integers of a byte eight in a row are noticed, whatever else they are") {
    Train train({}, {}, {}, options(2));
    make(train, 1, {.leaves = Fault::flags});
    CHECK(complaint(train) == "gpipe: output 2 is left unwritten, first at element 8 of sample 4 "
                              "of the mini-batch, by the forward of layer 1");
}

TEST_CASE("poison: what no computation makes, by element type") {
    using gpipe::element_info;
    using gpipe::poison_of;
    auto const value = []<class T>(T number, gpipe::Poison const& poison) {
        std::memcpy(&number, &poison.pattern, sizeof number);
        return number;
    };
    for (float const one : {value(1.0f, poison_of(element_info<float>))}) CHECK(one != one);
    for (double const one : {value(1.0, poison_of(element_info<double>))}) CHECK(one != one);
    CHECK(poison_of(element_info<float>).unit == 4);
    CHECK(poison_of(element_info<double>).unit == 8);
    CHECK(poison_of(element_info<std::int64_t>).unit == 8);
    CHECK(poison_of(element_info<bool>).unit == 1);
    CHECK(poison_of(element_info<char>).unit == 8);
    CHECK(poison_of(element_info<short>).unit == 8);
    CHECK(poison_of({2, true, false}).unit == 2);
    CHECK(poison_of({12, false, false}).unit == 12);
}

TEST_CASE_TEMPLATE("P1 with debug every bit is that of the plain loop, and used bytes are planned",
                   Device, Host, Remote) {
    using All = toy::Train<float, Device>;
    constexpr std::size_t L = All::layer_count;
    std::vector<std::size_t> const sizes{13, 3, 7}; // of 3 and 7 samples micro-batches stay empty
    toy::Expected<float> const descending(8, Backward::descending, sizes);
    toy::Expected<float> const ascending(8, Backward::ascending, sizes);
    std::size_t point = 0;
    toy::each_of_catalogue(L, L, 8, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
            for (auto const& run : toy::runs<Device>()) {
                if (point++ % toy::one_of(97) != 0) continue;
                typename All::Options o;
                o.samples = 13;
                o.seed = toy::expected_seed;
                o.cells = k;
                o.micro_batches = 8;
                o.schedule = schedule;
                o.checkpointing = checkpointing.policy;
                o.device = run;
                o.debug = true;
                toy::Watch watch;
                All train(toy::make_net<float>(watch), {}, gpipe::Adam{1e-2f}, o);
                INFO(schedule.name(), ", ", checkpointing.name, ", K = ", k, ", ",
                     toy::describe(run));
                CHECK((schedule.name() == "GPipe" ? descending : ascending).differs(train) == "");
                CHECK(train.planned_bytes() == train.used_bytes());
            }
    });
}

TEST_CASE("P1 with debug skips, updates at once, steps that overlap and evaluations are the same") {
    using Skips = toy::SkipNet<float>;
    using Loss = toy::MeanSquare<float, 3>;
    using Immediate = gpipe::Training<Skips, gpipe::Cells<3>, gpipe::MicroBatches<4>,
                                      gpipe::Loss<Loss>, gpipe::Optimizer<gpipe::Adam>,
                                      gpipe::schedule::ZeroBubbleH1, gpipe::update::Immediate>;
    toy::Data<float> const data(13), other(30, 4);
    auto const trained = [&](bool debug, std::size_t threads) {
        Immediate::Options o;
        o.samples = 13;
        o.debug = debug;
        o.device.threads = threads;
        Immediate train({}, {}, {}, o);
        std::vector<double> result;
        for (int i = 0; i < 3; ++i) {
            auto const first = train.start(data.inputs, data.targets);
            result.push_back(train.step(data.inputs, data.targets).loss);
        }
        result.push_back(train.evaluate(other.inputs, other.targets).loss);
        std::vector<float> outputs(30 * 3);
        train.predict(other.inputs, outputs);
        result.insert(result.end(), outputs.begin(), outputs.end());
        return result;
    };
    for (std::size_t threads : {1u, 3u}) CHECK(trained(true, threads) == trained(false, threads));
}

TEST_CASE("with debug memory is that of one sample more in each micro-batch, and a guard behind "
          "gradients; without it nothing changes") {
    using Constant = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<3>,
                                     gpipe::Loss<Mean>, gpipe::Optimizer<gpipe::Adam>>;
    Constant::Options o;
    o.samples = 7;
    Constant const plain({}, {}, {}, o);
    o.debug = true;
    Constant const debug({}, {}, {}, o);
    std::size_t of_three = 0, of_four = 0;
    for (std::size_t d = 0; d < 2; ++d) {
        of_three += Constant::plan_for(3).devices[d].total();
        of_four += Constant::plan_for(4).devices[d].total();
    }
    CHECK(plain.used_bytes() == of_three);
    CHECK(debug.used_bytes() == of_four + 3 * 256);
    CHECK(debug.planned_bytes() == debug.used_bytes());
}
