// device::Cuda on GPUs: whatever the pipeline and the way its steps are run, losses, gradients and
// parameters are those of the plain layers on the host, in every bit, and failures leave what they
// promise to leave.
#include "support/on_gpu.hpp"

#include <gpipe/device/cuda_memory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

// Its update has one right result in every bit; that of Adam calls pow().
constexpr gpipe::RMSProp optimizer{1e-2f, 0.9f, 0.5f, 1e-6f, 1e-2f};
template <class T> using Result = toy::PlainResult<T, true, gpipe::RMSProp>;
template <class T> using Train = toy::CudaTrain<T, gpipe::RMSProp>;

// How steps are run: tensors between devices of one GPU are handed over as between machines without
// better ways, too, graphs are kept of fewer sizes than there are, and steps are waited for late.
struct Way {
    gpipe::Link link = gpipe::Link::shared;
    std::size_t graphs = 0;
    bool together = false;
};
constexpr Way ways[] = {{},
                        {gpipe::Link::shared, 2, true},
                        {gpipe::Link::copied, 0, true},
                        {gpipe::Link::copied, 2, false},
                        {gpipe::Link::staged, 0, false},
                        {gpipe::Link::staged, 2, true}};

// Device k of the pipeline on GPU k mod `gpus`.
template <class Train>
typename Train::Options options(std::size_t cells, std::size_t micro_batches, std::size_t gpus,
                                Way const& way = {}) {
    typename Train::Options result;
    result.samples = Result<float>::most;
    result.seed = Result<float>::seed;
    result.cells = cells;
    result.micro_batches = micro_batches;
    result.clip_norm = toy::clip_of(micro_batches);
    for (std::size_t k = 0; k < cells; ++k)
        result.device.gpus.push_back(static_cast<int>(k % gpus));
    result.device.link = way.link;
    result.device.graphs = way.graphs;
    return result;
}

template <class Train>
std::unique_ptr<Train> made(typename Train::Options const& options, toy::Watch& watch) {
    using T = typename Train::Input::Element;
    toy::LossOnGpu<toy::kernel::MeanSquare<T, 3>> loss;
    loss.watch = &watch;
    return std::make_unique<Train>(watched(toy::KernelNet<T, true>{}, watch), loss, optimizer,
                                   options);
}

std::size_t gpu_count() { return static_cast<std::size_t>(gpipe::cuda::device_count()); }

} // namespace

TEST_CASE_TEMPLATE("P1 on one GPU or several a training gives what it gives on the host, in every "
                   "bit, for every K, M, schedule, checkpointing and way",
                   T, float, double) {
    std::size_t trained = 0;
    std::size_t point = 0;
    for (std::size_t micro_batches : {1, 2, 3, 8})
        for (toy::NamedSchedule const& schedule : toy::schedules) {
            Result<T> const expected(optimizer, micro_batches, schedule.policy, {8, 7, 8, 7, 1, 8});
            for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
                for (std::size_t cells = 1; cells <= 4; ++cells)
                    for (std::size_t gpus = 1; gpus <= std::min(cells, gpu_count()); ++gpus)
                        for (std::size_t w = 0; w < std::size(ways); ++w) {
                            if (point++ % toy::one_of(sizeof(T) == sizeof(float) ? 13 : 17) != 0)
                                continue;
                            toy::Session const session(trained % 4);
                            auto o = options<Train<T>>(cells, micro_batches, gpus, ways[w]);
                            o.schedule = schedule.policy;
                            o.checkpointing = checkpointing.policy;
                            if (w % 2) o.loss_scale = gpipe::LossScale::dynamic(64, 2, 0.5, 2);
                            toy::Watch watch;
                            auto const train = made<Train<T>>(o, watch);
                            INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells,
                                 ", M = ", micro_batches, ", ", gpus, " GPUs, way ", w);
                            CHECK(expected.differs(*train, ways[w].together) == "");
                            ++trained;
                        }
        }
    MESSAGE(trained, " trainings");
    CHECK(trained * toy::one_of(1) >= 80);
}

TEST_CASE(
    "P1 so it is where cells are reversed piece by piece, and where what waits is offloaded") {
    std::size_t const micro_batches = 8;
    std::size_t moved = 0;
    std::size_t point = 0;
    for (toy::NamedSchedule const& schedule : toy::schedules) {
        Result<float> const expected(optimizer, micro_batches, schedule.policy, {8, 7, 8, 1, 8});
        for (toy::NamedCheckpointing const& checkpointing : toy::reversings)
            for (std::size_t cells = 1; cells <= 4; ++cells)
                for (std::size_t w = 0; w < std::size(ways); ++w) {
                    if (point++ % std::min<std::size_t>(toy::one_of(11), 31) != 0) continue;
                    toy::Session const session(point % 4);
                    std::size_t const gpus = std::min(cells, gpu_count());
                    auto o = options<Train<float>>(cells, micro_batches, gpus, ways[w]);
                    o.schedule = schedule.policy;
                    o.checkpointing = checkpointing.policy;
                    toy::Watch watch;
                    auto const train = made<Train<float>>(o, watch);
                    INFO(schedule.name, ", ", checkpointing.name, ", K = ", cells, ", way ", w);
                    CHECK(expected.differs(*train, ways[w].together) == "");
                    for (std::size_t c = 0; c < train->cells(); ++c)
                        moved += train->plan().pools.pool(gpipe::Holds::offloaded, c).slots > 0;
                }
    }
    MESSAGE(moved, " cells that offload");
    CHECK(moved > 0);
}

TEST_CASE("sizes of mini-batches come and go, and graphs with them") {
    std::vector<std::size_t> const sizes{8, 7, 8, 7, 8, 5, 5, 8, 8, 7, 2, 8, 2, 8};
    Result<float> const expected(optimizer, 3, gpipe::schedule::GPipe{}, sizes);
    for (std::size_t graphs : {0, 1, 2, 3, 4})
        for (bool together : {false, true}) {
            toy::Watch watch;
            auto const train = made<Train<float>>(
                options<Train<float>>(3, 3, 1, {gpipe::Link::shared, graphs, together}), watch);
            INFO(graphs, " graphs, together ", together);
            CHECK(expected.differs(*train, together) == "");
            CHECK(train->kept_runs() <= 2 * graphs);
        }
}

TEST_CASE("a step that is kept as a graph does not call its layers again") {
    std::vector<std::size_t> const sizes(6, 8);
    Result<float> const expected(optimizer, 2, gpipe::schedule::GPipe{}, sizes);
    std::size_t calls[2];
    for (std::size_t graphs : {0, 1}) {
        toy::Watch watch;
        auto const train =
            made<Train<float>>(options<Train<float>>(2, 2, 1, {{}, graphs, false}), watch);
        for (std::size_t i = 0; i < sizes.size(); ++i)
            CHECK(expected.step(*train, i) == expected.losses[i]);
        calls[graphs] = watch.count(0, gpipe::Phase::forward);
        CHECK(train->kept_runs() == 2 * graphs);
    }
    CHECK(calls[0] == sizes.size() * 2);
    CHECK(calls[1] < calls[0]);
}

TEST_CASE("arrays on a GPU are read behind the caller's stream, which may then write them again") {
    std::vector<std::size_t> const sizes{8, 7, 8, 8, 7, 8};
    Result<float> const expected(optimizer, 3, gpipe::schedule::GPipe{}, sizes);
    int const gpu = static_cast<int>(gpu_count()) - 1;
    for (Way const& way : ways) {
        toy::Watch watch;
        auto const train = made<Train<float>>(options<Train<float>>(3, 3, gpu_count(), way), watch);
        gpipe::cuda::Stream const mine(gpu);
        gpipe::cuda::Buffer const inputs(gpu, 8 * 5 * sizeof(float));
        gpipe::cuda::Buffer const targets(gpu, 8 * 3 * sizeof(float));
        std::vector<gpipe::cuda::PinnedBuffer> sources;
        auto const write = [&](gpipe::cuda::Buffer const& to, std::vector<float> const& from) {
            std::size_t const bytes = from.size() * sizeof(float);
            auto const& source = sources.emplace_back(bytes);
            std::memcpy(source.data(), from.data(), bytes);
            gpipe::cuda::check("cudaMemcpyAsync", cudaMemcpyAsync(to.data(), source.data(), bytes,
                                                                  cudaMemcpyDefault, mine.get()));
            return std::span<float const>(reinterpret_cast<float const*>(to.data()), from.size());
        };
        std::vector<Train<float>::Pending> pending;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<float> const data = expected.prepare(*train, i);
            auto const x = write(inputs, data.inputs);
            auto const t = write(targets, data.targets);
            pending.push_back(train->start(x, t, mine.get()));
        }
        for (std::size_t i = 0; i < sizes.size(); ++i)
            CHECK(pending[i].result().loss == expected.losses[i]);
        CHECK(Result<float>::state_of(*train) == expected.state);
    }
}

TEST_CASE("what the caller gave may be changed as soon as a step has been started") {
    std::vector<std::size_t> const sizes{8, 7, 8, 8, 7, 8};
    Result<float> const expected(optimizer, 3, gpipe::schedule::GPipe{}, sizes);
    for (Way const& way : ways) {
        toy::Watch watch;
        auto const train = made<Train<float>>(options<Train<float>>(3, 3, 1, way), watch);
        std::vector<Train<float>::Pending> pending;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            toy::Data<float> data = expected.prepare(*train, i);
            pending.push_back(train->start(data.inputs, data.targets));
            train->optimizer().learning_rate = 1e30f;
            std::fill(data.inputs.begin(), data.inputs.end(), 1e30f);
            std::fill(data.targets.begin(), data.targets.end(), 1e30f);
        }
        for (std::size_t i = 0; i < sizes.size(); ++i)
            CHECK(pending[i].result().loss == expected.losses[i]);
        CHECK(Result<float>::state_of(*train) == expected.state);
    }
}

TEST_CASE("P7 two trainings, step by step in turns, do not know of each other") {
    Result<float> const expected(optimizer, 3, gpipe::schedule::GPipe{}, {8, 7, 8, 7});
    for (Way const& way : ways) {
        auto const o = options<Train<float>>(3, 3, 1, way);
        toy::Watch watch;
        auto const one = made<Train<float>>(o, watch), other = made<Train<float>>(o, watch);
        std::vector<Train<float>::Pending> pending;
        for (std::size_t i = 0; i < expected.losses.size(); ++i)
            for (Train<float>* train : {one.get(), other.get()}) {
                pending.push_back(expected.start(*train, i));
                if (!way.together) CHECK(pending.back().result().loss == expected.losses[i]);
            }
        for (std::size_t p = 0; p < pending.size(); ++p)
            CHECK(pending[p].result().loss == expected.losses[p / 2]);
        CHECK(Result<float>::state_of(*one) == expected.state);
        CHECK(Result<float>::state_of(*other) == expected.state);
    }
}

TEST_CASE("parameters are read back as they were written, and trained from there") {
    toy::Watch watch;
    auto const from = made<Train<float>>(options<Train<float>>(2, 2, 1), watch);
    auto const to =
        made<Train<float>>(options<Train<float>>(3, 2, 1, {gpipe::Link::copied, 1, false}), watch);
    std::vector<float> weights(6 * 5), back(6 * 5), as_made(6 * 5);
    to->read_parameter(0, 0, std::span(as_made));
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 0.01f * static_cast<float>(i);
    REQUIRE(as_made != weights);
    toy::Data<float> const data(8, 0);
    for (int again = 0; again < 4; ++again) { // the last ones as graphs
        for (Train<float>* train : {from.get(), to.get()}) {
            train->write_parameter(0, 0, std::span<float const>(weights));
            train->read_parameter(0, 0, std::span(back));
            CHECK(back == weights);
        }
        CHECK(from->step(data.inputs, data.targets).loss ==
              to->step(data.inputs, data.targets).loss);
        CHECK(Result<float>::state_of(*from) == Result<float>::state_of(*to));
    }
}

TEST_CASE("with Adam a training is close to the host's: pow() has no one right result") {
    constexpr gpipe::Adam adam{1e-2f};
    using Expected = toy::PlainResult<float, true, gpipe::Adam>;
    Expected const expected(adam, 3, gpipe::schedule::GPipe{}, {8, 7, 8, 7, 8});
    using Trained = toy::CudaTrain<float, gpipe::Adam>;
    toy::Watch watch;
    Trained train(watched(toy::KernelNet<float, true>{}, watch), {}, adam,
                  options<Trained>(3, 3, 1, ways[1]));
    for (std::size_t i = 0; i < expected.losses.size(); ++i)
        CHECK(std::abs(expected.step(train, i) / expected.losses[i] - 1) <= 1e-6);
    auto const state = Expected::state_of(train);
    REQUIRE(state.size() == expected.state.size());
    float worst = 0;
    for (std::size_t i = 0; i < state.size(); ++i)
        worst = std::max(worst, std::abs(state[i] - expected.state[i]));
    MESSAGE("parameters and gradients differ by at most ", worst);
    CHECK(worst <= 1e-6f);
}

TEST_CASE("P6 a layer or loss that throws while it enqueues leaves everything as it was") {
    constexpr std::size_t micro_batches = 3;
    constexpr std::size_t layers = toy::KernelNet<float, true>::size;
    Result<float> const expected(optimizer, micro_batches, gpipe::schedule::GPipe{}, {8, 7});
    std::size_t point = 0;
    std::size_t thrown = 0;
    for (Way const& way : {ways[0], ways[3], ways[5]})
        for (toy::NamedCheckpointing const& checkpointing : toy::checkpointings)
            for (gpipe::Phase phase :
                 {gpipe::Phase::forward, gpipe::Phase::recompute, gpipe::Phase::backward})
                for (std::size_t at = 0; at <= layers; ++at) {
                    if (point++ % toy::one_of(1) != 0) continue;
                    std::size_t const layer = at < layers ? at : toy::Watch::loss;
                    auto o = options<Train<float>>(3, micro_batches,
                                                   std::min<std::size_t>(gpu_count(), 3), way);
                    o.checkpointing = checkpointing.policy;
                    toy::Watch watch;
                    auto const train = made<Train<float>>(o, watch);
                    toy::Data<float> const data(8, 0);
                    watch.faults = {{layer, 3, phase}};
                    try {
                        train->step(data.inputs, data.targets);
                        continue; // the layer is not called for that
                    } catch (toy::Thrown const& fault) {
                        CHECK(fault.at.layer == layer);
                    }
                    ++thrown;
                    watch.faults.clear();
                    INFO(checkpointing.name, ", layer ", at, ", ", way.graphs, " graphs");
                    REQUIRE(train->failure());
                    CHECK(train->failure()->layer == at);
                    CHECK(train->failure()->micro_batch == 1);
                    CHECK(train->steps() == 0);
                    CHECK(expected.differs(*train, way.together) == "");
                }
    MESSAGE(thrown, " throws");
    CHECK(thrown * toy::one_of(1) >= 3 * 3 * 2 * layers); // forward and backward, at least
}

namespace training_on_gpu {

using namespace toy;

/// Passes on what it gets, and waits for the stream while `waits` says so.
struct Waiting {
    using Input = gpipe::Tensor<float, 3>;
    using Output = Input;
    static constexpr gpipe::Reads backward_reads = gpipe::Reads::neither;
    bool const* waits = nullptr;

    Waiting() = default;
    explicit Waiting(bool const& flag) : waits(&flag) {}
    void forward(auto& context, auto x, auto y) const {
        if (waits && *waits) static_cast<void>(cudaStreamSynchronize(context.stream()));
        launch(context.stream(), x.size(), body::Copied<float>{x.data(), y.data()});
    }
    void backward(auto& context, auto dy, auto dx) const {
        launch(context.stream(), dy.size(), body::Copied<float>{dy.data(), dx.data()});
    }
};

} // namespace training_on_gpu

TEST_CASE("a layer that does what no graph can hold is named, and the object trains on") {
    using Layer = toy::OnGpu<training_on_gpu::Waiting>;
    using Net = gpipe::Pipeline<toy::OnGpu<toy::kernel::Linear<float, 5, 3>>, Layer,
                                toy::OnGpu<toy::kernel::Linear<float, 3, 3>>>;
    using Waited = toy::Training<Net, toy::LossOnGpu<toy::kernel::MeanSquare<float, 3>>, gpipe::SGD,
                                 gpipe::device::Cuda>;
    toy::Data<float> const data(8, 0);
    auto const losses = [&](bool waits, Way const& way) {
        bool now = waits && !way.graphs;
        Waited train(Net({}, Layer(now), {}), {}, {}, options<Waited>(3, 2, 1, way));
        std::vector<double> result;
        result.push_back(train.step(data.inputs, data.targets).loss);
        if (waits && way.graphs) { // the second step is captured
            now = true;
            try {
                train.step(data.inputs, data.targets);
                FAIL("nothing was thrown");
            } catch (gpipe::cuda::CannotCapture const& error) {
                CHECK(std::string(error.what()).find("cannot be part of a CUDA graph") !=
                      std::string::npos);
            }
            REQUIRE(train.failure());
            CHECK(train.failure()->layer == 1);
            CHECK(train.failure()->micro_batch == 0);
            CHECK(train.steps() == 1);
            now = false;
        }
        for (int i = 0; i < 4; ++i) result.push_back(train.step(data.inputs, data.targets).loss);
        return result;
    };
    auto const expected = losses(false, {});
    CHECK(expected.back() < expected.front());
    for (Way const& way : ways)
        for (bool waits : {false, true}) CHECK(losses(waits, way) == expected);
}

TEST_CASE("A6 GPUs that are not there, and too few, are refused by name") {
    toy::Watch watch;
    auto const says = [&](std::vector<int> gpus, std::size_t cells) -> std::string {
        auto o = options<Train<float>>(cells, 2, 1);
        o.device.gpus = std::move(gpus);
        try {
            made<Train<float>>(o, watch);
            return "nothing";
        } catch (gpipe::cuda::TooFewDevices const& error) {
            return std::string("too few: ") + error.what();
        } catch (std::invalid_argument const& error) {
            return error.what();
        }
    };
    std::string const present = std::to_string(gpu_count());
    CHECK(says({99}, 1) == "gpipe: there is no GPU 99, but " + present + " of them");
    CHECK(says({0, -1}, 2) == "gpipe: there is no GPU -1, but " + present + " of them");
    CHECK(says({0}, 2) == "gpipe: Options::device.gpus has 1 entries for 2 devices: one for each, "
                          "and one GPU may be there twice");
    if (gpu_count() < toy::KernelNet<float, true>::size)
        CHECK(says({}, gpu_count() + 1) == "too few: gpipe: " + std::to_string(gpu_count() + 1) +
                                               " GPUs are needed, but CUDA sees only " + present +
                                               ": Options::device.gpus may name one for several "
                                               "devices");
    CHECK(says({0, 0}, 2) == "nothing");
    CHECK(says({}, 1) == "nothing");
}
