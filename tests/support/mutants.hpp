#pragma once

#include <support/executor.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/catalogue.hpp>
#include <gpipe/schedule/verify_messages.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace toy {

/// Programs that can be changed at any place, with or without messages.
struct Draft {
    struct Step {
        gpipe::Action action;
        std::uint32_t slot = 0;
    };

    explicit Draft(gpipe::Programs const& programs) : shape(programs), device(programs.devices()) {
        for (std::size_t d = 0; d < programs.devices(); ++d)
            for (gpipe::Action const& a : programs.program(d)) device[d].push_back({a});
    }
    Draft(gpipe::MessagePrograms const& lowered, std::vector<bool> crossing)
        : Draft(lowered.programs) {
        messages = true;
        crosses = std::move(crossing);
        input_slots.assign(lowered.input_slots.begin(), lowered.input_slots.end());
        gradient_slots.assign(lowered.gradient_slots.begin(), lowered.gradient_slots.end());
        for (std::size_t d = 0; d < device.size(); ++d)
            for (std::size_t i = 0; i < device[d].size(); ++i)
                device[d][i].slot = lowered.slot[lowered.programs.begin(d) + i];
    }

    gpipe::Programs programs() const {
        std::vector<std::vector<gpipe::Action>> actions(device.size());
        for (std::size_t d = 0; d < device.size(); ++d)
            for (Step const& step : device[d]) actions[d].push_back(step.action);
        return with_actions(shape, actions);
    }
    gpipe::MessagePrograms message_programs() const {
        gpipe::MessagePrograms result{
            programs(), {}, array_of(input_slots), array_of(gradient_slots)};
        std::vector<std::uint32_t> slots;
        for (auto const& steps : device)
            for (Step const& step : steps) slots.push_back(step.slot);
        result.slot = array_of(slots);
        return result;
    }
    gpipe::Verdict verdict() const {
        if (!messages) return gpipe::verify(programs());
        gpipe::Array<bool> crossing(crosses.size());
        for (std::size_t c = 0; c < crosses.size(); ++c) crossing[c] = crosses[c];
        return gpipe::verify(message_programs(), crossing);
    }
    Outcome execute() const {
        if (messages) {
            gpipe::MessagePrograms const lowered = message_programs();
            return Executor(lowered, crosses).run();
        }
        gpipe::Programs const plain = programs();
        return Executor(plain).run();
    }
    /// The same with the step at `from` of device d moved to `to`.
    Draft moved(std::size_t d, std::size_t from, std::size_t to) const {
        Draft result = *this;
        auto& steps = result.device[d];
        Step const step = steps[from];
        steps.erase(steps.begin() + std::ptrdiff_t(from));
        steps.insert(steps.begin() + std::ptrdiff_t(to), step);
        return result;
    }

    gpipe::Programs shape; // without its actions
    bool messages = false;
    std::vector<bool> crosses;
    std::vector<std::vector<Step>> device;
    std::vector<std::uint32_t> input_slots;
    std::vector<std::uint32_t> gradient_slots;

  private:
    static gpipe::Array<std::uint32_t> array_of(std::vector<std::uint32_t> const& values) {
        gpipe::Array<std::uint32_t> result(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) result[i] = values[i];
        return result;
    }
};

/// Calls f(schedule, K, M) for every schedule of up to most_v cells per device, and all numbers of
/// devices and micro-batches that it has programs for.
template <class F>
void each_schedule(std::size_t most_k, std::size_t most_m, std::size_t most_v, F f) {
    for (std::size_t v = 1; v <= most_v; ++v) {
        auto const all = gpipe::schedule::catalogue(v);
        for (std::size_t s = 0; s < all.size(); ++s) {
            // Only the last two, those in loops, are others for every v.
            if (all[s].cells_per_device() > most_v || (v > 1 && s + 2 < all.size())) continue;
            for (std::size_t k = 1; k <= most_k; ++k)
                for (std::size_t m = all[s].least_micro_batches(k); m <= most_m; ++m)
                    f(all[s], k, m);
        }
    }
}

/// The forms that a schedule's programs take: calls f(index of the form, draft) for each.
inline std::string const forms[] = {"as they are", "with recomputes", "with messages",
                                    "with recomputes and messages"};
template <class F> void each_form(gpipe::Programs const& programs, F f) {
    auto const recomputing = gpipe::checkpoint::ExceptLast::lower(programs);
    std::vector<bool> const crosses(programs.cells(), true);
    f(0, Draft(programs));
    f(1, Draft(recomputing));
    f(2, Draft(gpipe::with_messages(programs), crosses));
    f(3, Draft(gpipe::with_messages(recomputing), crosses));
}

} // namespace toy
