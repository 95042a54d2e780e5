#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/core/hash.hpp>
#include <gpipe/probe/layer_check.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/gathering.hpp>
#include <gpipe/runtime/machine.hpp>
#include <gpipe/runtime/rank_words.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace gpipe::detail {

// What layers have given to those behind them, in each of the two micro-batches.
struct GivenTensors {
    static constexpr std::size_t parts = 2;
    std::vector<std::byte> output[parts];
    std::vector<std::vector<std::byte>> skips; // by skip of the chain, and part
};

// Of a mini-batch in the host's memory.
struct GivenBatch {
    std::span<TensorPointer const> inputs, targets;
    std::size_t samples;
    std::vector<void const*> absent{}; // tags of what is

    void look_for_absent(std::span<TensorPointer const> tensors,
                         std::span<void const* const> tags) {
        for (std::size_t t = 0; t < tensors.size(); ++t)
            if (tensors[t].absent) absent.push_back(tags[t]);
    }
    StepOptionals optionals() const {
        return {absent.data(), absent.empty() ? 0 : ~std::uint64_t{0} >> (64 - absent.size())};
    }
};

// Elements of a layer in a mini-batch: those of absent tensors are not looked at.
class ElementsThere {
  public:
    ElementsThere(LayerElements const& elements, StepOptionals const& optionals)
        : elements_(elements), optionals_(optionals) {
        mark(elements_.takes);
        mark(elements_.gives);
    }
    LayerElements const& operator*() const { return elements_; }

  private:
    void mark(TensorTypes& types) {
        std::vector<TensorType>& own = types_.emplace_back(types.begin(), types.end());
        for (TensorType& type : own) type.absent = optionals_.lack(type.optional);
        types = {own.data(), own.size()};
    }

    LayerElements elements_;
    StepOptionals optionals_;
    std::vector<std::vector<TensorType>> types_;
};

// Layer i by itself, or the loss: adds rows to the report, and leaves what is given to the next.
template <class Device>
void check_layer(Machine<Device>& machine, std::size_t i, Array<LayerElements> const& elements,
                 GivenBatch const& batch, GradientCheckOptions const& options, GivenTensors& given,
                 GradientReport& report) {
    using Probe = LayerProbe<Machine<Device>>;
    static_assert(Probe::parts == GivenTensors::parts);
    Model const& model = machine.model();
    bool const loss = i == elements.size();
    LayerElements of_loss;
    if (loss) of_loss = {elements[i - 1].output(), {}, {}, {}, elements[i - 1].outputs, 0};
    ElementsThere const there(loss ? of_loss : elements[i], batch.optionals());
    Probe probe(machine, i, *there, {report.samples - report.samples / 3, report.samples / 3},
                batch.optionals());
    for (std::size_t p = 0; p < Probe::parts && i > 0; ++p) probe.give_output(p, given.output[p]);
    auto const each_skip = [&](auto SkipPair::*end, auto f) {
        for (std::size_t s = 0; s < model.skips.size(); ++s)
            for (std::size_t p = 0; p < Probe::parts && model.skips[s].*end == i; ++p)
                f(model.skips[s], p, given.skips[Probe::parts * s + p]);
    };
    each_skip(&SkipPair::to, [&](SkipPair const& skip, std::size_t p, auto const& tensor) {
        probe.give_popped(p, skip.pop, tensor);
    });
    for (std::size_t s = 0; s < report.samples; ++s) {
        auto const sample = [&](TensorPointer const& of) {
            return of.data + s % batch.samples * of.sample_bytes;
        };
        for (std::size_t t = 0; t < batch.inputs.size(); ++t)
            if (batch.inputs[t].absent)
                continue;
            else if (t >= model.infos[0].input.count)
                probe.give_side(s, t - model.infos[0].input.count, sample(batch.inputs[t]));
            else if (i == 0)
                probe.give(s, t, sample(batch.inputs[t]), batch.samples == 1 ? s : 0);
        for (std::size_t t = 0; t < batch.targets.size() && loss; ++t)
            if (!batch.targets[t].absent) probe.give_target(s, t, sample(batch.targets[t]));
    }
    probe.upload();
    LayerCheck<Machine<Device>> check(probe, i, loss ? model.loss.name : model.infos[i].name,
                                      options);
    if (probe.has_backward()) check.add_to(report);
    for (std::size_t p = 0; p < Probe::parts && !loss; ++p) given.output[p] = probe.output(p);
    each_skip(&SkipPair::from, [&](SkipPair const& skip, std::size_t p, auto& tensor) {
        tensor = probe.stashed(p, skip.stash);
    });
}

// With several ranks: what one has found of a layer, all have behind this.
template <class Device>
void share_layer(Machine<Device> const& machine, Gathering<Device>& all, std::size_t i,
                 std::size_t teller, std::size_t rows, GivenTensors& given,
                 GradientReport& report) {
    RankWords words;
    Model const& model = machine.model();
    bool const tells = teller == machine.ranks().number();
    auto const pass = [&](auto& value) { words.pass(tells, value); };
    auto const pass_all = [&] {
        for (auto& output : given.output) pass(output);
        for (auto& skip : given.skips) pass(skip);
        std::size_t count = report.rows.size() - rows;
        pass(count);
        report.rows.resize(rows + count);
        for (std::size_t r = rows; r < report.rows.size(); ++r) {
            GradientRow& row = report.rows[r];
            row.layer = i;
            row.name = i < model.infos.size() ? model.infos[i].name : model.loss.name;
            for (std::string* text : {&row.tensor, &row.entry, &row.fault, &row.note}) pass(*text);
            for (std::size_t* number : {&row.checked, &row.left_out}) pass(*number);
            for (double* number : {&row.analytic, &row.numeric, &row.error}) pass(*number);
        }
    };
    if (tells) pass_all();
    tell_all(machine.device(), all, machine.engine().tables(), teller, words);
    if (!tells) pass_all();
}

template <class Device>
GradientReport check_layers(Machine<Device>& machine, Gathering<Device>& all,
                            Array<LayerElements> const& elements, GivenBatch const& batch,
                            GradientCheckOptions const& options) {
    GradientReport report;
    report.samples = std::max<std::size_t>(options.samples, 3);
    GivenTensors given;
    given.skips.resize(GivenTensors::parts * machine.model().skips.size());
    Ranks const& ranks = machine.ranks();
    if constexpr (joins_processes<Device>)
        compare(all,
                hash_of_all(batch.samples, report.samples, options.entries, options.seed,
                            options.tolerance),
                "gpipe: rank %zu is told to check gradients of another number of samples, or with "
                "other options, than rank 0");
    for (std::size_t i = 0; i <= elements.size(); ++i) {
        std::size_t const owner = ranks.of(machine.device_of(std::min(i, elements.size() - 1)));
        std::size_t const faults = report.faults(), rows = report.rows.size();
        if (ranks.count == 1 || ranks.number() == owner)
            check_layer(machine, i, elements, batch, options, given, report);
        if constexpr (joins_ranks<Device>)
            if (ranks.count > 1) share_layer(machine, all, i, owner, rows, given, report);
        if (report.faults() > faults && report.rows.back().fault.starts_with("forward "))
            break; // nothing can be said of the layers behind
    }
    return report;
}

} // namespace gpipe::detail
