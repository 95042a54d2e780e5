// What benchmarks predict call by call: the simulation's figures where it makes no difference what
// lies between a forward and its backward, more where it does.
#include "../../benchmarks/support/call_times.hpp"
#include "support/net.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <string>
#include <vector>

namespace {

using Line = toy::Linear<double, 3, 3>;
using Net = gpipe::Pipeline<Line, toy::Tanh<double, 3>, Line, toy::Saver<double, 3>, Line,
                            toy::Tanh<double, 3>, Line>;
using Train = toy::Training<Net, toy::MeanSquare<double, 3>, gpipe::Adam, gpipe::device::Host>;
constexpr std::size_t layers = Net::size;

benchmark::LayerCalls calls(std::mt19937& random) {
    benchmark::LayerCalls result;
    for (std::size_t l = 0; l < layers; ++l) {
        result.forward.push_back(static_cast<double>(1 + random() % 9));
        result.backward.push_back(static_cast<double>(1 + random() % 9));
    }
    return result;
}

template <class F> void each_training(F f) {
    std::size_t point = 0;
    for (toy::NamedSchedule const& schedule : toy::schedules)
        for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
            for (std::size_t cells : {1, 2, 3, 5})
                for (std::size_t micro_batches : {1, 3, 4}) {
                    if (schedule.name == "zero bubble") continue; // its backwards come in halves
                    if (point++ % toy::one_of(1) != 0) continue;
                    Train::Options options;
                    options.samples = micro_batches;
                    options.cells = cells;
                    options.micro_batches = micro_batches;
                    options.schedule = schedule.policy;
                    options.checkpointing = checkpointing.policy;
                    options.device.threads = 1;
                    Train const train(Net{}, {}, gpipe::Adam{}, options);
                    CAPTURE(schedule.name);
                    CAPTURE(checkpointing.name);
                    CAPTURE(cells);
                    CAPTURE(micro_batches);
                    f(train);
                }
}

TEST_CASE("calls that take the same wherever their tensors lie take what the simulation says") {
    std::mt19937 random(1);
    std::size_t cells = 0;
    each_training([&](Train const& train) {
        benchmark::LayerCalls const same = calls(random);
        benchmark::CallTimes const times{same, same, same, same, {}, 3};
        gpipe::LayerTimes by_layer{gpipe::Array<double>(layers), gpipe::Array<double>(layers)};
        std::ranges::copy(same.forward, by_layer.forward.data());
        std::ranges::copy(same.backward, by_layer.backward.data());
        by_layer.loss = 3;
        auto const expected = train.costs_of(by_layer);
        auto const found = benchmark::costs_of(times, train.programs(), train.plan());
        for (std::uint32_t c = 0; c < train.cells(); ++c, ++cells) {
            CAPTURE(c);
            CHECK(found({gpipe::Kind::forward, c}) == expected({gpipe::Kind::forward, c}));
            CHECK(found({gpipe::Kind::backward, c}) == expected({gpipe::Kind::backward, c}));
            bool recomputes = false;
            for (std::size_t i = 0; i < train.programs().size(); ++i)
                recomputes = recomputes || (train.programs()[i].kind == gpipe::Kind::recompute &&
                                            train.programs()[i].cell == c);
            if (recomputes)
                CHECK(found({gpipe::Kind::recompute, c}) == expected({gpipe::Kind::recompute, c}));
        }
    });
    MESSAGE(cells << " cells");
}

struct Counts {
    double passing, next, fresh, waiting;
    bool operator==(Counts const&) const = default;
};
doctest::String toString(Counts const& counts) {
    std::string text;
    for (double const count : {counts.passing, counts.next, counts.fresh, counts.waiting})
        text += std::to_string(static_cast<int>(count)) + " ";
    return text.c_str();
}

// What a micro-batch calls in all cells, by what lies between.
Counts counts(gpipe::checkpoint::Dynamic policy, std::size_t cells, std::size_t micro_batches) {
    Train::Options options;
    options.samples = micro_batches;
    options.cells = cells;
    options.micro_batches = micro_batches;
    options.checkpointing = policy;
    Train const train(Net{}, {}, gpipe::Adam{}, options);
    double result[4];
    for (std::size_t which = 0; which < 4; ++which) {
        benchmark::CallTimes times;
        std::size_t each = 0;
        for (auto* calls : {&times.passing, &times.next, &times.fresh, &times.waiting})
            calls->forward = calls->backward =
                std::vector<double>(layers, each++ == which ? 1.0 : 0.0);
        auto const costs = benchmark::costs_of(times, train.programs(), train.plan());
        result[which] = 0;
        for (std::size_t i = 0; i < train.programs().size(); ++i)
            if (train.programs()[i].micro_batch == 0) result[which] += costs(train.programs()[i]);
    }
    return {result[0], result[1], result[2], result[3]};
}

TEST_CASE("calls are told apart by what lies between a forward and its backward") {
    using namespace gpipe::checkpoint;
    constexpr double all = layers;
    CHECK(counts(Never{}, 1, 4) == Counts{0, 0, 0, 2 * all});
    CHECK(counts(Never{}, 1, 1) == Counts{0, 0, 2 * all, 0}); // its backward follows
    CHECK(counts(ExceptLast{}, 1, 4) == Counts{0, 0, 2 * all, 0});
    CHECK(counts(Always{}, 1, 4) == Counts{all, 0, 2 * all, 0});
    // A forward that leaves all layers but the last to be run again: those that save something or
    // whose output is read (1, 3, 5) right before their backward, the others not at all.
    CHECK(counts(EverySegment<1>{}, 1, 4) == Counts{6, 6, 5, 0});
    // The lower layer of each pair has the other between.
    CHECK(counts(EverySegment<2>{}, 1, 4) == Counts{6, 6, 8, 0});
    CHECK(counts(EverySegment<2>{}, 2, 4) == Counts{5, 3, 9, 0});
    // Layers 1 and 5 are cheap.
    CHECK(counts(Selective{}, 1, 4) == Counts{2, 4, 0, 10});
    CHECK(counts(Selective{}, 2, 4) == Counts{2, 4, 0, 10});
}

} // namespace
