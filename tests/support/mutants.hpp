#pragma once

#include <support/executor.hpp>

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/catalogue.hpp>
#include <gpipe/schedule/verify.hpp>

#include <cstddef>
#include <string>
#include <vector>

namespace toy {

/// Programs that can be changed at any place.
struct Draft {
    explicit Draft(gpipe::Programs const& programs)
        : shape(programs), device(actions_of(programs)) {}

    gpipe::Programs programs() const { return with_actions(shape, device); }
    gpipe::Verdict verdict() const { return gpipe::verify(programs()); }
    Outcome execute() const {
        gpipe::Programs const plain = programs();
        return Executor(plain).run();
    }
    /// The same with the action at `from` of device d moved to `to`.
    Draft moved(std::size_t d, std::size_t from, std::size_t to) const {
        Draft result = *this;
        auto& actions = result.device[d];
        gpipe::Action const action = actions[from];
        actions.erase(actions.begin() + std::ptrdiff_t(from));
        actions.insert(actions.begin() + std::ptrdiff_t(to), action);
        return result;
    }

    gpipe::Programs shape; // without its actions
    std::vector<std::vector<gpipe::Action>> device;
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
inline std::string const forms[] = {"as they are", "with recomputes"};
template <class F> void each_form(gpipe::Programs const& programs, F f) {
    f(0, Draft(programs));
    f(1, Draft(gpipe::checkpoint::ExceptLast::lower(programs)));
}

} // namespace toy
