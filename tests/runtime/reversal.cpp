// Checkpointing inside of cells: promises P1 and P3 to P6 with every policy that reverses cells.

#include "support/net.hpp"

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace {

using gpipe::device::Host;
using toy::Backward;
using toy::Deferred;
using toy::Remote;

using Real = float;
constexpr std::size_t L = toy::layers<Real>;

template <class Device> using Train = toy::Train<Real, Device>;
using Plain = toy::Plain<Real>;

toy::NamedCheckpointing const reversings[] = {
    {"segments of 1", gpipe::checkpoint::EverySegment<1>{}},
    {"segments of 2", gpipe::checkpoint::EverySegment<2>{}},
    {"segments of 3", gpipe::checkpoint::EverySegment<3>{}},
    {"square root", gpipe::checkpoint::SquareRoot{}},
    {"revolve, no slot", gpipe::checkpoint::Revolve<0>{}},
    {"revolve, one slot", gpipe::checkpoint::Revolve<1>{}},
    {"revolve, three slots", gpipe::checkpoint::Revolve<3>{}}};

struct Expected {
    toy::Watch watch;
    Plain plain;
    std::vector<std::size_t> sizes;
    std::vector<double> losses;

    Expected(std::size_t micro_batches, Backward order, std::vector<std::size_t> batches)
        : plain(toy::make_net<Real>(watch), {}, gpipe::Adam{1e-2f}, 7, micro_batches, order),
          sizes(std::move(batches)) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(i));
            losses.push_back(plain.step(data.inputs, data.targets));
        }
    }
    template <class T> std::string differs(T& train) const {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(i));
            double const loss = train.step(data.inputs, data.targets).loss;
            if (loss != losses[i])
                return "the loss of step " + std::to_string(i) + ": " + std::to_string(loss);
        }
        return toy::difference(train, plain);
    }
};

} // namespace

TEST_CASE_TEMPLATE("P1 cells that are reversed piece by piece train what the plain loop trains, in "
                   "every bit, for every K, schedule and timing",
                   Device, Host, Deferred, Remote) {
    Backward const orders[] = {Backward::descending, Backward::ascending};
    std::size_t const micro_batches = 8;
    std::vector<std::size_t> const sizes{13, 7, 13}; // of 7 samples one micro-batch stays empty
    Expected const descending(micro_batches, orders[0], sizes);
    Expected const ascending(micro_batches, orders[1], sizes);
    std::size_t point = 0;
    std::size_t trained = 0;
    toy::each_of_catalogue(
        L, L, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            for (toy::NamedCheckpointing const& checkpointing : reversings)
                for (auto const& run : toy::runs<Device>()) {
                    if (point++ % toy::one_of(7) != 0) continue;
                    typename Train<Device>::Options o;
                    o.samples = 13;
                    o.seed = 7;
                    o.cells = k;
                    o.micro_batches = micro_batches;
                    o.schedule = schedule;
                    o.checkpointing = checkpointing.policy;
                    o.device = run;
                    toy::Watch watch;
                    Train<Device> train(toy::make_net<Real>(watch), {}, gpipe::Adam{1e-2f}, o);
                    INFO(std::string(schedule.name()), ", ", checkpointing.name, ", K = ", k, ", ",
                         toy::describe(run));
                    bool const descends = schedule.name() == gpipe::schedule::GPipe::name;
                    CHECK((descends ? descending : ascending).differs(train) == "");
                    ++trained;
                }
        });
    MESSAGE(trained << " trainings");
}
