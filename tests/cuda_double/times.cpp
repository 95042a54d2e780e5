// How long steps take on GPUs by what streams and events have them wait for: as long as their plan,
// simulated, says. So nothing waits that the plan lets go on.
#include "support/enqueued_net.hpp"
#include "support/gpu_times.hpp"
#include "support/long_tests.hpp"
#include "support/skip_layers.hpp"

#include <gpipe/plan/simulate_lowered.hpp>
#include <gpipe/replicas.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/transport/local_gpus.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using gpipe::device::Cuda;
using toy::Durations;
using toy::repeated;
using toy::Takes;

using Real = float;
using Net = toy::EnqueuedNet<Real>;
// Equal layers, whose cells are alike where K divides their number.
using EvenNet = gpipe::Pipeline<gpipe::Repeat<12, toy::Enqueued<toy::Linear<Real, 5, 5>>>>;
// So they are with one parameter at both ends.
using Tied = toy::Enqueued<toy::TiedTo<toy::Linear<Real, 5, 5>, struct Shared>>;
using TiedNet =
    gpipe::Pipeline<Tied, gpipe::Repeat<10, toy::Enqueued<toy::Linear<Real, 5, 5>>>, Tied>;
template <class Net>
constexpr std::size_t width = std::is_same_v<Net, EvenNet> || std::is_same_v<Net, TiedNet> ? 5 : 3;
template <class Net> using LossOf = toy::EnqueuedLoss<toy::MeanSquare<Real, width<Net>>>;
template <class Net, class... Policies>
using TrainOf = gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>,
                                gpipe::MicroBatches<gpipe::dynamic>, gpipe::Loss<LossOf<Net>>, Cuda,
                                gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic, Policies...>;

struct Case {
    std::size_t cells, micro_batches;
    gpipe::schedule::Dynamic schedule;
    toy::NamedCheckpointing checkpointing = toy::checkpointings[0];
    std::size_t graphs = 0;
    bool peers = true;
    Takes takes{};
    std::size_t replicas = 1;
};

// A training, and what its steps take.
template <class Train> class Clocked {
  public:
    template <class Net>
    Clocked(Case const& of, Net (*make_net)(toy::Watch&))
        : takes_(std::make_shared<Takes>(of.takes)),
          session_({.devices = static_cast<int>(of.cells * of.replicas),
                    .peers = [peers = of.peers](int, int) { return peers; },
                    .protects = false,
                    .lasts = [takes = takes_](auto const& piece) { return (*takes)(piece); }}),
          train_(std::make_unique<Train>(make_net(watch_), LossOf<Net>{}, gpipe::SGD{1e-3f},
                                         options(of))),
          inputs_(5 * toy::timed_samples * of.micro_batches * of.replicas, 0.5f),
          targets_(inputs_) {
        targets_.resize(inputs_.size() / 5 * width<Net>);
    }
    ~Clocked() {
        train_.reset();
        CHECK(cuda_double::complaints() == "");
    }

    // Of so many steps, two of them under way.
    double steps(std::size_t count) {
        cuda_double::progress();
        double const begin = cuda_double::time();
        std::vector<typename Train::Pending> pending;
        for (std::size_t n = 0; n < count; ++n) pending.push_back(train_->start(inputs_, targets_));
        for (auto& step : pending) step.result();
        cuda_double::progress();
        return cuda_double::time() - begin;
    }
    Durations durations() {
        Durations result;
        double before = 0;
        train_->on_action([&](gpipe::ActionEvent const& event) {
            if (event.replica > 0) return; // which does the same, at the same time
            double const now = cuda_double::enqueued();
            event.begins ? void(before = now) : result.add(event.action, now - before);
        });
        steps(1);
        train_->on_action(nullptr);
        return result;
    }
    gpipe::Lowered const& lowered() const { return train_->plan().lowered; }
    Takes& takes() { return *takes_; }

  private:
    static typename Train::Options options(Case const& of) {
        typename Train::Options o;
        o.samples = toy::timed_samples * of.micro_batches;
        o.cells = of.cells;
        o.micro_batches = of.micro_batches;
        o.schedule = of.schedule;
        o.checkpointing = of.checkpointing.policy;
        o.device.graphs = of.graphs;
        if constexpr (requires { o.replicas; }) o.replicas = of.replicas;
        return o;
    }

    std::shared_ptr<Takes> takes_;
    cuda_double::Session session_;
    toy::Watch watch_;
    std::unique_ptr<Train> train_;
    std::vector<Real> inputs_, targets_;
};

Net make_net(toy::Watch& watch) { return toy::make_enqueued_net<Real>(watch); }
using SkipNet = toy::SkipNetOf<Real, toy::Enqueued>;
SkipNet make_skips(toy::Watch&) { return {}; }
EvenNet make_even_net(toy::Watch&) { return {}; }
TiedNet make_tied_net(toy::Watch&) { return {}; }

// f(case) of one in so many of all schedules, checkpointings and ways to run them.
template <class F> void each_case(std::size_t one_in, F f) {
    std::size_t point = 0, count = 0;
    for (std::size_t const v : {1u, 2u})
        for (gpipe::schedule::Dynamic const& schedule : gpipe::schedule::catalogue(v))
            for (std::size_t cells = 1; cells <= 4; ++cells)
                for (std::size_t const micro_batches : {1u, 3u, 7u}) {
                    if (schedule.cells_per_device() != v ||
                        micro_batches < schedule.least_micro_batches(cells))
                        continue;
                    auto const each = [&](toy::NamedCheckpointing const& checkpointing) {
                        for (std::size_t const graphs : {0u, 2u})
                            for (bool const peers : {false, true})
                                for (double const between : {0.0, 3.0}) {
                                    if (point++ % toy::one_of(one_in) != 0) continue;
                                    CAPTURE(schedule.name());
                                    CAPTURE(cells);
                                    CAPTURE(micro_batches);
                                    CAPTURE(checkpointing.name);
                                    CAPTURE(graphs);
                                    CAPTURE(peers);
                                    CAPTURE(between);
                                    f(Case{cells,
                                           micro_batches,
                                           schedule,
                                           checkpointing,
                                           graphs,
                                           peers,
                                           {.between = between, .host = 2}});
                                    ++count;
                                }
                    };
                    for (auto const& one : toy::checkpointings) each(one);
                    for (auto const& one : toy::reversings) each(one);
                }
    MESSAGE(count << " cases");
    CHECK(count > 0);
}
template <class Net> void takes_what_its_plan_says(std::size_t one_in, Net (*make)(toy::Watch&)) {
    double sent = 0, offloaded = 0;
    each_case(one_in, [&](Case const& of) {
        Clocked<TrainOf<Net>> clocked(of, make);
        Durations const durations = clocked.durations();
        double const simulated = gpipe::simulate<double>(clocked.lowered(), durations).makespan;
        CHECK(simulated > 0);
        sent += durations.of(gpipe::Kind::receive_input) + durations.of(gpipe::Kind::send_output);
        offloaded += durations.of(gpipe::Kind::offload);
        CHECK(clocked.steps(1) == simulated);
        CHECK(clocked.steps(2) == 2 * simulated); // of which the first is kept as a graph
    });
    CHECK((sent > 0 || toy::sanitized)); // else nothing would have been waited for
    CHECK((offloaded > 0 || toy::sanitized));
}

} // namespace

TEST_CASE("a step takes as long as its plan says, whatever is recomputed and offloaded") {
    takes_what_its_plan_says(113, &make_net);
}
TEST_CASE("so it does where skips go across") { takes_what_its_plan_says(397, &make_skips); }

TEST_CASE("steps under immediate updates take as long as one program of them all") {
    using Train = TrainOf<EvenNet, gpipe::update::Immediate>;
    double saved = 0;
    std::size_t point = 0;
    for (char const* const name : {"OneForwardOneBackward", "ZeroBubbleH1", "ZeroBubbleH2"})
        for (std::size_t cells = 1; cells <= 4; ++cells)
            for (bool const alike : {false, true})
                for (double const between : {0.0, 3.0})
                    for (std::size_t const graphs : {0u, 2u}) {
                        if (toy::left_out(point, 7)) continue;
                        CAPTURE(name);
                        CAPTURE(cells);
                        CAPTURE(alike);
                        CAPTURE(between);
                        CAPTURE(graphs);
                        Case of{cells, 7, gpipe::schedule::find_schedule(name)};
                        of.takes = {.alike = alike, .between = between};
                        of.graphs = graphs;
                        Clocked<Train> clocked(of, &make_even_net);
                        Durations const durations = clocked.durations();
                        double const one = repeated(clocked.lowered(), durations, 1),
                                     eight = repeated(clocked.lowered(), durations, 8);
                        CHECK(clocked.steps(1) == one);
                        double const took = clocked.steps(8);
                        if (graphs > 0) // which begin one behind the other
                            CHECK(took == 8 * one);
                        else if (between == 0)
                            CHECK(took == eight);
                        else // a copy may wait for its room, which the step before still reads
                            CHECK(std::abs(took - (eight + 4 * between)) <= 4 * between);
                        saved = std::max(saved, 1 - eight / (8 * one));
                    }
    CHECK((saved > 0.05 || toy::sanitized)); // so they do overlap
}

TEST_CASE("of what replicas tell each other no more shows than that of the cell that ends last") {
    auto const check = [](auto shard) {
        using Train = TrainOf<EvenNet, gpipe::Replicas<gpipe::dynamic, decltype(shard)>>;
        std::size_t point = 0;
        for (std::size_t const replicas : {1u, 3u}) {
            double of_one = 0; // cell
            for (auto const& schedule : std::initializer_list<gpipe::schedule::Dynamic>{
                     gpipe::schedule::GPipe{}, gpipe::schedule::OneForwardOneBackward{},
                     gpipe::schedule::ZeroBubbleH2{}, gpipe::schedule::Interleaved1F1B<2>{},
                     gpipe::schedule::BreadthFirst<2>{}, gpipe::schedule::ZeroBubbleV{}})
                for (std::size_t const cells : {1u, 3u}) {
                    if (of_one > 0 && toy::left_out(point, 5)) continue;
                    CAPTURE(schedule.name());
                    CAPTURE(cells);
                    CAPTURE(replicas);
                    Case of{cells, 6, schedule};
                    of.replicas = replicas;
                    of.takes = {.alike = true, .between = 3};
                    Clocked<Train> clocked(of, &make_even_net);
                    Durations const durations = clocked.durations();
                    double const simulated = repeated(clocked.lowered(), durations, 1);
                    CHECK(clocked.steps(1) == simulated);
                    clocked.takes().others = 1;
                    double const shown = clocked.steps(1) - simulated;
                    if (of_one == 0) of_one = shown;
                    CHECK((shown > 0) == (replicas > 1));
                    CHECK(shown <= of_one);
                }
        }
    };
    SUBCASE("all of it") { check(gpipe::shard::Nothing{}); }
    SUBCASE("parts of the optimizer's state") { check(gpipe::shard::OptimizerState{}); }
}

TEST_CASE("a tied gradient goes to the first end as soon as it is whole, and the sum comes back") {
    std::size_t point = 0;
    for (std::string const name :
         {"GPipe", "OneForwardOneBackward", "ZeroBubbleH1", "Interleaved1F1B-2", "ZeroBubbleV"})
        for (std::size_t cells = 1; cells <= 4; ++cells)
            for (std::size_t const graphs : {0u, 2u})
                for (double const others : {1.0, 3.0}) {
                    if (toy::left_out(point, 7)) continue;
                    CAPTURE(name);
                    CAPTURE(cells);
                    CAPTURE(graphs);
                    CAPTURE(others);
                    Case of{cells, 6, gpipe::schedule::find_schedule(name)};
                    of.graphs = graphs;
                    of.peers = point % 2 == 0;
                    of.takes = {.alike = true, .between = 1, .others = others};
                    Clocked<TrainOf<TiedNet>> clocked(of, &make_tied_net);
                    gpipe::Programs const& programs = clocked.lowered().programs;
                    auto const times =
                        gpipe::simulate<double>(clocked.lowered(), clocked.durations());
                    std::size_t const last = programs.device_of(programs.cells() - 1);
                    double const there = times.end[programs.end(last) - 1] + others,
                                 here = times.end[programs.end(0) - 1],
                                 back = std::max(here, there) + others;
                    CHECK(clocked.steps(3) ==
                          3 * (last == 0 ? times.makespan : std::max(times.makespan, back)));
                }
}
