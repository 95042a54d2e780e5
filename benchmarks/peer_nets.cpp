// Trains train_gpt's network, or a perceptron, for a few steps: what benchmarks/peers compares with
// PyTorch. Data and first parameters are functions of their places, by which peers_torch.py makes
// the same, so that both begin with one loss.
#include "support/quiet.hpp"
#include "support/ranks.hpp"
#include "support/record.hpp"

#include "gpt/blas.hpp"
#include "gpt/host_operations.hpp"
#include "gpt/initial.hpp"
#include "gpt/model.hpp"
#include "gpt/processor.hpp"

#include <gpipe/gpipe.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using namespace benchmark;

struct Settings {
    std::string net = "gpt";
    std::size_t cells = 2;
    std::size_t micro_batches = 8;
    std::string schedule{gpipe::schedule::OneForwardOneBackward::name};
    std::size_t ranks = 0;
    std::size_t batch = 0;
    std::size_t warm_up = 2;
    std::size_t steps = 10;
    bool json = false;
};

/// Looks like chance, and is the same wherever it is computed.
std::uint32_t mixed(std::uint64_t place) {
    auto bits = static_cast<std::uint32_t>(place * 2654435761);
    bits = (bits ^ bits >> 15) * 2246822519;
    return bits ^ bits >> 13;
}

constexpr std::size_t batches = 4; // taken in turns

struct Gpt {
    static constexpr char const* unit = "tokens";
    using Model = gpt::Standard;
    using Net = Model::Net;
    using Loss = Model::Loss;
    using Element = std::int32_t;
    static constexpr std::size_t per_sample = Model::context; // elements, and units
    static constexpr std::size_t counted = Model::context;
    static constexpr std::size_t batch = 32;
    static constexpr std::size_t classes = 64;

    static Net net() { return Model::net(classes); }
    static Loss loss() { return Model::loss(classes); }
    static gpipe::AdamW optimizer() {
        return {.learning_rate = 5e-4f, .beta2 = 0.99f, .weight_decay = 0.2f};
    }
    // A target is the token behind.
    static Element input(std::size_t place) { return static_cast<Element>(mixed(place) % classes); }
    static Element target(std::size_t place) { return input(place + 1); }
};

/// y = ReLU(W x + b)
template <std::size_t width> struct Dense {
    using Input = gpipe::Tensor<float, width>;
    using Output = Input;
    using Parameters = gpipe::Tensors<gpipe::Tensor<float, width, width>, Input>;
    /// The gradient of what ReLU was given.
    using Scratch = Input;
    static constexpr auto backward_reads = gpipe::Reads::both;
    static constexpr bool accepts_none = true;
    static constexpr double cost = 2.0 * width * width;

    void initialize(auto& ctx) const {
        auto const [weights, bias] = ctx.parameters();
        gpt::fill_normal(weights, ctx.random(0), std::sqrt(2.0 / width));
        for (float& b : bias) b = 0;
    }
    void forward(auto& ctx, gpipe::BatchView<float const, width> x,
                 gpipe::BatchView<float, width> y) const {
        auto const [weights, bias] = ctx.parameters();
        for (std::size_t s = 0; s < y.samples(); ++s)
            std::copy_n(bias.data(), width, y.data() + s * width);
        gpt::multiply<float>({y.samples(), width, width}, gpt::rows_of(x.data(), width),
                             gpt::transpose_of(weights.data(), width), y.data(), width, true);
        float* const out = y.data();
        for (std::size_t i = 0; i < y.size(); ++i) out[i] = out[i] > 0 ? out[i] : 0;
    }
    void backward(auto& ctx, gpipe::BatchView<float const, width> x,
                  gpipe::BatchView<float const, width> y, gpipe::BatchView<float const, width> dy,
                  auto dx) const {
        auto const [weights, bias] = ctx.parameters();
        auto const [dweights, dbias] = ctx.gradients();
        std::size_t const samples = x.samples();
        float* const dz = ctx.scratch().data();
        float* const sums = dbias.data();
        for (std::size_t s = 0; s < samples; ++s) {
            float const* const out = y.data() + s * width;
            float const* const dout = dy.data() + s * width;
            float* const row = dz + s * width;
            for (std::size_t i = 0; i < width; ++i) {
                row[i] = out[i] > 0 ? dout[i] : 0;
                sums[i] += row[i];
            }
        }
        gpt::multiply<float>({width, width, samples}, gpt::transpose_of<float>(dz, width),
                             gpt::rows_of(x.data(), width), dweights.data(), width, true);
        if constexpr (!gpipe::is_none<decltype(dx)>)
            gpt::multiply<float>({samples, width, width}, gpt::rows_of<float>(dz, width),
                                 gpt::rows_of<float>(weights.data(), width), dx.data(), width);
    }
};
/// The mean over a sample's elements.
template <std::size_t width> struct Squared {
    using Target = gpipe::Tensor<float, width>;
    gpipe::LossValue<> operator()(auto&, gpipe::BatchView<float const, width> y,
                                  gpipe::BatchView<float const, width> target,
                                  gpipe::BatchView<float, width> dy) const {
        double sum = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
            float const apart = y.data()[i] - target.data()[i];
            dy.data()[i] = 2 * apart / width;
            sum += static_cast<double>(apart * apart);
        }
        return {sum / width, static_cast<double>(y.samples())};
    }
};

struct Perceptron {
    static constexpr char const* unit = "rows";
    static constexpr std::size_t width = 512;
    using Net = gpipe::Pipeline<gpipe::Repeat<8, Dense<width>>>;
    using Loss = Squared<width>;
    using Element = float;
    static constexpr std::size_t per_sample = width;
    static constexpr std::size_t counted = 1;
    static constexpr std::size_t batch = 512;

    static Net net() { return {}; }
    static Loss loss() { return {}; }
    static gpipe::AdamW optimizer() { return {}; }
    // In [-1, 1), and exact.
    static Element input(std::size_t place) {
        return static_cast<float>(mixed(place) >> 8) * 0x1p-23f - 1;
    }
    static Element target(std::size_t place) { return input(place + (std::size_t{1} << 24)); }
};

/// Of a product as both nets have them, on one thread, in 10^9 operations per second: how much of a
/// difference is the library behind the layers.
double product_rate() {
    constexpr std::size_t rows = 256, columns = 384, inner = 128, times = 100;
    std::vector<float> const a(rows * inner, 1), b(columns * inner, 1);
    std::vector<float> c(rows * columns);
    double begin = 0;
    for (std::size_t n = 0; n < 2 * times; ++n) {
        if (n == times) begin = seconds();
        gpt::multiply<float>({rows, columns, inner}, gpt::rows_of(a.data(), inner),
                             gpt::transpose_of(b.data(), inner), c.data(), columns);
    }
    return 2e-9 * static_cast<double>(times * rows * columns * inner) / (seconds() - begin);
}

/// Of all processes the sum.
double sum_of(support::Alone const&, double number) { return number; }
#ifdef GPIPE_EXAMPLE_MPI
double sum_of(support::Rank& rank, double number) {
    double sum = 0;
    for (std::uint64_t const bits : rank.all()->gather(std::bit_cast<std::uint64_t>(number)))
        sum += std::bit_cast<double>(bits);
    return sum;
}
#endif

template <class Case, class Transport, class Company>
void run(Settings const& settings, Company& company) {
    using Train = gpipe::Training<typename Case::Net, gpipe::Cells<gpipe::dynamic>,
                                  gpipe::MicroBatches<gpipe::dynamic>,
                                  gpipe::Loss<typename Case::Loss>, gpipe::Optimizer<gpipe::AdamW>,
                                  gpipe::schedule::Dynamic, gpipe::checkpoint::Never, Transport>;
    std::size_t const batch = settings.batch ? settings.batch : Case::batch;
    typename Train::Options options;
    options.samples = batch;
    options.seed = 1;
    options.cells = settings.cells;
    options.micro_batches = settings.micro_batches;
    options.schedule = gpipe::schedule::find_schedule(settings.schedule);
    if constexpr (!std::is_same_v<Company, support::Alone>)
        options.device = {{}, company.all(), settings.cells / settings.ranks};
    Train train{Case::net(), Case::loss(), Case::optimizer(), options};

    std::size_t const elements = batch * Case::per_sample;
    std::vector<typename Case::Element> inputs[batches], targets[batches];
    for (std::size_t b = 0; b < batches; ++b)
        for (std::size_t i = 0; i < elements; ++i) {
            inputs[b].push_back(Case::input(b * elements + i));
            targets[b].push_back(Case::target(b * elements + i));
        }
    double first = 0, last = 0;
    double begin = 0, used = 0;
    for (std::size_t step = 0; step < settings.warm_up + settings.steps; ++step) {
        if (step == settings.warm_up) {
            (void)sum_of(company, 0); // all begin together
            begin = seconds(), used = processor_seconds();
        }
        last = train.step(inputs[step % batches], targets[step % batches]);
        if (step == 0) first = last;
    }
    // Who returns first has not seen the others end.
    (void)sum_of(company, 0);
    double const taken = seconds() - begin;
    double const of_processors = sum_of(company, processor_seconds() - used);
    if (!company.speaks()) return;

    double const done = static_cast<double>(settings.steps * batch * Case::counted);
    auto const& starts = train.plan().first;
    if (settings.json) {
        Record("peer_nets")
            .add("system", "gpipe")
            .add("net", settings.net)
            .add("K", settings.cells)
            .add("M", settings.micro_batches)
            .add("N", batch)
            .add("schedule", settings.schedule)
            .add("processes", std::max<std::size_t>(settings.ranks, 1))
            .add("cut", std::vector<std::size_t>(starts.begin(), starts.end()))
            .add("steps", settings.steps)
            .add("seconds", taken)
            .add("unit", Case::unit)
            .add("per_second", done / taken)
            .add("per_cpu_second", done / of_processors)
            .add("first_loss", first)
            .add("last_loss", last)
            .add("product_rate", product_rate())
            .add("kernels", gpt::kernels())
            .print();
        return;
    }
    std::printf("%.0f %s per second, %.0f per second of a processor, loss %.6f to %.6f\n",
                done / taken, Case::unit, done / of_processors, first, last);
}

template <class Transport, class Company> void choose(Settings const& settings, Company& company) {
    if (settings.net == "gpt")
        run<Gpt, Transport>(settings, company);
    else
        run<Perceptron, Transport>(settings, company);
}

} // namespace

int main(int argc, char** argv) {
    Settings settings;
    support::Options options("peer_nets",
                             "Trains train_gpt's network, or a perceptron of 8 layers, without "
                             "recomputation, and\nsays how fast: one side of benchmarks/peers.");
    options.choice("net", "what is trained", settings.net, {"gpt", "mlp"});
    options.number("cells", "devices, each with a cell", settings.cells, 1, 8);
    options.number("micro-batches", "of a mini-batch", settings.micro_batches, 1, 1024);
    options.name("schedule", "what each device does, in which order", gpipe::schedule::schedules(),
                 settings.schedule);
    options.number("ranks", "processes, each with as many devices; 0: one, by threads",
                   settings.ranks, 0, 8);
    options.number("batch", "samples in a mini-batch; 0: 32 of gpt, 512 of mlp", settings.batch, 0,
                   4096);
    options.number("warm-up", "steps before the measured ones", settings.warm_up, 0, 1000);
    options.number("steps", "steps that are measured", settings.steps, 1, 1'000'000);
    options.flag("json", "print one JSON object", settings.json);
    if (auto const status = options.parse(argc, argv)) return *status;
    if (auto const* what = gpt::missing_instructions())
        return options.refuse(std::string("this processor has no ") + what +
                              ", which the program was compiled for: build it again here");
    if (settings.ranks > 1 && settings.cells % settings.ranks != 0)
        return options.refuse("--ranks must divide --cells");
    try {
        if (settings.ranks > 1) {
#ifdef GPIPE_EXAMPLE_MPI
            if (!support::is_launched()) support::launch(settings.ranks, argc, argv);
            support::Rank rank(settings.ranks);
            choose<gpipe::transport::Mpi>(settings, rank);
            return 0;
#else
            return options.refuse("--ranks: this program was built without MPI; configure it anew "
                                  "where there is one (Debian: libopenmpi-dev)");
#endif
        }
        support::Alone alone;
        choose<gpipe::transport::Local>(settings, alone);
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    } catch (std::exception const& error) {
        std::fprintf(stderr, "peer_nets: %s\n", error.what());
        return 1;
    }
}
