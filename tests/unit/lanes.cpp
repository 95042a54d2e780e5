// Programs merged onto lanes: order, waits and marks; and how a mini-batch is split.
#include <support/schedules.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/plan/lower.hpp>
#include <gpipe/runtime/lanes.hpp>
#include <gpipe/runtime/micro_batches.hpp>
#include <gpipe/schedule/gpipe.hpp>
#include <gpipe/schedule/verify.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <vector>

using gpipe::Action;
using gpipe::Array;
using gpipe::Kind;
using gpipe::Lanes;
using gpipe::LaneStep;
using gpipe::Lowered;
using gpipe::no_action;
using gpipe::Placement;
using gpipe::Programs;

namespace {

// Device d on lane d * lanes / devices, or dealt in turn; work of a lane on one stream, or of each
// device on a stream of its own as a device that enqueues has it.
Placement place(std::size_t devices, std::size_t lanes, bool dealt, bool own_streams) {
    Placement result{lanes, own_streams ? devices : lanes, Array<std::size_t>(devices),
                     Array<std::size_t>(devices)};
    for (std::size_t d = 0; d < devices; ++d) {
        result.lane[d] = dealt ? d % lanes : d * lanes / devices;
        result.stream[d] = own_streams ? d : result.lane[d];
    }
    return result;
}

std::span<gpipe::Wait const> waits_of(Lanes const& lanes, LaneStep const& step) {
    return {lanes.waits.data() + step.first_wait, step.waits};
}

void check_lanes(Lowered const& lowered, Placement const& placement, Lanes const& lanes) {
    Programs const& programs = lowered.programs;
    REQUIRE(lanes.lanes() == placement.lanes);
    REQUIRE(lanes.steps.size() == programs.size());
    REQUIRE(lanes.begin[0] == 0);
    REQUIRE(lanes.begin[placement.lanes] == programs.size());

    std::vector<std::size_t> step_of(programs.size(), no_action);
    std::vector<std::size_t> lane_of(programs.size());
    for (std::size_t lane = 0; lane < lanes.lanes(); ++lane) {
        std::vector<std::size_t> next(programs.devices());
        std::vector<std::uint32_t> position(placement.streams);
        for (std::size_t s = lanes.begin[lane]; s < lanes.begin[lane + 1]; ++s) {
            LaneStep const& step = lanes.steps[s];
            std::size_t const d = programs.device_at(step.action);
            REQUIRE(step_of[step.action] == no_action);
            step_of[step.action] = s;
            lane_of[step.action] = lane;
            // On the lane and stream of its device, each program in its own order, positions
            // from 1.
            REQUIRE(placement.lane[d] == lane);
            REQUIRE(placement.stream[d] == step.stream);
            REQUIRE(step.action == programs.begin(d) + next[d]++);
            REQUIRE(step.position == ++position[step.stream]);
            REQUIRE(step.position <= lanes.longest);
        }
    }
    std::vector<bool> waited_for(programs.size());
    for (std::size_t i = 0; i < programs.size(); ++i) {
        LaneStep const& step = lanes.steps[step_of[i]];
        std::size_t waits = 0;
        for (std::size_t needed : lowered.needs[i]) {
            LaneStep const& other = lanes.steps[step_of[needed]];
            if (other.stream == step.stream) {
                // Nothing to wait for: it stands before on the same stream.
                REQUIRE(lane_of[needed] == lane_of[i]);
                REQUIRE(step_of[needed] < step_of[i]);
                continue;
            }
            bool found = false;
            for (gpipe::Wait const& wait : waits_of(lanes, step))
                found = found || (wait.stream == other.stream && wait.position == other.position);
            REQUIRE(found);
            REQUIRE(other.publishes);
            waited_for[needed] = true;
            ++waits;
        }
        REQUIRE(step.waits == waits); // and for nothing else
    }
    for (std::size_t i = 0; i < programs.size(); ++i)
        REQUIRE(lanes.steps[step_of[i]].publishes == waited_for[i]);

    // Lanes that do as they are told come to their end. A lane that enqueues passes a step only
    // once what it waits for has been put on its stream, so this is the test for both kinds of
    // device.
    std::vector<std::size_t> at(lanes.lanes());
    for (std::size_t lane = 0; lane < lanes.lanes(); ++lane) at[lane] = lanes.begin[lane];
    std::vector<std::uint32_t> reached(placement.streams);
    for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t lane = 0; lane < lanes.lanes(); ++lane)
            while (at[lane] < lanes.begin[lane + 1]) {
                LaneStep const& step = lanes.steps[at[lane]];
                bool ready = true;
                for (gpipe::Wait const& wait : waits_of(lanes, step))
                    ready = ready && reached[wait.stream] >= wait.position;
                if (!ready) break;
                reached[step.stream] = step.position;
                ++at[lane];
                moved = true;
            }
    }
    for (std::size_t lane = 0; lane < lanes.lanes(); ++lane)
        REQUIRE(at[lane] == lanes.begin[lane + 1]);
}

// Every schedule on every number of lanes, with equal and with odd costs.
template <class F> void each_merge(Programs const& programs, F check) {
    for (std::size_t lanes = 1; lanes <= programs.devices(); ++lanes)
        for (bool dealt : {false, true})
            for (bool own_streams : {false, true})
                for (bool odd : {false, true}) {
                    CAPTURE(lanes);
                    CAPTURE(dealt);
                    CAPTURE(own_streams);
                    CAPTURE(odd);
                    auto const cost = [odd](Action const& a) {
                        if (!odd) return a.kind == Kind::backward ? 2.0 : 1.0;
                        return double((a.cell * 7 + a.micro_batch * 3 + unsigned(a.kind)) % 5);
                    };
                    check(place(programs.devices(), lanes, dealt, own_streams), cost);
                }
}

} // namespace

TEST_CASE_TEMPLATE("merged lanes keep every program's order, and every need in reach", Schedule,
                   gpipe::schedule::GPipe, gpipe::schedule::GPipeAscending,
                   toy::OneForwardOneBackward, toy::OneByOne, toy::Dealt) {
    for (std::size_t k = 1; k <= 5; ++k)
        for (std::size_t m = 1; m <= 6; ++m) {
            CAPTURE(k);
            CAPTURE(m);
            Programs const schedule = Schedule::programs(k, m);
            REQUIRE(gpipe::verify(schedule));
            for (Programs const& programs :
                 {schedule, gpipe::checkpoint::ExceptLast::lower(schedule),
                  gpipe::checkpoint::Always::lower(schedule)}) {
                Lowered const lowered = gpipe::lower(programs);
                each_merge(programs, [&](Placement const& placement, auto cost) {
                    Lanes const lanes = gpipe::merge_lanes(lowered, placement, cost);
                    check_lanes(lowered, placement, lanes);
                    double busy = 0;
                    for (std::size_t i = 0; i < programs.size(); ++i) busy += cost(programs[i]);
                    CHECK(lanes.busy == doctest::Approx(busy));
                    CHECK(lanes.makespan <= busy + 1e-9);
                    CHECK(lanes.makespan * double(placement.streams) >= busy - 1e-9);
                });
            }
        }
}

TEST_CASE("with a lane per device the merge takes as long as the simulation says") {
    for (std::size_t k = 1; k <= 6; ++k)
        for (std::size_t m = 1; m <= 8; ++m) {
            auto const programs = toy::OneForwardOneBackward::programs(k, m);
            auto const cost = [](Action const& a) {
                return double((a.cell * 7 + a.micro_batch * 3 + unsigned(a.kind)) % 5);
            };
            CHECK(gpipe::merge_lanes(gpipe::lower(programs), place(k, k, false, false), cost)
                      .makespan == gpipe::simulate<double>(programs, cost).makespan);
        }
}

TEST_CASE("micro-batches cover a mini-batch in order, differ by one sample, the larger first") {
    for (std::size_t n = 0; n <= 70; ++n)
        for (std::size_t m = 1; m <= 20; ++m) {
            CAPTURE(n);
            CAPTURE(m);
            std::size_t next = 0;
            std::size_t before = n;
            for (std::size_t i = 0; i < m; ++i) {
                auto const range = gpipe::Split(n, m)[i];
                CHECK(range.first == next);
                CHECK(range.count <= before);
                CHECK((range.count == n / m || range.count == n / m + 1));
                before = range.count;
                next += range.count;
            }
            CHECK(next == n);
        }
}
