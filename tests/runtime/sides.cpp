// Side inputs: tensors of the mini-batch that enter the chain where they are read. On streams:
// cuda_double/sides.cpp; what must not compile: compile_fail/sides.cpp.
#include "support/ranks.hpp"
#include "support/side_layers.hpp"
#include "support/ways.hpp"

#include <gpipe/check_gradients.hpp>
#include <gpipe/inference.hpp>
#include <gpipe/loader.hpp>
#include <gpipe/profile.hpp>
#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::dynamic;
using gpipe::device::Host;
using toy::Remote;
using Real = float;

using Net = toy::MaskedNet<Real>;
using Carried = toy::CarriedNet<Real>;
using Loss = toy::MeanSquare<Real, 3>;
using Data = toy::MaskedData<Real>;
template <class N, class Device> using Train = toy::Training<N, Loss, Adam, Device>;
constexpr std::size_t L = Net::size, M = 8;

using gpipe::Tensors;
static_assert(std::is_same_v<Train<Net, Host>::Input,
                             Tensors<toy::Tensor<Real, 5>, toy::MaskTensor, toy::PlaceTensor>>);
static_assert(std::is_same_v<Train<toy::SidelessNet<Real>, Host>::Input, toy::Tensor<Real, 5>>);
static_assert(std::is_same_v<Net::Input, toy::Tensor<Real, 5>>);

template <class T> typename T::Options options(std::size_t cells) {
    return {.samples = 13, .seed = 7, .cells = cells, .micro_batches = M};
}
// What all that can be asked of a training gives; of more samples than there is room for, too.
template <class T> std::vector<double> numbers(T& train) {
    std::vector<double> result;
    for (std::size_t const size : std::vector<std::size_t>{13, 7, 13, 3}) {
        Data const data(size, static_cast<std::uint32_t>(size));
        Data const part(size / 2, static_cast<std::uint32_t>(size + 2));
        train.accumulate(part.batch<T>(), part.targets);
        result.push_back(train.step(data.batch<T>(), data.targets).loss);
        result.push_back(train.compute_gradients(data.batch<T>(), data.targets).loss);
        Data const more(29, static_cast<std::uint32_t>(size + 1));
        result.push_back(train.evaluate(more.batch<T>(), more.targets).loss);
        std::vector<Real> outputs(29 * 3);
        train.predict(more.batch<T>(), outputs);
        result.insert(result.end(), outputs.begin(), outputs.end());
    }
    toy::add_state<Net>(train, result, true);
    return result;
}
// With the tensors carried along, on one thread.
std::vector<double> expected(gpipe::schedule::Dynamic schedule) {
    using T = Train<Carried, Host>;
    auto o = options<T>(1);
    o.schedule = schedule;
    o.device.threads = 1;
    T train(Carried{}, {}, Adam{1e-2f}, o);
    return numbers(train);
}

} // namespace

TEST_CASE_TEMPLATE("P1 side inputs: every schedule, checkpointing, number of devices and link "
                   "gives what the same tensors give that go from layer to layer",
                   Device, Host, Remote) {
    auto const descending = expected(gpipe::schedule::GPipe{});
    auto const ascending = expected(gpipe::schedule::GPipeAscending{});
    REQUIRE(descending != ascending);
    toy::each_training<Device>(L, L, M, 157, [&](toy::Way<Device> const& way) {
        using T = Train<Net, Device>;
        auto o = way.chosen(options<T>(way.cells));
        o.debug = way.number % 4 == 1;
        T train(Net{}, {}, Adam{1e-2f}, o);
        CHECK((numbers(train) == (way.descends() ? descending : ascending)));
        CHECK(train.used_bytes() == train.planned_bytes());
    });
}

TEST_CASE("side inputs may be changed as soon as start() has returned, whoever reads them later") {
    using Immediate =
        gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>, gpipe::Loss<Loss>,
                        gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                        gpipe::checkpoint::Dynamic, gpipe::update::Immediate>;
    auto const run = [](auto& train) {
        using T = std::remove_reference_t<decltype(train)>;
        std::vector<typename T::Pending> pending;
        std::vector<double> result;
        for (std::uint32_t i = 0; i < 12; ++i) {
            Data data(13, i);
            pending.push_back(train.start(data.batch<T>(), data.targets));
            std::fill(data.mask.begin(), data.mask.end(), 99);
            std::fill(data.place.begin(), data.place.end(), 99.0f);
        }
        for (auto& step : pending) result.push_back(step.result().loss);
        toy::add_state<Net>(train, result, true);
        return result;
    };
    using Plain = Train<Carried, Host>;
    auto o = options<Plain>(1);
    o.schedule = gpipe::schedule::GPipeAscending{};
    Plain plain(Carried{}, {}, Adam{1e-2f}, o);
    auto const expected = run(plain);
    toy::slow_masked = 5;
    for (std::size_t const threads : std::vector<std::size_t>{1, 2, 3, 4})
        for (gpipe::schedule::Dynamic const& schedule :
             {gpipe::schedule::Dynamic(gpipe::schedule::ZeroBubbleH1{}),
              gpipe::schedule::Dynamic(gpipe::schedule::OneForwardOneBackward{})}) {
            auto own = options<Immediate>(3);
            own.schedule = schedule;
            own.device.threads = threads;
            INFO(threads, " threads, ", schedule.name());
            Immediate train(Net{}, {}, Adam{1e-2f}, own);
            CHECK((run(train) == expected));
        }
    toy::slow_masked = L;
}

TEST_CASE("side inputs are planned where they are read and staged, and nothing else takes a byte "
          "more for them") {
    auto const make = []<class N, class Device>(N, Device*) {
        using T = Train<N, Device>;
        auto o = options<T>(L);
        o.schedule = gpipe::schedule::OneForwardOneBackward{};
        return std::make_unique<T>(N{}, Loss{}, Adam{1e-2f}, o);
    };
    using Without = toy::SidelessNet<Real>;
    auto const compare = [&]<class Device>(Device* device, bool stages) {
        auto const with = make(Net{}, device);
        auto const without = make(Without{}, device);
        auto const carried = make(Carried{}, device);
        CHECK(with->used_bytes() == with->planned_bytes());
        std::size_t const room = M * 2; // samples: M micro-batches of two
        std::size_t const mask = gpipe::slot_bytes(room * toy::MaskTensor::bytes);
        std::size_t const place = gpipe::slot_bytes(room * toy::PlaceTensor::bytes);
        for (std::size_t d = 0; d < L; ++d) {
            gpipe::DeviceBytes own = with->plan().devices[d];
            std::size_t const masks = d == 1 || d == 3 || d == 5 || d == 6;
            std::size_t const places = d == 3 || d == 6;
            own.staging -= stages * Device::depth * (masks * mask + places * place);
            gpipe::DeviceBytes const& other = without->plan().devices[d];
            CHECK(std::memcmp(&own, &other, sizeof own) == 0);
        }
        CHECK(with->planned_bytes() < carried->planned_bytes());
    };
    compare(static_cast<Host*>(nullptr), false);
    compare(static_cast<Remote*>(nullptr), true);
}

TEST_CASE_TEMPLATE("side inputs: gradients are checked with them, and layers timed", Device, Host,
                   Remote) {
    using T = Train<Net, Device>;
    auto o = options<T>(2);
    // runtime/check_gradients.cpp looks at what touches the memory
    if constexpr (std::is_same_v<Device, Remote>) o.device.guards = false;
    T train(Net{}, {}, Adam{1e-2f}, o);
    Data data(13);
    auto const numbers = [&] {
        std::vector<double> result[2]; // of layer 0, and of layer 1
        auto const report = gpipe::check_gradients(train, data.batch<T>(), data.targets,
                                                   {.samples = 5, .entries = 2});
        CHECK(report.passed());
        for (auto const& row : report.rows)
            if (row.layer < 2) result[row.layer].push_back(row.analytic);
        return std::pair(result[0], result[1]);
    };
    auto const before = numbers();
    std::fill_n(data.mask.begin() + 4 * 6, 6, 7); // of the only sample of the second micro-batch
    auto const after = numbers();
    CHECK(before.first == after.first);
    CHECK(before.second != after.second);
    auto const profile = gpipe::profile(Net{}, gpipe::ProfileOptions<>{.samples = 2, .rounds = 1});
    CHECK(profile.layers.size() == L);
}

TEST_CASE("what a caller gives wrongly as a side input is an error that names it") {
    using T = Train<Net, Host>;
    T train(Net{}, {}, Adam{1e-2f}, options<T>(2));
    Data data(13);
    data.mask.pop_back();
    CHECK_THROWS_WITH_AS(train.step(data.batch<T>(), data.targets),
                         "gpipe: tensor 1 of the inputs has 77 elements, no multiple of the 6 of a "
                         "sample",
                         std::invalid_argument);
    data = Data(13);
    data.place.pop_back();
    CHECK_THROWS_WITH_AS(train.step(data.batch<T>(), data.targets),
                         "gpipe: the tensors of the inputs hold 13 and 12 samples",
                         std::invalid_argument);
}

TEST_CASE("P1 side inputs: ranks that are given the whole mini-batch train as one") {
    using T = gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>,
                              gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                              gpipe::checkpoint::Dynamic, toy::Wired>;
    using One = Train<Carried, Host>;
    auto o = options<One>(1);
    o.schedule = gpipe::schedule::GPipeAscending{};
    One one(Carried{}, {}, Adam{1e-2f}, o);
    auto own = options<T>(4);
    own.schedule = gpipe::schedule::ZeroBubbleH1{};
    toy::Crew<T> crew({2, 1, 1}, true, 2, [&](std::size_t, toy::Rank::Options device) {
        auto of = own;
        of.device = device;
        return std::make_unique<T>(Net{}, Loss{}, Adam{1e-2f}, of);
    });
    for (std::size_t const size : std::vector<std::size_t>{13, 3, 7}) {
        Data const data(size, static_cast<std::uint32_t>(size));
        CHECK(crew.step(data.batch<T>(), data.targets).loss ==
              one.step(data.batch<One>(), data.targets).loss);
        CHECK(crew.evaluate(data.batch<T>(), data.targets).loss ==
              one.evaluate(data.batch<One>(), data.targets).loss);
    }
    std::vector<double> expected, found;
    toy::add_state<Net>(one, expected, true);
    toy::add_state<Net>(crew, found, true);
    CHECK((expected == found));
}

namespace {

// All samples that there are, the tensors of each.
struct Source {
    Data const* data;
    std::size_t size() const { return data->place.size(); }
    void inputs(std::size_t s, std::span<Real, 5> x, std::span<std::int32_t, 6> mask,
                std::span<float, 1> place) const {
        std::copy_n(data->inputs.begin() + static_cast<std::ptrdiff_t>(s * 5), 5, x.begin());
        std::copy_n(data->mask.begin() + static_cast<std::ptrdiff_t>(s * 6), 6, mask.begin());
        place[0] = data->place[s];
    }
    void targets(std::size_t s, std::span<Real, 3> target) const {
        std::copy_n(data->targets.begin() + static_cast<std::ptrdiff_t>(s * 3), 3, target.begin());
    }
};

} // namespace

TEST_CASE("P1 side inputs: each replica reads those of its samples, by a Loader, too") {
    Data const all(40);
    auto const run = [&]<class N>(N) {
        using T = gpipe::Training<N, gpipe::Cells<2>, gpipe::MicroBatches<4>, gpipe::Loss<Loss>,
                                  gpipe::Optimizer<Adam>, gpipe::Replicas<3>>;
        typename T::Options o;
        o.samples = 5;
        o.seed = 7;
        T train(N{}, {}, Adam{1e-2f}, o);
        std::vector<double> result;
        for (std::size_t const size : std::vector<std::size_t>{13, 2, 15}) {
            Data const data(size, static_cast<std::uint32_t>(size));
            result.push_back(train.step(data.batch<T>(), data.targets).loss);
            result.push_back(train.evaluate(data.batch<T>(), data.targets).loss);
        }
        gpipe::Loader loader(train, Source{&all}, {.batch = 11});
        for (std::size_t i = 0; i < 4; ++i) {
            auto const next = loader.next();
            result.push_back(train.step(next.inputs, next.targets).loss);
        }
        toy::add_state<Net>(train, result, true);
        return result;
    };
    CHECK((run(Net{}) == run(Carried{})));
}

TEST_CASE("side inputs: a rank reads by a Loader what its devices need, in the midst of the chain, "
          "too") {
    Data const all(40);
    using T = gpipe::Training<Net, gpipe::Cells<dynamic>, gpipe::MicroBatches<dynamic>,
                              gpipe::Loss<Loss>, gpipe::Optimizer<Adam>, gpipe::schedule::Dynamic,
                              gpipe::checkpoint::Dynamic, toy::Wired>;
    using One = Train<Carried, Host>;
    One one(Carried{}, {}, Adam{1e-2f}, options<One>(1));
    toy::Crew<T> crew({1, 1, 1}, false, 1, [&](std::size_t, toy::Rank::Options device) {
        auto of = options<T>(3);
        of.device = device;
        return std::make_unique<T>(Net{}, Loss{}, Adam{1e-2f}, of);
    });
    gpipe::Loader loader(one, Source{&all});
    std::vector<std::unique_ptr<gpipe::Loader<T, Source>>> loaders(crew.ranks());
    crew.each([&](std::size_t r) { // all at once
        loaders[r] = std::make_unique<gpipe::Loader<T, Source>>(crew[r], Source{&all});
    });
    crew.rethrow();
    for (std::size_t i = 0; i < 4; ++i) {
        auto const next = loader.next();
        double const expected = one.step(next.inputs, next.targets).loss;
        std::vector<double> found(crew.ranks());
        crew.each([&](std::size_t r) {
            auto const own = loaders[r]->next();
            found[r] = crew[r].step(own.inputs, own.targets).loss;
        });
        crew.rethrow();
        CHECK((found == std::vector<double>(crew.ranks(), expected)));
    }
}

TEST_CASE_TEMPLATE("side inputs and arrays of an Inference may be changed as soon as start() has "
                   "returned, and give what a training predicts",
                   Device, Host, Remote) {
    using T = Train<Net, Device>;
    using I = gpipe::Inference<Net, gpipe::Cells<3>, gpipe::MicroBatches<M>, Device>;
    T train(Net{}, {}, Adam{1e-2f}, options<T>(2));
    typename I::Options o;
    o.samples = 13;
    I inference(Net{}, o);
    inference.copy_from(train);
    std::vector<std::vector<Real>> expected, found(8);
    std::vector<typename I::Pending> pending;
    for (std::uint32_t i = 0; i < 8; ++i) {
        Data data(13 - i, i);
        expected.emplace_back(data.place.size() * 3);
        train.predict(data.batch<T>(), expected.back());
        found[i].resize(data.place.size() * 3);
        pending.push_back(inference.start(data.batch<I>(), found[i]));
        std::fill(data.mask.begin(), data.mask.end(), 99);
        std::fill(data.place.begin(), data.place.end(), 99.0f);
    }
    for (auto& run : pending) run.wait();
    CHECK((found == expected));
    Data const more(40);
    std::vector<Real> by_parts(40 * 3), at_once(40 * 3);
    train.predict(more.batch<T>(), at_once);
    inference.predict(more.batch<I>(), by_parts);
    CHECK((by_parts == at_once));
    CHECK(inference.used_bytes() == inference.planned_bytes());
}
