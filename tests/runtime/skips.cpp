// Skip connections: promise P1, wherever the ends of a skip are.
#include "support/net.hpp"
#include "support/skip_layers.hpp"

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Backward;
using toy::Deferred;
using toy::Remote;
using Real = float;

using Net = toy::SkipNet<Real>;
using Loss = toy::MeanSquare<Real, 3>;
constexpr std::size_t L = Net::size;
template <class Device> using Train = toy::Training<Net, Loss, Adam, Device>;

struct Expected {
    toy::Reference<Net, Loss, Adam> plain;
    std::vector<std::size_t> sizes;
    std::vector<double> losses;

    Expected(std::size_t micro_batches, Backward order, std::vector<std::size_t> batches)
        : plain(Net{}, {}, Adam{1e-2f}, 7, micro_batches, order), sizes(std::move(batches)) {
        for (std::size_t const size : sizes) {
            toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
            losses.push_back(plain.step(data.inputs, data.targets));
        }
    }
    // An evaluation goes before every step.
    template <class Train> std::string differs(Train& train) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(sizes[i]));
            (void)train.evaluate(data.inputs, data.targets);
            double const loss = train.step(data.inputs, data.targets).loss;
            if (loss != losses[i])
                return "the loss of step " + std::to_string(i) + ": " + std::to_string(loss);
        }
        toy::Data<Real> const data(5, 99);
        if (train.evaluate(data.inputs, data.targets).loss !=
            plain.evaluate(data.inputs, data.targets))
            return "the loss of an evaluation";
        return toy::difference(train, plain);
    }
};

template <class Device> typename Train<Device>::Options options(std::size_t devices) {
    typename Train<Device>::Options o;
    o.samples = 13;
    o.seed = 7;
    o.cells = devices;
    o.micro_batches = 8;
    return o;
}

} // namespace

TEST_CASE_TEMPLATE("P1 skips: every schedule, checkpointing, number of devices and link trains as "
                   "the plain loop",
                   Device, Host, Deferred, Remote) {
    std::vector<std::size_t> const sizes{13, 7, 13}; // of 7 samples one micro-batch stays empty
    Expected descending(8, Backward::descending, sizes);
    Expected ascending(8, Backward::ascending, sizes);
    std::size_t point = 0;
    std::size_t trained = 0;
    toy::each_of_catalogue(L, L, 8, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
            for (auto const& run : toy::runs<Device>()) {
                if (point++ % toy::one_of(31) != 0) continue;
                auto o = options<Device>(k);
                o.schedule = schedule;
                o.checkpointing = checkpointing.policy;
                o.device = run;
                INFO(schedule.name(), " of ", schedule.cells_per_device(), " cells per device, ",
                     checkpointing.name, ", K = ", k, ", ", toy::describe(run));
                Train<Device> train(Net{}, {}, Adam{1e-2f}, o);
                bool const descends = schedule.name() == "GPipe";
                CHECK((descends ? descending : ascending).differs(train) == "");
                ++trained;
            }
    });
    MESSAGE(trained << " trainings");
}

TEST_CASE_TEMPLATE("P1 skips: wherever the chain is cut", Device, Host, Deferred, Remote) {
    std::size_t n = 0;
    auto const runs = toy::runs<Device>();
    auto const policies = toy::every_checkpointing();
    Expected descending(8, Backward::descending, {13, 4});
    Expected ascending(8, Backward::ascending, {13, 4});
    for (std::size_t first = 1; first < L; ++first)
        for (std::size_t second = first + 1; second < L; ++second)
            for (toy::NamedSchedule const& schedule : toy::schedules) {
                if (n++ % toy::one_of(3) != 0) continue;
                auto o = options<Device>(3);
                toy::hand = {first, second - first, L - second};
                o.schedule = schedule.policy;
                o.checkpointing = policies[n % policies.size()].policy;
                o.device = runs[n / 3 % runs.size()];
                Train<Device> train(Net{}, {}, Adam{1e-2f}, o);
                toy::hand.clear();
                INFO("cut at ", first, " and ", second, ", ", schedule.name, ", ",
                     policies[n % policies.size()].name, ", ", toy::describe(o.device));
                CHECK((schedule.order == Backward::descending ? descending : ascending)
                          .differs(train) == "");
            }
}
