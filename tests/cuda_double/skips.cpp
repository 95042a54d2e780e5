// Skip connections on streams, over the double of the CUDA runtime. J6: what goes to another GPU is
// copied there.
#include "support/enqueued.hpp"
#include "support/net.hpp"
#include "support/skip_layers.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Cuda;
using gpipe::device::Host;

using Real = float;
using HostNet = toy::SkipNet<Real>;
using Net = toy::SkipNetOf<Real, toy::Enqueued>;
using Loss = toy::MeanSquare<Real, 3>;
using Train = toy::Training<Net, toy::EnqueuedLoss<Loss>, Adam, Cuda>;
using Immediately =
    gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<toy::EnqueuedLoss<Loss>>, gpipe::Optimizer<Adam>,
                    gpipe::schedule::Dynamic, gpipe::checkpoint::Dynamic, gpipe::update::Immediate,
                    Cuda>;
constexpr std::size_t micro_batches = 6;

// What the losses of some steps, the last begun before those before are done, an evaluation between
// and the parameters are.
template <class T> std::vector<double> run(T& train) {
    std::vector<double> result;
    std::vector<typename T::Pending> pending;
    for (std::size_t const samples : std::vector<std::size_t>{8, 5, 8, 1, 8}) {
        toy::Data<Real> const data(samples, static_cast<std::uint32_t>(samples));
        pending.push_back(train.start(data.inputs, data.targets));
        if (samples > 5) continue;
        result.push_back(train.evaluate(data.inputs, data.targets).loss);
    }
    for (auto& step : pending) result.push_back(step.result().loss);
    for (std::size_t layer = 0; layer < Net::size; ++layer) {
        auto const& sizes = Net::leaf_info[Net::leaf_of(layer)].parameters;
        for (std::size_t t = 0; t < sizes.count; ++t) {
            std::vector<Real> values(sizes.bytes[t] / sizeof(Real));
            train.read_parameter(layer, t, std::span(values));
            result.insert(result.end(), values.begin(), values.end());
        }
    }
    return result;
}
template <class T>
typename T::Options options(std::size_t cells, gpipe::schedule::Dynamic schedule,
                            gpipe::checkpoint::Dynamic checkpointing = {}) {
    typename T::Options o;
    o.samples = 8;
    o.seed = 7;
    o.cells = cells;
    o.micro_batches = micro_batches;
    o.schedule = schedule;
    o.checkpointing = checkpointing;
    return o;
}
std::vector<double> expected_of(gpipe::schedule::Dynamic schedule) {
    using T = toy::Training<HostNet, Loss, Adam, Host>;
    T train(HostNet{}, {}, Adam{1e-2f}, options<T>(1, schedule));
    return run(train);
}

template <class T> void check(std::size_t one_of) {
    auto const descending = expected_of(gpipe::schedule::GPipe{});
    auto const ascending = expected_of(gpipe::schedule::GPipeAscending{});
    REQUIRE(descending != ascending);
    std::size_t point = 0;
    std::size_t trained = 0;
    toy::each_of_catalogue(
        6, Net::size, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
                for (std::size_t gpus : {std::size_t{1}, (k + 1) / 2, k})
                    for (gpipe::Link const link :
                         {gpipe::Link::shared, gpipe::Link::copied, gpipe::Link::staged}) {
                        if (point++ % toy::one_of(one_of) != 0) continue;
                        bool const peers = link != gpipe::Link::staged;
                        std::size_t const graphs = point / 2 % 3;
                        if (gpus == 1 && !peers) continue;
                        cuda_double::Session session({.devices = static_cast<int>(gpus),
                                                      .seed = point % 4,
                                                      .peers = [=](int, int) { return peers; }});
                        auto o = options<T>(k, schedule, checkpointing.policy);
                        for (std::size_t d = 0; d < k; ++d)
                            o.device.gpus.push_back(static_cast<int>(d % gpus));
                        o.device.graphs = graphs;
                        if (peers) o.device.link = link;
                        INFO(schedule.name(), " of ", schedule.cells_per_device(),
                             " cells per device, ", checkpointing.name, ", K = ", k, ", ", gpus,
                             " GPUs, link ", static_cast<int>(link), ", graphs ", graphs);
                        T train(Net{}, {}, Adam{1e-2f}, o);
                        CHECK(run(train) == (schedule.name() == "GPipe" ? descending : ascending));
                        CHECK(cuda_double::races() == std::vector<std::string>{});
                        ++trained;
                    }
        });
    MESSAGE(trained << " trainings");
    CHECK(trained > 3); // under sanitizers, too
}

} // namespace

TEST_CASE("P1 J6 skips give on streams of any GPUs what they give on the host, and nothing races") {
    check<Train>(61);
}

TEST_CASE("P1 so they do where updates are immediate") { check<Immediately>(97); }
