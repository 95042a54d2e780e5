#pragma once

#include <gpipe/call/step_state.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/core/finite.hpp>
#include <gpipe/runtime/failure.hpp>
#include <gpipe/runtime/tables.hpp>

#include <cmath>
#include <cstddef>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

GPIPE_RUNS_ONCE_BEGIN
namespace gpipe::detail {

// What is said of the end of a step: of row i of the updates.
[[gnu::cold]] GPIPE_INLINE Failure failure_of_row(Tables const& tables, FailureOf of, std::size_t i,
                                                  std::exception_ptr error) {
    UpdateRow const& row = tables.updates[i];
    return {row.layer,
            tables.name_of(row.layer),
            tables.cell_of(row.layer),
            0,
            Kind::update,
            std::move(error),
            of,
            row.number};
}
[[gnu::cold]] GPIPE_INLINE std::exception_ptr not_finite_gradient(Tables const& tables,
                                                                  std::size_t i, double squares) {
    return made_error([&] {
        UpdateRow const& row = tables.updates[i];
        Message const message("gpipe: the gradient of parameter tensor %u of layer %u (%s) is not "
                              "finite: the sum of its squares is %g",
                              row.number, row.layer, std::string(tables.name_of(row.layer)).c_str(),
                              std::fabs(squares));
        return std::domain_error(message.text);
    });
}
// Of a step that has the number, and so the random numbers, of one further than it is, for the one
// before has failed since.
[[gnu::cold]] GPIPE_INLINE Failure begun_too_early() {
    Failure failure;
    failure.of = FailureOf::before;
    failure.error = made_error([] {
        return std::runtime_error("gpipe: the step before this one failed, and this had begun as "
                                  "the one behind it: it has changed nothing, and can be made "
                                  "again");
    });
    return failure;
}
// Of what was updated in part, or may have been by a rank that is gone: then why that is.
template <class Device> std::exception_ptr of_no_use([[maybe_unused]] Device const& device) {
    if constexpr (joins_ranks<Device>)
        if (std::exception_ptr const lost = device.transport().error()) return lost;
    return made_error([] {
        return std::runtime_error(
            "gpipe: an exception, a gradient that is not finite, or an error of the device has "
            "interrupted an update: some parameters are new, some old, and this object is of no "
            "use");
    });
}
// What the commit has found not to be finite.
[[gnu::cold]] GPIPE_INLINE Failure not_finite(Tables const& tables, StepState const& state) {
    double const value =
        is_nan(state.fault_value) ? std::fabs(state.fault_value) : state.fault_value; // no -nan
    if (state.fault == StepFault::gradient) {
        std::size_t const i = tables.order[state.fault_at];
        return failure_of_row(tables, FailureOf::gradient, i,
                              not_finite_gradient(tables, i, value));
    }
    bool const one = state.fault == StepFault::loss && state.fault_at != no_micro_batch;
    std::size_t const m = one ? state.fault_at % tables.micro_batches : Failure::all;
    Message const message =
        state.fault == StepFault::norm ? Message("gpipe: the norm of all gradients is %g", value)
        : !one ? Message("gpipe: the sum of the loss over all micro-batches is %g", value)
        : tables.replicas.any() ? Message("gpipe: the loss of micro-batch %zu of replica %zu is %g",
                                          m, state.fault_at / tables.micro_batches, value)
                                : Message("gpipe: the loss of micro-batch %zu is %g", m, value);
    std::size_t const loss = tables.model->infos.size();
    return {loss,
            tables.name_of(loss),
            tables.cells.size() - 1,
            m,
            Kind::backward,
            made_error([&] { return std::domain_error(message.text); }),
            state.fault == StepFault::norm ? FailureOf::norm : FailureOf::loss};
}

} // namespace gpipe::detail
GPIPE_RUNS_ONCE_END
