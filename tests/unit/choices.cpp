// What is refused at construction of the schedule and checkpointing policy that were chosen.
#include <support/schedules.hpp>

#include <gpipe/runtime/choices.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <stdexcept>
#include <string>

using gpipe::Programs;
using gpipe::proven_programs;
using gpipe::checkpoint::ExceptLast;

namespace {

// GPipe for another number of devices, cells or micro-batches.
template <std::size_t devices, std::size_t cells, std::size_t micro_batches> struct Other {
    using policy_kind = gpipe::policy::Schedule;
    static constexpr Programs programs(std::size_t, std::size_t) {
        return toy::forth_and_back(
            Programs(devices, cells, micro_batches, 2 * cells * micro_batches));
    }
};
struct Needs7 : Other<2, 2, 6> {
    static constexpr std::size_t least_micro_batches(std::size_t) { return 7; }
};
// Leaves device 1 without a cell.
struct Idle {
    using policy_kind = gpipe::policy::Schedule;
    static constexpr Programs programs(std::size_t, std::size_t) {
        Programs result(2, 2, 1, 4);
        result.place(1, 0);
        return toy::forth_and_back(result);
    }
};
// Puts cell 1 on a device that is not there.
struct Elsewhere {
    using policy_kind = gpipe::policy::Schedule;
    static constexpr Programs programs(std::size_t, std::size_t) {
        Programs result(2, 2, 1, 4);
        result.place(1, 77);
        result.next_device();
        result.next_device();
        return result;
    }
};
// Drops the last action of the last device.
struct Drops {
    using policy_kind = gpipe::policy::Checkpointing;
    static constexpr Programs lower(Programs const& schedule) {
        Programs result(schedule.devices(), schedule.cells(), schedule.micro_batches(),
                        schedule.size());
        for (std::size_t d = 0; d < schedule.devices(); ++d) {
            std::size_t const dropped = d + 1 == schedule.devices();
            for (std::size_t i = 0; i + dropped < schedule.size(d); ++i)
                result.add(schedule.program(d)[i]);
            result.next_device();
        }
        return result;
    }
};

// Reverses a cell of two layers, but begins with the second, of which nothing is kept.
struct ReversesWrongly {
    using policy_kind = gpipe::policy::Checkpointing;
    static constexpr gpipe::Reversal reversal(gpipe::CellToReverse const& cell) {
        gpipe::Reversal result = gpipe::equal_segments(cell.costs.layers(), 1);
        result.steps[0].layer = 1;
        return result;
    }
};
// For one layer more than there are.
struct ReversesMore {
    using policy_kind = gpipe::policy::Checkpointing;
    static constexpr gpipe::Reversal reversal(gpipe::CellToReverse const& cell) {
        return gpipe::equal_segments(cell.costs.layers() + 1, 1);
    }
};

std::string refusal(gpipe::schedule::Dynamic schedule, gpipe::checkpoint::Dynamic checkpointing,
                    std::size_t devices, std::size_t micro_batches) {
    try {
        proven_programs(schedule, checkpointing, devices, micro_batches);
    } catch (std::invalid_argument const& error) {
        return error.what();
    }
    return "";
}

} // namespace

TEST_CASE("every schedule passes, for its cells and at its least number of micro-batches") {
    for (std::size_t v : {1u, 2u, 3u})
        for (gpipe::schedule::Dynamic const& schedule : gpipe::schedule::catalogue(v))
            for (std::size_t k : {1u, 2u, 5u}) {
                std::size_t const m = schedule.least_micro_batches(k);
                Programs const programs = proven_programs(schedule, ExceptLast{}, k, m).programs;
                CHECK(programs.devices() == k);
                CHECK(programs.cells() == k * schedule.cells_per_device());
                CHECK(programs.micro_batches() == m);
            }
}

TEST_CASE("too few micro-batches are refused with the schedule's name and the numbers") {
    CHECK(refusal(gpipe::schedule::DualPipeV{}, ExceptLast{}, 3, 5) ==
          "gpipe: the schedule DualPipeV needs at least 6 micro-batches for 3 devices, not 5");
    CHECK(refusal(gpipe::schedule::DualPipeV{}, ExceptLast{}, 3, 6) == "");
    CHECK(refusal(gpipe::schedule::DualPipeV{}, ExceptLast{}, 1, 1) ==
          "gpipe: the schedule DualPipeV needs at least 2 micro-batches for 1 device, not 1");
    CHECK(refusal(Needs7{}, ExceptLast{}, 2, 6) ==
          "gpipe: the schedule needs at least 7 micro-batches for 2 devices, not 6");
}

TEST_CASE("a cell that is reversed wrongly is refused with the cell, the step and a sentence") {
    gpipe::LayerInfo const layers[4] = {};
    std::size_t const first[] = {0, 2, 4};
    auto const refused = [&](gpipe::checkpoint::Dynamic policy) -> std::string {
        try {
            proven_programs(gpipe::schedule::GPipe{}, policy, 2, 3, {layers, 4, first});
        } catch (std::invalid_argument const& error) {
            return error.what();
        }
        return "";
    };
    CHECK(refused(gpipe::checkpoint::EverySegment<1>{}) == "");
    CHECK(refused(ReversesWrongly{}) ==
          "gpipe: the checkpointing policy reverses cell 0 wrongly, at step 0: a layer runs again "
          "without its input");
    CHECK(refused(ReversesMore{}) ==
          "gpipe: the checkpointing policy reverses cell 0 wrongly, at step 0: it is not for the "
          "layers of the cell");
}

TEST_CASE("programs for other devices, cells or micro-batches are refused with the numbers") {
    CHECK(refusal(Other<2, 2, 3>{}, ExceptLast{}, 2, 3) == "");
    CHECK(refusal(Other<2, 4, 3>{}, ExceptLast{}, 2, 3) ==
          "gpipe: the programs of the schedule are for 4 cells and 3 micro-batches, not for 2 and "
          "3");
    CHECK(refusal(Other<2, 2, 4>{}, ExceptLast{}, 2, 3) ==
          "gpipe: the programs of the schedule are for 2 cells and 4 micro-batches, not for 2 and "
          "3");
    CHECK(refusal(Other<1, 2, 3>{}, ExceptLast{}, 2, 3) ==
          "gpipe: the programs of the schedule are for 1 devices, not for 2");
}

TEST_CASE("unsound programs are refused with the device, the position and the action") {
    CHECK(refusal(Idle{}, ExceptLast{}, 2, 1) ==
          "gpipe: the programs of the schedule leave device 1 without a cell");
    CHECK(refusal(Elsewhere{}, ExceptLast{}, 2, 1) ==
          "gpipe: the programs of the schedule put cell 1 on device 77, which does not exist");
    CHECK(
        refusal(gpipe::schedule::GPipe{}, Drops{}, 2, 3) ==
        "gpipe: the programs of the checkpointing policy are wrong: an action is missing from the "
        "programs (device 1, position 5, backward of cell 1, micro-batch 0)");
}
