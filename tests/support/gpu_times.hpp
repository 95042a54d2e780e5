#pragma once

// How long steps on the double of CUDA take, by what streams and events have them wait for.

#include "cuda_double/cuda_double.hpp"

#include <gpipe/plan/lowered.hpp>
#include <gpipe/schedule/action.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace toy {

/// Of a micro-batch: by that what moves of one is known.
inline constexpr std::size_t timed_samples = 13;

/// What calls of layers and copies take, in whole numbers, so that sums are exact.
struct Takes {
    bool alike = false; ///< all layers
    double between = 0; ///< a cell's output, or a gradient, from GPU to GPU
    double host = 0;    ///< what is offloaded, or comes back; the mini-batch itself takes none
    double others = 0;  ///< further copies from GPU to GPU: of replicas, and of ends of ties

    double operator()(cuda_double::Piece const& piece) const {
        if (!piece.name.empty()) return of_kernel(piece.name);
        if (piece.from == piece.to) return 0;
        bool const on_gpus = piece.from >= 0 && piece.to >= 0;
        std::size_t const row = timed_samples * sizeof(float);
        if (on_gpus) return piece.bytes % row == 0 ? between : others;
        // The mini-batch has an odd number of rows, where M is odd; what a step is told is little.
        bool const staged = piece.bytes % row == 0 && piece.bytes / row % 2 == 1;
        return staged || piece.bytes < 4 * row ? 0 : host;
    }

  private:
    double of_kernel(std::string_view name) const {
        std::size_t const at = name.find(" of layer ");
        if (at == std::string_view::npos) return 0;
        std::string_view const what = name.substr(0, at);
        std::size_t const layer = std::stoul(std::string(name.substr(at + 10)));
        double const base = alike ? 4 : static_cast<double>(1 + layer * 5 % 7);
        return what == "forward"           ? base
               : what == "input gradient"  ? base + 1
               : what == "weight gradient" ? base + 2
               : what == "backward"        ? 2 * base + 3
                                           : 0;
    }
};

/// What an action puts on its stream takes so long.
class Durations {
  public:
    void add(gpipe::Action const& a, double time) { times_[key(a)] += time; }
    double operator()(gpipe::Action const& a) const {
        auto const found = times_.find(key(a));
        return found == times_.end() ? 0 : found->second;
    }

    /// Of all that are of this kind.
    double of(gpipe::Kind kind) const {
        double sum = 0;
        for (auto const& [action, time] : times_)
            if (std::get<0>(action) == kind) sum += time;
        return sum;
    }

  private:
    using Key = std::tuple<gpipe::Kind, std::uint32_t, std::uint32_t, std::uint32_t>;
    static Key key(gpipe::Action const& a) {
        return {a.kind, a.cell, a.micro_batch, gpipe::is_transfer(a.kind) ? a.edge : 0};
    }
    std::map<Key, double> times_;
};

/// The end of so many steps in which each action waits for its needs, and for those before it on
/// its stream, in the step before, too.
inline double repeated(gpipe::Lowered const& lowered, Durations const& durations,
                       std::size_t steps) {
    std::vector<double> stream(lowered.streams()), end(lowered.programs.size());
    std::vector<std::size_t> stream_of(end.size());
    for (std::size_t s = 0; s < stream.size(); ++s)
        std::fill(stream_of.begin() + static_cast<std::ptrdiff_t>(lowered.programs.begin(s)),
                  stream_of.begin() + static_cast<std::ptrdiff_t>(lowered.programs.end(s)), s);
    for (std::size_t n = 0; n < steps; ++n)
        for (std::uint32_t const i : lowered.order) {
            double& now = stream[stream_of[i]];
            for (std::size_t const need : lowered.needs[i]) now = std::max(now, end[need]);
            end[i] = now += durations(lowered.programs[i]);
        }
    return *std::max_element(stream.begin(), stream.end());
}

} // namespace toy
