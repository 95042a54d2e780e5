#pragma once

#include <gpipe/checkpoint/budget.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/runtime/choices.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/search/fit_budget.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpipe {

/// The samples of a micro-batch that reversals are chosen for. Throws std::invalid_argument if the
/// budget is for fewer than there are.
GPIPE_INLINE std::size_t checked_capacity(Budget const& budget, std::size_t samples) {
    if (budget.samples == dynamic) return samples;
    if (samples > budget.samples)
        detail::throw_error<std::invalid_argument>(
            "gpipe: micro-batches of %zu samples, but the bytes of checkpoint::Optimal are for "
            "%zu at the most",
            samples, budget.samples);
    return budget.samples;
}

/// A device does not fit into the bytes of a checkpoint::Optimal, however often layers run again.
class BudgetTooSmall : public std::invalid_argument {
  public:
    /// See these.
    BudgetTooSmall(std::string const& sentence, std::size_t device, std::size_t least_bytes)
        : std::invalid_argument(sentence), device_(device), least_bytes_(least_bytes) {}
    /// The one that lacks the most.
    std::size_t device() const noexcept { return device_; }
    /// With which each device would fit.
    std::size_t least_bytes() const noexcept { return least_bytes_; }

  private:
    std::size_t device_;
    std::size_t least_bytes_;
};

/// Reversals within a budget, proven. Throws BudgetTooSmall.
GPIPE_INLINE Checkpointed fitted_programs(BudgetProblem const& problem, Budget const& budget) {
    BudgetFit fit = fit_budget(problem, budget.bytes);
    if (!fit.fits) {
        detail::Message const sentence(
            "gpipe: checkpoint::Optimal has %zu bytes for each device, but however often layers "
            "run again device %zu does not fit into less than %zu, for micro-batches of %zu "
            "samples",
            budget.bytes, fit.device, fit.least_bytes, problem.capacity);
        throw BudgetTooSmall(sentence.text, fit.device, fit.least_bytes);
    }
    Checkpointed result{std::move(fit.programs), std::move(fit.reversals), {}};
    Programs const& schedule = problem.schedule;
    prove(result, problem.cut_chain(), schedule.devices(), schedule.cells(),
          schedule.micro_batches());
    return result;
}

/// What a Machine is to run: a model, cut, and programs with recomputes, proven, and how cells are
/// reversed; or the schedule's and a budget, and the function that makes the others of it. (It
/// takes a second to compile, and few need it.)
struct MachineWork : Checkpointed {
    Model model;              ///< its layers, loss and optimizer
    Array<std::size_t> first; ///< the layer that each cell begins with
    std::size_t samples = 0;  ///< of the largest mini-batch
    std::uint64_t seed = 0;   ///< see TrainingOptions
    StepChecks checks{};      ///< what is looked at before a commit
    Checkpointed (*fit)(BudgetProblem const& problem,
                        Budget const& budget) = nullptr; ///< null unless a policy may have a budget
    ChooseOffloads choose = &no_offloads; ///< if a policy may reverse cells piece by piece, another
    bool snapshot = false;                ///< whether it has host memory for a copy of its state
    bool debug = false;                   ///< see Training::Options
    std::size_t slack = no_wait;          ///< likewise
    bool overlaps = false;     ///< whether a step may begin before the one before it is done
    Replication replication{}; ///< see Replicas
};

} // namespace gpipe
