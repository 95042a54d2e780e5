#pragma once

#include <gpipe/device/host.hpp>
#include <gpipe/layer/batch.hpp>
#include <gpipe/runtime/engine.hpp>
#include <gpipe/runtime/lane_choice.hpp>
#include <gpipe/runtime/model.hpp>
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
          plan_(planned(samples)), device_(options, programs_.devices()),
          arenas_(programs_.devices()), arena_data_(programs_.devices()), engine_(device_) {
        for (std::size_t d = 0; d < programs_.devices(); ++d) {
            arenas_[d] = device_.allocate(d, plan_.devices[d].total());
            arena_data_[d] = arenas_[d].data();
        }
        fill_layers();
        initialize_layers();
        fill_updates();
        fill_cells();
        if constexpr (!Device::reads_host) fill_staging();
        engine_.prepare();
        fill_tables();
    }
    Machine(Machine const&) = delete;
    Machine& operator=(Machine const&) = delete;

    /// One training step: forward, backward, update by `optimizer`. Returns the loss's numbers over
    /// the mini-batch, of which [0] is the sum and [1] the weight; without a positive weight
    /// nothing is updated and the step does not count. Rethrows what a layer threw.
    std::span<double const> train(Pointers inputs, Pointers targets, std::size_t samples,
                                  void const* optimizer) {
        point_to(inputs, targets, 0, samples, true);
        bool const timed = lane_choice_.trying();
        auto const begin = timed ? Clock::now() : Clock::time_point{};
        run(lane_plan().training, {seed_, steps_, optimizer, true, samples});
        lane_choice_.note(timed ? std::chrono::duration<double>(Clock::now() - begin).count() : 0);
        if (engine_.committed()) ++steps_;
        return engine_.totals();
    }

    /// Forward only, over any number of samples. Either the loss is measured and add(sums) called
    /// for each part of at most samples() samples, or the outputs are written to `others`.
    template <class Add>
    void forward(Pointers inputs, Pointers others, std::size_t samples, bool measures, Add add) {
        for (std::size_t first = 0; first < samples; first += samples_) {
            std::size_t const count = std::min(samples_, samples - first);
            point_to(inputs, others, first, count, measures);
            run(lane_plan().forward, {seed_, steps_, nullptr, measures, count});
            if (measures) add(engine_.totals());
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
    /// Copies from the host's memory to a device's or back, between runs; done when it returns.
    void copy(std::byte* to, std::byte const* from, std::size_t bytes) {
        if (bytes > 0) device_.run(1, [&](std::size_t) { device_.copy(0, to, from, bytes); });
    }
    std::size_t used_bytes() const {
        std::size_t bytes = 0;
        for (auto const& arena : arenas_) bytes += arena.size();
        return bytes;
    }

    void time_actions() {
        engine_.time_actions(std::max(programs_.size(), forwards_.programs.size()));
    }
    Array<ActionTime> const& times() const { return engine_.times(); }

    /// The programs merged onto the lanes of a step as if cost(action) were what actions take.
    template <class Cost> Lanes merged(Cost const& cost) const {
        return merge_lanes(programs_, place_devices(programs_, lanes(), Device::enqueues, cost_),
                           cost);
    }

  private:
    using Clock = std::chrono::steady_clock;

    MemoryPlan planned(std::size_t samples) const {
        std::size_t const micro_batches = programs_.micro_batches();
        std::size_t const capacity = (samples + micro_batches - 1) / micro_batches;
        Staging staging;
        if constexpr (!Device::reads_host)
            staging = step_staging(model_.infos[0].input, model_.targets, capacity * micro_batches,
                                   micro_batches, model_.sums, model_.optimizer_bytes);
        return plan_memory(
            {model_.infos.data(), model_.infos.size(), learner_, model_.loss_scratch}, first_,
            programs_, model_.states, capacity, staging);
    }

    // The tables for one number of lanes.
    struct LanePlan {
        StepTable training;
        StepTable forward;
    };

    void run(StepTable const& table, RunArguments const& arguments) {
        if (!engine_.run(table, arguments)) std::rethrow_exception(engine_.failure()->error);
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
            cell.is_last = c + 1 == cells;
            bool const recomputes_last_layer =
                cell.is_last || model_.infos[first_[c + 1] - 1].saved.count > 0;
            cell.recompute_last = recomputes_last_layer ? cell.last : cell.last - 1;
            if (learner_ >= first_[c + 1] && !cell.is_last) cell.recompute_last = cell.first;
            cell.discards = learner_ >= first_[c] && learner_ < first_[c + 1];
            cell.discarded = plan_.layouts[c].input_gradient;
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
        engine_.loss_sums =
            reinterpret_cast<double*>(arena_data_[engine_.last_device] + plan_.sums_at);
        engine_.copies =
            Array<typename Engine<Device>::Copy>(model_.input_tensors + model_.target_tensors);
    }

    [[gnu::cold]] void fill_tables() {
        forwards_ = forward_programs(programs_, plan_);
        std::size_t const most = device_.lanes();
        plans_ = Array<LanePlan>(most > 1 ? 2 : 1);
        for (std::size_t n = 0; n < plans_.size(); ++n) {
            Placement const place =
                place_devices(programs_, n == 0 ? 1 : most, Device::enqueues, cost_);
            plans_[n].training = training_table(
                programs_, place, merge_lanes(programs_, place, cost_), plan_, arena_data_);
            plans_[n].forward = forward_table(
                forwards_, place, merge_lanes(forwards_.programs, place, cost_, forwards_.also),
                plan_, arena_data_);
        }
        std::uint32_t longest = 0;
        for (LanePlan const& plan : plans_)
            longest = std::max({longest, plan.training.longest, plan.forward.longest});
        if constexpr (requires { device_.reserve_marks(longest); })
            device_.reserve_marks(Engine<Device>::marks(longest));
        if constexpr (requires { device_.chooses_lanes(); })
            lane_choice_ = LaneChoice(most > 1 && device_.chooses_lanes(), programs_.size());
    }
    LanePlan const& lane_plan() const {
        return lane_choice_.alone() ? plans_[0] : plans_[plans_.size() - 1];
    }

    // Tells the engine where samples [first, first + count) of the caller's arrays lie, or where
    // they will have been copied to. `others` are targets or, if not measured, outputs.
    void point_to(Pointers inputs, Pointers others, std::size_t first, std::size_t count,
                  bool measures) {
        engine_.copy_count = 0;
        std::size_t const device = programs_.device_of(0);
        point(engine_.inputs, model_.input_tensors, inputs, first, count, device,
              arena_data_[device] + plan_.inputs_at, !Device::reads_host);
        std::size_t const last = engine_.last_device;
        point(engine_.targets, model_.target_tensors, others, first, count, last,
              arena_data_[last] + plan_.targets_at, !Device::reads_host && measures);
    }
    void point(Array<std::byte*>& table, std::size_t tensors, Pointers from, std::size_t first,
               std::size_t count, std::size_t device, std::byte* staged, bool stages) {
        std::size_t const micro_batches = programs_.micro_batches();
        for (std::size_t t = 0; t < from.size(); ++t) {
            std::size_t const bytes = from[t].sample_bytes;
            std::byte* data = from[t].data + first * bytes;
            if (stages) {
                engine_.copies[engine_.copy_count++] = {device, staged, data, count * bytes};
                data = staged;
                staged += slot_bytes(staged_samples() * bytes);
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
    MemoryPlan plan_;
    ForwardPrograms forwards_;
    Device device_;
    Array<decltype(std::declval<Device&>().allocate(0, 0))> arenas_;
    Array<std::byte*> arena_data_;
    Engine<Device> engine_;
    Array<LanePlan> plans_; ///< one lane; as many as the device has, if that is more
    LaneChoice lane_choice_;
};

} // namespace gpipe
