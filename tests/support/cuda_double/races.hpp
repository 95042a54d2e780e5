#pragma once

// Which accesses to the same memory are ordered: vector clocks by stretch of memory.

#include "cuda_double.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace cuda_double::detail {

/// By chain of events that happen one after the other (the host, a stream, a stream as captured in
/// a graph): how many of its events have happened before.
using Clock = std::vector<std::uint32_t>;
void join(Clock& clock, Clock const& other);

/// Remembers by stretch of memory who wrote it last and who has read it since.
class Checker {
  public:
    struct Access {
        std::size_t chain = 0;
        std::uint32_t time = 0;
        std::size_t call = 0; ///< never: the host itself
    };
    using Report = std::function<void(Access const& before, bool before_writes, bool writes,
                                      std::byte const* at)>;
    void access(Range range, bool writes, Access const& access, Clock const& clock,
                Report const& report);

  private:
    struct Stretch {
        std::byte const* end = nullptr;
        bool written = false;
        Access write;
        std::vector<Access> reads;
    };
    using Map = std::map<std::byte const*, Stretch>;
    void split(std::byte const* at);
    Map stretches_;
};

} // namespace cuda_double::detail
