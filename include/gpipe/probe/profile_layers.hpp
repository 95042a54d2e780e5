#pragma once

#include <gpipe/chain/element.hpp>
#include <gpipe/core/clock.hpp>
#include <gpipe/probe/chain_profile.hpp>
#include <gpipe/probe/layer_bench.hpp>
#include <gpipe/probe/layer_probe.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace gpipe::detail {

/// One layer of a bench, and what was measured of it.
template <class Bench> class TimedLayer {
  public:
    /// Given what the layers before give, each by its probe.
    TimedLayer(Bench& bench, std::size_t layer, LayerElements const& elements, std::size_t samples)
        : bench_(bench), layer_(layer), probe_(bench, layer, elements, {samples, 0}) {
        Model const& model = bench.model();
        LayerFunctions const& of = model.layers[layer].functions;
        std::size_t const learner = lowest_learner(model.infos.data(), model.infos.size());
        bool const lowest = layer == learner;
        bool const halves = model.infos[layer].splits;
        runs_[none].function = [](Call const&, Frame const&) {};
        runs_[forward] = {of.forward, Phase::forward, {}};
        runs_[recompute] = {of.forward, Phase::recompute, {}};
        if (layer < learner) return;
        runs_[backward] = {lowest ? of.lowest_backward : of.backward, Phase::backward, {}};
        if (!halves) return;
        runs_[input_gradient] = {
            lowest ? of.lowest_input_gradient : of.input_gradient, Phase::input_gradient, {}};
        runs_[weight_gradient] = {of.weight_gradient, Phase::weight_gradient, {}};
    }

    LayerProbe<Bench>& probe() { return probe_; }
    /// Runs it forward, and has what it gives as the gradient of that.
    void begin() {
        std::vector<double> numbers;
        probe_.upload();
        probe_.forward(0, numbers);
        probe_.set_output_gradients(0, numbers);
    }
    /// Each of its functions once.
    void measure() {
        for (Run& run : runs_) {
            if (!run.function) continue;
            double const start = seconds_now();
            probe_.call(run.function, 0, run.phase);
            run.seconds.push_back(seconds_now() - start);
        }
    }
    LayerProfile result(std::size_t samples) {
        LayerInfo const& info = bench_.model().infos[layer_];
        LayerElements const& elements = probe_.elements();
        LayerProfile result;
        double const alone = runs_[none].median();
        double* const to[] = {nullptr,          &result.forward,        &result.recompute,
                              &result.backward, &result.input_gradient, &result.weight_gradient};
        for (std::size_t r = forward; r < run_count; ++r)
            *to[r] = std::max(runs_[r].median() - alone, 0.0);
        if (!info.splits) result.input_gradient = result.backward;
        for (TensorType const& type : elements.parameters)
            result.parameters += type.count * type.element.bytes;
        for (TensorType const& type : elements.gives)
            result.output += type.count * type.element.bytes * samples;
        for (std::size_t t = 0; t < info.saved.count; ++t)
            result.saved += info.saved.bytes[t] * samples;
        return result;
    }

  private:
    // `none`: what it takes to call anything, and to wait for it.
    enum { none, forward, recompute, backward, input_gradient, weight_gradient, run_count };
    struct Run {
        CallFunction function = nullptr; ///< null: the layer has it not
        Phase phase = Phase::forward;
        std::vector<double> seconds{};

        double median() {
            if (seconds.empty()) return 0;
            auto const middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
            std::nth_element(seconds.begin(), middle, seconds.end());
            return *middle;
        }
    };

    Bench& bench_;
    std::size_t layer_;
    LayerProbe<Bench> probe_;
    Run runs_[run_count];
};

/// `like`: by layer the first one that is like it, whose times it has; that is given what those are
/// given that are like the layers before it. The rest as profile() says.
template <class Bench>
Profile profile_layers(Bench& bench, Array<LayerElements> const& elements,
                       Array<std::size_t> const& like, std::size_t samples, std::size_t rounds) {
    Model const& model = bench.model();
    std::vector<std::unique_ptr<TimedLayer<Bench>>> timed(elements.size());
    for (std::size_t i = 0; i < elements.size(); ++i) {
        if (like[i] != i) continue;
        timed[i] = std::make_unique<TimedLayer<Bench>>(bench, i, elements[i], samples);
        auto& probe = timed[i]->probe();
        if (i == 0)
            probe.give_random(0, bench.seed());
        else
            probe.give_output(0, timed[like[i - 1]]->probe().output(0));
        for (SkipPair const& skip : model.skips)
            if (skip.to == i)
                probe.give_popped(0, skip.pop,
                                  timed[like[skip.from]]->probe().stashed(0, skip.stash));
        timed[i]->begin();
    }
    for (std::size_t round = 0; round < rounds; ++round)
        for (auto const& layer : timed)
            if (layer) layer->measure();
    Profile profile{chain_number(model.infos.data(), model.infos.size()), samples,
                    Array<LayerProfile>(elements.size()), Array<std::string_view>(elements.size())};
    for (std::size_t i = 0; i < elements.size(); ++i) {
        profile.layers[i] = like[i] == i ? timed[i]->result(samples) : profile.layers[like[i]];
        profile.names[i] = model.infos[i].name;
    }
    return profile;
}

} // namespace gpipe::detail
