// The timeline of a run: every action where and when it ran, and the bytes that were in use.
#include <support/deferred.hpp>
#include <support/net.hpp>
#include <support/timeline_entries.hpp>

#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/trace/timeline.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <vector>

#include <sched.h>

namespace {

using Net = gpipe::Pipeline<toy::Linear<float, 5, 6>, toy::Tanh<float, 6>, toy::Square<float, 6>,
                            toy::Tanh<float, 6>, toy::Scale<float, 6>, toy::Linear<float, 6, 3>>;
using Train = gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<4>,
                              gpipe::Loss<toy::MeanSquare<float, 3>>, gpipe::schedule::Dynamic,
                              gpipe::checkpoint::Dynamic>;

std::vector<float> const inputs(8 * 5, 0.5f);
std::vector<float> const targets(8 * 3, 0.25f);

Train make(std::size_t cells, gpipe::schedule::Dynamic schedule,
           gpipe::checkpoint::Dynamic checkpointing, std::size_t threads, double clip_norm = 0) {
    return {Net{{}, {}, {}, {}, {1.5f}, {}},
            {},
            {},
            {.samples = 8,
             .cells = cells,
             .clip_norm = clip_norm,
             .schedule = schedule,
             .checkpointing = checkpointing,
             .device = {.threads = threads}}};
}

// f(devices, threads, schedule).
template <class F> void each_run(F f) {
    for (std::size_t const k : {1u, 2u, 3u})
        for (std::size_t const threads : {1u, 2u})
            for (auto const& schedule : gpipe::schedule::catalogue(0))
                if (schedule.cells_per_device() * k <= Net::size &&
                    schedule.least_micro_batches(k) <= 4) {
                    CAPTURE(k);
                    CAPTURE(schedule.name());
                    f(k, threads, schedule);
                }
}

} // namespace

TEST_CASE("after a training step the timeline has the bytes in use, within what is planned") {
    each_run([](std::size_t k, std::size_t threads, gpipe::schedule::Dynamic const& schedule) {
        for (gpipe::checkpoint::Dynamic const& policy :
             {gpipe::checkpoint::Dynamic(gpipe::checkpoint::Never{}),
              gpipe::checkpoint::Dynamic(gpipe::checkpoint::ExceptLast{}),
              gpipe::checkpoint::Dynamic(gpipe::checkpoint::EverySegment<1>{})}) {
            Train train = make(k, schedule, policy, threads);
            CHECK_THROWS_WITH_AS(train.timeline(), doctest::Contains("call time_actions()"),
                                 std::logic_error);
            train.step(inputs, targets); // is not timed
            CHECK_THROWS_AS(train.timeline(), std::logic_error);
            train.time_actions();
            CHECK_THROWS_AS(train.timeline(), std::logic_error);
            train.step(inputs, targets);
            gpipe::Timeline const timeline = train.timeline("a step");
            CHECK(toy::entries_of_cells(timeline) == train.programs().size());
            CHECK(timeline.title() == "a step");
            REQUIRE(timeline.memory().size() == k);
            for (std::size_t d = 0; d < k; ++d) {
                gpipe::MemoryCurve const& curve = timeline.memory()[d];
                CHECK(curve.planned == train.plan().devices[d].total());
                CHECK(curve.peak() <= curve.planned);
                CHECK(curve.peak() > curve.fixed);
                CHECK(curve.points[curve.points.size() - 1].bytes == curve.fixed);
                CHECK(curve.points[curve.points.size() - 1].time <= timeline.makespan());
            }
            // A forward only is no step of these programs.
            train.evaluate(inputs, targets);
            CHECK(train.timeline().memory().empty());
            // Micro-batches without samples ran nowhere.
            train.step(std::span(inputs).first(5), std::span(targets).first(3));
            gpipe::Timeline const one = train.timeline();
            CHECK(one.size() < timeline.size());
            for (std::size_t d = 0; d < k; ++d)
                CHECK(one.memory()[d].peak() <= timeline.memory()[d].planned);
        }
    });
}

TEST_CASE("the timeline has what ends a step: once, on its device, behind what it is of") {
    std::size_t squared = 0, alone = 0;
    each_run([&](std::size_t k, std::size_t threads, gpipe::schedule::Dynamic const& schedule) {
        double const clip = schedule.cells_per_device() > 1 ? 1 : 0;
        Train train = make(k, schedule, gpipe::checkpoint::Never{}, threads, clip);
        train.time_actions();
        train.accumulate(inputs, targets);
        gpipe::Timeline const part = train.timeline();
        CHECK(part.size() == train.programs().size() + 1); // the part's losses are added up
        CHECK(toy::entries_of(part, gpipe::Kind::commit).size() == 1);
        train.step(inputs, targets);
        gpipe::Timeline const timeline = train.timeline();
        auto const commits = toy::entries_of(timeline, gpipe::Kind::commit);
        REQUIRE(commits.size() == 1);
        CHECK(commits[0].device == train.programs().device_of(train.cells() - 1));
        // The first layer, the third and the last are trained.
        std::vector<bool> learns(k);
        for (std::size_t c = 0; c < train.cells(); ++c)
            for (std::size_t const layer : {0u, 2u, 5u})
                if (train.plan().first[c] <= layer && layer < train.plan().first[c + 1])
                    learns[train.programs().device_of(c)] = true;
        std::size_t learners = 0;
        for (bool const one : learns) learners += one;
        auto const updates = toy::entries_of(timeline, gpipe::Kind::update);
        auto const squares = toy::entries_of(timeline, gpipe::Kind::sum_squares);
        CHECK(updates.size() == learners);
        CHECK(squares.size() == (clip > 0 ? learners : 0));
        CHECK(timeline.size() == train.programs().size() + 1 + updates.size() + squares.size());
        std::vector<double> last(k), summed(k);
        for (auto const& entry : timeline)
            if (computes(entry.action.kind))
                last[entry.device] = std::max(last[entry.device], entry.end);
        for (auto const& sum : squares) {
            CHECK(learns[sum.device]);
            CHECK(summed[sum.device] == 0);
            summed[sum.device] = sum.end;
            CHECK(last[sum.device] <= sum.start);
            CHECK(sum.end <= commits[0].start);
            ++squared;
        }
        for (double const end : last) CHECK(end <= commits[0].start);
        for (auto const& update : updates) {
            CHECK(learns[update.device]);
            learns[update.device] = false;
            CHECK(commits[0].end <= update.start);
            CHECK(update.end <= timeline.length());
            ++alone;
        }
        CHECK(timeline.makespan() == *std::max_element(last.begin(), last.end()));
        CHECK(timeline.makespan() <= commits[0].start);
        CHECK(timeline.length() >= commits[0].end);
        train.evaluate(inputs, targets);
        CHECK(toy::entries_of_cells(train.timeline()) == train.timeline().size());
    });
    CHECK(squared > 0);
    CHECK(alone > squared);
}

TEST_CASE(
    "copies between devices are not in the timeline of a run, but their bytes are in the curve") {
    using Linked = gpipe::Training<Net, gpipe::Cells<3>, gpipe::MicroBatches<4>,
                                   gpipe::Loss<toy::MeanSquare<float, 3>>, toy::Deferred>;
    for (gpipe::Link const link : {gpipe::Link::copied, gpipe::Link::staged}) {
        Linked train(Net{{}, {}, {}, {}, {1.5f}, {}}, {}, {},
                     {.samples = 8, .device = {.link = link}});
        train.time_actions();
        train.step(inputs, targets);
        gpipe::Timeline const timeline = train.timeline();
        CHECK(toy::entries_of_cells(timeline) == train.programs().size());
        REQUIRE(timeline.memory().size() == 3);
        for (gpipe::MemoryCurve const& curve : timeline.memory()) {
            CHECK(curve.peak() <= curve.planned);
            CHECK(curve.peak() > curve.fixed);
            CHECK(curve.points[curve.points.size() - 1].bytes == curve.fixed);
        }
    }
}

TEST_CASE("what is offloaded is in the timeline of a run, and its bytes in the curve") {
    for (std::size_t const samples : {8u, 5u, 3u}) {
        CAPTURE(samples);
        Train train = make(2, gpipe::schedule::GPipe{},
                           gpipe::checkpoint::Offload<gpipe::checkpoint::Never>{}, 1);
        train.time_actions();
        train.step(std::span(inputs).first(samples * 5), std::span(targets).first(samples * 3));
        gpipe::Timeline const timeline = train.timeline();
        std::size_t const filled = samples < 4 ? samples : 4;
        std::size_t copies = 0;
        for (gpipe::TimelineEntry const& entry : timeline) copies += is_offload(entry.action.kind);
        std::size_t moved = 0; // of the micro-batches that have samples
        for (std::size_t c = 0; c < train.cells(); ++c)
            for (std::size_t m = 0; m < filled; ++m)
                moved += train.plan().lowered.offloads.moved(c, m);
        CHECK(moved > 0);
        std::size_t host = 0;
        for (std::size_t c = 0; c < train.cells(); ++c)
            host += train.plan().pools.pool(gpipe::Holds::offloaded, c).total();
        CHECK(host > 0);
        CHECK(train.host_bytes() == host);
        CHECK(copies == 2 * moved);
        CHECK(toy::entries_of_cells(timeline) == 2 * 2 * filled + copies);
        REQUIRE(timeline.memory().size() == 2);
        for (gpipe::MemoryCurve const& curve : timeline.memory()) {
            CHECK(curve.peak() > curve.fixed);
            CHECK(curve.peak() <= curve.planned);
            // Nothing is in use before the first action and behind the last.
            CHECK(curve.points[0].bytes == curve.fixed);
            CHECK(curve.points[curve.points.size() - 1].bytes == curve.fixed);
        }
    }
}

TEST_CASE("what a run's actions take is predicted from its layers") {
    gpipe::LayerTimes const times{gpipe::Array<double>(6, 1.0), gpipe::Array<double>(6, 2.0)};
    Train train = make(2, gpipe::schedule::GPipe{}, gpipe::checkpoint::EverySegment<1>{}, 1);
    REQUIRE(train.reversals().size() == 2);
    auto const costs = train.costs_of(times);
    auto const again = train.extra_forwards();
    REQUIRE(again.size() == 6);
    // All that runs is the forwards and backwards of four micro-batches, and what runs again.
    double busy = 0;
    double extra = 0;
    for (std::size_t i = 0; i < train.programs().size(); ++i) busy += costs(train.programs()[i]);
    for (std::size_t const count : again) extra += static_cast<double>(count);
    CHECK(busy == 4 * 6 * (1 + 2) + extra);
    gpipe::Timeline const predicted = train.predicted_timeline(costs, "predicted");
    CHECK(predicted.title() == "predicted");
    CHECK(predicted.busy() == doctest::Approx(busy));
    REQUIRE(predicted.memory().size() == 2);
    for (std::size_t d = 0; d < 2; ++d) {
        CHECK(predicted.memory()[d].planned == train.plan().devices[d].total());
        CHECK(predicted.memory()[d].peak() <= predicted.memory()[d].planned);
        CHECK(predicted.memory()[d].points[predicted.memory()[d].points.size() - 1].time <=
              predicted.makespan());
    }
    CHECK(extra > 0);
    CHECK(make(2, gpipe::schedule::GPipe{}, gpipe::checkpoint::Never{}, 1).extra_forwards()[0] ==
          0);
}

TEST_CASE(
    "a run of more lanes than cores says that they lost theirs, one on a lane of its own does not "
    "say so of what came before") {
    cpu_set_t all, one;
    REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
        if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0); // threads to come, too
    Train train = make(2, gpipe::schedule::GPipe{}, gpipe::checkpoint::Never{}, 2);
    train.time_actions();
    // Who waits for the other lane lets it have the core, in some step or other.
    std::uint64_t lost = 0;
    for (int i = 0; i < 100'000 && lost == 0; ++i) {
        train.step(inputs, targets);
        lost = train.timeline().preemptions();
    }
    CHECK(lost > 0);
    CHECK(sched_setaffinity(0, sizeof all, &all) == 0);
    Train alone = make(2, gpipe::schedule::GPipe{}, gpipe::checkpoint::Never{}, 1);
    alone.time_actions();
    std::uint64_t least = 1;
    for (int i = 0; i < 100'000 && least > 0; ++i) {
        alone.step(inputs, targets);
        least = alone.timeline().preemptions();
    }
    CHECK(least == 0); // nobody else wants the core in every step of some microseconds
}
