#pragma once

#include <gpipe/device/device.hpp>
#include <gpipe/runtime/failure.hpp>
#include <gpipe/runtime/micro_batches.hpp>
#include <gpipe/runtime/table.hpp>
#include <gpipe/runtime/update.hpp>
#include <gpipe/runtime/work.hpp>
#include <gpipe/trace/nvtx.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>

namespace gpipe {

/// When an action ran, in seconds since its run began, and on which lane.
struct ActionTime {
    Action action;
    std::size_t lane = 0;
    double start = 0;
    double end = 0;
};

/// What is to be done in one run.
struct RunArguments {
    std::uint64_t seed = 0;
    std::uint64_t step = 0;          ///< steps trained before
    void const* optimizer = nullptr; ///< null: forward only
    bool measures = true;            ///< whether the loss is called
    std::size_t samples = 0;

    bool training() const { return optimizer != nullptr; }
};

/// Walks step tables on a device. It knows addresses, functions and an order, and decides nothing:
/// all schedules, cuts and checkpointing policies are the same code with other tables.
template <DeviceRuntime Device> class Engine {
  public:
    Device& device;
    Array<LayerRow> layers;
    Array<std::string_view> layer_names;
    Array<CellRow> cells;
    LossRow loss;
    Array<UpdateRow> updates;      ///< device by device
    Array<std::size_t> updates_at; ///< by device, and the end
    struct Bytes {
        std::byte* data = nullptr;
        std::size_t size = 0;
    };
    Array<Bytes> gradients;   ///< by device
    std::size_t capacity = 0; ///< samples that a micro-batch has room for
    std::size_t micro_batches = 0;
    std::size_t sums = 2;        ///< numbers that the loss leaves per micro-batch
    double* loss_sums = nullptr; ///< [micro-batch][sums], then a row for their totals
    Array<std::byte*> inputs;    ///< [micro-batch][tensor]
    Array<std::byte*> targets;   ///< likewise; in predict() the caller's arrays for the outputs
    std::size_t input_tensors = 1;
    std::size_t target_tensors = 1;

    GroupSizes output_sizes; ///< of the chain's output, for predict()

    /// What a device that cannot read the host's memory is given at the beginning of a run.
    struct Copy {
        std::size_t device = 0;
        std::byte* to = nullptr;
        std::byte const* from = nullptr;
        std::size_t bytes = 0;
    };
    Array<Copy> copies;           ///< those of the mini-batch
    std::size_t copy_count = 0;   ///< how many of them in this run
    Array<StepState*> states;     ///< by device
    Array<std::byte*> optimizers; ///< by device
    std::size_t optimizer_bytes = 0;
    std::size_t last_device = 0; ///< of the last cell

    explicit Engine(Device& runs_on) : device(runs_on) {}

    /// To be called once, when the members above are filled: from then on a run allocates nothing.
    void prepare() {
        ranges_ = Array<SampleRange>(micro_batches);
        exchange_ = device.allocate_host(sizeof(StepState) + (micro_batches + 1) * sums * 8);
        state_ = new (exchange_.data()) StepState;
        totals_ = reinterpret_cast<double*>(exchange_.data() + sizeof(StepState));
        if constexpr (Device::reads_host) {
            loss_sums = totals_ + sums;
            states = Array<StepState*>(gradients.size(), state_);
        }
    }

    /// Runs every action of the table whose micro-batch has samples; in training then updates the
    /// parameters. False if a layer threw: failure() then tells which, the first in the programs'
    /// linear order whatever the timing, and nothing was updated.
    bool run(StepTable const& table, RunArguments const& arguments) {
        if (torn_)
            throw std::runtime_error(
                "gpipe: an error of the device has interrupted an update: some "
                "parameters are new, some old, and this object is of no use");
        begin_run(arguments);
        std::uint32_t const base = base_;
        if (times_.empty()) {
            device.run(table.lanes(), [&](std::size_t lane) { walk<false>(table, lane, base); });
        } else {
            origin_ = std::chrono::steady_clock::now();
            device.run(table.lanes(), [&](std::size_t lane) { walk<true>(table, lane, base); });
        }
        base_ += marks(table.longest);
        if (failed()) return false;
        torn_ = false;
        return true;
    }

    /// How far positions go on in a run: two more marks end a training step, and none is 0.
    static constexpr std::uint32_t marks(std::uint32_t longest) { return longest + 3; }

    /// Whether the last run updated the parameters.
    bool committed() const { return state_->committed != 0; }
    /// The loss's numbers over the mini-batch of the last run.
    std::span<double const> totals() const { return {totals_, sums}; }
    std::optional<Failure> const& failure() const { return failure_; }

    /// From the next run on, notes when every action runs; `actions` of the largest table.
    void time_actions(std::size_t actions) { times_ = Array<ActionTime>(actions); }
    Array<ActionTime> const& times() const { return times_; }

  private:
    static constexpr std::uint32_t no_rank = std::numeric_limits<std::uint32_t>::max();

    void begin_run(RunArguments const& arguments) {
        if (arguments.samples != arguments_.samples) {
            for (std::size_t m = 0; m < micro_batches; ++m)
                ranges_[m] = micro_batch_range(arguments.samples, micro_batches, m);
        }
        arguments_ = arguments;
        failure_.reset();
        *state_ = {arguments.seed, arguments.step, 0, 0};
        first_failed_.store(no_rank, std::memory_order_relaxed);
    }
    bool failed() const { return first_failed_.load(std::memory_order_relaxed) != no_rank; }

    template <bool timed>
    void walk(StepTable const& table, std::size_t lane, std::uint32_t base) noexcept {
        Step const* step = table.steps.data() + table.begin[lane];
        Step const* const end = table.steps.data() + table.begin[lane + 1];
        try {
            begin(table, lane);
            for (; step != end; ++step) {
                for (std::size_t w = 0; w < 2; ++w)
                    if (step->wait_position[w])
                        device.wait(step->stream, step->wait_stream[w],
                                    base + step->wait_position[w]);
                if (ranges_[step->micro_batch].count > 0) {
                    device.launch(step->stream,
                                  [this, step, lane] { execute<timed>(*step, lane); });
                    if (delivers(*step)) deliver(*step);
                }
                if (step->publishes) device.record(step->stream, base + step->position);
            }
            if (Device::calls_enqueue && failed()) return; // all layers have been called
            std::size_t const last = table.stream_of_device[last_device];
            if (arguments_.training())
                finish(table, lane, last, base + table.longest + 1);
            else if (arguments_.measures && table.serves(lane, last))
                commit(last);
        } catch (...) { // the device refuses: near this action
            Step const& near = step == end ? *(step - 1) : *step;
            fail(near, cells[near.cell].first);
        }
    }

    // What is to be in the devices' memory before the first action.
    void begin(StepTable const& table, std::size_t lane) {
        for (std::size_t d = 0; d < gradients.size(); ++d) {
            std::size_t const stream = table.stream_of_device[d];
            if (!table.serves(lane, stream)) continue;
            if (!arguments_.training()) continue;
            if constexpr (!Device::reads_host) {
                device.copy(stream, bytes_of(states[d]), bytes_of(state_), sizeof(StepState));
                if (has_updates(d))
                    device.copy(stream, optimizers[d],
                                static_cast<std::byte const*>(arguments_.optimizer),
                                optimizer_bytes);
            }
            if (gradients[d].size > 0) device.fill(stream, gradients[d].data, gradients[d].size);
        }
        if constexpr (!Device::reads_host)
            for (std::size_t i = 0; i < copy_count; ++i)
                device.copy(table.stream_of_device[copies[i].device], copies[i].to, copies[i].from,
                            copies[i].bytes);
    }

    // The end of a training step: the last device commits, then every device updates its
    // parameters. After the commit no layer may fail (promise P6), so all streams come to their end
    // before; but where calls only enqueue, every layer has been called by now. A mark is put on
    // its stream before anybody is told to wait for it.
    void finish(StepTable const& table, std::size_t lane, std::size_t last, std::uint32_t end) {
        auto const meets = [&](std::size_t s) { return !Device::calls_enqueue && s != last; };
        for (std::size_t s = 0; s < table.streams; ++s)
            if (meets(s) && table.serves(lane, s)) device.record(s, end);
        if (table.serves(lane, last)) {
            for (std::size_t s = 0; s < table.streams; ++s)
                if (meets(s)) device.wait(last, s, end);
            commit(last);
            device.record(last, end + 1);
        }
        for (std::size_t s = 0; s < table.streams; ++s)
            if (s != last && table.serves(lane, s) && has_updates(table, s))
                device.wait(s, last, end + 1);
        if constexpr (Device::calls_enqueue) torn_ = true; // until all of it has come to its end
        for (std::size_t d = 0; d < gradients.size(); ++d) {
            std::size_t const stream = table.stream_of_device[d];
            if (!table.serves(lane, stream) || !has_updates(d)) continue;
            if constexpr (!Device::reads_host)
                if (d != last_device)
                    device.copy(stream, bytes_of(states[d]), bytes_of(states[last_device]),
                                sizeof(StepState));
            device.launch(stream, [this, d, stream] { update(d, stream); });
        }
    }
    bool has_updates(std::size_t d) const { return updates_at[d] < updates_at[d + 1]; }
    bool has_updates(StepTable const& table, std::size_t stream) const {
        for (std::size_t d = 0; d < gradients.size(); ++d)
            if (table.stream_of_device[d] == stream && has_updates(d)) return true;
        return false;
    }

    // Sums the loss up on the last device's stream. A step in which a layer threw is not committed.
    void commit(std::size_t stream) {
        device.launch(stream, [this, stream] {
            if (failed()) return;
            std::size_t count = 0;
            while (count < micro_batches && ranges_[count].count > 0) ++count;
            double* const totals = Device::reads_host ? totals_ : loss_sums + micro_batches * sums;
            CommitCall const call{
                loss_sums, count, sums, totals, states[last_device], &device.stream(stream)};
            if constexpr (Device::calls_enqueue)
                StepWork<Device>::commit(call);
            else
                detail::commit(call);
        });
        if constexpr (!Device::reads_host) {
            device.copy(stream, bytes_of(totals_), bytes_of(loss_sums + micro_batches * sums),
                        sums * sizeof(double));
            if (arguments_.training())
                device.copy(stream, bytes_of(state_), bytes_of(states[last_device]),
                            sizeof(StepState));
        }
    }
    void update(std::size_t d, std::size_t stream) {
        UpdateCall const call{Device::reads_host ? arguments_.optimizer : optimizers[d], states[d],
                              &device.stream(stream)};
        for (std::size_t i = updates_at[d]; i < updates_at[d + 1]; ++i)
            updates[i].update(call, updates[i]);
    }

    bool delivers(Step const& step) const {
        return cells[step.cell].is_last && !arguments_.training() && !arguments_.measures;
    }
    // Copies the chain's output to the caller's arrays.
    void deliver(Step const& step) {
        CellRow const& cell = cells[step.cell];
        std::byte* const base[] = {step.block, cell.temporaries};
        Place const& output = (cell.last - 1)->output;
        std::byte const* from = base[output.region] + output.offset;
        for (std::size_t t = 0; t < output_sizes.count; ++t) {
            device.copy(step.stream, targets[step.micro_batch * target_tensors + t], from,
                        output_sizes.bytes[t] * ranges_[step.micro_batch].count);
            from += slot_bytes(output_sizes.bytes[t] * capacity);
        }
    }

    template <class T> static auto bytes_of(T* data) {
        using Byte = std::conditional_t<std::is_const_v<T>, std::byte const, std::byte>;
        return reinterpret_cast<Byte*>(data);
    }

    // Runs one action. After a failure the actions behind it in the linear order are skipped; those
    // before it, which cannot depend on it, still run, so that the first failure is found whatever
    // the timing.
    template <bool timed> void execute(Step const& step, std::size_t lane) noexcept {
        if (step.rank > first_failed_.load(std::memory_order_relaxed)) return;
        [[maybe_unused]] ActionRange const named(step.kind, step.cell, step.micro_batch);
        CellRow const& cell = cells[step.cell];
        SampleRange const range = ranges_[step.micro_batch];
        Frame frame{range.count,
                    capacity,
                    range.first,
                    arguments_.seed,
                    arguments_.step,
                    Phase::evaluate,
                    step.saving,
                    {step.block, cell.temporaries},
                    &device.stream(step.stream),
                    states[step.stream], // where states differ, a device is a stream
                    cell.handles};
        GroupAddress const input =
            cell.is_first ? GroupAddress::of_arrays(
                                inputs.data() + step.micro_batch * input_tensors, input_tensors)
                          : GroupAddress{step.input};
        double const start = timed ? now() : 0;
        LayerRow const* at = nullptr;
        try {
            if (step.kind == Kind::backward) {
                frame.phase = Phase::backward;
                std::byte* dy = step.output_gradient;
                if (cell.is_last) {
                    dy = (cell.last - 1)->output_gradient.in(frame);
                    call_loss(loss.train, cell, step, frame, dy);
                }
                detail::run_backward(cell, step, frame, input, dy, at);
            } else {
                if (arguments_.training())
                    frame.phase = step.kind == Kind::recompute ? Phase::recompute : Phase::forward;
                detail::run_forward(cell, step, frame, input, at);
                if (cell.is_last && !arguments_.training() && arguments_.measures) {
                    at = nullptr;
                    call_loss(loss.evaluate, cell, step, frame,
                              (cell.last - 1)->output_gradient.in(frame));
                }
            }
        } catch (...) {
            fail(step, at);
        }
        if constexpr (timed)
            times_[step.action] = {{step.kind, step.cell, step.micro_batch}, lane, start, now()};
    }

    void call_loss(LossFunction function, CellRow const& cell, Step const& step, Frame const& frame,
                   std::byte* dy) {
        function(loss.loss, frame, (cell.last - 1)->output.in(frame),
                 GroupAddress::of_arrays(targets.data() + step.micro_batch * target_tensors,
                                         target_tensors),
                 dy, loss.scratch.in(frame), loss_sums + step.micro_batch * sums);
    }

    void fail(Step const& step, LayerRow const* at) noexcept {
        std::lock_guard lock(failing_);
        if (step.rank >= first_failed_.load(std::memory_order_relaxed)) return;
        first_failed_.store(step.rank, std::memory_order_relaxed);
        std::size_t const layer = at ? at->index : layers.size();
        failure_ = Failure{layer,     at ? layer_names[layer] : loss.name,
                           step.cell, step.micro_batch,
                           step.kind, std::current_exception()};
    }

    double now() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - origin_).count();
    }

    RunArguments arguments_;
    Array<SampleRange> ranges_;
    // In memory that a device copies from and to: the state of this step and the loss's totals, and
    // where the device reads the host's memory the loss's numbers, too.
    decltype(std::declval<Device&>().allocate_host(0)) exchange_;
    StepState* state_ = nullptr;
    double* totals_ = nullptr;
    bool torn_ = false;      ///< whether some parameters were updated, and others not
    std::uint32_t base_ = 0; ///< what positions count from in the next run
    std::atomic<std::uint32_t> first_failed_{no_rank};
    std::mutex failing_;
    std::optional<Failure> failure_;
    Array<ActionTime> times_;
    std::chrono::steady_clock::time_point origin_;
};

} // namespace gpipe
