#pragma once

#include <gpipe/schedule/action.hpp>

#include <cstdint>
#include <string_view>

#ifdef GPIPE_NVTX
#include <nvtx3/nvtx3.hpp>
#endif

namespace gpipe {

/// What an action is called in a profiler: "forward cell 2 micro-batch 5", "all-reduce cell 2" or,
/// of a device at the end of a step, "update".
struct ActionName {
    char text[64] = {}; ///< ended by a zero

    /// Of one action.
    constexpr ActionName(Kind kind, std::uint32_t cell, std::uint32_t micro_batch) {
        add(name(kind));
        if (!ends_step(kind) || adds_replicas(kind)) {
            add(" cell ");
            add(cell);
        }
        if (ends_step(kind)) return;
        add(" micro-batch ");
        add(micro_batch);
    }
    /// Without a copy.
    constexpr operator std::string_view() const { return text; }

  private:
    constexpr void add(std::string_view part) {
        for (char const letter : part) text[size++] = letter;
    }
    constexpr void add(std::uint32_t number) {
        if (number >= 10) add(number / 10);
        text[size++] = static_cast<char>('0' + number % 10);
    }

    std::uint32_t size = 0;
};

/// Names the calls of an action's layers for NVIDIA's profilers as long as it lives: a range of the
/// domain "gpipe", with the micro-batch as payload. Nothing at all unless GPIPE_NVTX is defined,
/// which must be so in all of a program's files or in none (CMake: -DGPIPE_NVTX=ON).
#ifdef GPIPE_NVTX
class ActionRange {
  public:
    ActionRange(Kind kind, std::uint32_t cell, std::uint32_t micro_batch)
        : range_(nvtx3::event_attributes{ActionName(kind, cell, micro_batch).text,
                                         nvtx3::payload{micro_batch}}) {}

  private:
    struct Domain {
        static constexpr char const* name = "gpipe";
    };
    nvtx3::scoped_range_in<Domain> range_;
};
#else
class ActionRange {
  public:
    /// Without GPIPE_NVTX: nothing.
    constexpr ActionRange(Kind, std::uint32_t, std::uint32_t) {}
};
#endif

} // namespace gpipe
