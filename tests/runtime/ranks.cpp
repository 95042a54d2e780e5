// Ranks: machines for some devices of a pipeline each, joined by messages.
#include "support/ranks.hpp"
#include "support/net.hpp"
#include "support/skip_layers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Backward;
using toy::Fault;
using toy::Phase;

using Real = float;
using Loss = toy::MeanSquare<Real, 3>;
constexpr std::size_t L = toy::layers<Real>;
using Sizes = std::vector<std::size_t>;

template <class T> typename T::Options options(std::size_t cells, std::size_t micro_batches) {
    typename T::Options o;
    o.samples = 13;
    o.seed = 7;
    o.cells = cells;
    o.micro_batches = micro_batches;
    return o;
}

// Of Net: as one, with these devices on each rank. What they all have is made by make().
template <class T, class Make>
toy::Crew<T> crew(Sizes const& devices, bool meets, std::size_t threads,
                  typename T::Options const& o, Make make) {
    return {devices, meets, threads, [&](std::size_t, toy::Rank::Options device) {
                auto own = o;
                own.device = device;
                return std::make_unique<T>(make(), Loss{}, Adam{1e-2f}, own);
            }};
}

// What the plain loop does over mini-batches of some sizes; an evaluation goes before every step.
template <class Net> struct Expected {
    toy::Reference<Net, Loss, Adam> plain;
    Sizes sizes;
    std::vector<double> losses;

    Expected(Net net, std::size_t micro_batches, Backward order, Sizes all)
        : plain(std::move(net), {}, Adam{1e-2f}, 7, micro_batches, order), sizes(std::move(all)) {
        for (std::size_t const size : sizes) {
            toy::Data<Real> const data(size, static_cast<std::uint32_t>(size));
            losses.push_back(plain.step(data.inputs, data.targets));
        }
    }
    template <class Crew> std::string differs(Crew& crew) {
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<Real> const data(sizes[i], static_cast<std::uint32_t>(sizes[i]));
            (void)crew.evaluate(data.inputs, data.targets);
            if (crew.step(data.inputs, data.targets).loss != losses[i])
                return "the loss of step " + std::to_string(i);
        }
        toy::Data<Real> const data(5, 99);
        if (crew.evaluate(data.inputs, data.targets).loss !=
            plain.evaluate(data.inputs, data.targets))
            return "the loss of an evaluation";
        return toy::difference(crew, plain);
    }
};

// So many devices on two ranks or more.
std::vector<Sizes> splits(std::size_t devices) {
    if (devices == 2) return {{1, 1}};
    if (devices == 3) return {{1, 2}, {2, 1}, {1, 1, 1}};
    return {{2, 2}, {1, 3}, {3, 1}, {1, 2, 1}, {1, 1, 1, 1}};
}
std::string describe(Sizes const& devices) {
    std::string text;
    for (std::size_t const d : devices) text += std::to_string(d) + " ";
    return text + "devices on ranks";
}

// Every schedule there is, with K from 2 to 4, over ranks; some of all ways.
template <class Net, class Make> void train_alike(std::size_t percent, Make make) {
    using Train = toy::Training<Net, Loss, Adam, toy::Rank>;
    Sizes const sizes{13, 7, 13}; // of 7 samples one micro-batch stays empty
    Expected<Net> descending(make(), 8, Backward::descending, sizes);
    Expected<Net> ascending(make(), 8, Backward::ascending, sizes);
    std::size_t point = 0, trained = 0, messages = 0;
    toy::each_of_catalogue(4, Net::size, 8, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        if (k < 2) return;
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
            for (Sizes const& devices : splits(k))
                for (bool const meets : {true, false}) {
                    if (point++ % toy::one_of(percent) != 0) continue;
                    auto o = options<Train>(k, 8);
                    o.schedule = schedule;
                    o.checkpointing = checkpointing.policy;
                    INFO(schedule.name(), " of ", schedule.cells_per_device(),
                         " cells per device, ", checkpointing.name, ", ", describe(devices),
                         meets ? ", which meet" : "");
                    auto all = crew<Train>(devices, meets, 1 + point % 3, o, make);
                    bool const descends = schedule.name() == "GPipe";
                    CHECK((descends ? descending : ascending).differs(all) == "");
                    messages += all.wire->messages;
                    ++trained;
                }
    });
    MESSAGE(trained << " trainings, " << messages << " messages");
}

} // namespace

TEST_CASE("P1 ranks that share no memory train as the plain loop, in every bit, under every "
          "schedule and checkpointing, whether anything is buffered or not") {
    toy::Watch watch;
    train_alike<toy::Net<Real>>(31, [&] { return toy::make_net<Real>(watch); });
}

TEST_CASE("P1 skips and ties across ranks, too") {
    train_alike<toy::SkipNet<Real>>(31, [] { return toy::SkipNet<Real>{}; });
}
