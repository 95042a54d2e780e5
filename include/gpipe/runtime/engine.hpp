#pragma once

#include <gpipe/device/device.hpp>
#include <gpipe/runtime/exchange.hpp>
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
    std::size_t slot = 0; ///< of the steps that are under way

    bool training() const { return optimizer != nullptr; }
};

/// Walks step tables on a device. It knows addresses, functions and an order, and decides nothing:
/// all schedules, cuts and checkpointing policies are the same code with other tables.
template <DeviceRuntime Device> class Engine {
  public:
    /// Steps that may have been started and not finished.
    static constexpr std::size_t slots = [] {
        if constexpr (Device::calls_enqueue)
            return Device::steps_at_once;
        else
            return std::size_t{1};
    }();

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

    /// What a device that cannot read the host's memory is given of a mini-batch.
    struct Copy {
        std::size_t device = 0;
        std::byte* to = nullptr;
        std::byte const* from = nullptr;
        std::size_t bytes = 0;
        std::size_t pinned = 0; ///< where it may wait: offset in the exchange's slot
    };
    Array<Copy> copies;
    std::size_t copy_count = 0;   ///< how many of them in this run
    Array<StepState*> states;     ///< by device
    Array<std::byte*> optimizers; ///< by device
    std::size_t optimizer_bytes = 0;
    std::size_t batch_bytes = 0; ///< of a mini-batch in slots, where it has to be copied
    std::size_t last_device = 0; ///< of the last cell
    std::size_t first_feed = 0;  ///< the streams from here on bring mini-batches, one for each copy

    explicit Engine(Device& runs_on) : device(runs_on) {}

    /// To be called once, when the members above are filled: from then on a run allocates nothing.
    void prepare() {
        ranges_ = Array<SampleRange>(micro_batches);
        auto const allocate = [&](std::size_t bytes) { return device.allocate_host(bytes); };
        exchange_ = {
            {sums, Device::reads_host ? 0 : optimizer_bytes, batch_bytes}, slots, allocate};
        if constexpr (Device::reads_host) {
            host_sums_ = device.allocate_host(micro_batches * sums * sizeof(double));
            loss_sums = reinterpret_cast<double*>(host_sums_.data());
            states = Array<StepState*>(gradients.size(), &exchange_.state(0));
        }
    }

    /// Runs every action of the table whose micro-batch has samples; in training then updates the
    /// parameters. False if a layer threw: failure() then tells which, the first in the programs'
    /// linear order whatever the timing, and nothing was updated.
    bool run(StepTable const& table, RunArguments const& arguments) {
        begin_run(arguments);
        std::uint32_t const base = base_;
        if (times_.empty()) {
            device.run(table.lanes(),
                       [&](std::size_t lane) { return walk<false>(table, lane, base); });
        } else {
            origin_ = std::chrono::steady_clock::now();
            device.run(table.lanes(),
                       [&](std::size_t lane) { return walk<true>(table, lane, base); });
        }
        base_ += marks(table.longest);
        return !failed();
    }

    /// Enqueues a training step; finish(arguments.slot) waits for it. False as run(). `replays`:
    /// whether the device may keep it and leave it at that the next time.
    bool start(StepTable const& table, RunArguments const& arguments,
               bool replays) requires(Device::calls_enqueue) {
        begin_run(arguments);
        std::uint32_t const base = base_;
        bool const timed = !times_.empty();
        origin_ = std::chrono::steady_clock::now();
        for (std::size_t i = 0; i < copy_count; ++i)
            device.feed(first_feed + i, copies[i].to, copies[i].from, copies[i].bytes,
                        exchange_.batch(arguments.slot) + copies[i].pinned);
        try {
            device.start({replays && !timed ? &table : nullptr, arguments.samples, arguments.slot},
                         [&](std::size_t lane) {
                             return timed ? walk<true>(table, lane, base)
                                          : walk<false>(table, lane, base);
                         });
        } catch (...) {
            torn_ = torn_ || device.launched();
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
            device.finish(slot);
        } catch (...) {
            torn_ = true;
            throw;
        }
    }

    /// How far positions go on in a run: two more marks end a training step, and none is 0.
    static constexpr std::uint32_t marks(std::uint32_t longest) { return longest + 3; }

    /// Whether the step of a slot updated the parameters.
    bool committed(std::size_t slot) const { return exchange_.state(slot).committed != 0; }
    /// The loss's numbers over its mini-batch.
    std::span<double const> totals(std::size_t slot) const {
        return {exchange_.totals(slot), sums};
    }
    std::optional<Failure> const& failure() const { return failure_; }

    /// From the next run on, notes when every action runs; `actions` of the largest table.
    void time_actions(std::size_t actions) { times_ = Array<ActionTime>(actions); }
    Array<ActionTime> const& times() const { return times_; }

  private:
    static constexpr std::uint32_t no_rank = std::numeric_limits<std::uint32_t>::max();

    void begin_run(RunArguments const& arguments) {
        if (torn_)
            throw std::runtime_error(
                "gpipe: an error of the device has interrupted an update: some "
                "parameters are new, some old, and this object is of no use");
        if (arguments.samples != arguments_.samples) {
            for (std::size_t m = 0; m < micro_batches; ++m)
                ranges_[m] = micro_batch_range(arguments.samples, micro_batches, m);
        }
        arguments_ = arguments;
        failure_.reset();
        exchange_.state(arguments.slot) = {arguments.seed, arguments.step, 0, 0};
        if constexpr (!Device::reads_host)
            exchange_.set_optimizer(arguments.slot, arguments.optimizer);
        first_failed_.store(no_rank, std::memory_order_relaxed);
    }
    bool failed() const { return first_failed_.load(std::memory_order_relaxed) != no_rank; }

    template <bool timed>
    bool walk(StepTable const& table, std::size_t lane, std::uint32_t base) noexcept {
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
                    if (is_transfer(step->kind))
                        transfer(*step);
                    else
                        device.launch(step->stream,
                                      [this, step, lane] { execute<timed>(*step, lane); });
                    if (delivers(*step)) deliver(*step);
                }
                if (step->publishes) device.record(step->stream, base + step->position);
            }
            if (Device::calls_enqueue && failed()) return false; // all layers have been called
            std::size_t const last = table.stream_of_device[last_device];
            if (arguments_.training())
                finish(table, lane, last, base + table.longest + 1);
            else if (arguments_.measures && table.serves(lane, last))
                commit(last);
        } catch (...) { // the device refuses: near this action
            Step const& near = step == end ? *(step - 1) : *step;
            fail(near, cells[near.cell].first);
        }
        return !failed();
    }

    // What is to be in the devices' memory before the first action.
    void begin(StepTable const& table, std::size_t lane) {
        for (std::size_t d = 0; d < gradients.size() && arguments_.training(); ++d) {
            std::size_t const stream = table.stream_of_device[d];
            if (!table.serves(lane, stream)) continue;
            if constexpr (!Device::reads_host)
                if (has_updates(d))
                    device.copy(stream, optimizers[d], exchange_.optimizer(arguments_.slot),
                                optimizer_bytes);
            if (gradients[d].size > 0) device.fill(stream, gradients[d].data, gradients[d].size);
        }
        if constexpr (!Device::reads_host)
            if (!(Device::calls_enqueue && arguments_.training())) // start() has fed it
                for (std::size_t i = 0; i < copy_count; ++i)
                    device.copy(table.stream_of_device[copies[i].device], copies[i].to,
                                copies[i].from, copies[i].bytes);
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
            if (s != last && table.serves(lane, s) && learns_of_commit(table, s))
                device.wait(s, last, end + 1);
        if constexpr (Device::calls_enqueue)
            if (!device.captures()) torn_ = true; // until all of it is enqueued
        for (std::size_t d = 0; d < gradients.size(); ++d) {
            std::size_t const stream = table.stream_of_device[d];
            if (!table.serves(lane, stream)) continue;
            if constexpr (!Device::reads_host)
                if (d != last_device)
                    device.copy(stream, bytes_of(states[d]),
                                bytes_of(&exchange_.state(arguments_.slot)), sizeof(StepState));
            if (has_updates(d)) device.launch(stream, [this, d, stream] { update(d, stream); });
        }
    }
    bool has_updates(std::size_t d) const { return updates_at[d] < updates_at[d + 1]; }
    // Whether a device on this stream updates parameters, or has a state of its own.
    bool learns_of_commit(StepTable const& table, std::size_t stream) const {
        for (std::size_t d = 0; d < gradients.size(); ++d)
            if (table.stream_of_device[d] == stream && (!Device::reads_host || has_updates(d)))
                return true;
        return false;
    }

    // Sums the loss up on the last device's stream. A step in which a layer threw is not committed.
    void commit(std::size_t stream) {
        device.launch(stream, [this, stream] {
            if (failed()) {
                states[last_device]->committed = 0;
                return;
            }
            std::size_t count = 0;
            while (count < micro_batches && ranges_[count].count > 0) ++count;
            double* const totals = Device::reads_host ? exchange_.totals(arguments_.slot)
                                                      : loss_sums + micro_batches * sums;
            CommitCall const call{loss_sums,
                                  count,
                                  sums,
                                  totals,
                                  arguments_.training() ? states[last_device] : nullptr,
                                  &device.stream(stream)};
            if constexpr (Device::calls_enqueue)
                StepWork<Device>::commit(call);
            else
                detail::commit(call);
        });
        if constexpr (!Device::reads_host) {
            device.copy(stream, bytes_of(exchange_.totals(arguments_.slot)),
                        bytes_of(loss_sums + micro_batches * sums), sums * sizeof(double));
            if (arguments_.training())
                device.copy(stream, bytes_of(&exchange_.state(arguments_.slot)),
                            bytes_of(states[last_device]), sizeof(StepState));
        }
    }
    void update(std::size_t d, std::size_t stream) {
        UpdateCall const call{Device::reads_host ? arguments_.optimizer : optimizers[d], states[d],
                              &device.stream(stream)};
        for (std::size_t i = updates_at[d]; i < updates_at[d + 1]; ++i)
            updates[i].update(call, updates[i]);
    }

    void transfer(Step const& step) {
        bool const gradient =
            step.kind == Kind::send_gradient || step.kind == Kind::receive_gradient;
        bool const next = step.kind == Kind::send_output || step.kind == Kind::receive_gradient;
        CellRow const& cell = cells[step.cell + next];
        std::size_t const bytes =
            (gradient ? cell.input_gradient : cell.input)(ranges_[step.micro_batch].count);
        if constexpr (requires { device.send(0, 0, step.output, step.input, bytes); })
            if (cell.link == Link::copied) {
                std::size_t const to = gradient ? step.cell - 1u : step.cell + 1u;
                device.send(step.stream, cells[to].device, step.output, step.input, bytes);
                return;
            }
        device.copy(step.stream, step.output, step.input, bytes);
    }

    bool delivers(Step const& step) const {
        return cells[step.cell].is_last && !is_transfer(step.kind) && !arguments_.training() &&
               !arguments_.measures;
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
        if constexpr (requires { device.spoilt(); })
            if (failed() && device.spoilt()) return; // a consequence of the first
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
    using HostMemory = decltype(std::declval<Device&>().allocate_host(0));
    Exchange<HostMemory> exchange_;
    HostMemory host_sums_;   ///< loss_sums, where the device reads the host's memory
    bool torn_ = false;      ///< whether some parameters were updated, and others not
    std::uint32_t base_ = 0; ///< what positions count from in the next run
    std::atomic<std::uint32_t> first_failed_{no_rank};
    std::mutex failing_;
    std::optional<Failure> failure_;
    Array<ActionTime> times_;
    std::chrono::steady_clock::time_point origin_;
};

} // namespace gpipe
