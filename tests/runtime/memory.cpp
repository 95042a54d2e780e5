// Promises P3 and P4: what a training allocates, what it uses, and how little that is.

#include "support/counting.hpp"
#include "support/links.hpp"
#include "support/live_bytes.hpp"
#include "support/net.hpp"
#include "support/side_layers.hpp"
#include "support/skip_layers.hpp"

#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Deferred;
using toy::Remote;

using Real = float;
constexpr std::size_t L = toy::layers<Real>;

/// Uses its scratch in both halves.
template <class T, std::size_t N> struct Square : toy::Square<T, N> {
    void input_gradient(auto& ctx, auto x, auto y, auto dy, auto dx) const {
        for (std::size_t i = 0; i < x.size(); ++i) ctx.scratch().data()[i] = x.data()[i];
        toy::Square<T, N>::input_gradient(ctx, x, y, dy, dx);
    }
};

// Nets whose activations outweigh their parameters.
using Wide =
    gpipe::Pipeline<toy::Linear<Real, 5, 24>, toy::Tanh<Real, 24>, toy::Linear<Real, 24, 40>,
                    toy::Tanh<Real, 40>, toy::Saver<Real, 40, true>, toy::Linear<Real, 40, 16>,
                    toy::Scale<Real, 16>, Square<Real, 16>, toy::Tanh<Real, 16>,
                    toy::StrictLinear<Real, 16, 3>>;
using Equal = gpipe::Pipeline<gpipe::Repeat<16, toy::Linear<Real, 8, 8>>>;
// Nobody learns below layer 3, and that layer is strict.
using Late = gpipe::Pipeline<toy::Scale<Real, 5>, toy::Saver<Real, 5, true>, toy::Tanh<Real, 5>,
                             toy::StrictLinear<Real, 5, 12>, toy::Saver<Real, 12, true>,
                             toy::Linear<Real, 12, 3>>;

template <class N, class Device>
using TrainOf = toy::Training<N, toy::MeanSquare<Real, N::Output::size>, Adam, Device>;

template <class T>
typename T::Options options(std::size_t samples, std::size_t cells, std::size_t micro_batches,
                            gpipe::schedule::Dynamic schedule,
                            gpipe::checkpoint::Dynamic checkpointing) {
    typename T::Options o;
    o.samples = samples;
    o.seed = 5;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.schedule = schedule;
    o.checkpointing = checkpointing;
    return o;
}

// Everything in the arenas that does not outlive a step becomes NaN, in every element type.
constexpr std::byte poison{0xFF};
template <class T> void poison_all(T& train) {
    for (std::size_t d = 0; d < train.programs().devices(); ++d) {
        auto const arena = train.arena(d);
        auto const& plan = train.plan().devices[d];
        std::byte* const gradients = arena.data() + plan.parameters;
        std::byte* const optimizer = gradients + plan.gradients;
        std::byte* const rest = optimizer + plan.optimizer;
        std::fill(gradients, optimizer, poison);
        // What a device that has it counts steps in lives on, as parameters do.
        std::byte* const state = arena.data() + train.plan().begin[d].state;
        bool const counts = plan.staging > 0;
        std::fill(rest, counts ? state : arena.data() + arena.size(), poison);
        if (counts) std::fill(state + 256, arena.data() + arena.size(), poison);
    }
}
// Lines of 256 bytes that still hold nothing but poison, and where the first of them is.
template <class T> std::size_t untouched(T& train, std::string& where) {
    std::size_t lines = 0;
    for (std::size_t d = 0; d < train.programs().devices(); ++d) {
        auto const arena = train.arena(d);
        for (std::size_t at = 0; at < arena.size(); at += 256) {
            auto const line = arena.subspan(at, 256);
            if (std::any_of(line.begin(), line.end(), [](std::byte b) { return b != poison; }))
                continue;
            if (lines++ == 0) {
                auto const& plan = train.plan().devices[d];
                where = "device " + std::to_string(d) + ", byte " + std::to_string(at) +
                        " (parameters to " + std::to_string(plan.parameters) + ", gradients to " +
                        std::to_string(plan.parameters + plan.gradients) + ", optimizer to " +
                        std::to_string(plan.parameters + plan.gradients + plan.optimizer) +
                        ", boundary " + std::to_string(plan.boundary) + ", activations " +
                        std::to_string(plan.activations) + ")";
            }
        }
    }
    return lines;
}

template <class N> std::vector<Real> inputs(std::size_t samples) {
    return toy::numbers<Real>(samples * N::Input::size, 3);
}
template <class N> std::vector<Real> targets(std::size_t samples) {
    return toy::numbers<Real>(samples * N::Output::size, 4);
}

template <class N, class T> toy::LiveBytesOf live_bytes_of(T& train) {
    toy::LiveBytesOf of;
    auto const layers = N::layers();
    of.layers.assign(layers.begin(), layers.end());
    of.first.assign(train.plan().first.begin(), train.plan().first.end());
    static constexpr std::size_t loss_scratch[] = {N::Output::bytes};
    of.loss_scratch = {loss_scratch, 1};
    of.states = Adam::states;
    of.samples = (train.samples() + train.micro_batches() - 1) / train.micro_batches();
    return of;
}

// Trains with memory that is poisoned, and with a twin whose memory is not: nothing may be read
// before it is written, and a step must write every line.
template <class N, class Device>
void check_lines(typename TrainOf<N, Device>::Options o, std::string const& what) {
    using T = TrainOf<N, Device>;
    std::size_t allocated = 0;
    std::size_t const samples = o.samples;
    o.device = {2, &allocated};
    T train(N{}, {}, Adam{}, o);
    INFO(what, ", K = ", train.devices(), ", M = ", train.micro_batches());
    CHECK(allocated == train.planned_bytes());
    CHECK(train.used_bytes() == train.planned_bytes());

    T clean(N{}, {}, Adam{}, o);
    poison_all(train);
    CHECK(train.step(inputs<N>(samples), targets<N>(samples)).loss ==
          clean.step(inputs<N>(samples), targets<N>(samples)).loss);
    std::string where;
    std::size_t const lines = untouched(train, where);
    INFO(where);
    CHECK(lines == 0);
    poison_all(train);
    CHECK(train.step(inputs<N>(samples), targets<N>(samples)).loss ==
          clean.step(inputs<N>(samples), targets<N>(samples)).loss);
    poison_all(train);
    CHECK(train.evaluate(inputs<N>(samples), targets<N>(samples)).loss ==
          clean.evaluate(inputs<N>(samples), targets<N>(samples)).loss);
}

template <class N, class Device> void every_line_is_used() {
    std::size_t point = 0;
    for (std::size_t micro_batches : {1, 2, 6})
        toy::each_of_catalogue(
            N::size, N::size, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
                for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing()) {
                    if (point++ % toy::one_of(251) != 0) continue;
                    check_lines<N, Device>(
                        options<TrainOf<N, Device>>(40 * micro_batches, k, micro_batches, schedule,
                                                    checkpointing.policy),
                        std::string(schedule.name()) + ", " + checkpointing.name);
                }
            });
}

// Planned bytes against the largest sum of live bytes: of the boundary, of what is inside the
// cells, and in all. Returns the largest ratio in all for GPipe with checkpointing, M = 32 and K up
// to 4.
template <class N> double worst_ratio(double near) {
    double worst = 0;
    std::size_t const size = N::size;
    std::size_t point = 0;
    for (toy::NamedSchedule const& schedule : toy::schedules)
        for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
            for (std::size_t cells :
                 {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{4}, size})
                for (std::size_t micro_batches : {1, 2, 4, 8, 32}) {
                    if (point++ % toy::one_of(3) != 0) continue;
                    using T = TrainOf<N, Deferred>;
                    T train(N{}, {}, Adam{},
                            options<T>(64 * micro_batches, cells, micro_batches, schedule.policy,
                                       checkpointing.policy));
                    auto const least = toy::live_bytes(train.programs(), live_bytes_of<N>(train));
                    for (std::size_t d = 0; d < least.size(); ++d) {
                        auto const& planned = train.plan().devices[d];
                        INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells,
                             ", M = ", micro_batches, ", device ", d, ": planned ",
                             planned.boundary, " at the boundary and ", planned.activations,
                             " inside, ", planned.total(), " in all; least ", least[d].boundary,
                             ", ", least[d].inside, ", ", least[d].total);
                        CHECK(planned.total() >= least[d].total);
                        // A recompute's output that nobody reads again is counted inside, but lies
                        // in a slot of the boundary: mostly in one that a gradient needs anyway.
                        gpipe::CellValues const& values = train.plan().cells[d];
                        std::size_t const slot =
                            d > 0 ? train.plan().pools.pool(gpipe::Holds::input, d - 1).bytes : 0;
                        CHECK(planned.boundary <= least[d].boundary + (values.discards ? slot : 0));
                        // In a room that both share, only the sum says anything; else parts lie as
                        // they come.
                        CHECK(double(planned.activations) <=
                              (near + 0.03) * double(least[d].inside) +
                                  double(train.plan().has_room(d) ? least[d].boundary : 0));
                        // The boundary is fullest when the cell is nearly done.
                        double const ratio = double(planned.total()) / double(least[d].total);
                        bool const checkpoints = checkpointing.name != "never";
                        if (checkpoints)
                            CHECK(double(planned.total()) <=
                                  near * double(least[d].total) + double(slot));
                        if (checkpoints && least[d].total > 0 && micro_batches == 32 &&
                            cells <= 4 && schedule.name == "GPipe")
                            worst = std::max(worst, ratio);
                    }
                }
    return worst;
}

} // namespace

TEST_CASE("P3 a step, an evaluation and a prediction allocate nothing, not even the first") {
    std::size_t point = 0;
    for (std::size_t threads : {1, 2, 3, 0})
        for (toy::NamedSchedule const& schedule : toy::schedules)
            for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
                for (std::size_t cells : {std::size_t{1}, std::size_t{3}, L}) {
                    if (point++ % toy::one_of(5) != 0) continue;
                    using T = toy::Train<Real, Host>;
                    auto o = options<T>(13, cells, 4, schedule.policy, checkpointing.policy);
                    o.device.threads = threads;
                    toy::Watch watch;
                    T train(toy::make_net<Real>(watch), {&watch}, Adam{}, o);
                    toy::Data<Real> const data(13), few(2), many(40);
                    std::vector<Real> outputs(40 * 3);
                    std::size_t const before = toy::allocations;
                    train.step(data.inputs, data.targets);
                    std::size_t const first = toy::allocations;
                    for (int i = 0; i < 40; ++i) train.step(data.inputs, data.targets);
                    train.step(few.inputs, few.targets);
                    train.evaluate(many.inputs, many.targets);
                    train.predict(many.inputs, outputs);
                    train.step(data.inputs, data.targets);
                    std::size_t const after = toy::allocations;
                    INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells, ", ", threads,
                         " threads");
                    CHECK(first == before);
                    CHECK(after == before);
                }
}

TEST_CASE("P3 nor do parts, steps that are scaled or skipped, constants, side inputs, hooks and an "
          "Inference") {
    using Net = toy::MaskedNet<Real>;
    using T = toy::Training<Net, toy::MeanSquare<Real, 3>, Adam, Host>;
    using Infer = gpipe::Inference<Net, gpipe::Cells<3>, gpipe::MicroBatches<4>>;
    for (std::size_t const threads : {1, 3}) {
        auto o = options<T>(13, 3, 4, gpipe::schedule::OneForwardOneBackward{},
                            gpipe::checkpoint::ExceptLast{});
        o.device.threads = threads;
        o.loss_scale = gpipe::LossScale::dynamic(0x1p126, 0x1p30, 0x1p-30, 2);
        T train(Net{}, {}, Adam{}, o);
        std::size_t heard = 0;
        if (threads == 1) train.on_action([&](gpipe::ActionEvent const&) { ++heard; });
        Infer::Options of;
        of.samples = 13;
        of.device.threads = threads;
        Infer infer(Net{}, of);
        infer.copy_from(train);
        toy::MaskedData<Real> const data(13, 1), many(40, 2);
        auto const x = data.template batch<T>(), more = many.template batch<T>();
        std::vector<Real> outputs(40 * 3), others(13 * 3);
        std::size_t skipped = 0, counted = 0;
        std::size_t const before = toy::allocations;
        for (int i = 0; i < 40; ++i) {
            train.accumulate(x, data.targets);
            (train.step(x, data.targets).skipped() ? skipped : counted) += 1;
        }
        train.evaluate(more, many.targets);
        infer.predict(more, outputs);
        auto first = infer.start(x, others);
        first.wait();
        std::size_t const after = toy::allocations;
        CHECK(after == before);
        CHECK(skipped > 2);
        CHECK(counted > 2);
        CHECK((heard > 0) == (threads == 1));
    }
}

#ifdef GPIPE_COUNTS_ALLOCATIONS
TEST_CASE("P3 the counting allocator counts") {
    std::size_t const before = toy::allocations;
    auto const* const memory = new std::vector<int>(100);
    CHECK(toy::allocations == before + 2);
    delete memory;
    CHECK(toy::allocations == before + 2);
}
#endif

TEST_CASE_TEMPLATE("P3 the arenas are all that a device is asked for, a step of the planned size "
                   "writes every line of them under every schedule there is, and what is read has "
                   "been written",
                   Device, Deferred, Remote) {
    every_line_is_used<Wide, Device>();
    every_line_is_used<Late, Device>();
    every_line_is_used<Equal, Device>();
    every_line_is_used<toy::SkipNet<Real>, Device>();
}

namespace {

// Some backwards whole and some in halves, in one cell, in any order.
template <std::size_t v> struct Mixed {
    using policy_kind = gpipe::policy::Schedule;
    static constexpr std::size_t cells_per_device = v;
    static gpipe::Programs programs(std::size_t devices, std::size_t micro_batches) {
        std::mt19937_64 random(toy::chance);
        gpipe::Programs placed(devices, devices * v, micro_batches, 0);
        std::vector<std::size_t> cells;
        for (std::size_t c = 0; c < devices * v; ++c) cells.push_back(c);
        std::shuffle(cells.begin(), cells.end(), random);
        for (std::size_t c = 0; c < cells.size(); ++c) placed.place(cells[c], c % devices);
        return toy::mixed_by_chance(placed, 50, random);
    }
};

// Layers without Deferred and with, with a whole backward and without, and with scratch; the lowest
// takes no gpipe::none.
using Halves =
    gpipe::Pipeline<toy::StrictLinear<Real, 5, 24>, toy::Scale<Real, 24>, Square<Real, 24>,
                    toy::Scale<Real, 24>, Square<Real, 24>, toy::Linear<Real, 24, 16>,
                    toy::Tanh<Real, 16>, Square<Real, 16>, toy::Linear<Real, 16, 3>>;

} // namespace

TEST_CASE_TEMPLATE("whole backwards among halves overwrite nothing that anybody reads", Device,
                   Deferred, Remote) {
    std::size_t const samples = 40 * 6;
    auto const x = inputs<Halves>(samples);
    auto const y = targets<Halves>(samples);
    using Plain = TrainOf<Halves, Host>;
    Plain plain(Halves{}, {}, Adam{1e-2f},
                options<Plain>(samples, 1, 6, gpipe::schedule::GPipeAscending{},
                               gpipe::checkpoint::Never{}));
    std::vector<double> losses;
    for (int step = 0; step < 3; ++step) losses.push_back(plain.step(x, y).loss);
    auto const check = [&](gpipe::schedule::Dynamic schedule, std::size_t cells) {
        for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings) {
            using T = TrainOf<Halves, Device>;
            T train(Halves{}, {}, Adam{1e-2f},
                    options<T>(samples, cells, 6, schedule, checkpointing.policy));
            INFO(schedule.name(), ", chance ", toy::chance, ", ", checkpointing.name,
                 ", K = ", train.devices());
            for (double const loss : losses) {
                poison_all(train);
                // In another order gradients sum up to other bits.
                CHECK(train.step(x, y).loss == doctest::Approx(loss).epsilon(1e-4));
            }
        }
    };
    for (std::size_t k = 1; k <= 3; ++k) check(gpipe::schedule::DualPipeV{}, k);
    for (toy::chance = 0; toy::chance < (toy::long_tests() ? 500
                                         : toy::sanitized  ? 4
                                                           : 20);
         ++toy::chance)
        if (toy::chance % 2 == 0)
            check(Mixed<1>{}, 1 + toy::chance / 2 % 9);
        else
            check(Mixed<3>{}, 1 + toy::chance / 2 % 3);
}

TEST_CASE_TEMPLATE("an evaluation gives its loss room for a gradient where halves run apart",
                   Device, Host, Deferred, Remote) {
    using N = gpipe::Pipeline<toy::Linear<Real, 5, 6>, toy::Tanh<Real, 6>, toy::Linear<Real, 6, 4>>;
    using T = toy::Training<N, toy::CrossEntropy<Real, 4>, Adam, Device>;
    auto const x = toy::numbers<Real>(8 * 5, 1);
    std::vector<std::int32_t> const classes(8, 1);
    T plain(N{}, {}, Adam{},
            options<T>(8, 2, 4, gpipe::schedule::GPipeAscending{}, gpipe::checkpoint::Never{}));
    T train(N{}, {}, Adam{},
            options<T>(8, 2, 4, gpipe::schedule::ZeroBubbleH1{}, gpipe::checkpoint::Never{}));
    for (int step = 0; step < 2; ++step) {
        CHECK(train.evaluate(x, classes).loss == plain.evaluate(x, classes).loss);
        CHECK(train.step(x, classes).loss == plain.step(x, classes).loss);
    }
}

TEST_CASE("work on a device with memory of its own never touches the caller's arrays, and gives "
          "what it gives on the host") {
    constexpr std::size_t samples = 13;
    constexpr std::size_t ins = samples * Wide::Input::size;
    constexpr std::size_t outs = samples * Wide::Output::size;
    toy::Pages const pages((ins + 2 * outs) * sizeof(Real));
    auto* const memory = reinterpret_cast<Real*>(pages.data());
    std::span<Real> const x{memory, ins}, t{memory + ins, outs}, y{memory + ins + outs, outs};
    std::vector<Real> const x_values = inputs<Wide>(samples), t_values = targets<Wide>(samples);
    std::copy(x_values.begin(), x_values.end(), x.begin());
    std::copy(t_values.begin(), t_values.end(), t.begin());
    for (std::size_t cells : {1, 2, 3, 10})
        for (auto const& run : toy::runs<Remote>()) {
            using There = TrainOf<Wide, Remote>;
            using Here = TrainOf<Wide, Host>;
            // Room for 5 samples only: evaluate() and predict() take three parts.
            auto o = options<There>(5, cells, 3, {}, {});
            o.device = run;
            o.device.caller = &pages;
            o.device.closed = true;
            There there(Wide{}, {}, Adam{}, o);
            Here here(Wide{}, {}, Adam{}, options<Here>(5, cells, 3, {}, {}));
            INFO("K = ", cells, ", ", toy::describe(run));
            for (std::size_t n : {5, 4, 2}) {
                auto const some = [&](auto const& all, std::size_t size) {
                    return std::span<Real const>(all).first(n * size);
                };
                CHECK(
                    there.step(some(x, Wide::Input::size), some(t, Wide::Output::size)).loss ==
                    here.step(some(x_values, Wide::Input::size), some(t_values, Wide::Output::size))
                        .loss);
            }
            CHECK(there.evaluate(x, t).loss == here.evaluate(x_values, t_values).loss);
            for (std::size_t layer : {0, 2, 9}) {
                auto const parameter = here.parameter<Real>(layer, 0);
                std::vector<Real> copied(parameter.size());
                there.read_parameter(layer, 0, std::span(copied));
                CHECK(std::equal(copied.begin(), copied.end(), parameter.begin()));
                there.read_gradient(layer, 0, std::span(copied));
                CHECK(std::equal(copied.begin(), copied.end(),
                                 here.gradient<Real>(layer, 0).begin()));
                for (Real& value : parameter) value /= 2;
                there.write_parameter(layer, 0, std::span<Real const>(parameter));
            }
            std::vector<Real> expected(outs);
            here.predict(x_values, expected);
            there.predict(x, y);
            CHECK(std::equal(y.begin(), y.end(), expected.begin()));
        }
}

TEST_CASE("what a device with memory of its own needs is known from the types") {
    using Constant =
        gpipe::Training<Wide, gpipe::Cells<3>, gpipe::MicroBatches<4>,
                        gpipe::Loss<toy::MeanSquare<Real, 3>>, gpipe::Optimizer<Adam>, Remote>;
    for (gpipe::Link const link : {gpipe::Link::shared, gpipe::Link::copied, gpipe::Link::staged})
        for (double const clip : {0.0, 1.0}) {
            std::size_t allocated = 0;
            Constant::Options options{.samples = 12, .clip_norm = clip};
            options.device.allocated = &allocated;
            options.device.link = link;
            Constant train(Wide{}, {}, Adam{}, options);
            gpipe::MemoryPlan const planned = Constant::plan_for(3, link);
            for (std::size_t d = 0; d < 3; ++d) {
                std::size_t const used = train.arena(d).size();
                CHECK((clip > 0 ? planned.devices[d].total() < used
                                : planned.devices[d].total() == used));
                CHECK((clip > 0 ? Constant::peak_bytes(d, 3, link) == used
                                : Constant::peak_bytes(d, 3, link) > used));
                CHECK(train.plan().devices[d].staging > 0);
            }
            CHECK((clip > 0 || allocated == planned.total()));
        }
    using Here = gpipe::Training<Wide, gpipe::Cells<3>, gpipe::MicroBatches<4>,
                                 gpipe::Loss<toy::MeanSquare<Real, 3>>, gpipe::Optimizer<Adam>>;
    CHECK(Here::plan_for(3).devices[0].staging == 0);
}

TEST_CASE("P3 the plan is close to the largest sum of live bytes") {
    CHECK(worst_ratio<Equal>(1.0) <= 1.05);
    CHECK(worst_ratio<Wide>(1.05) <= 1.05);
    CHECK(worst_ratio<Late>(1.08) <= 1.05);
}

// That a boundary has one slot more than micro-batches in flight: unit/pools.cpp.
TEST_CASE("P4 with checkpointing a cell keeps its boundary inputs and one set of activations: "
          "O(N + L/K x N/M)") {
    // Equal layers of width 8 and a micro-batch of 64 samples: every tensor is one slot of s bytes.
    constexpr std::size_t s = 64 * 8 * sizeof(Real);
    auto const activations = [](std::size_t cells, std::size_t micro_batches,
                                gpipe::checkpoint::Dynamic policy, std::size_t device) {
        using T = TrainOf<Equal, Deferred>;
        T train(
            Equal{}, {}, Adam{},
            options<T>(64 * micro_batches, cells, micro_batches, gpipe::schedule::GPipe{}, policy));
        auto const& bytes = train.plan().devices[device];
        return bytes.boundary + bytes.activations;
    };
    for (std::size_t cells : {2, 4, 8})
        for (std::size_t micro_batches : {2, 4, 8, 16}) {
            std::size_t const layers = 16 / cells;
            INFO("K = ", cells, ", M = ", micro_batches);
            // M inputs and a gradient at the boundary; in the cell the outputs of all layers but
            // the last, and of the gradients at most two.
            for (gpipe::checkpoint::Dynamic policy :
                 {gpipe::checkpoint::Dynamic(gpipe::checkpoint::ExceptLast{}),
                  gpipe::checkpoint::Dynamic(gpipe::checkpoint::Always{})}) {
                std::size_t const bytes = activations(cells, micro_batches, policy, 1);
                CHECK(bytes >= (micro_batches + 1) * s + (layers - 1) * s);
                CHECK(bytes <= (micro_batches + 1) * s + (layers + 3) * s);
            }
            // Without it, one set of activations per micro-batch.
            CHECK(activations(cells, micro_batches, gpipe::checkpoint::Never{}, 0) >=
                  micro_batches * (layers - 1) * s);
        }
}
