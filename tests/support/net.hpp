#pragma once

// The net that most runtime tests train, with layers of every kind, and the sweeps over how.

#include "deferred.hpp"
#include "layers.hpp"
#include "long_tests.hpp"
#include "losses.hpp"
#include "reference.hpp"
#include "remote.hpp"
#include "schedules.hpp"

#include <gpipe/core/type_list.hpp>
#include <gpipe/gpipe.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace toy {

/// Ten layers: every `backward_reads`, Saved and Scratch, dropout, two tensors at a boundary.
template <class T>
using Net = gpipe::Pipeline<Watched<Linear<T, 5, 6>>, Watched<Tanh<T, 6>>, Watched<Saver<T, 6>>,
                            Watched<Tag<T, 6>>, Watched<Carry<T, 6>>, Watched<Untag<T, 6>>,
                            Watched<Square<T, 6>>, Watched<Dropout<T, 6>>, Watched<Scale<T, 6>>,
                            Watched<StrictLinear<T, 6, 3>>>;
template <class T> Net<T> make_net(Watch& watch) {
    return Net<T>(Watched<Linear<T, 5, 6>>(watch), Watched<Tanh<T, 6>>(watch),
                  Watched<Saver<T, 6>>(watch), Watched<Tag<T, 6>>(watch),
                  Watched<Carry<T, 6>>(watch), Watched<Untag<T, 6>>(watch),
                  Watched<Square<T, 6>>(watch), Watched<Dropout<T, 6>>(watch),
                  Watched<Scale<T, 6>>(watch, {T(1.5)}), Watched<StrictLinear<T, 6, 3>>(watch));
}
template <class T> inline constexpr std::size_t layers = Net<T>::size;

/// The sizes of the cells that ByHand cuts; if empty, it cuts by cost.
inline thread_local std::vector<std::size_t> hand;

/// An objective of a user's own: what `hand` says.
struct ByHand {
    static void cut(double const* costs, std::size_t size, std::size_t cells, std::size_t* first) {
        if (hand.empty()) return gpipe::cut_by_bottleneck(costs, size, cells, first);
        for (std::size_t k = 0; k < cells; ++k) first[k + 1] = first[k] + hand[k];
    }
};

template <class N, class L, class O, class Device>
using Training =
    gpipe::Training<N, gpipe::Cells<gpipe::dynamic, ByHand>, gpipe::MicroBatches<gpipe::dynamic>,
                    gpipe::Loss<L>, gpipe::Optimizer<O>, gpipe::schedule::Dynamic,
                    gpipe::checkpoint::Dynamic, Device>;

template <class T, class Device>
using Train = Training<Net<T>, MeanSquare<T, 3>, gpipe::Adam, Device>;
template <class T> using Plain = Reference<Net<T>, MeanSquare<T, 3>, gpipe::Adam>;

struct NamedCheckpointing {
    std::string name;
    gpipe::checkpoint::Dynamic policy;
};
inline NamedCheckpointing const checkpointings[] = {
    {"never", gpipe::checkpoint::Never{}},
    {"except last", gpipe::checkpoint::ExceptLast{}},
    {"always", gpipe::checkpoint::Always{}}};
/// Those that reverse cells piece by piece.
/// By cell in turn what is there for one cell.
struct ByTurns {
    using policy_kind = gpipe::policy::Checkpointing;
    static gpipe::Reversal reversal(gpipe::CellToReverse const& cell) {
        return of_cells(cell, std::make_index_sequence<most>{});
    }

  private:
    static constexpr std::size_t most = 40;
    template <std::size_t c>
    using Nth = typename gpipe::List<gpipe::checkpoint::EverySegment<2>, gpipe::checkpoint::Never,
                                     gpipe::checkpoint::Revolve<1>,
                                     gpipe::checkpoint::ExceptLast>::template at<c % 4>;
    template <std::size_t... cells>
    static gpipe::Reversal of(gpipe::CellToReverse const& cell, std::index_sequence<cells...>) {
        return gpipe::checkpoint::PerCell<Nth<cells>...>::reversal(cell);
    }
    template <std::size_t... counts>
    static gpipe::Reversal of_cells(gpipe::CellToReverse const& cell,
                                    std::index_sequence<counts...>) {
        gpipe::Reversal result;
        ((counts + 1 == cell.cells ? void(result = of(cell, std::make_index_sequence<counts + 1>{}))
                                   : void()),
         ...);
        return result;
    }
};
/// In each cell what optimal() makes of a budget between the least and that of everything.
template <std::size_t percent> struct WithinEachCell {
    using policy_kind = gpipe::policy::Checkpointing;
    static gpipe::Reversal reversal(gpipe::CellToReverse const& cell) {
        std::size_t const least = gpipe::optimal(cell.costs, cell.in_flight, 0, 1).least_bytes;
        std::size_t const all =
            gpipe::reversal_bytes(gpipe::keep_everything(cell.costs.layers()), cell.costs)
                .total(cell.in_flight);
        return gpipe::optimal(cell.costs, cell.in_flight, least + (all - least) * percent / 100, 64)
            .reversal;
    }
};
/// Where backwards come in halves: at once, later and with the layer run again, by turns.
struct HalvesByTurns {
    using policy_kind = gpipe::policy::Checkpointing;
    static gpipe::Reversal reversal(gpipe::CellToReverse const& cell) {
        gpipe::Reversal result = ByTurns::reversal(cell);
        result.weights = gpipe::Array<gpipe::WeightHalf>(cell.costs.layers());
        for (std::size_t l = 0; l < result.weights.size(); ++l)
            result.weights[l] = static_cast<gpipe::WeightHalf>((cell.cell + l + 2) % 3);
        return result;
    }
};
inline NamedCheckpointing const reversings[] = {
    {"segments of 1", gpipe::checkpoint::EverySegment<1>{}},
    {"segments of 2", gpipe::checkpoint::EverySegment<2>{}},
    {"segments of 3", gpipe::checkpoint::EverySegment<3>{}},
    {"square root", gpipe::checkpoint::SquareRoot{}},
    {"revolve, no slot", gpipe::checkpoint::Revolve<0>{}},
    {"revolve, one slot", gpipe::checkpoint::Revolve<1>{}},
    {"revolve, three slots", gpipe::checkpoint::Revolve<3>{}},
    {"all offloaded", gpipe::checkpoint::Offload<gpipe::checkpoint::Never>{}},
    {"inputs offloaded", gpipe::checkpoint::Offload<gpipe::checkpoint::ExceptLast>{}},
    {"segments of 2 offloaded", gpipe::checkpoint::Offload<gpipe::checkpoint::EverySegment<2>>{}},
    {"selective", gpipe::checkpoint::Selective{}},
    {"by turns", ByTurns{}},
    {"weight halves by turns", HalvesByTurns{}},
    {"segments of 2, again for weight halves",
     gpipe::checkpoint::WeightHalves<gpipe::WeightHalf::again,
                                     gpipe::checkpoint::EverySegment<2>>{}},
    {"segments of 1, weight halves later, offloaded",
     gpipe::checkpoint::Offload<gpipe::checkpoint::WeightHalves<
         gpipe::WeightHalf::later, gpipe::checkpoint::EverySegment<1>>>{}},
    {"the least in each cell", WithinEachCell<0>{}},
    {"some in each cell", WithinEachCell<30>{}},
    {"a budget for everything", gpipe::checkpoint::Optimal<>{std::size_t{1} << 40}},
    {"the same, offloaded",
     gpipe::checkpoint::Offload<gpipe::checkpoint::Optimal<>>{{std::size_t{1} << 40}}}};
/// All 22: a sweep that takes one point of 11 would always see the same two.
inline std::vector<NamedCheckpointing> every_checkpointing() {
    std::vector<NamedCheckpointing> all(std::begin(checkpointings), std::end(checkpointings));
    all.insert(all.end(), std::begin(reversings), std::end(reversings));
    return all;
}
struct NamedSchedule {
    std::string name;
    gpipe::schedule::Dynamic policy;
    Backward order;
};
inline NamedSchedule const schedules[] = {
    {"GPipe", gpipe::schedule::GPipe{}, Backward::descending},
    {"GPipe ascending", gpipe::schedule::GPipeAscending{}, Backward::ascending},
    {"1F1B", OneForwardOneBackward{}, Backward::ascending},
    {"one by one", OneByOne{}, Backward::ascending},
    {"zero bubble", gpipe::schedule::ZeroBubbleH1{}, Backward::ascending}};

/// How to run on each device: threads of Host, seeds and links of Deferred and Remote.
inline std::vector<gpipe::device::Host::Options> runs(gpipe::device::Host const*) {
    return {{1}, {2}, {3}, {4}};
}
inline std::vector<Deferred::Options> runs(Deferred const*) {
    return {{.seed = 0},
            {.seed = 1},
            {.seed = 2, .link = gpipe::Link::copied},
            {.seed = 3, .link = gpipe::Link::staged}};
}
inline std::vector<Remote::Options> runs(Remote const*) {
    return {{.seed = 0, .link = gpipe::Link::staged},
            {.seed = 1, .link = gpipe::Link::copied},
            {.seed = 2},
            {.seed = 3, .link = gpipe::Link::copied}};
}
template <class Device> auto runs() { return runs(static_cast<Device const*>(nullptr)); }
inline std::string describe(gpipe::device::Host::Options o) {
    return std::to_string(o.threads) + " threads";
}
inline std::string describe(Deferred::Options o) {
    return "deferred, seed " + std::to_string(o.seed);
}
inline std::string describe(Remote::Options o) { return "remote, seed " + std::to_string(o.seed); }

/// Calls f(schedule, devices, checkpointing, run, words) for the whole catalogue with every
/// checkpointing and every way to run on Device, or one in `one_in` of these.
template <class Device, class F>
void each_way(std::size_t most, std::size_t layers, std::size_t micro_batches, std::size_t one_in,
              F f) {
    std::size_t point = 0;
    each_of_catalogue(
        most, layers, micro_batches, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
            for (NamedCheckpointing const& checkpointing : every_checkpointing())
                for (auto const& run : runs<Device>()) {
                    if (point++ % one_of(one_in) != 0) continue;
                    f(schedule, k, checkpointing.policy, run,
                      std::string(schedule.name()) + " of " +
                          std::to_string(schedule.cells_per_device()) + " cells per device, " +
                          checkpointing.name + ", K = " + std::to_string(k) + ", " + describe(run));
                }
        });
}

/// Numbers in [-1, 1), the same everywhere.
template <class T> std::vector<T> numbers(std::size_t count, std::uint32_t seed) {
    std::vector<T> values(count);
    std::uint32_t state = seed * 2654435761u + 1;
    for (T& v : values) {
        state = state * 1664525u + 1013904223u;
        v = static_cast<T>(state >> 8) / static_cast<T>(1 << 23) - 1;
    }
    return values;
}
template <class T> struct Data {
    std::vector<T> inputs, targets;
    explicit Data(std::size_t samples, std::uint32_t seed = 1)
        : inputs(numbers<T>(samples * 5, seed)), targets(numbers<T>(samples * 3, seed + 1000)) {}
};

/// All bytes of parameters and buffers of a training of Net, and of its gradients if wanted, as
/// numbers behind others.
template <class Net, class T>
void add_state(T& train, std::vector<double>& to, bool gradients = false) {
    auto const layers = Net::layers();
    auto const add = [&](std::size_t count, auto read) {
        std::vector<std::byte> bytes(count);
        read(std::span(bytes));
        for (std::byte const b : bytes) to.push_back(static_cast<double>(b));
    };
    for (std::size_t i = 0; i < Net::size; ++i) {
        for (std::size_t t = 0; t < layers[i].buffers.count; ++t)
            add(layers[i].buffers.bytes[t], [&](auto all) { train.read_buffer(i, t, all); });
        for (std::size_t t = 0; t < layers[i].parameters.count; ++t) {
            std::size_t const bytes = layers[i].parameters.bytes[t];
            add(bytes, [&](auto all) { train.read_parameter(i, t, all); });
            if (gradients) add(bytes, [&](auto all) { train.read_gradient(i, t, all); });
        }
    }
}

/// What difference() reads of a training, whatever its type.
struct ReadsTraining {
    void* train;
    std::size_t layers;
    std::size_t (*tensors)(void* train, std::size_t layer);
    void (*parameter)(void* train, std::size_t layer, std::size_t tensor, std::span<std::byte> to);
    void (*gradient)(void* train, std::size_t layer, std::size_t tensor, std::span<std::byte> to);
    void (*buffer)(void* train, std::size_t layer, std::size_t tensor, std::span<std::byte> to);
};
template <class B> std::string difference(ReadsTraining const& own, B const& reference) {
    // By copies: who gets views of tied parameters may write them, and then all ends have the same.
    auto const same = [&](auto read, std::size_t layer, std::size_t t,
                          std::vector<std::byte> const& expected) {
        std::vector<std::byte> bytes(expected.size());
        read(own.train, layer, t, bytes);
        return bytes == expected;
    };
    for (std::size_t layer = 0; layer < own.layers; ++layer) {
        std::string const where = " of layer " + std::to_string(layer);
        if constexpr (requires { reference.buffers(layer); }) {
            auto const buffers = reference.buffers(layer);
            for (std::size_t t = 0; t < buffers.size(); ++t)
                if (!same(own.buffer, layer, t, buffers[t]))
                    return "buffer " + std::to_string(t) + where;
        }
        for (std::size_t t = 0; t < own.tensors(own.train, layer); ++t) {
            std::string const tensor = " of tensor " + std::to_string(t) + where;
            if (!same(own.gradient, layer, t, reference.gradient(layer, t)))
                return "gradient" + tensor;
            if (!same(own.parameter, layer, t, reference.parameter(layer, t)))
                return "parameters" + tensor;
        }
    }
    return {};
}
/// The first place at which parameters, gradients or buffers differ in a bit, in words; empty if
/// nowhere.
template <class A, class B> std::string difference(A& train, B const& reference) {
    using To = std::span<std::byte>;
    using std::size_t;
    ReadsTraining const reads{
        &train,
        A::layer_count,
        [](void* a, size_t layer) { return static_cast<A*>(a)->tensors(layer); },
        [](void* a, size_t l, size_t t, To to) { static_cast<A*>(a)->read_parameter(l, t, to); },
        [](void* a, size_t l, size_t t, To to) { static_cast<A*>(a)->read_gradient(l, t, to); },
        [](void* a, size_t l, size_t t, To to) { static_cast<A*>(a)->read_buffer(l, t, to); }};
    if constexpr (std::is_base_of_v<PlainLoop, B>)
        return difference(reads, static_cast<PlainLoop const&>(reference));
    else
        return difference(reads, reference);
}

} // namespace toy
