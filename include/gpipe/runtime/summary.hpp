#pragma once

#include <gpipe/chain/element.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/trace/text_table.hpp>

#include <cstddef>
#include <string>

namespace gpipe {

namespace detail {

// "64x128 float, 2 int"; what each tensor's elements are where it is not as the one before.
GPIPE_INLINE std::string shapes(TensorTypes types) {
    std::string text;
    for (std::size_t t = 0; t < types.size(); ++t) {
        TensorType const& type = types[t];
        text += t > 0 ? ", " : "";
        text += type.rank == 0 ? "1" : "";
        for (std::size_t e = 0; e < type.rank; ++e)
            (text += e > 0 ? "x" : "") += std::to_string(type.extents[e]);
        bool const last = t + 1 == types.size() || types[t + 1].name != type.name;
        if (last) (text += " ") += type.name;
    }
    return types.size() > 0 ? text : "-";
}

// With those of skips behind a plus.
GPIPE_INLINE std::string shapes(TensorTypes const& types, TensorTypes const& skips) {
    return shapes(types) + (skips.size() > 0 ? " + " + shapes(skips) : "");
}

} // namespace detail

/// What a training consists of, as text: its layers with what a sample is at their ends (with that
/// of skips behind a plus), their parameters (tied ones at the first of their layers), and their
/// cells; then the bytes of each device by what they are for, as planned.
[[gnu::cold]] GPIPE_INLINE std::string summary(Array<LayerInfo> const& layers,
                                               Array<LayerElements> const& elements,
                                               Part<TiedTensor> ties, MemoryPlan const& plan) {
    Programs const& programs = plan.lowered.programs;
    trace::TextTable chain("rlrrllrrl", {"layer", "type", "cell", "device", "input", "output",
                                         "parameters", "bytes", "shapes"});
    std::size_t parameters = 0, bytes = 0;
    for (std::size_t c = 0; c < programs.cells(); ++c)
        for (std::size_t i = plan.first[c]; i < plan.first[c + 1]; ++i) {
            LayerInfo const& layer = layers[i];
            std::size_t count = layer.parameter_elements, own = 0, first = 0;
            for (std::size_t t = 0; t < layer.parameters.count; ++t)
                own += layer.parameters.bytes[t];
            std::string types = detail::shapes(elements[i].parameters);
            if (layer.frozen && own > 0) types += "; frozen";
            for (std::size_t t = 0; t < layer.parameters.count && layer.frozen_tensors; ++t)
                if (!layer.learns(t)) types += "; " + std::to_string(t) + " frozen";
            for (TiedTensor const& end : ties) {
                if (end.is_first) first = end.layer;
                if (end.is_first || end.layer != i) continue;
                count -= end.elements;
                own -= end.bytes;
                types += "; " + std::to_string(end.tensor) + " tied to " + std::to_string(first);
            }
            chain.add({std::to_string(i), trace::short_name(layer.name, 40), std::to_string(c),
                       std::to_string(programs.device_of(c)),
                       detail::shapes(elements[i].input(), elements[i].popped()),
                       detail::shapes(elements[i].output(), elements[i].stashed()),
                       trace::grouped(count), trace::grouped(own), types});
            parameters += count;
            bytes += own;
        }
    chain.add(
        {"", "in all", "", "", "", "", trace::grouped(parameters), trace::grouped(bytes), ""});

    trace::TextTable memory("lrrrrrrrrrr", {"bytes planned", "layers", "parameters", "gradients",
                                            "optimizer", "buffers", "boundaries", "activations",
                                            "staging", "handles", "in all"});
    auto const add = [&](std::string const& name, std::size_t count, DeviceBytes const& of) {
        memory.add({name, std::to_string(count)});
        for (std::size_t const number :
             {of.parameters + of.frozen, of.gradients, of.optimizer, of.buffers, of.boundary,
              of.activations, of.staging, of.handles, of.total()})
            memory.add({trace::grouped(number)});
    };
    DeviceBytes all;
    for (std::size_t d = 0; d < plan.devices.size(); ++d) {
        DeviceBytes const& device = plan.devices[d];
        std::size_t count = 0;
        for (std::size_t const c : programs.cells_of(d)) count += plan.first[c + 1] - plan.first[c];
        add("device " + std::to_string(d), count, device);
        using Bytes = DeviceBytes;
        for (auto const which : {&Bytes::parameters, &Bytes::gradients, &Bytes::optimizer,
                                 &Bytes::frozen, &Bytes::buffers, &Bytes::boundary,
                                 &Bytes::activations, &Bytes::staging, &Bytes::handles})
            all.*which += device.*which;
    }
    add("in all", layers.size(), all);
    std::string text = chain.text() + "\n" + memory.text();
    if (plan.host + plan.snapshot > 0)
        text += "host memory for copies: " + trace::grouped(plan.host + plan.snapshot) + " bytes\n";
    auto const count = [](std::size_t number, std::string const& of) {
        return std::to_string(number) + " " + of + (number == 1 ? "" : "s");
    };
    return text + count(plan.devices.size(), "device") + ", " + count(programs.cells(), "cell") +
           ", M = " + std::to_string(programs.micro_batches()) + ", room for " +
           count(plan.capacity, "sample") + " in a micro-batch\n";
}

} // namespace gpipe
