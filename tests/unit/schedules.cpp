// The family of schedules: every one is sound, for every number of devices and micro-batches.
#include <gpipe/schedule/catalogue.hpp>
#include <gpipe/schedule/verify.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>

using gpipe::Action;
using gpipe::Programs;
using gpipe::schedule::Dynamic;

namespace {

// Calls f(schedule, programs, K, M) for all cases of all schedules that K and M are enough for.
template <class F> void each_case(std::size_t most_k, std::size_t most_m, std::size_t most_v, F f) {
    for (std::size_t v = 1; v <= most_v; ++v)
        for (Dynamic const& schedule : gpipe::schedule::catalogue(v)) {
            if (v > 1 && schedule.cells_per_device() != v) continue;
            std::string const name(schedule.name());
            CAPTURE(name);
            for (std::size_t k = 1; k <= most_k; ++k)
                for (std::size_t m = schedule.least_micro_batches(k); m <= most_m; ++m) {
                    CAPTURE(k);
                    CAPTURE(m);
                    f(schedule, schedule.programs(k, m), k, m);
                }
        }
}

} // namespace

TEST_CASE("every schedule is sound for every number of devices and micro-batches") {
    std::size_t cases = 0;
    each_case(6, 12, 3,
              [&](Dynamic const& schedule, Programs const& programs, std::size_t k, std::size_t m) {
                  ++cases;
                  auto const verdict = gpipe::verify(programs);
                  CHECK_MESSAGE(verdict, gpipe::sentence(verdict.problem));
                  CHECK(programs.devices() == k);
                  CHECK(programs.cells() == k * schedule.cells_per_device());
                  CHECK(programs.micro_batches() == m);
              });
    MESSAGE(cases << " programs");
}
