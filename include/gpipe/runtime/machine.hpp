#pragma once

#include <gpipe/device/host.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/runtime/engine.hpp>
#include <gpipe/runtime/lane_choice.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/runtime/pending_step.hpp>
#include <gpipe/runtime/placement.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <utility>

namespace gpipe {

/// Everything that a Training does at run time, for one kind of device: owns the device, the arenas
/// and the tables, and turns a mini-batch into runs of the engine. Knows layers as values only, so
/// all Trainings of a program share it.
template <DeviceRuntime Device> class Machine {
  public:
    using Pointers = std::span<TensorPointer const>;

    /// `programs` with recomputes, proven; `first` the layer that each cell begins with.
    /// Initializes the parameters; throws what a layer's initialize throws.
    Machine(Model model, Array<std::size_t> first, Programs programs, std::size_t samples,
            std::uint64_t seed, typename Device::Options options)
        : model_(std::move(model)), first_(std::move(first)), programs_(std::move(programs)),
          samples_(samples), seed_(seed), cost_(model_.costs, first_),
          learner_(lowest_learner(model_.infos.data(), model_.infos.size())),
          device_(options, programs_.devices()), plan_(planned(samples)),
          arenas_(programs_.devices()), arena_data_(programs_.devices()),
          staging_(device_.allocate_host(plan_.host)), handles_(programs_.devices()),
          engine_(device_) {
        for (std::size_t d = 0; d < programs_.devices(); ++d) {
            arenas_[d] = device_.allocate(d, plan_.devices[d].total());
            arena_data_[d] = arenas_[d].data();
        }
        fill_layers();
        fill_updates();
        fill_cells();
        if constexpr (!Device::reads_host) fill_staging();
        engine_.prepare();
        fill_tables();
        make_handles();
        initialize_layers();
        initialize_states();
    }
    ~Machine() {
        for (std::size_t slot = 0; slot < slots; ++slot) tell(slot);
        // What it uses goes from here on.
        if constexpr (Device::calls_enqueue) static_cast<void>(device_.drain());
    }
    Machine(Machine const&) = delete;
    Machine& operator=(Machine const&) = delete;

    /// One training step: forward, backward, update by `optimizer`. Tells `outcome` the loss's
    /// numbers over the mini-batch, of which [0] is the sum and [1] the weight; without a positive
    /// weight nothing is updated and the step does not count. Throws what a layer threw. On a
    /// device whose calls enqueue it may return before the step is done; then others wait for it,
    /// and one that failed unheard is heard of at the next.
    void start(Pointers inputs, Pointers targets, std::size_t samples, void const* optimizer,
               StepOutcome& outcome) {
        start_within(inputs, targets, samples, optimizer, outcome,
                     [](auto begin) { return begin(); });
    }
    /// The same for arrays that the caller's stream has written, and may write again after this.
    template <class CallersStream>
    void start(Pointers inputs, Pointers targets, std::size_t samples, void const* optimizer,
               StepOutcome& outcome, CallersStream caller) requires(Device::calls_enqueue) {
        start_within(inputs, targets, samples, optimizer, outcome, [&](auto begin) {
            device_.follow(caller, engine_.first_feed);
            bool const started = begin();
            device_.lead(caller, engine_.first_feed);
            return started;
        });
    }
    /// Waits for the step that tells this, and for those before it.
    void finish(StepOutcome const& outcome) {
        for (std::size_t n = 0; n < slots; ++n) // the oldest first
            if (outcome.waits()) tell((next_slot_ + n) % slots);
    }
    /// Waits for all steps. Throws what was wrong with one that nobody listens to.
    void finish() {
        for (std::size_t n = 0; n < slots; ++n) finish_slot((next_slot_ + n) % slots);
    }

    /// Forward only, over any number of samples. Either the loss is measured and add(sums) called
    /// for each part of at most samples() samples, or the outputs are written to `others`.
    template <class Add>
    void forward(Pointers inputs, Pointers others, std::size_t samples, bool measures, Add add) {
        finish();
        for (std::size_t first = 0; first < samples; first += samples_) {
            std::size_t const count = std::min(samples_, samples - first);
            point_to(inputs, others, first, count, measures, 0);
            run(lane_plan().forward, {seed_, steps_, nullptr, measures, count});
            if (measures) add(engine_.totals(0));
        }
    }

    Programs const& programs() const { return programs_; }
    MemoryPlan const& plan() const { return plan_; }
    Model const& model() const { return model_; }
    LayerRow const& layer(std::size_t i) const { return engine_.layers[i]; }
    std::optional<Failure> const& failure() const { return engine_.failure(); }
    std::uint64_t steps() const { return steps_; }
    std::uint64_t seed() const { return seed_; }
    std::size_t samples() const { return samples_; }
    std::size_t lanes() const { return plans_[plans_.size() - 1].training.lanes(); }
    std::span<std::byte> arena(std::size_t device) {
        return {arenas_[device].data(), arenas_[device].size()};
    }
    /// Copies from the host's memory to a device's or back, between steps; done when it returns.
    void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
        finish();
        if (bytes > 0)
            device_.run(1, [&](std::size_t) {
                device_.copy(0, to, from, bytes);
                return true;
            });
    }
    std::size_t used_bytes() const {
        std::size_t bytes = 0;
        for (auto const& arena : arenas_) bytes += arena.size();
        return bytes;
    }

    void time_actions() {
        engine_.time_actions(
            std::max(plan_.lowered.programs.size(), forwards_.lowered.programs.size()));
    }
    Array<ActionTime> const& times() const { return engine_.times(); }

    /// The programs merged onto the lanes of a step as if cost(action) were what actions take.
    template <class Cost> Lanes merged(Cost const& cost) const {
        return merge_lanes(plan_.lowered,
                           place_programs(plan_.lowered, lanes(), Device::enqueues, cost_), cost);
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::size_t slots = Engine<Device>::slots;

    template <class Surround>
    void start_within(Pointers inputs, Pointers targets, std::size_t samples, void const* optimizer,
                      StepOutcome& outcome, Surround surround) {
        std::size_t const slot = next_slot_;
        if constexpr (Device::calls_enqueue) {
            finish_slot(slot);
            if (doubtful_) initialize_states();
            point_to(inputs, targets, 0, samples, true, slot);
            doubtful_ = true;
            bool const started = surround([&] {
                return engine_.start(lane_plan().training,
                                     {seed_, steps_, optimizer, true, samples, slot}, true);
            });
            if (!started) std::rethrow_exception(engine_.failure()->error);
            doubtful_ = false;
            under_way_[slot] = true;
            outcome.wait_at(outcomes_[slot]);
            next_slot_ = (slot + 1) % slots;
        } else {
            point_to(inputs, targets, 0, samples, true, slot);
            bool const timed = lane_choice_.trying();
            auto const begin = timed ? Clock::now() : Clock::time_point{};
            run(lane_plan().training, {seed_, steps_, optimizer, true, samples, slot});
            lane_choice_.note(timed ? std::chrono::duration<double>(Clock::now() - begin).count()
                                    : 0);
            steps_ += engine_.committed(slot);
            outcome.tell(engine_.totals(slot));
        }
    }
    // Waits for the step of a slot, if there is one.
    void finish_slot([[maybe_unused]] std::size_t slot) {
        if constexpr (Device::calls_enqueue) {
            if (!std::exchange(under_way_[slot], false)) return;
            StepOutcome* const outcome = outcomes_[slot];
            try {
                engine_.finish(slot);
                steps_ += engine_.committed(slot);
                if (outcome) outcome->tell(engine_.totals(slot));
            } catch (...) {
                if (!outcome) throw;
                outcome->tell(std::current_exception());
            }
        }
    }
    // The same for who does not want to know.
    void tell(std::size_t slot) {
        try {
            finish_slot(slot);
        } catch (...) {
        }
    }

    MemoryPlan planned(std::size_t samples) const {
        std::size_t const micro_batches = programs_.micro_batches();
        std::size_t const capacity = (samples + micro_batches - 1) / micro_batches;
        Staging staging;
        if constexpr (!Device::reads_host)
            staging = step_staging(model_.infos[0].input, model_.targets, capacity * micro_batches,
                                   micro_batches, model_.sums, model_.optimizer_bytes, slots);
        return plan_memory({model_.infos.data(), model_.infos.size(), learner_, model_.loss_scratch,
                            model_.loss_handles},
                           first_, programs_, model_.states, capacity, staging, links());
    }
    Array<Link> links() const {
        if constexpr (requires { device_.link(0, 0); }) {
            Array<Link> result(programs_.cells());
            for (std::size_t c = 1; c < result.size(); ++c)
                result[c] = device_.link(programs_.device_of(c - 1), programs_.device_of(c));
            return result;
        } else {
            return {};
        }
    }

    // The tables for one number of lanes.
    struct LanePlan {
        StepTable training;
        StepTable forward;
    };

    void run(StepTable const& table, RunArguments const& arguments) {
        if (!engine_.run(table, arguments)) std::rethrow_exception(engine_.failure()->error);
    }

    // In the order in which the plan has them.
    [[gnu::cold]] void make_handles() {
        for (std::size_t c = 0; c < programs_.cells(); ++c) {
            std::size_t const d = programs_.device_of(c);
            auto const add = [&](HandleSpecs specs) {
                handles_[d].add(specs, &device_.stream(d), arena_data_[d] + plan_.handles_at[d]);
            };
            for (std::size_t i = first_[c]; i < first_[c + 1]; ++i)
                add(model_.layers[i].functions.handles);
            if (c + 1 == programs_.cells()) add(model_.loss.handles);
        }
    }

    [[gnu::cold]] void fill_layers() {
        std::size_t const count = model_.layers.size();
        engine_.layers = Array<LayerRow>(count);
        engine_.layer_names = Array<std::string_view>(count);
        for (std::size_t c = 0; c < programs_.cells(); ++c) {
            std::byte* const arena = arena_data_[programs_.device_of(c)];
            for (std::size_t i = first_[c]; i < first_[c + 1]; ++i) {
                LayerParts const& parts = model_.layers[i];
                LayerPlaces const& places = plan_.layouts[c].places[i - first_[c]];
                LayerRow& row = engine_.layers[i];
                row.forward = parts.functions.forward;
                if (i == learner_)
                    row.backward = parts.functions.lowest_backward;
                else if (i > learner_)
                    row.backward = parts.functions.backward;
                row.layer = parts.object;
                row.parameters = arena + plan_.parameters[i];
                row.gradients = arena + plan_.gradients[i];
                row.output = places.output;
                row.output_gradient = places.output_gradient;
                row.saved = places.saved;
                row.forward_scratch = places.forward_scratch;
                row.backward_scratch = places.backward_scratch;
                row.index = static_cast<std::uint32_t>(i);
                engine_.layer_names[i] = parts.info.name;
            }
        }
    }

    // Layers initialize in the host's memory.
    [[gnu::cold]] void initialize_layers() {
        std::size_t const count = model_.layers.size();
        for (std::size_t i = 0; i < count; ++i) {
            LayerParts const& parts = model_.layers[i];
            std::byte* const parameters = engine_.layers[i].parameters;
            if constexpr (Device::reads_host) {
                parts.functions.initialize(parts.object, parameters, seed_, i, count);
            } else {
                std::size_t const bytes = parts.info.parameters.slots(1);
                device::HostBuffer const values(bytes);
                parts.functions.initialize(parts.object, values.data(), seed_, i, count);
                copy(parameters, values.data(), bytes);
            }
        }
    }

    [[gnu::cold]] void fill_updates() {
        std::size_t const devices = programs_.devices();
        std::size_t tensors = 0;
        for (LayerParts const& parts : model_.layers) tensors += parts.updates.count;
        engine_.updates = Array<UpdateRow>(tensors);
        engine_.updates_at = Array<std::size_t>(devices + 1);
        engine_.gradients = Array<typename Engine<Device>::Bytes>(devices);
        std::size_t at = 0;
        for (std::size_t d = 0; d < devices; ++d) {
            engine_.gradients[d] = {arena_data_[d] + plan_.devices[d].parameters,
                                    plan_.devices[d].gradients};
            for (std::size_t c = 0; c < programs_.cells(); ++c) {
                if (programs_.device_of(c) != d) continue;
                for (std::size_t i = first_[c]; i < first_[c + 1]; ++i)
                    at = add_updates(model_.layers[i].updates, engine_.layers[i],
                                     arena_data_[d] + plan_.optimizer[i], at);
            }
            engine_.updates_at[d + 1] = at;
        }
    }
    std::size_t add_updates(UpdateSpecs specs, LayerRow const& row, std::byte* states,
                            std::size_t at) {
        std::size_t offset = 0;
        for (std::size_t t = 0; t < specs.count; ++t) {
            UpdateSpec const& spec = specs.first[t];
            engine_.updates[at++] = {spec.update,
                                     row.parameters + offset,
                                     row.gradients + offset,
                                     states + model_.states * offset,
                                     spec.elements,
                                     spec.decay};
            offset += spec.bytes;
        }
        return at;
    }

    [[gnu::cold]] void fill_cells() {
        std::size_t const cells = programs_.cells();
        engine_.cells = Array<CellRow>(cells);
        for (std::size_t c = 0; c < cells; ++c) {
            CellRow& cell = engine_.cells[c];
            LayerRow const* const rows = engine_.layers.data();
            cell.first = rows + first_[c];
            cell.last = rows + first_[c + 1];
            cell.learner = rows + std::clamp(learner_, first_[c], first_[c + 1]);
            cell.temporaries = arena_data_[programs_.device_of(c)] + plan_.temporaries_at[c];
            cell.is_first = c == 0;
            cell.device = programs_.device_of(c);
            cell.link = plan_.links[c];
            cell.handles = &handles_[cell.device];
            cell.is_last = c + 1 == cells;
            bool const recomputes_last_layer = cell.is_last ||
                                               model_.infos[first_[c + 1] - 1].saved.count > 0 ||
                                               plan_.transfers[c + 1].keeps;
            cell.recompute_last = recomputes_last_layer ? cell.last : cell.last - 1;
            if (learner_ >= first_[c + 1] && !cell.is_last) cell.recompute_last = cell.first;
            cell.discards = learner_ >= first_[c] && learner_ < first_[c + 1];
            cell.discarded = plan_.layouts[c].input_gradient;
            cell.input = extent(model_.infos[first_[c]].input, plan_.capacity);
            cell.input_gradient = extent(model_.infos[first_[c]].input_gradient, plan_.capacity);
        }
        std::size_t const micro_batches = programs_.micro_batches();
        engine_.loss = model_.loss;
        engine_.loss.scratch = plan_.layouts[cells - 1].loss_scratch;
        engine_.capacity = plan_.capacity;
        engine_.micro_batches = micro_batches;
        engine_.sums = model_.sums;
        engine_.input_tensors = model_.input_tensors;
        engine_.target_tensors = model_.target_tensors;
        engine_.inputs = Array<std::byte*>(micro_batches * model_.input_tensors);
        engine_.targets = Array<std::byte*>(micro_batches * model_.target_tensors);
        engine_.output_sizes = model_.infos[model_.infos.size() - 1].output;
        engine_.last_device = programs_.device_of(cells - 1);
    }

    // Samples that there is room for in the devices' memory.
    std::size_t staged_samples() const { return plan_.capacity * programs_.micro_batches(); }

    // Where a step's mini-batch and state lie on a device that cannot read the host's memory.
    [[gnu::cold]] void fill_staging() {
        std::size_t const devices = programs_.devices();
        engine_.states = Array<StepState*>(devices);
        engine_.optimizers = Array<std::byte*>(devices);
        for (std::size_t d = 0; d < devices; ++d) {
            engine_.states[d] = reinterpret_cast<StepState*>(arena_data_[d] + plan_.states_at[d]);
            engine_.optimizers[d] = arena_data_[d] + plan_.optimizers_at[d];
        }
        engine_.optimizer_bytes = model_.optimizer_bytes;
        if constexpr (Device::calls_enqueue)
            engine_.batch_bytes = model_.infos[0].input.slots(staged_samples()) +
                                  model_.targets.slots(staged_samples());
        engine_.loss_sums =
            reinterpret_cast<double*>(arena_data_[engine_.last_device] + plan_.sums_at);
        engine_.copies =
            Array<typename Engine<Device>::Copy>(model_.input_tensors + model_.target_tensors);
    }

    [[gnu::cold]] void fill_tables() {
        if constexpr (Device::enqueues) {
            HappensBefore const happens_before(plan_.lowered, linear_order(plan_.lowered));
            drop_implied(plan_.lowered, happens_before);
        }
        forwards_ = forward_programs(programs_, plan_);
        std::size_t const most = device_.lanes();
        plans_ = Array<LanePlan>(most > 1 ? 2 : 1);
        for (std::size_t n = 0; n < plans_.size(); ++n) {
            std::size_t const lanes = n == 0 ? 1 : most;
            auto const placed = [&](Lowered const& lowered) {
                return place_programs(lowered, lanes, Device::enqueues, cost_);
            };
            Placement const train = placed(plan_.lowered);
            plans_[n].training =
                training_table(plan_, train, merge_lanes(plan_.lowered, train, cost_), arena_data_,
                               staging_.data());
            Placement const evaluate = placed(forwards_.lowered);
            plans_[n].forward =
                forward_table(forwards_, evaluate, merge_lanes(forwards_.lowered, evaluate, cost_),
                              plan_, arena_data_, staging_.data());
        }
        std::uint32_t longest = 0;
        for (LanePlan const& plan : plans_)
            longest = std::max({longest, plan.training.longest, plan.forward.longest});
        if constexpr (requires { device_.prepare(plan_.lowered.device, longest); })
            prepare_streams(longest);
        if constexpr (requires { device_.chooses_lanes(); })
            lane_choice_ = LaneChoice(most > 1 && device_.chooses_lanes(), programs_.size());
    }
    LanePlan const& lane_plan() const {
        return lane_choice_.alone() ? plans_[0] : plans_[plans_.size() - 1];
    }

    // Those of the programs, and, where mini-batches are fed, one for each of their tensors.
    [[gnu::cold]] void prepare_streams(std::uint32_t longest) {
        Array<std::size_t> const& programs = plan_.lowered.device;
        std::size_t const marks = Engine<Device>::marks(longest);
        if constexpr (Device::calls_enqueue) {
            std::size_t const feeds = engine_.copies.size();
            engine_.first_feed = programs.size();
            Array<std::size_t> devices(programs.size() + feeds, engine_.last_device);
            std::copy(programs.begin(), programs.end(), devices.begin());
            std::fill_n(devices.begin() + programs.size(), model_.input_tensors,
                        programs_.device_of(0));
            device_.prepare(devices, marks, feeds);
        } else {
            device_.prepare(programs, marks);
        }
    }

    // What a device that cannot read the host's memory has to know before the first step, and after
    // one that may have been committed although it failed.
    [[gnu::cold]] void initialize_states() {
        if constexpr (!Device::reads_host) {
            finish();
            StepState const state{seed_, steps_, 0, 0};
            for (StepState* const at : engine_.states)
                copy(reinterpret_cast<std::byte*>(at), reinterpret_cast<std::byte const*>(&state),
                     sizeof state);
            doubtful_ = false;
        }
    }

    // Tells the engine where samples [first, first + count) of the caller's arrays lie, or where
    // they will have been copied to. `others` are targets or, if not measured, outputs.
    void point_to(Pointers inputs, Pointers others, std::size_t first, std::size_t count,
                  bool measures, std::size_t slot) {
        engine_.copy_count = 0;
        std::size_t const device = programs_.device_of(0);
        point(engine_.inputs, model_.input_tensors, inputs, first, count, device,
              arena_data_[device] + plan_.inputs_at + slot * plan_.staged_inputs, 0,
              !Device::reads_host);
        std::size_t const last = engine_.last_device;
        point(engine_.targets, model_.target_tensors, others, first, count, last,
              arena_data_[last] + plan_.targets_at + slot * plan_.staged_targets,
              plan_.staged_inputs, !Device::reads_host && measures);
    }
    void point(Array<std::byte*>& table, std::size_t tensors, Pointers from, std::size_t first,
               std::size_t count, std::size_t device, std::byte* staged, std::size_t pinned,
               bool stages) {
        std::size_t const micro_batches = programs_.micro_batches();
        for (std::size_t t = 0; t < from.size(); ++t) {
            std::size_t const bytes = from[t].sample_bytes;
            std::byte* data = from[t].data + first * bytes;
            if (stages) {
                engine_.copies[engine_.copy_count++] = {device, staged, data, count * bytes,
                                                        pinned};
                data = staged;
                staged += slot_bytes(staged_samples() * bytes);
                pinned += slot_bytes(staged_samples() * bytes);
            }
            for (std::size_t m = 0; m < micro_batches; ++m)
                table[m * tensors + t] =
                    data + micro_batch_range(count, micro_batches, m).first * bytes;
        }
    }

    Model model_;
    Array<std::size_t> first_;
    Programs programs_;
    std::size_t samples_;
    std::uint64_t seed_;
    std::uint64_t steps_ = 0;
    DeclaredCost cost_;
    std::size_t learner_;
    Device device_;
    MemoryPlan plan_;
    ForwardPrograms forwards_;
    Array<decltype(std::declval<Device&>().allocate(0, 0))> arenas_;
    Array<std::byte*> arena_data_;
    decltype(std::declval<Device&>().allocate_host(0)) staging_;
    Array<HandleSet> handles_; ///< by device; goes before its workspaces and streams
    Engine<Device> engine_;
    Array<LanePlan> plans_; ///< one lane; as many as the device has, if that is more
    LaneChoice lane_choice_;
    std::size_t next_slot_ = 0;
    bool under_way_[slots] = {};        ///< by slot
    bool doubtful_ = false;             ///< whether the devices may count other steps
    StepOutcome* outcomes_[slots] = {}; ///< who is told, by slot
};

} // namespace gpipe
