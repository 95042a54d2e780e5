#pragma once

#include "lowered.hpp"
#include "schedules.hpp"

#include <gpipe/checkpoint/checkpointing.hpp>
#include <gpipe/schedule/fill_drain.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

// Programs and links for tests of what crosses between devices that share no memory.
namespace toy {

/// Cells on devices by chance.
struct Scattered {
    using policy_kind = gpipe::policy::Schedule;
    static gpipe::Programs programs(std::size_t cells, std::size_t micro_batches) {
        std::mt19937_64 random(chance);
        std::size_t const devices = 1 + random() % cells;
        gpipe::Programs result(devices, cells, micro_batches, 2 * cells * micro_batches);
        for (std::size_t c = 0; c < cells; ++c) result.place(c, random() % devices);
        return forth_and_back(result);
    }
};

/// Every checkpointing policy that runs whole cells again, or none.
inline constexpr gpipe::Programs (*lowerings[])(gpipe::Programs const&) = {
    &gpipe::checkpoint::Never::lower, &gpipe::checkpoint::ExceptLast::lower,
    &gpipe::checkpoint::Always::lower};

/// Every schedule for so many cells, those by chance twice, under every checkpointing policy.
template <class F> void each_lowering(std::size_t cells, std::size_t micro_batches, F f) {
    std::vector<gpipe::Programs> all{
        gpipe::schedule::GPipe::programs(cells, micro_batches),
        gpipe::schedule::GPipeAscending::programs(cells, micro_batches),
        OneForwardOneBackward::programs(cells, micro_batches),
        OneByOne::programs(cells, micro_batches), Dealt::programs(cells, micro_batches)};
    for (int more = 0; more < 2; ++more) {
        ++chance;
        all.push_back(ByChance::programs(cells, micro_batches));
        all.push_back(Scattered::programs(cells, micro_batches));
    }
    for (gpipe::Programs const& schedule : all)
        for (auto const lower : lowerings) f(lower(schedule));
}

/// Any order that is possible at all: a walk by chance in which each backward is whole with
/// `percent_whole`, else in halves. The cells are where they are in `placed`.
inline gpipe::Programs mixed_by_chance(gpipe::Programs const& placed, int percent_whole,
                                       std::mt19937_64& random) {
    using gpipe::Kind;
    std::size_t const devices = placed.devices();
    std::size_t const cells = placed.cells();
    std::size_t const micro_batches = placed.micro_batches();
    std::size_t const pairs = cells * micro_batches;
    gpipe::Programs result(devices, cells, micro_batches, 3 * pairs);
    for (std::size_t c = 0; c < cells; ++c) result.place(c, placed.device_of(c));
    // What comes next for each pair; `reduce` where nothing does.
    std::vector<Kind> next(pairs, Kind::forward);
    auto const needs_no_more = [&](std::size_t c, std::size_t m) {
        Kind const kind = next[c * micro_batches + m];
        if (kind == Kind::forward)
            return c == 0 || next[(c - 1) * micro_batches + m] != Kind::forward;
        if (kind == Kind::weight_gradient || c + 1 == cells) return true;
        Kind const behind = next[(c + 1) * micro_batches + m];
        return behind == Kind::weight_gradient || behind == Kind::reduce;
    };
    std::vector<std::vector<gpipe::Action>> written(devices);
    for (;;) {
        std::vector<std::pair<std::size_t, std::size_t>> possible;
        for (std::size_t c = 0; c < cells; ++c)
            for (std::size_t m = 0; m < micro_batches; ++m)
                if (next[c * micro_batches + m] != Kind::reduce && needs_no_more(c, m))
                    possible.push_back({c, m});
        if (possible.empty()) break;
        auto const [c, m] = possible[random() % possible.size()];
        Kind& kind = next[c * micro_batches + m];
        written[result.device_of(c)].push_back(
            {kind, static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(m)});
        bool const whole = static_cast<int>(random() % 100) < percent_whole;
        kind = kind == Kind::forward          ? whole ? Kind::backward : Kind::input_gradient
               : kind == Kind::input_gradient ? Kind::weight_gradient
                                              : Kind::reduce;
    }
    for (auto const& program : written) {
        for (gpipe::Action const& action : program) result.add(action);
        result.next_device();
    }
    return result;
}

/// The same with cells on devices by chance.
inline gpipe::Programs mixed_by_chance(std::size_t cells, std::size_t micro_batches,
                                       int percent_whole, std::mt19937_64& random) {
    std::size_t const devices = 1 + random() % cells;
    gpipe::Programs placed(devices, cells, micro_batches, 0);
    for (std::size_t c = 0; c < cells; ++c) placed.place(c, random() % devices);
    return mixed_by_chance(placed, percent_whole, random);
}

/// The same link at every boundary between two devices.
inline gpipe::Array<gpipe::Link> same_links(gpipe::Programs const& programs, gpipe::Link link) {
    gpipe::Array<gpipe::Link> links(programs.cells());
    for (std::size_t c = 1; c < links.size(); ++c)
        if (programs.device_of(c - 1) != programs.device_of(c)) links[c] = link;
    return links;
}
/// Any link at any of them.
inline gpipe::Array<gpipe::Link> mixed_links(gpipe::Programs const& programs,
                                             std::mt19937_64& random) {
    auto links = same_links(programs, gpipe::Link::copied);
    for (gpipe::Link& link : links)
        if (link != gpipe::Link::shared) link = static_cast<gpipe::Link>(random() % 3);
    return links;
}
/// Gradients from cell `lowest` on, and none to the first cell.
inline gpipe::Array<bool> crossing_from(std::size_t lowest, std::size_t cells) {
    gpipe::Array<bool> crosses(cells);
    for (std::size_t c = 1; c < cells; ++c) crosses[c] = c >= lowest;
    return crosses;
}

/// Programs whose neighbouring cells are linked so, `links[c]` and `crosses[c]` of the boundary
/// before cell c.
inline gpipe::Lowered lower(gpipe::Programs const& programs, gpipe::Array<gpipe::Link> const& links,
                            gpipe::Array<bool> const& crosses) {
    gpipe::Edges edges = neighbours(programs.cells());
    for (std::size_t c = 1; c < programs.cells(); ++c) {
        edges[c - 1].link = links[c];
        edges[c - 1].gradient = crosses[c];
    }
    return lower(programs, edges);
}

/// The same needs and one more.
inline gpipe::Needs with_need(gpipe::Needs const& needs, std::size_t action, std::size_t needed) {
    gpipe::Needs result(needs.size(), needs.count() + 1);
    for (std::size_t i = 0; i < needs.size(); ++i) {
        std::vector<std::uint32_t> all(needs[i].begin(), needs[i].end());
        if (i == action) all.push_back(static_cast<std::uint32_t>(needed));
        result.set(i, {all.data(), all.size()});
    }
    return result;
}

} // namespace toy
