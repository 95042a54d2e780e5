#pragma once

#include <gpipe/core/checked.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/schedule/peak_bytes.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace gpipe::schedule {

/// What a schedule is looked for: a chain in equal shares, one per device, and the devices.
struct ScheduleProblem {
    std::size_t devices = 1;               ///< K
    std::size_t micro_batches = 1;         ///< M
    std::size_t most_cells_per_device = 1; ///< into how many cells a share can be cut; 8 at most

    /// Of a share and a micro-batch: time, and the bytes that go over a boundary. Where layers run
    /// backward as a whole, input_gradient is all of it and weight_gradient 0.
    CellCosts<double> share{};
    /// Between shares, from the last cell of one to the first of another. That their tensors are
    /// kept is part of activation_bytes.
    Array<SkipCosts<double>> skips{};
    double activation_bytes = 0; ///< what a share keeps of a micro-batch, without its cells' inputs
    double boundary_bytes = 0;   ///< a cell's input

    double bytes = unlimited<double>; ///< that every device has for all of this
    double latency = 0;               ///< of a transfer between devices, in the unit of the costs
    double bandwidth = unlimited<double>; ///< bytes per unit of time, each way between two devices
};

/// A schedule for the problem, with a checkpointing policy, and what it would take.
struct ScheduleChoice {
    Dynamic schedule;               ///< its name is schedule.name()
    std::string_view checkpointing; ///< name of the policy
    double makespan = 0;            ///< the time of a simulated step, in the unit of the costs
    double bubble = 0;              ///< idle share of device time
    Array<std::size_t> peaks;     ///< by device: micro-batches under way, each in one of its cells
    Array<double> bytes;          ///< by device, at the worst moment
    std::size_t worst_device = 0; ///< the first that needs the most bytes
    double short_by = 0;          ///< bytes that device would lack; 0: it fits
    double billionths = 0; ///< of the makespan with a bubble of 0 or, if that takes no time, of a
                           ///< transfer or the recomputes, rounded: shorter differences are no
                           ///< reason to choose

    /// Whether every device keeps to the cap.
    constexpr bool fits() const { return short_by == 0; }
    /// Of the device that needs the most.
    constexpr double most_bytes() const { return bytes[worst_device]; }
};

/// The choices, best first.
struct BestSchedule {
    Array<ScheduleChoice> ranked; ///< all that were tried, the best first

    /// Whether any fits.
    constexpr explicit operator bool() const { return best().fits(); }
    /// The fastest that fits; if none does, the one that is least short of bytes.
    constexpr ScheduleChoice const& best() const { return ranked[0]; }
};

namespace detail {

// A checkpointing policy, as a value.
struct NamedPass {
    std::string_view name;
    Programs (*lower)(Programs const&);
};

struct EqualCells : CellCosts<double> {
    Array<SkipCosts<double>> skips;
};

// Less bytes where neither time nor what is missing tells them apart.
GPIPE_INLINE constexpr bool better(ScheduleChoice const& a, ScheduleChoice const& b) {
    if (a.fits() != b.fits()) return a.fits();
    if (a.fits() && a.billionths != b.billionths) return a.billionths < b.billionths;
    if (a.most_bytes() != b.most_bytes()) return a.most_bytes() < b.most_bytes();
    return a.billionths < b.billionths;
}

// The makespan with a bubble of 0; if that takes no time, the longest transfer, or else what
// recomputes take.
GPIPE_INLINE constexpr double unit_of_time(ScheduleProblem const& problem) {
    CellCosts<double> const& share = problem.share;
    double const halves = share.input_gradient + share.weight_gradient;
    double const backward = std::max(halves, share.backward.value_or(0));
    auto const micro_batches = static_cast<double>(problem.micro_batches);
    double bytes = std::max(share.output_bytes, share.gradient_bytes);
    for (SkipCosts<double> const& skip : problem.skips)
        bytes = std::max({bytes, skip.output_bytes, skip.gradient_bytes});
    double const work = micro_batches * (share.forward + backward);
    double const transfer = problem.latency + bytes / problem.bandwidth;
    if (work > 0) return work;
    return transfer > 0 ? transfer : micro_batches * share.recompute;
}

GPIPE_INLINE constexpr ScheduleChoice weigh(ScheduleProblem const& problem, Dynamic const& schedule,
                                            NamedPass const& pass) {
    auto const cells = static_cast<double>(schedule.cells_per_device());
    CellCosts<double> cell = problem.share;
    cell.forward /= cells;
    cell.recompute /= cells;
    cell.input_gradient /= cells;
    cell.weight_gradient /= cells;
    if (cell.backward) *cell.backward /= cells;
    EqualCells costs{cell, problem.skips};
    for (SkipCosts<double>& skip : costs.skips) {
        skip.from = (skip.from + 1) * schedule.cells_per_device() - 1;
        skip.to *= schedule.cells_per_device();
    }

    Programs const programs = pass.lower(schedule.programs(problem.devices, problem.micro_batches));
    auto const times = simulate<double>(programs, costs, problem.latency, problem.bandwidth);
    ScheduleChoice choice{
        schedule,
        pass.name,
        times.makespan,
        gpipe::bubble(times, problem.devices),
        Array<std::size_t>(problem.devices),
        peak_bytes(programs, {problem.activation_bytes / cells, problem.boundary_bytes})};
    for (std::size_t d = 0; d < problem.devices; ++d) {
        choice.peaks[d] = peak_micro_batches(programs, d);
        if (choice.bytes[choice.worst_device] < choice.bytes[d]) choice.worst_device = d;
    }
    if (choice.most_bytes() > problem.bytes) choice.short_by = choice.most_bytes() - problem.bytes;
    double const unit = unit_of_time(problem);
    if (unit > 0) choice.billionths = times.makespan / unit * 1e9;
    if (choice.billionths < 1e15) // beyond that nearly all are whole
        choice.billionths = static_cast<double>(static_cast<std::int64_t>(choice.billionths + 0.5));
    return choice;
}

GPIPE_INLINE constexpr void check_problem(ScheduleProblem const& problem) {
    if (problem.devices == 0 || problem.micro_batches == 0)
        throw std::invalid_argument("gpipe: a schedule needs a device and a micro-batch");
    if (problem.most_cells_per_device < 1 || problem.most_cells_per_device > most_cells_per_device)
        throw std::invalid_argument(
            "gpipe: the catalogue has schedules for 1 to 8 cells per device");
    std::size_t const cells = checked_product(problem.devices, problem.most_cells_per_device);
    if (checked_product(problem.micro_batches, cells) > most_forwards)
        gpipe::detail::throw_error<std::invalid_argument>(
            "gpipe: %zu micro-batches of %zu cells are more than the %zu forwards that programs "
            "can hold",
            problem.micro_batches, cells, most_forwards);
    auto const check = [](double number) {
        if (!(number >= 0 && number < unlimited<double>))
            throw std::invalid_argument("gpipe: a schedule is chosen by times and bytes that are "
                                        "finite, and not negative");
    };
    CellCosts<double> const& share = problem.share;
    for (double const number :
         {share.forward, share.recompute, share.input_gradient, share.weight_gradient,
          share.backward.value_or(0), share.output_bytes, share.gradient_bytes,
          problem.activation_bytes, problem.boundary_bytes, problem.latency})
        check(number);
    for (SkipCosts<double> const& skip : problem.skips) {
        if (skip.from >= skip.to || skip.to >= problem.devices)
            throw std::invalid_argument("gpipe: a skip leads from a share to a later one");
        check(skip.output_bytes);
        check(skip.gradient_bytes);
    }
    if (!(problem.bandwidth > 0 && problem.bytes >= 0))
        throw std::invalid_argument("gpipe: a bandwidth between devices is positive, and the bytes "
                                    "that a device has are not negative");
}

} // namespace detail

/// Simulates every schedule of the catalogue with every one of the checkpointing policies and ranks
/// them: those that fit the devices' bytes by time, where that is equal by bytes; then the others
/// by bytes. A share is cut into equal cells, boundaries are the same everywhere. E.g.
///
///     auto const found = best_schedule({.devices = 4, .micro_batches = 16, ...},
///                                      checkpoint::Never{}, checkpoint::ExceptLast{});
///     if (found) std::cout << found.best().schedule.name();
///
/// Throws std::invalid_argument if there is no device or no micro-batch, or there are more than
/// programs can hold, if the most cells per device are not 1 to 8, if a skip does not lead from a
/// share to a later one, or where a time, a bandwidth or a number of bytes cannot be one.
template <class... Passes>
    requires(sizeof...(Passes) > 0)
constexpr BestSchedule best_schedule(ScheduleProblem const& problem, Passes...) {
    detail::check_problem(problem);
    detail::NamedPass const passes[] = {{Passes::name, &Passes::lower}...};

    std::size_t const all = problem.most_cells_per_device * catalogue(1).size() * sizeof...(Passes);
    Array<ScheduleChoice> choices(all);
    std::size_t count = 0;
    for (std::size_t v = 1; v <= problem.most_cells_per_device; ++v)
        for (Dynamic const& schedule : catalogue(v)) {
            if (schedule.cells_per_device() != v) continue;
            if (problem.micro_batches < schedule.least_micro_batches(problem.devices)) continue;
            for (detail::NamedPass const& pass : passes) {
                choices[count] = detail::weigh(problem, schedule, pass);
                // Behind all that are no worse: the catalogue's order decides what is left.
                for (std::size_t c = count++; c > 0; --c) {
                    if (!detail::better(choices[c], choices[c - 1])) break;
                    std::swap(choices[c], choices[c - 1]);
                }
            }
        }
    BestSchedule result{Array<ScheduleChoice>(count)};
    for (std::size_t c = 0; c < count; ++c) result.ranked[c] = std::move(choices[c]);
    return result;
}

/// What to say where nothing fits: which schedule needs least, on which device, and how many bytes
/// are missing. Empty if something fits.
GPIPE_INLINE std::string shortage(BestSchedule const& found) {
    if (found) return {};
    ScheduleChoice const& least = found.best();
    auto const whole = [](double bytes) {
        std::string const digits = std::to_string(bytes + 0.5);
        return digits.substr(0, digits.find('.'));
    };
    return "gpipe: no schedule fits: device " + std::to_string(least.worst_device) + " needs " +
           whole(least.most_bytes()) + " bytes with " + std::string(least.schedule.name()) +
           " and checkpointing " + std::string(least.checkpointing) +
           ", the least of all, and is " + whole(least.short_by) + " short";
}

} // namespace gpipe::schedule
