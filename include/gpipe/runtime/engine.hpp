#pragma once

#include <gpipe/device/device.hpp>
#include <gpipe/runtime/run_action.hpp>
#include <gpipe/runtime/step_protocol.hpp>
#include <gpipe/runtime/table.hpp>
#include <gpipe/trace/nvtx.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

namespace gpipe {

/// When an action ran, in seconds since its run began, and on which lane.
struct ActionTime {
    Action action;
    std::size_t lane = 0;
    double start = 0;
    double end = 0;
};

/// Walks step tables on a device. It knows addresses, functions and an order, and decides nothing:
/// all schedules, cuts and checkpointing policies are the same code with other tables.
template <DeviceRuntime Device> class Engine : StepProtocol<Device> {
    using Protocol = StepProtocol<Device>;

  public:
    /// Steps that may have been started and not finished.
    static constexpr std::size_t slots = [] {
        if constexpr (Device::calls_enqueue)
            return Device::steps_at_once;
        else
            return std::size_t{1};
    }();

    explicit Engine(Device& device) : Protocol(device) {}

    /// To be called once: from then on a run allocates nothing. `clip`: the largest norm of the
    /// mean gradients, or 0. `batch_bytes`: of a mini-batch, where it has to be brought to the
    /// device; by the streams from `first_feed` on, then, one for each of its tensors.
    void prepare(Tables tables, double clip, std::size_t batch_bytes, std::size_t first_feed) {
        tables_ = std::move(tables);
        this->clip_ = clip;
        first_feed_ = first_feed;
        ranges_ = Array<SampleRange>(tables_.micro_batches);
        auto const allocate = [&](std::size_t bytes) { return device_.allocate_host(bytes); };
        std::size_t const sums = tables_.sums;
        exchange_ = {{sums + 1, clips() ? tables_.updates.size() : 0,
                      Device::reads_host ? 0 : tables_.optimizer_bytes, batch_bytes},
                     slots,
                     allocate};
        if constexpr (Device::reads_host) {
            host_sums_ = allocate(tables_.micro_batches * sums * sizeof(double));
            tables_.loss_sums = reinterpret_cast<double*>(host_sums_.data());
            tables_.states = Array<StepState*>(tables_.gradients.size(), &exchange_.state(0));
        }
    }
    Tables const& tables() const { return tables_; }

    /// Runs every action of the table whose micro-batch has samples; in training then updates the
    /// parameters. False if a layer threw: failure() then tells which, the first in the programs'
    /// linear order whatever the timing, and nothing was updated.
    bool run(StepTable const& table, MiniBatch const& batch, RunArguments const& arguments) {
        begin_run(batch, arguments);
        std::uint32_t const base = base_;
        if (times_.empty()) {
            device_.run(table.lanes(),
                        [&](std::size_t lane) { return walk<false>(table, lane, base); });
        } else {
            origin_ = std::chrono::steady_clock::now();
            device_.run(table.lanes(),
                        [&](std::size_t lane) { return walk<true>(table, lane, base); });
        }
        base_ += marks(table.longest);
        return !failed();
    }

    /// Enqueues a training step; finish(arguments.slot) waits for it. False as run(). The
    /// device may keep it, and leave it at that the next time.
    bool start(StepTable const& table, MiniBatch const& batch,
               RunArguments const& arguments) requires(Device::calls_enqueue) {
        begin_run(batch, arguments);
        std::uint32_t const base = base_;
        bool const timed = !times_.empty();
        origin_ = std::chrono::steady_clock::now();
        try {
            std::size_t feed = first_feed_;
            for (MiniBatch::Copy const& copy : batch.copies())
                device_.feed(feed++, copy.to, copy.from, copy.bytes,
                             exchange_.batch(arguments.slot) + copy.pinned);
            device_.start({!timed ? &table : nullptr, arguments.samples, arguments.slot},
                          [&](std::size_t lane) {
                              return timed ? walk<true>(table, lane, base)
                                           : walk<false>(table, lane, base);
                          });
        } catch (...) {
            static_cast<void>(device_.drain());
            torn_ = torn_ || device_.launched();
            throw;
        }
        base_ += marks(table.longest);
        if (failed()) return false;
        torn_ = false;
        return true;
    }
    /// Waits for the step of a slot. Throws what the device says of it.
    void finish(std::size_t slot) requires(Device::calls_enqueue) {
        try {
            device_.finish(slot);
        } catch (...) {
            torn_ = true;
            throw;
        }
    }

    /// How far positions go on in a run: two more marks end a training step, and none is 0.
    static constexpr std::uint32_t marks(std::uint32_t longest) { return longest + 3; }

    /// Whether the step of a slot updated the parameters.
    bool committed(std::size_t slot) const { return exchange_.state(slot).committed != 0; }
    /// The loss's numbers over its mini-batch, then the norm of the mean gradients if that is
    /// clipped, else 0.
    std::span<double const> totals(std::size_t slot) const {
        return {exchange_.totals(slot), tables_.sums + 1};
    }
    std::optional<Failure> const& failure() const { return failure_.get(); }

    /// From the next run on, notes when every action runs; `actions` of the largest table.
    void time_actions(std::size_t actions) { times_ = Array<ActionTime>(actions); }
    Array<ActionTime> const& times() const { return times_; }

  private:
    void begin_run(MiniBatch const& batch, RunArguments const& arguments) {
        if (torn_)
            throw std::runtime_error(
                "gpipe: an error of the device has interrupted an update: some "
                "parameters are new, some old, and this object is of no use");
        if (arguments.samples != arguments_.samples) {
            for (std::size_t m = 0; m < ranges_.size(); ++m)
                ranges_[m] = micro_batch_range(arguments.samples, ranges_.size(), m);
        }
        batch_ = &batch;
        arguments_ = arguments;
        failure_.reset();
        exchange_.state(arguments.slot) = {arguments.seed, arguments.step, 0, this->clip_, 0};
        exchange_.totals(arguments.slot)[tables_.sums] = 0;
        if constexpr (!Device::reads_host)
            exchange_.set_optimizer(arguments.slot, arguments.optimizer);
    }

    template <bool timed>
    bool walk(StepTable const& table, std::size_t lane, std::uint32_t base) noexcept {
        Step const* step = table.steps.data() + table.begin[lane];
        Step const* const end = table.steps.data() + table.begin[lane + 1];
        bool const predicts = !arguments_.training() && !arguments_.measures;
        try {
            this->begin(table, lane);
            for (; step != end; ++step) {
                for (std::size_t w = 0; w < 2; ++w)
                    if (step->wait_position[w])
                        device_.wait(step->stream, step->wait_stream[w],
                                     base + step->wait_position[w]);
                if (ranges_[step->micro_batch].count > 0) {
                    // Only on a device that enqueues may a device not share another's memory.
                    if (Device::enqueues && is_transfer(step->kind))
                        transfer(*step);
                    else
                        device_.launch(step->stream,
                                       [this, step, lane] { execute<timed>(*step, lane); });
                    if (predicts && delivers(*step)) deliver(*step);
                }
                if (step->publishes) device_.record(step->stream, base + step->position);
            }
            if (Device::calls_enqueue && failed()) return false; // all layers have been called
            std::size_t const last = table.stream_of_device[tables_.last_device];
            if (arguments_.training())
                Protocol::finish(table, lane, last, base + table.longest + 1);
            else if (arguments_.measures && table.serves(lane, last))
                this->commit(last);
        } catch (...) { // the device refuses: near this action
            Step const& near = step == end ? *(step - 1) : *step;
            fail(near, tables_.cells[near.cell].first);
        }
        return !failed();
    }

    void transfer(Step const& step) {
        bool const gradient =
            step.kind == Kind::send_gradient || step.kind == Kind::receive_gradient;
        bool const next = step.kind == Kind::send_output || step.kind == Kind::receive_gradient;
        CellRow const& cell = tables_.cells[step.cell + next];
        std::size_t const bytes =
            (gradient ? cell.input_gradient : cell.input)(ranges_[step.micro_batch].count);
        device_.copy(step.stream, step.output, step.input, bytes);
    }

    bool delivers(Step const& step) const {
        return tables_.cells[step.cell].is_last && !is_transfer(step.kind);
    }
    // Copies the chain's output to the caller's arrays.
    void deliver(Step const& step) {
        CellRow const& cell = tables_.cells[step.cell];
        Frame frame;
        frame.base[static_cast<std::size_t>(Region::kept)] = step.kept;
        frame.base[static_cast<std::size_t>(Region::temporary)] = cell.temporaries;
        frame.base[static_cast<std::size_t>(Region::held)] = step.held;
        std::byte const* from = (cell.last - 1)->output.in(frame);
        for (std::size_t t = 0; t < tables_.output_sizes.count; ++t) {
            device_.copy(step.stream, batch_->others(step.micro_batch).table[t], from,
                         tables_.output_sizes.bytes[t] * ranges_[step.micro_batch].count);
            from += slot_bytes(tables_.output_sizes.bytes[t] * tables_.capacity);
        }
    }

    // Runs one action. After a failure the actions behind it in the linear order are skipped; those
    // before it, which cannot depend on it, still run, so that the first failure is found whatever
    // the timing.
    template <bool timed> void execute(Step const& step, std::size_t lane) noexcept {
        if (failure_.precedes(step.rank)) return;
        [[maybe_unused]] ActionRange const named(step.kind, step.cell, step.micro_batch);
        CellRow const& cell = tables_.cells[step.cell];
        SampleRange const range = ranges_[step.micro_batch];
        Frame const frame{range.count,
                          tables_.capacity,
                          range.first,
                          arguments_.seed,
                          arguments_.step,
                          phase_of(step.kind),
                          step.saving,
                          {step.kept, cell.temporaries, step.held, step.deferred},
                          &device_.stream(step.stream),
                          tables_.states[step.stream], // where states differ, a device is a stream
                          cell.handles};
        double const start = timed ? now() : 0;
        LayerRow const* at = nullptr;
        try {
            detail::run_action(tables_, *batch_, step, frame,
                               !arguments_.training() && arguments_.measures, at);
        } catch (...) {
            fail(step, at);
        }
        if constexpr (timed)
            times_[step.action] = {{step.kind, step.cell, step.micro_batch}, lane, start, now()};
    }

    Phase phase_of(Kind kind) const {
        if (!arguments_.training()) return Phase::evaluate;
        return kind == Kind::forward          ? Phase::forward
               : kind == Kind::recompute      ? Phase::recompute
               : kind == Kind::input_gradient ? Phase::input_gradient
               : kind == Kind::backward       ? Phase::backward
                                              : Phase::weight_gradient;
    }

    void fail(Step const& step, LayerRow const* at) noexcept {
        if constexpr (requires { device_.spoilt(); })
            if (failed() && device_.spoilt()) return; // a consequence of the first
        std::size_t const layer = at ? at->index : tables_.layers.size();
        failure_.tell(step.rank,
                      {layer, at ? tables_.layer_names[layer] : tables_.loss.name, step.cell,
                       step.micro_batch, step.kind, std::current_exception()});
    }

    double now() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - origin_).count();
    }

    using Protocol::arguments_, Protocol::batch_, Protocol::clips, Protocol::device_,
        Protocol::exchange_, Protocol::failed, Protocol::failure_, Protocol::ranges_,
        Protocol::tables_, Protocol::torn_;

    std::size_t first_feed_ = 0;
    typename Protocol::HostMemory
        host_sums_;          ///< loss_sums, where the device reads the host's memory
    std::uint32_t base_ = 0; ///< what positions count from in the next run
    Array<ActionTime> times_;
    std::chrono::steady_clock::time_point origin_;
};

} // namespace gpipe
