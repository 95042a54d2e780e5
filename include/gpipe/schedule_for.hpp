#pragma once

#include <gpipe/checkpoint/offload.hpp>
#include <gpipe/core/finite.hpp>
#include <gpipe/memory/offload_times.hpp>
#include <gpipe/plan/edge_costs.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/schedule/simulate.hpp>
#include <gpipe/training.hpp>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gpipe {

/// What best_schedule_for() is asked beside the training's options. Times are in the unit of the
/// layers' costs, or of `times`.
struct ScheduleSearch {
    /// That each device has in all. Beyond it nothing is chosen.
    std::size_t bytes = std::numeric_limits<std::size_t>::max();
    std::size_t most_cells_per_device = 2; ///< 1 to 8
    /// Of a transfer between devices, and bytes per unit of time, each way between two of them.
    ///@{
    double latency = 0;
    double bandwidth = unlimited<double>;
    ///@}
    /// Of copies to the host's memory and back, see Budget::bandwidth; 0: nothing is offloaded.
    double host_bandwidth = 0;
    /// What layers take for a micro-batch, e.g. Profile::times(); null: what they declare for a
    /// sample, which is also what checkpoint::Optimal goes by in any case.
    LayerTimes const* times = nullptr;
};

/// A schedule and a checkpointing policy, and what a step would take with both.
struct FoundSchedule {
    schedule::Dynamic schedule;        ///< its name is schedule.name()
    checkpoint::Dynamic checkpointing; ///< likewise
    double makespan = 0;               ///< the time of a simulated step
    double bubble = 0;                 ///< idle share of device time
    Array<std::size_t> bytes{};        ///< by device: all that it has
    bool fits = false;                 ///< whether that is within the bytes of the search

    /// Of the device that has the most.
    std::size_t most_bytes() const { return *std::max_element(bytes.begin(), bytes.end()); }
    /// "OneForwardOneBackward, 2 cells per device, except-last".
    std::string name() const {
        std::string name(schedule.name());
        if (schedule.cells_per_device() > 1)
            name += ", " + std::to_string(schedule.cells_per_device()) + " cells per device";
        return name + ", " + std::string(checkpointing.name());
    }
    /// Chooses both.
    template <class Options> void apply(Options& options) const {
        options.schedule = schedule;
        options.checkpointing = checkpointing;
    }
};

/// All that were planned, the best first.
struct FoundSchedules {
    std::vector<FoundSchedule> ranked; ///< those that fit by time, then the others by bytes
    std::string shortage;              ///< if none fits: what is missing, in words

    /// Whether any fits.
    explicit operator bool() const { return best().fits; }
    /// The fastest that fits; if none does, the one that takes the fewest bytes.
    FoundSchedule const& best() const { return ranked.front(); }
};

/// That a training leaves open what is to be chosen, and is of one rank.
template <class Schedule, class Checkpointing, class Device> struct CheckOpen {
    static consteval bool ok() {
        constexpr bool open = std::is_same_v<Schedule, schedule::Dynamic> &&
                              std::is_same_v<Checkpointing, checkpoint::Dynamic>;
        static_assert(open, "gpipe: best_schedule_for<Train>() chooses a schedule and a "
                            "checkpointing policy: among the policies of Train stand "
                            "gpipe::schedule::Dynamic and gpipe::checkpoint::Dynamic");
        static_assert(!open || !joins_ranks<Device>,
                      "gpipe: schedules are chosen for the devices of one rank: ask of the same "
                      "training over transport::Local and without Replicas");
        return open && !joins_ranks<Device>;
    }
};

namespace detail {

// Plans trainings with one schedule and policy after the other, and keeps what they come to.
template <class Net, class... Policies> class ScheduleFinder {
    using Chosen = ChosenPolicies<Net, Policies...>;
    using Device = typename Chosen::Device;

  public:
    using Options = TrainingOptions<typename Chosen::Joins>;
    using Loss = typename Chosen::LossFunctor;
    using Optimizer = typename Chosen::OptimizerFunctor;

    ScheduleFinder(Net const& net, Loss const& loss, Optimizer const& optimizer,
                   Options const& options, ScheduleSearch const& search)
        : net_(net), loss_(loss), optimizer_(optimizer), options_(options), search_(search) {
        if (search.most_cells_per_device < 1 ||
            search.most_cells_per_device > schedule::most_cells_per_device)
            throw std::invalid_argument(
                "gpipe: the catalogue has schedules for 1 to 8 cells per device");
        if (!(is_finite(search.latency) && search.latency >= 0 && search.bandwidth > 0 &&
              search.host_bandwidth >= 0))
            throw std::invalid_argument("gpipe: a latency is finite and not negative, and a "
                                        "bandwidth is positive");
    }

    FoundSchedules find() {
        for (std::size_t v = 1; v <= search_.most_cells_per_device; ++v)
            for (schedule::Dynamic const& schedule : schedule::catalogue(v))
                if (schedule.cells_per_device() == v) look_at(schedule);
        if (found_.empty()) std::rethrow_exception(refused_);
        std::stable_sort(found_.begin(), found_.end(), is_better);
        FoundSchedules result{std::move(found_), {}};
        FoundSchedule const& best = result.best();
        if (best.fits) return result;
        if (best.most_bytes() < least_) {
            least_ = best.most_bytes();
            leanest_ = best.name();
        }
        result.shortage = "gpipe: no schedule fits into " + std::to_string(search_.bytes) +
                          " bytes for each device: the least, with " + leanest_ + ", is " +
                          std::to_string(least_);
        return result;
    }

  private:
    static bool is_better(FoundSchedule const& a, FoundSchedule const& b) {
        if (a.fits != b.fits) return a.fits;
        if (a.fits && is_faster(a.makespan, b.makespan)) return true;
        if (a.fits && is_faster(b.makespan, a.makespan)) return false;
        return a.most_bytes() < b.most_bytes();
    }
    // By more than what sums of the same numbers in another order differ by.
    static bool is_faster(double a, double b) { return a < b * (1 - 1e-9); }

    void look_at(schedule::Dynamic const& schedule) {
        FoundSchedule const* const whole = add(schedule, checkpoint::Never{});
        if (!whole || whole->fits) return;
        double const again = least_step(search_.latency, search_.bandwidth);
        double const offloaded = least_step(0, unlimited<double>); // then transfers take no time
        checkpoint::Optimal<> optimal;
        optimal.bytes = search_.bytes;
        if (could_be_best(again)) {
            add(schedule, checkpoint::ExceptLast{});
            add(schedule, optimal);
        }
        if (search_.host_bandwidth == 0 || !could_be_best(offloaded)) return;
        optimal.bandwidth = search_.host_bandwidth;
        add(schedule, checkpoint::Offload<checkpoint::Optimal<>>{optimal});
    }
    // What a step of what was weighed last takes at least, whatever runs again: for that the last
    // cell may run its forwards later, and gradients come sooner.
    double least_step(double latency, double bandwidth) const {
        ChainCosts<double> costs = costs_;
        for (CellCosts<double>& cell : costs.cells) cell.recompute = 0;
        auto const step = [&](Programs const& programs) {
            return simulate<double>(programs, costs, latency, bandwidth).makespan;
        };
        return std::min(step(programs_), step(checkpoint::ExceptLast::lower(programs_)));
    }
    bool could_be_best(double makespan) const {
        for (FoundSchedule const& one : found_)
            if (one.fits && !is_faster(makespan, one.makespan)) return false;
        return true;
    }
    // Null where the options do not go with it, or a budget does not do.
    FoundSchedule const* add(schedule::Dynamic const& schedule,
                             checkpoint::Dynamic const& checkpointing) {
        Options options = options_;
        options.schedule = schedule;
        options.checkpointing = checkpointing;
        try {
            MachineWork work;
            make_work<Chosen>(work, net_, loss_, optimizer_, {}, options, options.device);
            Device const device(options.device, work.programs.devices());
            MachinePlan<Device> const planned(device, std::move(work));
            FoundSchedule one{schedule, checkpointing};
            weigh(one, planned);
            found_.push_back(std::move(one));
            return &found_.back();
        } catch (BudgetTooSmall const& error) {
            if (error.least_bytes() < least_) {
                least_ = error.least_bytes();
                leanest_ = FoundSchedule{schedule, checkpointing}.name();
            }
        } catch (std::invalid_argument const&) {
            if (!refused_) refused_ = std::current_exception();
        }
        return nullptr;
    }
    void weigh(FoundSchedule& one, MachinePlan<Device> const& planned) {
        MemoryPlan const& plan = planned.plan;
        ChainCosts<double> const costs = with_edges(
            search_.times ? reversed_costs(*search_.times, planned.chain(), planned.reversals)
                          : planned.cost,
            plan.lowered.edges);
        bool offloads = false;
        for (Reversal const& reversal : planned.reversals) offloads |= reversal.offload;
        auto const times =
            offloads
                ? simulate<double>(plan.lowered, OffloadCosts{plan, costs, search_.host_bandwidth})
                : simulate<double>(planned.programs, costs, search_.latency, search_.bandwidth);
        programs_ = planned.programs;
        costs_ = costs;
        one.makespan = times.makespan;
        one.bubble = gpipe::bubble(times, planned.programs.devices());
        one.bytes = Array<std::size_t>(plan.devices.size());
        for (std::size_t d = 0; d < one.bytes.size(); ++d) one.bytes[d] = plan.devices[d].total();
        one.fits = one.most_bytes() <= search_.bytes;
    }

    Net const& net_;
    Loss const& loss_;
    Optimizer const& optimizer_;
    Options const& options_;
    ScheduleSearch const& search_;
    std::vector<FoundSchedule> found_;
    std::exception_ptr refused_; // with one cell per device: later ones are for another reason
    std::size_t least_ = std::numeric_limits<std::size_t>::max(); // of budgets that are too small
    std::string leanest_;                                         // with what that is
    Programs programs_;                                           // of what was weighed last
    ChainCosts<double> costs_;
};

// That a plan is for: of several to be chosen from the one that takes most.
template <class Optimizer> Optimizer any_optimizer() {
    Optimizer optimizer{};
    if constexpr (requires { optimizer.choose_most(); }) optimizer.choose_most();
    return optimizer;
}

template <class Train> struct PartsOf;
template <class Chain, class... Policies> struct PartsOf<Training<Chain, Policies...>> {
    using Chosen = ChosenPolicies<Chain, Policies...>;
    using Net = Chain;
    using Loss = typename Chosen::LossFunctor;
    using Optimizer = typename Chosen::OptimizerFunctor;

    static FoundSchedules find(Net const& net, Loss const& loss, Optimizer const& optimizer,
                               auto const& options, ScheduleSearch const& search) {
        if constexpr (CheckOpen<typename Chosen::Schedule, typename Chosen::Checkpointing,
                                typename Chosen::Device>::ok())
            return ScheduleFinder<Chain, Policies...>(net, loss, optimizer, options, search).find();
        else
            return {};
    }
};

} // namespace detail

/// The fastest schedule and checkpointing policy with which each device of a Train, of one rank and
/// without Replicas, fits into its bytes. Every schedule of the catalogue that the options leave
/// room for is planned as a Train's constructor would (cells, bytes, what copies take; nothing is
/// allocated, no layer is called), and a step simulated: with everything kept, and, if that does
/// not fit but could be the fastest, with checkpoint::ExceptLast, with checkpoint::Optimal for
/// those bytes, and where there is a host bandwidth with what that offloads. E.g.
///
///     using Train = Training<Net, Cells<dynamic>, MicroBatches<dynamic>, schedule::Dynamic,
///                            checkpoint::Dynamic, ...>;
///     Train::Options options{.samples = 64, .cells = 4, .micro_batches = 16};
///     auto const found = best_schedule_for<Train>(options, {.bytes = 16ull << 30});
///     if (found) found.best().apply(options);
///
/// Steps of GPipe add gradients up in descending order of micro-batches, all others in ascending:
/// what a training computes may differ in its last bits by what is chosen. Where copies to the host
/// take time, those between devices take none. An optimizer that is not given is planned with the
/// most state that it may have: SGD with momentum, say. Throws std::invalid_argument for options
/// that fit no schedule, and for numbers of the search that are none.
template <class Train>
FoundSchedules
best_schedule_for(typename Train::Options const& options, ScheduleSearch const& search = {},
                  typename detail::PartsOf<Train>::Net const& net = {},
                  typename detail::PartsOf<Train>::Loss const& loss = {},
                  typename detail::PartsOf<Train>::Optimizer const& optimizer =
                      detail::any_optimizer<typename detail::PartsOf<Train>::Optimizer>()) {
    return detail::PartsOf<Train>::find(net, loss, optimizer, options, search);
}

} // namespace gpipe
