// Training within a budget: promises P1 and P3 with reversals that are chosen for the bytes of each
// device, and what is refused.

#include "support/expected.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using gpipe::device::Host;
using toy::Backward;
using toy::Remote;

using Real = float;
constexpr std::size_t L = toy::layers<Real>;
using Expected = toy::Expected<Real>;
using Optimal = gpipe::checkpoint::Optimal<gpipe::dynamic, gpipe::dynamic>;

template <class Device> using Train = toy::Train<Real, Device>;

// What a construction is refused with; empty if it is not.
template <class T, class Net> std::string refusal(Net const& net, typename T::Options const& o) {
    try {
        T train(net, {}, gpipe::Adam{1e-2f}, o);
    } catch (std::invalid_argument const& error) {
        return error.what();
    }
    return "";
}
// The least budget that the refusal names.
std::size_t least_of(std::string const& said) {
    std::string const words = "does not fit into less than ";
    std::size_t const at = said.find(words);
    REQUIRE(at != std::string::npos);
    return static_cast<std::size_t>(std::atoll(said.c_str() + at + words.size()));
}
std::size_t most_bytes(gpipe::MemoryPlan const& plan) {
    std::size_t most = 0;
    for (gpipe::DeviceBytes const& device : plan.devices) most = std::max(most, device.total());
    return most;
}

} // namespace

TEST_CASE_TEMPLATE("P1 P3 within a budget, each device has no more and trains what the plain loop "
                   "trains, in every bit, for every schedule and timing",
                   Device, Host, Remote) {
    std::size_t const micro_batches = 8;
    std::vector<std::size_t> const sizes{13, 7, 13};
    Expected const descending(micro_batches, Backward::descending, sizes);
    Expected const ascending(micro_batches, Backward::ascending, sizes);
    std::size_t point = 0;
    std::size_t trained = 0;
    std::size_t again = 0; // trainings in which something runs again
    toy::each_of_catalogue(
        L, L, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            for (auto const& run : toy::runs<Device>()) {
                if (point++ % toy::one_of(37) != 0) continue;
                typename Train<Device>::Options o;
                o.samples = 13;
                o.seed = toy::expected_seed;
                o.cells = k;
                o.micro_batches = micro_batches;
                o.schedule = schedule;
                o.device = run;
                toy::Watch watch;
                auto const net = toy::make_net<Real>(watch);
                o.checkpointing = Optimal{1};
                std::size_t const least = least_of(refusal<Train<Device>>(net, o));
                o.checkpointing = Optimal{least - 1};
                CHECK(least_of(refusal<Train<Device>>(net, o)) == least);
                for (std::size_t const bytes : {least, least + least / 10, least + least / 3}) {
                    o.checkpointing = Optimal{bytes};
                    toy::Watch own;
                    Train<Device> train(toy::make_net<Real>(own), {}, gpipe::Adam{1e-2f}, o);
                    INFO(std::string(schedule.name()), ", K = ", k, ", ", bytes, " bytes, ",
                         toy::describe(run));
                    CHECK(most_bytes(train.plan()) <= bytes);
                    CHECK(train.used_bytes() == train.planned_bytes());
                    bool const descends = schedule.name() == gpipe::schedule::GPipe::name;
                    CHECK((descends ? descending : ascending).differs(train) == "");
                    ++trained;
                    std::size_t forwards = 0;
                    for (std::size_t l = 0; l < L; ++l)
                        forwards += own.count(l, toy::Phase::recompute);
                    again += forwards > 0;
                }
            }
        });
    MESSAGE(trained << " trainings, in " << again << " something ran again");
    CHECK(again > trained / 4);
}

TEST_CASE("what does not fit is refused with the bytes, the device and the least that would do") {
    Train<Host>::Options o;
    o.samples = 26;
    o.cells = 2;
    o.micro_batches = 2;
    o.checkpointing = Optimal{100};
    toy::Watch watch;
    auto const net = toy::make_net<Real>(watch);
    std::string const said = refusal<Train<Host>>(net, o);
    std::size_t const least = least_of(said);
    o.checkpointing = Optimal{least};
    toy::Watch other;
    Train<Host> const train(toy::make_net<Real>(other), {}, gpipe::Adam{}, o);
    std::size_t named = 0;
    for (std::size_t d = 0; d < 2; ++d)
        named += train.plan().devices[d].total() == least &&
                 said == "gpipe: checkpoint::Optimal has 100 bytes for each device, but however "
                         "often layers run again device " +
                             std::to_string(d) + " does not fit into less than " +
                             std::to_string(least) + ", for micro-batches of 13 samples";
    CHECK_MESSAGE(named == 1, said);
}

TEST_CASE("what a device stages and clips is within its budget") {
    Train<Remote>::Options o;
    o.samples = 13;
    o.cells = 3;
    o.micro_batches = 4;
    toy::Watch watch;
    auto const net = toy::make_net<Real>(watch);
    o.checkpointing = Optimal{1};
    std::size_t const without = least_of(refusal<Train<Remote>>(net, o));
    o.clip_norm = 1;
    std::size_t const with = least_of(refusal<Train<Remote>>(net, o));
    CHECK(with > without);
    o.checkpointing = Optimal{with};
    toy::Watch own;
    Train<Remote> const train(toy::make_net<Real>(own), {}, gpipe::Adam{}, o);
    CHECK(most_bytes(train.plan()) == with);
}

namespace {

template <class Checkpointing, class... Others>
using Constant =
    gpipe::Training<toy::Net<Real>, gpipe::Balance<6, 4>, gpipe::MicroBatches<4>,
                    gpipe::Loss<toy::MeanSquare<Real, 3>>, gpipe::Optimizer<gpipe::Adam>,
                    gpipe::schedule::GPipe, Checkpointing, Others...>;
constexpr std::size_t tight = 13 * 1024;
constexpr std::size_t samples = 40; // in a micro-batch
using Tight = Constant<gpipe::checkpoint::Optimal<tight, samples>>;

} // namespace

TEST_CASE("a constant budget finds what the same finds that is chosen at construction") {
    Expected const expected(4, Backward::descending, {4 * samples, 27});
    toy::Watch watch;
    Tight train(toy::make_net<Real>(watch), {}, gpipe::Adam{1e-2f},
                {.samples = 4 * samples, .seed = toy::expected_seed});
    CHECK(most_bytes(train.plan()) <= tight);
    using Chosen = Constant<gpipe::checkpoint::Dynamic>;
    toy::Watch other;
    Chosen::Options o;
    o.samples = 4 * samples;
    o.checkpointing = Optimal{tight};
    Chosen const chosen(toy::make_net<Real>(other), {}, gpipe::Adam{1e-2f}, o);
    auto const found_again = train.extra_forwards(), chosen_again = chosen.extra_forwards();
    CHECK(std::equal(found_again.begin(), found_again.end(), chosen_again.begin()));
    CHECK(most_bytes(train.plan()) == most_bytes(chosen.plan()));
    CHECK(expected.differs(train) == "");
    std::size_t again = 0;
    for (std::size_t l = 0; l < L; ++l) again += watch.count(l, toy::Phase::recompute);
    CHECK(again > 0);
}

TEST_CASE("a constant budget is for so many samples in a micro-batch, and for fewer") {
    toy::Watch watch;
    auto const net = toy::make_net<Real>(watch);
    CHECK(refusal<Tight>(net, {.samples = 4 * samples + 1}) ==
          "gpipe: micro-batches of 41 samples, but the bytes of checkpoint::Optimal are for 40 at "
          "the most");
    Tight const train(toy::make_net<Real>(watch), {}, gpipe::Adam{}, {.samples = 4 * samples - 4});
    CHECK(train.plan().capacity == samples - 1);
    CHECK(most_bytes(train.plan()) <= tight);
}

TEST_CASE("bytes in the type go with cells, micro-batches and samples that are chosen") {
    using T = gpipe::Training<toy::Net<Real>, gpipe::Cells<gpipe::dynamic>,
                              gpipe::MicroBatches<gpipe::dynamic>,
                              gpipe::Loss<toy::MeanSquare<Real, 3>>, gpipe::Optimizer<gpipe::Adam>,
                              gpipe::schedule::Dynamic, gpipe::checkpoint::Optimal<tight>>;
    static_assert(!T::is_constant);
    Expected const expected(4, Backward::descending, {13});
    toy::Watch watch;
    T train(toy::make_net<Real>(watch), {}, gpipe::Adam{1e-2f},
            {.samples = 13, .seed = toy::expected_seed, .cells = 2, .micro_batches = 4});
    CHECK(most_bytes(train.plan()) <= tight);
    CHECK(expected.differs(train) == "");
}
