// What the library costs on a GPU: devices of a pipeline that share one GPU, with one small kernel
// per action, beside the same kernels enqueued by a handwritten loop or captured from it in graphs;
// waited for step by step, or two steps at a time under way. Both bring the mini-batch and the
// learning rate to the GPU and the loss to the host in every step. Only the library also copies the
// mini-batch into pinned memory first (its caller may write it again at once), brings the whole
// optimizer and a state of the step to every device, and commits: nothing is updated in a step that
// fails.
#include "support/gpu_handwritten.cuh"
#include "support/list.hpp"
#include "support/quiet.hpp"
#include "support/record.hpp"
#include "support/summary.hpp"

#include <gpipe/gpipe.cuh>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace benchmark {

struct GpuSettings {
    std::vector<std::size_t> cells, micro_batches, graphs, under_way;
    std::vector<std::string> kernels;
    std::size_t samples = 1;
    double microseconds = 50;
    std::size_t rounds = 21;
    double seconds = 20e-3;
    bool json = false;
};

[[noreturn]] inline void fail(char const* what) {
    std::fprintf(stderr, "gpu_overhead: %s\n", what);
    std::exit(1);
}

template <std::size_t K>
using GpuTraining =
    gpipe::Training<gpipe::Pipeline<gpipe::Repeat<K, GpuLayer>>, gpipe::Cells<K>,
                    gpipe::MicroBatches<gpipe::dynamic>, gpipe::Loss<GpuLoss>,
                    gpipe::Optimizer<gpipe::SGD>, gpipe::checkpoint::Never, gpipe::device::Cuda>;

/// Kernels one after the other on an idle GPU, in a graph, so that no launch holds them up.
/// Microseconds each.
template <class Enqueue> double alone(Enqueue enqueue) {
    using gpipe::cuda::check;
    constexpr int kernels = 50;
    gpipe::cuda::Stream const stream(0);
    enqueue(stream.get()); // the first launch of all loads the kernel
    stream.synchronize();
    check("cudaStreamBeginCapture",
          cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kernels; ++i) enqueue(stream.get());
    cudaGraph_t captured = nullptr;
    check("cudaStreamEndCapture", cudaStreamEndCapture(stream.get(), &captured));
    cudaGraphExec_t graph = nullptr;
    check("cudaGraphInstantiate", cudaGraphInstantiate(&graph, captured, 0));
    TimedEvent begin, end;
    std::vector<double> times;
    for (int round = 0; round < 9; ++round) {
        check("cudaGraphLaunch", cudaGraphLaunch(graph, stream.get()));
        begin.record(stream.get());
        check("cudaGraphLaunch", cudaGraphLaunch(graph, stream.get()));
        end.record(stream.get());
        stream.synchronize();
        times.push_back(TimedEvent::between(begin, end) / kernels);
    }
    check("cudaGraphExecDestroy", cudaGraphExecDestroy(graph));
    check("cudaGraphDestroy", cudaGraphDestroy(captured));
    return median(times);
}

/// What each kernel takes alone, in microseconds.
struct Alone {
    double forward = 0, backward = 0, loss = 0;

    Alone(Work work, std::size_t samples) {
        using gpipe::cuda::launch;
        int const count = static_cast<int>(samples);
        gpipe::cuda::Buffer const memory(0, (5 * samples + 1) * kernel::width * sizeof(float));
        auto const at = [&](std::size_t n) {
            return reinterpret_cast<float*>(memory.data()) + n * samples * kernel::width;
        };
        auto* const value = reinterpret_cast<double*>(at(5));
        forward = alone([&](cudaStream_t stream) {
            launch(stream, kernel::blocks, kernel::threads, 0, kernel::forward, work, count, at(0),
                   at(1), at(2));
        });
        backward = alone([&](cudaStream_t stream) {
            launch(stream, kernel::blocks, kernel::threads, 0, kernel::backward, work, count, at(0),
                   at(1), at(2), at(3), at(4));
        });
        loss = alone([&](cudaStream_t stream) {
            launch(stream, 1, kernel::threads, 0, kernel::loss, count, at(1), at(2), at(3), value);
        });
    }
    double sum(std::size_t cells, std::size_t micro_batches) const {
        return static_cast<double>(micro_batches) *
               (static_cast<double>(cells) * (forward + backward) + loss);
    }
    /// Of a pipeline whose devices never wait but for each other.
    double pipeline(std::size_t cells, std::size_t micro_batches) const {
        return static_cast<double>(micro_batches + cells - 1) * (forward + backward) +
               static_cast<double>(micro_batches) * loss;
    }
};

/// Kernels that take as long as was asked for, or next to nothing.
inline Work work_of(std::string const& kernels, GpuSettings const& settings) {
    Work work;
    if (kernels == "large") {
        work.iterations = 20'000;
        double const taken = Alone(work, settings.samples).forward;
        work.iterations =
            std::max(1, static_cast<int>(work.iterations * settings.microseconds / taken));
    }
    work.slope = static_cast<float>(std::pow(static_cast<double>(Work::factor), work.iterations));
    return work;
}

/// One way to train.
struct GpuSystem {
    std::function<double()> step;
    std::vector<double> microseconds{}; ///< per step, by round
};

inline void time_round(std::vector<GpuSystem>& systems, double seconds_per_turn) {
    for (GpuSystem& system : systems) {
        std::size_t steps = 0;
        double const warm = seconds();
        while (seconds() - warm < seconds_per_turn / 4 || steps == 0) {
            system.step();
            ++steps;
        }
        steps *= 4;
        double const begin = seconds();
        for (std::size_t i = 0; i < steps; ++i) system.step();
        system.microseconds.push_back((seconds() - begin) * 1e6 / static_cast<double>(steps));
    }
}

/// What the probes of both saw: on the GPU, first forward to last backward; on the host, what it
/// took to enqueue that.
struct Probed {
    std::vector<double> gpu{}, host{};
};

template <std::size_t K>
void measure(GpuSettings const& settings, std::size_t micro_batches, std::string const& kernels,
             Work work, std::size_t graphs, std::size_t under_way, Summary& summary) {
    std::size_t const samples = settings.samples * micro_batches;
    std::size_t const numbers = samples * kernel::width;
    gpipe::cuda::PinnedBuffer const pinned(2 * numbers * sizeof(float));
    auto* const data = reinterpret_cast<float*>(pinned.data());
    for (std::size_t i = 0; i < numbers; ++i) {
        data[i] = static_cast<float>(i % 13) / 13 - 0.5f;
        data[numbers + i] = 0.5f * data[i];
    }
    std::span<float const> const inputs(data, numbers), targets(data + numbers, numbers);
    gpipe::SGD const optimizer{1e-3f};

    Probe our_probe, their_probe;
    auto const net = [&](Probe* probe) {
        return gpipe::Pipeline<gpipe::Repeat<K, GpuLayer>>(
            gpipe::Repeat<K, GpuLayer>(GpuLayer{work, probe}));
    };
    typename GpuTraining<K>::Options options{.samples = samples, .micro_batches = micro_batches};
    options.device.gpus.assign(K, 0);
    options.device.graphs = graphs ? 1 : 0;
    GpuTraining<K> ours(net(nullptr), {}, optimizer, options);
    GpuTraining<K> ours_probed(net(&our_probe), {}, optimizer, options);
    if (!graphs) ours_probed.time_actions(); // which has layers called in every step
    auto const by_hand = [&](Probe* probe) {
        return GpuHandwritten(K, micro_batches, settings.samples, work, optimizer, inputs.data(),
                              targets.data(), probe);
    };
    GpuHandwritten theirs = by_hand(nullptr), theirs_probed = by_hand(&their_probe);
    if (graphs) theirs.step(), theirs.capture(), theirs_probed.step(), theirs_probed.capture();

    // The same work? The loop has trained a step more where that was captured.
    if (graphs) ours.step(inputs, targets);
    for (int i = 0; i < 4; ++i) {
        float const rate = optimizer.learning_rate / static_cast<float>(i + 1);
        ours.optimizer().learning_rate = rate;
        theirs.set_learning_rate(rate);
        double const loss = ours.step(inputs, targets).loss;
        if (!(std::abs(theirs.step() - loss) <= 1e-5 * loss))
            fail("the handwritten loop does not compute what the library computes");
    }
    for (std::size_t c = 0; c < K; ++c) {
        std::vector<float> own(kernel::width);
        ours.read_parameter(c, 0, std::span(own));
        std::vector<float> const other = theirs.parameters(c);
        for (std::size_t i = 0; i < own.size(); ++i)
            if (!(std::abs(own[i] - other[i]) <= 1e-5f) || own[i] == 1)
                fail("the handwritten loop does not train what the library trains");
    }

    std::vector<GpuSystem> systems(2);
    systems[0].step = [&] { return ours.step(inputs, targets).loss; };
    systems[1].step = [&] { return theirs.step(); };
    using Pending = typename GpuTraining<K>::Pending;
    std::optional<Pending> before;
    if (under_way == 2) {
        before.emplace(ours.start(inputs, targets));
        systems[0].step = [&] {
            Pending now = ours.start(inputs, targets);
            double const loss = before->result().loss;
            before.emplace(std::move(now));
            return loss;
        };
        theirs.start();
        systems[1].step = [&] {
            theirs.start();
            return theirs.finish();
        };
    }
    Probed our_times, their_times;
    double const actions = static_cast<double>(2 * K * micro_batches);
    for (std::size_t round = 0; round < settings.rounds; ++round) {
        time_round(systems, settings.seconds);
        if (under_way == 2) continue; // the probes wait for every step
        for (int i = 0; i < 3; ++i) {
            ours_probed.step(inputs, targets);
            theirs_probed.step();
        }
        our_times.gpu.push_back(our_probe.microseconds());
        their_times.gpu.push_back(their_probe.microseconds());
        if (graphs) continue;
        double begin = 1e9, end = 0;
        for (gpipe::ActionTime const& time : ours_probed.times()) {
            begin = std::min(begin, time.start);
            end = std::max(end, time.end);
        }
        our_times.host.push_back((end - begin) * 1e9 / actions);
        their_times.host.push_back(theirs_probed.enqueue_seconds() * 1e9 / actions);
    }

    if (before) static_cast<void>(before->result());
    if (before) theirs.finish();
    Alone const each(work, settings.samples);
    double const pipeline = each.pipeline(K, micro_batches);
    auto const record = [&] {
        Record result("gpu_overhead");
        result.add("K", K).add("M", micro_batches).add("L", K).add("samples", settings.samples);
        result.add("kernels", std::string_view(kernels)).add("forward_us", each.forward);
        result.add("backward_us", each.backward).add("loss_us", each.loss);
        result.add("graphs", graphs == 1).add("under_way", under_way);
        return result;
    };
    char const* const baseline = graphs ? "handwritten graph" : "handwritten streams";
    std::string const beside = std::string("ours / ") + baseline + ", ";
    summary.add(beside + "a step's time",
                median(ratios(systems[0].microseconds, systems[1].microseconds)));
    if (under_way == 1) {
        summary.add(beside + "the GPU's", median(ratios(our_times.gpu, their_times.gpu)));
        if (!graphs)
            summary.add(beside + "the host's", median(ratios(our_times.host, their_times.host)));
    }
    if (settings.json) {
        record()
            .compare("us per step", systems[0].microseconds, baseline, systems[1].microseconds)
            .print();
        if (under_way == 2) return;
        if (!graphs)
            record()
                .compare("host ns per action", our_times.host, baseline, their_times.host)
                .print();
        record().compare("gpu us per step", our_times.gpu, baseline, their_times.gpu).print();
        record()
            .compare("gpu us per step", median(our_times.gpu), "kernels alone, as a pipeline",
                     pipeline)
            .add("kernels_us", each.sum(K, micro_batches))
            .print();
        return;
    }
    std::vector<double> const ratio = ratios(systems[0].microseconds, systems[1].microseconds);
    double const took = median(systems[0].microseconds),
                 took_them = median(systems[1].microseconds);
    std::printf("%2zu %4zu %-6s %-7s %zu %8.1f %9.1f %5.2f (%.2f-%.2f)", K, micro_batches,
                kernels.c_str(), graphs ? "graphs" : "streams", under_way, took, took_them,
                took / took_them, quantile(ratio, 0.25), quantile(ratio, 0.75));
    if (graphs || under_way == 2)
        std::printf(" %8s %8s", "-", "-");
    else
        std::printf(" %8.0f %8.0f", median(our_times.host), median(their_times.host));
    if (under_way == 2)
        std::printf(" %9s %9s", "-", "-");
    else
        std::printf(" %9.1f %9.1f", median(our_times.gpu), median(their_times.gpu));
    std::printf(" %9.1f %9.1f\n", pipeline, each.sum(K, micro_batches));
    std::fflush(stdout);
}

inline void measure_all(GpuSettings const& settings) {
    gpipe::cuda::device_count();
    if (!settings.json)
        std::printf("medians of %zu rounds; ratio: ours / theirs (quartiles); gpu: first forward "
                    "to last backward; kernels: in\n"
                    "streams or graphs, and how many steps are under way\n"
                    "                           us per step                      host ns per "
                    "action    gpu us per step\n"
                    " K    M kernels             ours    theirs ratio             "
                    "    ours   theirs      ours    theirs  pipeline   kernels\n",
                    settings.rounds);
    Summary summary("gpu_overhead", settings.json);
    for (std::string const& kernels : settings.kernels) {
        Work const work = work_of(kernels, settings);
        for (std::size_t k : settings.cells)
            for (std::size_t m : settings.micro_batches)
                for (std::size_t graphs : settings.graphs)
                    for (std::size_t under_way : settings.under_way) {
                        if (k == 1)
                            measure<1>(settings, m, kernels, work, graphs, under_way, summary);
                        if (k == 2)
                            measure<2>(settings, m, kernels, work, graphs, under_way, summary);
                        if (k == 4)
                            measure<4>(settings, m, kernels, work, graphs, under_way, summary);
                    }
    }
    summary.print();
}

} // namespace benchmark

int main(int argc, char** argv) try {
    using namespace benchmark;
    GpuSettings settings;
    double milliseconds = 20;
    std::string cells = "1,2,4";
    std::string micro_batches = "4,16";
    std::string graphs = "0,1";
    std::string under_way = "1,2";
    std::string kernels = "tiny,large";
    support::Options options("gpu_overhead",
                             "What the library costs on a GPU: devices that share it, one small "
                             "kernel per forward\nor backward, beside a handwritten loop over "
                             "streams and a graph captured from that.");
    options.text("cells", "K,...", "numbers of devices, of 1, 2, 4", cells);
    options.text("micro-batches", "M,...", "numbers of micro-batches", micro_batches);
    options.text("graphs", "0|1,...", "0: streams; 1: graphs against a graph", graphs);
    options.text("under-way", "1|2,...", "steps at a time; 1: each is waited for", under_way);
    options.text("kernels", "size,...", "tiny: as short as can be; large: see --microseconds",
                 kernels);
    options.number("microseconds", "of a large kernel", settings.microseconds, 1, 10'000);
    options.number("samples", "of 1024 numbers in a micro-batch", settings.samples, 1, 1024);
    options.number("rounds", "interleaved rounds", settings.rounds, 1, 100'000);
    options.number("milliseconds", "of each system in each round", milliseconds, 0.01, 10'000);
    options.flag("json", "one JSON object per line", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    try {
        settings.cells = numbers("--cells", cells, {1, 2, 4});
        settings.micro_batches = numbers("--micro-batches", micro_batches, {}, 1024);
        settings.graphs = numbers("--graphs", graphs, {0, 1});
        settings.under_way = numbers("--under-way", under_way, {1, 2});
        settings.kernels = words("--kernels", kernels, {"tiny", "large"});
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    }
    settings.seconds = milliseconds * 1e-3;
    measure_all(settings);
} catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
