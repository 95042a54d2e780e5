// Skip connections: promise P1, wherever the ends of a skip are.
#include "support/net.hpp"
#include "support/skip_layers.hpp"

#include <algorithm>
#include <cstring>
#include <deque>
#include <doctest/doctest.h>
#include <iterator>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Backward;
using toy::Remote;
using Real = float;

using Net = toy::SkipNet<Real>;
using Loss = toy::MeanSquare<Real, 3>;
constexpr std::size_t L = Net::size;
template <class Device> using Train = toy::Training<Net, Loss, Adam, Device>;

struct Expected {
    toy::Reference<Net, Loss, Adam> plain;
    std::vector<std::size_t> sizes;
    std::vector<double> losses;

    Expected(std::size_t micro_batches, Backward order, std::vector<std::size_t> batches)
        : plain(Net{}, {}, Adam{1e-2f}, 7, micro_batches, order), sizes(std::move(batches)) {
        for (std::size_t const size : sizes) {
            toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
            losses.push_back(plain.step(data.inputs, data.targets));
        }
    }
    // An evaluation goes before every step.
    template <class Train> std::string differs(Train& train) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(sizes[i]));
            (void)train.evaluate(data.inputs, data.targets);
            double const loss = train.step(data.inputs, data.targets).loss;
            if (loss != losses[i])
                return "the loss of step " + std::to_string(i) + ": " + std::to_string(loss);
        }
        toy::Data<Real> const data(5, 99);
        if (train.evaluate(data.inputs, data.targets).loss !=
            plain.evaluate(data.inputs, data.targets))
            return "the loss of an evaluation";
        return toy::difference(train, plain);
    }
};

template <class Device> typename Train<Device>::Options options(std::size_t devices) {
    typename Train<Device>::Options o;
    o.samples = 13;
    o.seed = 7;
    o.cells = devices;
    o.micro_batches = 8;
    return o;
}

} // namespace

TEST_CASE_TEMPLATE(
    "P1 skips: every schedule, checkpointing, number of devices and of micro-batches "
    "and link trains as the plain loop",
    Device, Host, Remote) {
    std::size_t trained = 0;
    for (std::size_t const m : {1, 3, 8}) {
        // Of the second mini-batch one micro-batch stays empty.
        std::vector<std::size_t> const sizes{13, m == 1 ? 7 : m - 1, 13};
        Expected descending(m, Backward::descending, sizes);
        Expected ascending(m, Backward::ascending, sizes);
        toy::each_way<Device>(L, L, m, toy::sanitized ? 199 : 599,
                              [&](auto schedule, std::size_t k, auto checkpointing, auto const& run,
                                  std::string const& words) {
                                  auto o = options<Device>(k);
                                  o.micro_batches = m;
                                  o.schedule = schedule;
                                  o.checkpointing = checkpointing;
                                  o.device = run;
                                  INFO(words, ", M = ", m);
                                  Train<Device> train(Net{}, {}, Adam{1e-2f}, o);
                                  bool const descends = schedule.name() == "GPipe";
                                  CHECK((descends ? descending : ascending).differs(train) == "");
                                  ++trained;
                              });
    }
    MESSAGE(trained << " trainings");
    CHECK(trained > 5);
}

TEST_CASE_TEMPLATE("P1 skips: wherever the chain is cut", Device, Host, Remote) {
    std::size_t n = 0;
    auto const runs = toy::runs<Device>();
    auto const policies = toy::every_checkpointing();
    std::size_t const every_m[] = {8, 3, 1};
    std::deque<Expected> descending, ascending; // by M; they cannot be moved
    for (std::size_t const m : every_m) {
        descending.emplace_back(m, Backward::descending, std::vector<std::size_t>{13, 4});
        ascending.emplace_back(m, Backward::ascending, std::vector<std::size_t>{13, 4});
    }
    for (std::size_t first = 1; first < L; ++first)
        for (std::size_t second = first + 1; second < L; ++second)
            for (toy::NamedSchedule const& schedule : toy::schedules) {
                if (n++ % toy::one_of(29) != 0) continue;
                std::size_t const i = n / toy::one_of(29) % std::size(every_m);
                auto o = options<Device>(3);
                toy::hand = {first, second - first, L - second};
                o.micro_batches = every_m[i];
                o.schedule = schedule.policy;
                o.checkpointing = policies[n % policies.size()].policy;
                o.device = runs[n / 3 % runs.size()];
                Train<Device> train(Net{}, {}, Adam{1e-2f}, o);
                toy::hand.clear();
                INFO("cut at ", first, " and ", second, ", ", schedule.name, ", ",
                     policies[n % policies.size()].name, ", ", toy::describe(o.device),
                     ", M = ", every_m[i]);
                bool const descends = schedule.order == Backward::descending;
                CHECK((descends ? descending : ascending)[i].differs(train) == "");
            }
}

TEST_CASE(
    "nothing is copied within a device: two of its cells have no copy between them, of a skip "
    "or of the chain's own edge, where devices have") {
    std::size_t within[2] = {}, copies[2] = {}; // edges of the chain, skips
    for (auto const link : {gpipe::Link::copied, gpipe::Link::staged})
        for (gpipe::schedule::Dynamic const& schedule :
             {gpipe::schedule::Dynamic(gpipe::schedule::ZeroBubbleV{}),
              gpipe::schedule::Dynamic(gpipe::schedule::Interleaved1F1B<3>{})}) {
            auto o = options<Remote>(2);
            o.schedule = schedule;
            o.device = {.seed = 1, .link = link};
            Train<Remote> train(Net{}, {}, Adam{1e-2f}, o);
            gpipe::Lowered const& table = train.plan().lowered;
            for (gpipe::Edge const& edge : table.edges) {
                bool const inside =
                    table.programs.device_of(edge.from) == table.programs.device_of(edge.to);
                INFO(schedule.name(), ", from cell ", edge.from, " to ", edge.to);
                CHECK(edge.link == (inside ? gpipe::Link::shared : link));
                (inside ? within : copies)[edge.is_skip()] += 1;
            }
            // Of what does not go from device to device there is no copy in the table, either.
            for (gpipe::Action const& action : table.programs)
                if (is_transfer(action.kind)) CHECK(!table.edges[action.edge].shared());
        }
    for (std::size_t const skips : {0, 1}) {
        CHECK(within[skips] > 0);
        CHECK(copies[skips] > 0);
    }
}

// What the conformance list has of skips (H, J; see conformance/entries.txt). A layer that declares
// a stash is handed the view to write, as it is its output; whether it does, debug mode looks at.
namespace {

template <class N, class Device = Host>
using TrainOf = toy::Training<N, toy::MeanSquare<Real, 1>, gpipe::SGD, Device>;
template <class T>
typename T::Options small(std::size_t cells, std::size_t micro_batches,
                          gpipe::checkpoint::Dynamic checkpointing = {}) {
    typename T::Options o;
    o.samples = 6;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.checkpointing = checkpointing;
    return o;
}

struct Foo;
template <class T> struct Number {
    using Input = gpipe::Tensor<T, 1>;
    using Output = gpipe::Tensor<T, 1>;
    void backward(auto&, auto, auto dy, auto dx) const {
        for (std::size_t i = 0; i < dy.size(); ++i) dx.data()[i] = dy.data()[i];
    }
};
struct Stashes42 : Number<Real> {
    using Stash = gpipe::Skip<Foo, gpipe::Tensor<Real>>;
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) {
            gpipe::stash<Foo>(ctx).data()[i] = 42;
            y.data()[i] = 2 * x.data()[i];
        }
    }
};
struct Doubles : Number<Real> {
    void forward(auto&, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = 2 * x.data()[i];
    }
};
struct Pops : Number<Real> {
    using Pop = gpipe::Skip<Foo, gpipe::Tensor<Real>>;
    void forward(auto& ctx, auto, auto y) const {
        for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = gpipe::pop<Foo>(ctx).data()[i];
    }
    void backward(auto& ctx, auto, auto dy, auto dx) const {
        for (std::size_t i = 0; i < dy.size(); ++i) {
            gpipe::pop_gradient<Foo>(ctx).data()[i] = dy.data()[i];
            dx.data()[i] = 0;
        }
    }
};

} // namespace

TEST_CASE("H2 H8 what is stashed is popped, with a pipeline and without one") {
    using N = gpipe::Pipeline<Stashes42, Doubles, Doubles, Pops>;
    auto const x = toy::numbers<Real>(6, 1);
    for (std::size_t const cells : {std::size_t{1}, std::size_t{2}, std::size_t{4}}) {
        TrainOf<N> train(N{}, {}, {}, small<TrainOf<N>>(cells, 3));
        CHECK((train.plan().lowered.edges.size() == cells - 1) ==
              (cells == 1)); // a skip is one more
        std::vector<Real> y(6);
        train.predict(x, y);
        CHECK(y == std::vector<Real>(6, 42));
        train.step(x, x);
        CHECK(train.evaluate(x, std::vector<Real>(6, 42)).loss == 0);
    }
}

namespace {

template <std::size_t N> using Convolution = toy::Conv<Real, N>;
// The first one's input skips to behind the third.
struct First : Convolution<48> {
    using Stash = gpipe::Skip<Foo, gpipe::Tensor<Real, 48>>;
    void forward(auto& ctx, auto x, auto y) const {
        Convolution<48>::forward(ctx, x, y);
        std::copy(x.begin(), x.end(), gpipe::stash<Foo>(ctx).begin());
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        Convolution<48>::backward(ctx, x, dy, dx);
        auto const skip = gpipe::stash_gradient<Foo>(ctx);
        for (std::size_t i = 0; i < dx.size(); ++i) dx.data()[i] += skip.data()[i];
    }
};
struct Third : Convolution<48> {
    using Pop = gpipe::Skip<Foo, gpipe::Tensor<Real, 48>>;
    static constexpr bool backward_reads_pops = false;
    void forward(auto& ctx, auto x, auto y) const {
        Convolution<48>::forward(ctx, x, y);
        auto const skip = gpipe::pop<Foo>(ctx);
        for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] += skip.data()[i];
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        Convolution<48>::backward(ctx, x, dy, dx);
        std::copy(dy.begin(), dy.end(), gpipe::pop_gradient<Foo>(ctx).begin());
    }
};

} // namespace

TEST_CASE(
    "H7 H11 conv, conv, conv and a skip: outputs and gradients are those of the plain net for "
    "every cut and checkpointing, and the summary shows the skip") {
    // Below the three a layer whose parameters' gradients show those of the net's input.
    using N = gpipe::Pipeline<toy::Linear<Real, 5, 48>, First, Convolution<48>, Third,
                              toy::StrictLinear<Real, 48, 3>>;
    using T = toy::Training<N, Loss, gpipe::SGD, Host>;
    toy::Data<Real> const data(30);
    for (std::vector<std::size_t> const& cut :
         {std::vector<std::size_t>{5}, {2, 3}, {3, 2}, {2, 1, 2}})
        for (toy::NamedCheckpointing const& c : toy::checkpointings) {
            toy::Reference<N, Loss, gpipe::SGD> plain(N{}, {}, gpipe::SGD{1e-3f}, 1, 3,
                                                      Backward::descending);
            T::Options o;
            o.samples = 30;
            o.seed = 1;
            o.cells = cut.size();
            o.micro_batches = 3;
            o.checkpointing = c.policy;
            toy::hand = cut;
            T train(N{}, {}, gpipe::SGD{1e-3f}, o);
            toy::hand.clear();
            INFO(c.name, ", K = ", cut.size());
            std::vector<Real> outputs(30 * 3);
            train.predict(data.inputs, outputs);
            auto const expected = plain.predict(data.inputs);
            CHECK(std::memcmp(outputs.data(), expected.data(), expected.size()) == 0);
            CHECK(train.step(data.inputs, data.targets).loss ==
                  plain.step(data.inputs, data.targets));
            CHECK(toy::difference(train, plain) == "");
            CHECK(train.summary().find("48 float + 48 float") != std::string::npos);
        }
}

namespace {

// Where a tensor was stashed, and where it was popped, by phase.
std::vector<std::pair<gpipe::Phase, void const*>> stashed, popped;
struct Notes : Stashes42 {
    void forward(auto& ctx, auto x, auto y) const {
        Stashes42::forward(ctx, x, y);
        stashed.emplace_back(ctx.phase(), gpipe::stash<Foo>(ctx).data());
    }
};
struct NotesPops : Pops {
    void forward(auto& ctx, auto x, auto y) const {
        Pops::forward(ctx, x, y);
        popped.emplace_back(ctx.phase(), gpipe::pop<Foo>(ctx).data());
    }
};

} // namespace

TEST_CASE(
    "J2 J3 a skip within a cell is no edge; one between cells is written once, and read where it "
    "was written however often it is popped; then its slot is another's") {
    using Line = toy::Linear<Real, 1, 1>;
    using N = gpipe::Pipeline<Line, Notes, Doubles, toy::Scale<Real, 1>, NotesPops, Doubles, Line>;
    auto const x = toy::numbers<Real>(6, 1);
    for (std::vector<std::size_t> const& cut : {std::vector<std::size_t>{6, 1}, {3, 3, 1}}) {
        toy::hand = cut;
        auto o = small<TrainOf<N>>(cut.size(), 2, gpipe::checkpoint::Always{});
        o.schedule = gpipe::schedule::OneForwardOneBackward{};
        o.device.threads = 1;
        TrainOf<N> train(N{}, {}, {}, o);
        toy::hand.clear();
        stashed.clear();
        popped.clear();
        train.step(x, x);
        bool const crosses = cut.size() == 3;
        CHECK(train.plan().lowered.edges.size() == cut.size() - 1 + crosses);
        CHECK((train.plan().skip_edges[0] == gpipe::Operands::none) == !crosses);
        REQUIRE(stashed.size() == 4); // two forwards, and as many again
        REQUIRE(popped.size() == 4);
        for (auto const& [phase, at] : popped) {
            std::size_t same = 0;
            for (auto const& [stashed_in, where] : stashed)
                same += where == at && (!crosses || stashed_in == gpipe::Phase::forward);
            CHECK(same > 0);
        }
        for (auto const& [phase, at] : stashed)
            for (auto const& [popped_in, where] : popped)
                CHECK((!crosses || phase == gpipe::Phase::forward || at != where));
    }
}

namespace {

// y = 2 x + z, z what it pops: of integers, without a gradient.
template <class T> struct Joins : Number<Real> {
    using Pop = gpipe::Skip<Foo, gpipe::Tensor<T>>;
    void forward(auto& ctx, auto x, auto y) const {
        auto const z = gpipe::pop<Foo>(ctx);
        for (std::size_t i = 0; i < x.size(); ++i)
            y.data()[i] = 2 * x.data()[i] + static_cast<Real>(z.data()[i]);
    }
    void backward(auto& ctx, auto, auto dy, auto dx) const {
        auto const dz = gpipe::pop_gradient<Foo>(ctx);
        static_assert(gpipe::is_none<decltype(dz)> == std::is_integral_v<T>);
        for (std::size_t i = 0; i < dy.size(); ++i) {
            dx.data()[i] = 2 * dy.data()[i];
            if constexpr (!std::is_integral_v<T>) dz.data()[i] = dy.data()[i];
        }
    }
};
// y = x + b, and stashes y.
template <class T> struct Adds : Number<Real> {
    using Parameters = gpipe::Tensor<Real>;
    using Stash = gpipe::Skip<Foo, gpipe::Tensor<T>>;
    void initialize(auto&) const {}
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) {
            y.data()[i] = x.data()[i] + ctx.parameters().data()[0];
            gpipe::stash<Foo>(ctx).data()[i] = static_cast<T>(y.data()[i]);
        }
    }
    void backward(auto& ctx, auto, auto dy, auto dx) const {
        auto const dz = gpipe::stash_gradient<Foo>(ctx);
        static_assert(gpipe::is_none<decltype(dz)> == std::is_integral_v<T>);
        for (std::size_t i = 0; i < dy.size(); ++i) {
            dx.data()[i] = dy.data()[i];
            if constexpr (!std::is_integral_v<T>) dx.data()[i] += dz.data()[i];
            ctx.gradients().data()[0] += dx.data()[i];
        }
    }
};
// The gradient of each sample's output is 1.
struct Sum {
    using Target = gpipe::Tensor<Real, 1>;
    gpipe::LossValue<> operator()(auto&, auto y, auto, auto dy) const {
        gpipe::LossValue<> value;
        for (std::size_t i = 0; i < y.size(); ++i) {
            value.sum += y.data()[i];
            if constexpr (!gpipe::is_none<decltype(dy)>) dy.data()[i] = 1;
        }
        value.weight = 1;
        return value;
    }
};

} // namespace

TEST_CASE_TEMPLATE(
    "J5 twice a tensor and once what a skip brings: gradients 2 and 1, and only 2 if "
    "the skip carries none",
    T, Real, int) {
    using N = gpipe::Pipeline<Adds<T>, Joins<T>>;
    using Train = toy::Training<N, Sum, gpipe::SGD, Host>;
    auto const x = toy::numbers<Real>(6, 1);
    for (std::size_t const cells : {std::size_t{1}, std::size_t{2}}) {
        Train train(N{}, {}, {}, small<Train>(cells, 1));
        train.step(x, x);
        CHECK(train.template gradient<Real>(0, 0)[0] == 6 * (std::is_integral_v<T> ? 2 : 3));
    }
}

TEST_CASE_TEMPLATE("P1 skips: so it is where updates are immediate, and steps overlap", Device,
                   Host, Remote) {
    using T =
        gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                        gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                        gpipe::checkpoint::Dynamic, gpipe::update::Immediate, Device>;
    std::vector<std::size_t> const sizes{13, 7, 13};
    Expected descending(8, Backward::descending, sizes);
    Expected ascending(8, Backward::ascending, sizes);
    std::size_t point = 0;
    toy::each_of_catalogue(L, L, 8, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        for (auto const& run : toy::runs<Device>()) {
            if (point++ % toy::one_of(31) != 0) continue;
            typename T::Options o;
            o.samples = 13;
            o.seed = 7;
            o.cells = k;
            o.micro_batches = 8;
            o.schedule = schedule;
            o.device = run;
            T train(Net{}, {}, Adam{1e-2f}, o);
            INFO(schedule.name(), ", K = ", k, ", ", toy::describe(run));
            CHECK((schedule.name() == "GPipe" ? descending : ascending).differs(train) == "");
        }
    });
}

namespace {

// y = x; throws where it is told to.
struct Throws : toy::Tanh<Real, 5> {
    inline static bool now = false;
    void backward(auto& ctx, auto y, auto dy, auto dx) const {
        if (now && ctx.first_sample() >= 3) throw std::runtime_error("now");
        toy::Tanh<Real, 5>::backward(ctx, y, dy, dx);
    }
};

} // namespace

TEST_CASE_TEMPLATE("P6 a layer that throws between the ends of skips: nothing has changed, and the "
                   "object trains on",
                   Device, Host, Remote) {
    using N = gpipe::Pipeline<toy::Give<Real, 5, 1>, Throws, toy::Times<Real, 5, 1>,
                              toy::Plus<Real, 5, 2>, toy::StrictLinear<Real, 5, 3>>;
    using T = toy::Training<N, Loss, Adam, Device>;
    toy::Data<Real> const data(13);
    for (std::size_t cells = 1; cells <= 5; ++cells)
        for (auto const& run : toy::runs<Device>()) {
            typename T::Options o;
            o.samples = 13;
            o.cells = cells;
            o.micro_batches = 4;
            o.schedule = gpipe::schedule::OneForwardOneBackward{};
            o.device = run;
            T train(N{}, {}, Adam{1e-2f}, o), twin(N{}, {}, Adam{1e-2f}, o);
            for (bool const throws : {false, true, true, false}) {
                Throws::now = throws;
                if (throws)
                    CHECK_THROWS_AS(train.step(data.inputs, data.targets), std::runtime_error);
                else
                    CHECK(train.step(data.inputs, data.targets).loss ==
                          twin.step(data.inputs, data.targets).loss);
            }
            CHECK(train.steps() == 2);
            CHECK(train.evaluate(data.inputs, data.targets).loss ==
                  twin.evaluate(data.inputs, data.targets).loss);
        }
}
