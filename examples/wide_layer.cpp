// A layer that is larger than one device, the matrix of a softmax over many classes, as the GPipe
// paper (Huang et al., 2019) proposes in footnote 3: one product in smaller ones, each a layer.
//
//   wide_layer --cut rows --parts 4
//   wide_layer --cut columns --parts 2 --cells 1
//
// Trains that net and the one whose matrix is whole, side by side, and prints what each device has
// to hold, and whether the losses are the same. The blocks are in wide/blocks.hpp.

#include "support/json.hpp"
#include "support/options.hpp"
#include "support/output.hpp"
#include "support/progress.hpp"

#include "wide/blocks.hpp"

#include <gpipe/gpipe.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t features = 32, width = 128, classes = 4096, words = 512;

struct Hidden { // y = tanh(V x): what the wide layer takes
    using Input = gpipe::Tensor<float, features>;
    using Output = gpipe::Tensor<float, width>;
    using Parameters = gpipe::Tensor<float, width, features>;
    using Scratch = Output;
    static constexpr auto backward_reads = gpipe::Reads::both;
    static constexpr bool accepts_none = true; // nobody wants dx
    static constexpr double cost = 2.0 * width * features;

    void initialize(auto& ctx) const {
        auto const v = ctx.parameters();
        for (std::size_t o = 0; o < width; ++o)
            for (std::size_t i = 0; i < features; ++i) v(o, i) = wide::initial(o, i, features);
    }
    void forward(auto& ctx, auto x, auto y) const {
        auto const v = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t o = 0; o < width; ++o)
                y(s, o) = std::tanh(wide::product(&v(o, 0), &x(s, 0), features));
    }
    void backward(auto& ctx, auto x, auto y, auto dy, auto) const {
        auto const dv = ctx.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t o = 0; o < width; ++o)
                wide::add(dy(s, o) * (1 - y(s, o) * y(s, o)), &x(s, 0), &dv(o, 0), features);
    }
};
struct CrossEntropy { // of softmax
    using Target = gpipe::Tensor<std::int32_t>;
    gpipe::LossValue<> operator()(auto&, auto y, auto target, auto dy) const {
        gpipe::LossValue<> value{0, double(y.samples())};
        for (std::size_t s = 0; s < y.samples(); ++s) {
            auto const right = static_cast<std::size_t>(target(s));
            float const most = *std::max_element(y[s].begin(), y[s].end());
            double total = 0;
            for (std::size_t c = 0; c < classes; ++c) total += dy(s, c) = std::exp(y(s, c) - most);
            for (float& d : dy[s]) d /= static_cast<float>(total);
            dy(s, right) -= 1;
            value.sum += std::log(total) - double(y(s, right) - most);
        }
        return value;
    }
};

// Behind the hidden layer the blocks in their order.
template <template <std::size_t, std::size_t, std::size_t, std::size_t> class Block, class Parts>
struct NetOf;
template <template <std::size_t, std::size_t, std::size_t, std::size_t> class Block,
          std::size_t... part>
struct NetOf<Block, std::index_sequence<part...>> {
    using type = gpipe::Pipeline<Hidden, Block<width, classes, sizeof...(part), part>...>;
};
template <template <std::size_t, std::size_t, std::size_t, std::size_t> class Block,
          std::size_t parts>
using Train = gpipe::Training<typename NetOf<Block, std::make_index_sequence<parts>>::type,
                              gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<gpipe::dynamic>,
                              gpipe::Loss<CrossEntropy>, gpipe::Optimizer<gpipe::Adam>,
                              gpipe::schedule::OneForwardOneBackward>;

struct Settings {
    std::string cut = "rows";
    std::string parts = "4";
    std::uint64_t cells = 0;
    std::uint64_t micro_batches = 8;
    std::uint64_t steps = 30;
    std::uint64_t batch = 64;
    double learning_rate = 1e-2;
    bool json = false;

    void declare(support::Options& options) {
        options.choice("cut",
                       "blocks of rows, whose results are put together, or of columns, whose "
                       "results are added up",
                       cut, {"rows", "columns"});
        options.choice("parts", "blocks of the matrix", parts, {"2", "4"});
        options.number("cells", "devices; 0: as many as blocks", cells, 0, 5);
        options.number("micro-batches", "slice each mini-batch into n micro-batches", micro_batches,
                       1, 1024);
        options.number("steps", "train for n mini-batches", steps, 1, 1'000'000);
        options.number("batch", "samples in a mini-batch", batch, 1, 4096);
        options.number("learning-rate", "of Adam", learning_rate, 1e-9, 10);
        options.flag("json", "print one JSON object at the end", json);
    }
    std::size_t part_count() const { return std::stoul(parts); }
    std::size_t devices() const { return cells > 0 ? cells : part_count(); }
};

// Words are signs at random, and the class of each is one of many.
struct Task {
    std::vector<float> inputs;
    std::vector<std::int32_t> targets;

    void next(std::size_t samples, std::size_t step) {
        inputs.resize(samples * features);
        targets.resize(samples);
        for (std::size_t s = 0; s < samples; ++s) {
            auto const word = static_cast<std::uint32_t>((step * samples + s) % words);
            auto const bits = gpipe::philox({word, 0, 0, 1}, 1);
            for (std::size_t i = 0; i < features; ++i)
                inputs[s * features + i] = (bits[0] >> i & 1) != 0 ? 1.f : -1.f;
            targets[s] = static_cast<std::int32_t>(bits[1] % classes);
        }
    }
};

// What a device holds, by what it is for.
struct Held {
    std::vector<std::size_t> parameters, gradients, optimizer, activations, total;

    explicit Held(gpipe::MemoryPlan const& plan) {
        for (gpipe::DeviceBytes const& device : plan.devices) {
            parameters.push_back(device.parameters);
            gradients.push_back(device.gradients);
            optimizer.push_back(device.optimizer);
            activations.push_back(device.boundary + device.activations);
            total.push_back(device.total());
        }
    }
    void print(char const* name, std::size_t device) const {
        std::printf("%-14s %12zu %12zu %12zu %12zu %12zu\n", name, parameters[device],
                    gradients[device], optimizer[device], activations[device], total[device]);
    }
    void add(support::JsonObject& object, std::string const& prefix) const {
        object.add(prefix + "parameters", parameters)
            .add(prefix + "gradients", gradients)
            .add(prefix + "optimizer", optimizer)
            .add(prefix + "activations", activations)
            .add(prefix + "total", total);
    }
};

// Bytes that go from device to device for each sample, forward; gradients take as many back.
std::size_t sent_per_sample(gpipe::MemoryPlan const& plan) {
    std::size_t bytes = 0;
    for (gpipe::Edge const& edge : plan.lowered.edges) bytes += edge.bytes;
    return bytes / plan.capacity;
}
// The same in numbers, were each block on a device of its own.
std::size_t numbers_of_rows(std::size_t parts) { return (parts - 1) * (width + classes / parts); }
std::size_t numbers_of_columns(std::size_t parts) {
    return (parts - 1) * (classes + width / parts);
}

template <template <std::size_t, std::size_t, std::size_t, std::size_t> class Block,
          std::size_t parts>
void run(Settings const& settings) {
    auto const options = [&](auto& o, std::size_t cells) {
        o.samples = settings.batch;
        o.cells = cells;
        o.micro_batches = settings.micro_batches;
    };
    typename Train<Block, 1>::Options for_whole;
    typename Train<Block, parts>::Options for_cut;
    options(for_whole, 1);
    options(for_cut, settings.devices());
    gpipe::Adam const adam{.learning_rate = static_cast<float>(settings.learning_rate)};
    Train<Block, 1> whole{{}, {}, adam, for_whole};
    Train<Block, parts> cut{{}, {}, adam, for_cut};

    Task task;
    support::Progress progress(settings.steps);
    std::vector<double> losses, whole_losses;
    for (std::size_t step = 0; step < settings.steps; ++step) {
        task.next(settings.batch, step);
        whole_losses.push_back(whole.step(task.inputs, task.targets).loss);
        losses.push_back(cut.step(task.inputs, task.targets).loss);
        if (!progress.due(step + 1)) continue;
        char text[40];
        std::snprintf(text, sizeof text, "loss %.4f", losses.back());
        progress.show(step + 1, text);
    }
    progress.end();

    bool const same = losses == whole_losses;
    Held const held(cut.plan()), held_whole(whole.plan());
    std::size_t const sent = sent_per_sample(cut.plan());
    if (settings.json) {
        support::JsonObject object;
        object.add("cut", settings.cut)
            .add("parts", parts)
            .add("devices", cut.devices())
            .add("micro_batches", settings.micro_batches)
            .add("batch", settings.batch)
            .add("steps", settings.steps);
        held.add(object, "");
        held_whole.add(object, "whole_");
        object.add("sent_per_sample", sent)
            .add("first_loss", losses.front())
            .add("final_loss", losses.back())
            .add("whole_final_loss", whole_losses.back())
            .add("same_losses", same);
        std::printf("%s\n", object.text().c_str());
        return;
    }
    std::printf("%zu x %zu in %zu blocks of %s; bytes planned, with the layer in front:\n", classes,
                width, parts, settings.cut.c_str());
    std::printf("%-14s %12s %12s %12s %12s %12s\n", "", "parameters", "gradients", "optimizer",
                "activations", "total");
    held_whole.print("whole", 0);
    for (std::size_t d = 0; d < cut.devices(); ++d)
        held.print(("device " + std::to_string(d)).c_str(), d);
    std::printf("from device to device for each sample, and as many back: %zu bytes (a device for "
                "each block: %zu in rows, %zu in columns)\n",
                sent, sizeof(float) * numbers_of_rows(parts),
                sizeof(float) * numbers_of_columns(parts));
    std::printf("loss %.4f, after %zu steps %.4f; those of the net whose matrix is whole: %s\n",
                losses.front(), losses.size(), losses.back(),
                same ? "the same in every bit" : "others");
}

void run_chosen(Settings const& settings) {
    if (settings.devices() > settings.part_count() + 1)
        throw support::UsageError("--cells " + std::to_string(settings.cells) + " is more than " +
                                  settings.parts + " blocks and the layer in front of them");
    bool const two = settings.parts == "2";
    if (settings.cut == "rows")
        two ? run<wide::RowBlock, 2>(settings) : run<wide::RowBlock, 4>(settings);
    else
        two ? run<wide::ColumnBlock, 2>(settings) : run<wide::ColumnBlock, 4>(settings);
}

} // namespace

int main(int count, char** arguments) {
    Settings settings;
    support::Options options("wide_layer", "Trains a layer in blocks on several devices.");
    settings.declare(options);
    if (auto const status = options.parse(count, arguments)) return *status;
    try {
        run_chosen(settings);
    } catch (support::UsageError const& error) {
        return options.refuse(error.what());
    } catch (std::exception const& error) {
        std::fprintf(stderr, "wide_layer: %s\n", error.what());
        return 1;
    }
}
