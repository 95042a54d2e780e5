#pragma once

#include "support/options.hpp"

#include <gpipe/by_name.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

namespace support {

/// How the step of a Training whose policies are dynamic is cut up, as options of a program.
struct PipelineOptions {
    std::string cells = "2";
    std::uint64_t micro_batches = 8;
    std::string schedule{gpipe::schedule::GPipe::name};
    std::uint64_t per_device = 0;
    std::string checkpointing = "never";

    void declare(Options& options) {
        options.choice("cells", "devices; the layers are cut into a cell or several for each",
                       cells, {"1", "2", "4", "8"});
        options.number("micro-batches", "slice each mini-batch into n micro-batches", micro_batches,
                       1, 1024);
        options.name("schedule", "what each device does, in which order",
                     gpipe::schedule::schedules(), schedule);
        options.number("per-device", "cells of a device under schedules in loops; 0: 2", per_device,
                       0, gpipe::schedule::most_cells_per_device);
        options.name("checkpointing", "recompute activations in backward",
                     gpipe::checkpoint::policies(), checkpointing);
    }
    std::size_t devices() const { return std::stoul(cells); }
    /// Throws UsageError where it does not go with the cells, so many layers, and micro-batches.
    gpipe::schedule::Dynamic chosen_schedule(std::size_t layers) const {
        auto const chosen = gpipe::schedule::find_schedule(schedule, per_device ? per_device : 2);
        std::size_t const each = chosen.cells_per_device();
        std::size_t const least = chosen.least_micro_batches(devices());
        if (per_device != 0 && per_device != each)
            throw refusal("--per-device %zu is for schedules in loops; %s has %zu",
                          std::size_t{per_device}, schedule.c_str(), each);
        if (devices() * each > layers)
            throw refusal("--cells %zu and %zu per device make %zu cells, but there are %zu layers",
                          devices(), each, devices() * each, layers);
        if (micro_batches < least)
            throw refusal("%s needs at least %zu micro-batches for --cells %zu", schedule.c_str(),
                          least, devices());
        return chosen;
    }
    /// Writes what was chosen to the options of a Training of so many layers.
    template <class TrainingOptions>
    void choose(TrainingOptions& options, std::size_t layers) const {
        options.cells = devices();
        options.micro_batches = micro_batches;
        options.schedule = chosen_schedule(layers);
        options.checkpointing = gpipe::checkpoint::find_checkpointing(checkpointing);
    }

  private:
    static UsageError refusal(char const* words, auto... values) {
        char buffer[256];
        std::snprintf(buffer, sizeof buffer, words, values...);
        return UsageError(buffer);
    }
};

} // namespace support
