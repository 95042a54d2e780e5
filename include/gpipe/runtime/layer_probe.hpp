#pragma once

#include <gpipe/chain/element.hpp>
#include <gpipe/runtime/machine.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace gpipe::detail {

/// Memory of a device with its image in the host's.
template <class Device> class ProbeMemory {
  public:
    ProbeMemory() = default;
    ProbeMemory(Machine<Device>& machine, std::size_t device, std::size_t bytes)
        : machine_(&machine), there_(machine.allocate(device, bytes)), here_(bytes) {}

    std::byte* there() const { return machine_ ? there_.data() : nullptr; }
    std::byte* here() { return here_.data(); }
    std::byte const* here() const { return here_.data(); }
    std::size_t size() const { return here_.size(); }
    void upload(std::size_t first, std::size_t bytes) {
        if (bytes > 0) machine_->copy(there() + first, here() + first, bytes);
    }
    void upload() { upload(0, size()); }
    void download() {
        if (size() > 0) machine_->copy(here(), there(), size());
    }
    void fill(int value) {
        std::fill(here_.begin(), here_.end(), static_cast<std::byte>(value));
        upload();
    }

  private:
    Machine<Device>* machine_ = nullptr;
    decltype(std::declval<Device&>().allocate(0, 0)) there_;
    std::vector<std::byte> here_;
};

/// One layer of a training, or its loss, in memory of its own: two micro-batches run through it,
/// and everything that its functions are given can be changed. All else that they see is what they
/// would see in the next step of the training.
template <class Device> class LayerProbe {
    using Memory = ProbeMemory<Device>;

  public:
    /// The micro-batches: of different sizes, for what depends on that.
    static constexpr std::size_t parts = 2;
    using Sizes = std::array<std::size_t, parts>;
    static constexpr std::size_t whole = static_cast<std::size_t>(-1);

    /// An element of a tensor that the layer is given, or all of them at once. An input's elements
    /// count from the first sample.
    struct Place {
        bool input = false;
        std::size_t tensor = 0;
        std::size_t entry = whole;
    };
    /// A way to the gradients.
    enum class Way { backward, halves, without_input };

    /// `layer`: L for the loss, which has no output.
    LayerProbe(Machine<Device>& machine, std::size_t layer, TensorTypes inputs, TensorTypes outputs,
               TensorTypes parameters, Sizes const& sizes)
        : machine_(machine), layer_(layer), inputs_(inputs), outputs_(outputs),
          parameter_types_(parameters) {
        Model const& model = machine.model();
        device_ = machine.device_of(is_loss() ? layer - 1 : layer);
        shared_.capacity = sizes[0];
        shared_.seed = machine.engine().seed();
        shared_.step = machine.engine().steps();
        shared_.handles = &machine.handles(device_);
        state_ = memory(sizeof(StepState));
        StepState const state{shared_.seed, shared_.step, 0, 0, 0};
        std::memcpy(state_.here(), &state, sizeof state);
        state_.upload();
        shared_.state = reinterpret_cast<StepState const*>(state_.there());
        call_.index = static_cast<std::uint32_t>(layer);
        call_.saving = true;
        std::size_t scratch = 0, saved = 0, deferred = 0;
        std::size_t const capacity = shared_.capacity;
        if (is_loss()) {
            call_.layer = model.loss.object;
            scratch = model.loss_scratch.slots(capacity);
        } else {
            LayerInfo const& info = model.infos[layer];
            call_.layer = model.layers[layer].object;
            scratch = info.scratch.slots(capacity);
            saved = info.saved.slots(capacity);
            deferred = info.deferred.slots(capacity);
            parameters_ = memory(info.parameters.slots(1));
            gradients_ = memory(info.parameters.slots(1));
            machine.copy(parameters_.here(), machine.layer(layer).parameters, parameters_.size());
            parameters_.upload();
            call_.parameters = parameters_.there();
            call_.gradients = gradients_.there();
        }
        scratch_ = memory(scratch);
        own_inputs_ = inputs_.count;
        if (!is_loss()) {
            SkipEnds const& ends = model.infos[layer].skips;
            own_inputs_ -= ends.pops;
            own_outputs_ = outputs_.count - ends.stashes;
            for (std::uint32_t e = 0; e < ends.count(); ++e) {
                bool const gives = e < ends.stashes;
                TensorTypes const& types = gives ? outputs_ : inputs_;
                std::size_t const t = gives ? own_outputs_ + e : own_inputs_ + e - ends.stashes;
                skips_.push_back({{offset(types, t, false), gives ? Region::output : Region::input},
                                  {offset(types, t, true),
                                   gives ? Region::output_gradient : Region::input_gradient}});
            }
            call_.skips = skips_.data();
        }
        std::size_t first = 0;
        for (std::size_t p = 0; p < parts; ++p) {
            Part& part = parts_[p];
            part.first = first;
            part.samples = sizes[p];
            first += sizes[p];
            part.x = memory(bytes_of(inputs_, false));
            part.dx = memory(bytes_of(inputs_, true));
            part.y = memory(bytes_of(outputs_, false));
            part.dy = memory(bytes_of(outputs_, true));
            part.saved = memory(saved);
            part.deferred = memory(deferred);
            if (!is_loss()) continue;
            part.targets = memory(model.targets.slots(capacity));
            part.sums = memory(model.sums * sizeof(double));
        }
    }
    LayerProbe(LayerProbe const&) = delete;
    LayerProbe& operator=(LayerProbe const&) = delete;

    bool is_loss() const { return layer_ == machine_.model().layers.size(); }
    /// The loss's, or the layer's; behind its own what it pops.
    TensorTypes inputs() const { return inputs_; }
    std::size_t own_inputs() const { return own_inputs_; }
    TensorTypes parameters() const { return parameter_types_; }
    std::size_t samples() const { return parts_[parts - 1].first + parts_[parts - 1].samples; }
    /// Whether it gives numbers that carry a gradient, and so has a backward.
    bool has_backward() const { return is_loss() || count_outputs(0) > 0; }
    /// How many elements a tensor has that the layer is given; 0 of one that carries no gradient.
    std::size_t size(Place place) const {
        TensorType const& type = type_of(place);
        return !type.element.get ? 0 : place.input ? type.count * samples() : type.count;
    }

    /// Sets what the layer is given of a sample: one tensor of its inputs, or of the loss's
    /// targets, of which `bytes` are a sample.
    void give(std::size_t sample, std::size_t tensor, std::byte const* data) {
        Part& part = of_sample(sample);
        TensorType const& type = inputs_.first[tensor];
        std::size_t const bytes = type.element.bytes * type.count;
        std::memcpy(part.x.here() + offset(inputs_, tensor, false) + (sample - part.first) * bytes,
                    data, bytes);
    }
    void give_target(std::size_t sample, std::size_t tensor, std::byte const* data) {
        Part& part = of_sample(sample);
        GroupSizes const& sizes = machine_.model().targets;
        std::size_t at = (sample - part.first) * sizes.bytes[tensor];
        for (std::size_t t = 0; t < tensor; ++t)
            at += slot_bytes(sizes.bytes[t] * shared_.capacity);
        std::memcpy(part.targets.here() + at, data, sizes.bytes[tensor]);
    }
    /// The same from the layer before, by its forward.
    void give(LayerProbe& before) {
        std::vector<double> unused;
        for (std::size_t p = 0; p < parts; ++p) {
            before.forward(p, unused);
            std::memcpy(parts_[p].x.here(), before.parts_[p].y.here(),
                        offset(inputs_, own_inputs_, false));
        }
    }
    /// What forward() has left of a skip, by its end.
    std::vector<std::byte> stashed(std::size_t p, std::uint32_t end) {
        std::size_t const t = own_outputs_ + end;
        std::byte const* const y = parts_[p].y.here();
        return {y + offset(outputs_, t, false), y + offset(outputs_, t + 1, false)};
    }
    void give_popped(std::size_t p, std::uint32_t end, std::vector<std::byte> const& tensor) {
        std::memcpy(parts_[p].x.here() + skips_[end].value.offset, tensor.data(), tensor.size());
    }
    void upload() {
        for (Part& part : parts_) {
            part.x.upload();
            part.targets.upload();
        }
    }

    double value(Place place) { return type_of(place).element.get(at(place).here); }
    /// Returns what it is then.
    double set(Place place, double value) {
        Found const found = at(place);
        ElementType const& element = type_of(place).element;
        element.set(found.here, value);
        found.memory->upload(static_cast<std::size_t>(found.here - found.memory->here()),
                             element.bytes);
        return element.get(found.here);
    }
    /// Adds step * direction(i) to each value of a tensor, from the values `from`.
    template <class Direction>
    void set_all(Place place, std::vector<double> const& from, double step, Direction direction) {
        ElementType const& element = type_of(place).element;
        for (place.entry = 0; place.entry < from.size(); ++place.entry)
            element.set(at(place).here, from[place.entry] + step * direction(place.entry));
        if (!place.input) return parameters_.upload();
        for (Part& part : parts_) part.x.upload();
    }

    /// The numbers that the layer gives one micro-batch: outputs that carry a gradient, or the
    /// loss's sum.
    void forward(std::size_t p, std::vector<double>& outputs) {
        Part& part = parts_[p];
        if (is_loss())
            call(machine_.model().loss.train, part, Phase::backward);
        else
            call(machine_.model().layers[layer_].functions.forward, part, Phase::forward);
        outputs.clear();
        if (is_loss()) {
            part.sums.download();
            double sum;
            std::memcpy(&sum, part.sums.here(), sizeof sum);
            outputs.push_back(sum);
            return;
        }
        part.y.download();
        read(outputs_, part.samples, part.y.here(), outputs);
    }
    /// The micro-batch that a change of an input's element reaches; `parts` if it reaches both.
    std::size_t reached(Place place) const {
        if (!place.input || place.entry == whole) return parts;
        return place.entry / type_of(place).count < parts_[1].first ? 0 : 1;
    }
    /// The greatest distance from 1 to the next number in its tensors.
    double epsilon() const {
        double most = 0;
        for (TensorTypes const& types : {inputs_, outputs_, parameter_types_})
            for (TensorType const& type : types)
                if (type.element.get) most = std::max(most, type.element.epsilon());
        return most;
    }
    std::size_t count_outputs(std::size_t p) const {
        std::size_t count = 0;
        for (TensorType const& type : outputs_)
            if (type.element.get) count += type.count * parts_[p].samples;
        return count;
    }
    /// The gradients of what forward() gives; rounds them to what there is.
    void set_output_gradients(std::size_t p, std::vector<double>& gradients) {
        Part& part = parts_[p];
        double* next = gradients.data();
        for (std::size_t t = 0; t < outputs_.count; ++t) {
            TensorType const& type = outputs_.first[t];
            if (!type.element.get) continue;
            std::byte* to = part.dy.here() + offset(outputs_, t, true);
            for (std::size_t i = 0; i < type.count * part.samples; ++i, to += type.element.bytes) {
                type.element.set(to, *next);
                *next++ = type.element.get(to);
            }
        }
        part.dy.upload();
    }

    bool has(Way way) const {
        if (way == Way::backward) return true;
        if (is_loss()) return false;
        LayerInfo const& info = machine_.model().infos[layer_];
        return way == Way::halves ? info.splits : info.accepts_none && info.parameters.count > 0;
    }
    void clear_gradients() { gradients_.fill(0); }
    /// Runs both micro-batches forward, then backward. What a function has to write, and what it
    /// may not count on, holds no numbers before.
    void backward(Way way) {
        std::vector<double> unused;
        for (std::size_t p = 0; p < parts; ++p) {
            Part& part = parts_[p];
            for (Memory* const memory : {&scratch_, &part.y, &part.saved, &part.deferred, &part.dx})
                memory->fill(rubbish);
            forward(p, unused);
        }
        if (is_loss()) return;
        LayerFunctions const& functions = machine_.model().layers[layer_].functions;
        for (Part& part : parts_) {
            scratch_.fill(rubbish);
            if (way == Way::backward) {
                call(functions.backward, part, Phase::backward);
            } else if (way == Way::without_input) {
                call(functions.lowest_backward, part, Phase::backward);
            } else {
                call(functions.input_gradient, part, Phase::input_gradient);
                scratch_.fill(rubbish);
                call(functions.weight_gradient, part, Phase::weight_gradient);
            }
        }
    }
    std::vector<double> gradients(Place place) {
        std::vector<double> values;
        TensorTypes const one{&type_of(place), 1};
        if (place.input) {
            for (Part& part : parts_) {
                part.dx.download();
                read(one, part.samples, part.dx.here() + offset(inputs_, place.tensor, true),
                     values);
            }
        } else {
            gradients_.download();
            read(one, 1, gradients_.here() + offset(parameter_types_, place.tensor, false, 1),
                 values);
        }
        return values;
    }

  private:
    static constexpr int rubbish = 0xFF; // of floating-point types no number

    struct Part {
        std::size_t first = 0;
        std::size_t samples = 0;
        Memory x, y, dy, dx, saved, deferred, targets, sums;
    };
    struct Found {
        Memory* memory = nullptr;
        std::byte* here = nullptr;
    };

    Memory memory(std::size_t bytes) { return Memory(machine_, device_, bytes); }
    Part& of_sample(std::size_t sample) { return parts_[sample < parts_[1].first ? 0 : 1]; }
    TensorType const& type_of(Place place) const {
        return (place.input ? inputs_ : parameter_types_).first[place.tensor];
    }
    // Of a tensor within its group; of gradients, those that carry one.
    std::size_t offset(TensorTypes types, std::size_t tensor, bool gradients,
                       std::size_t capacity = 0) const {
        std::size_t total = 0;
        if (capacity == 0) capacity = shared_.capacity;
        for (std::size_t t = 0; t < tensor; ++t)
            if (TensorType const& type = types.first[t]; !gradients || type.element.get)
                total += slot_bytes(type.element.bytes * type.count * capacity);
        return total;
    }
    std::size_t bytes_of(TensorTypes types, bool gradients) const {
        return offset(types, types.count, gradients);
    }
    Found at(Place place) {
        ElementType const& element = type_of(place).element;
        if (!place.input)
            return {&parameters_, parameters_.here() +
                                      offset(parameter_types_, place.tensor, false, 1) +
                                      place.entry * element.bytes};
        std::size_t const count = type_of(place).count;
        Part& part = of_sample(place.entry / count);
        return {&part.x, part.x.here() + offset(inputs_, place.tensor, false) +
                             (place.entry - part.first * count) * element.bytes};
    }
    // Appends the numbers of each tensor that carries a gradient.
    void read(TensorTypes types, std::size_t samples, std::byte const* group,
              std::vector<double>& to) const {
        for (std::size_t t = 0; t < types.count; ++t) {
            TensorType const& type = types.first[t];
            std::byte const* from = group + offset(types, t, false);
            if (!type.element.get) continue;
            for (std::size_t i = 0; i < type.count * samples; ++i, from += type.element.bytes)
                to.push_back(type.element.get(from));
        }
    }

    void call(CallFunction function, Part& part, Phase phase) {
        Memory& y = is_loss() ? part.x : part.y;
        Memory& dy = is_loss() ? part.dx : part.dy;
        OwnFrame frame(&shared_, part.first, part.samples, phase);
        frame.set(Region::saved, part.saved.there());
        frame.set(Region::deferred, part.deferred.there());
        frame.set(Region::scratch, scratch_.there());
        frame.set(Region::input, part.x.there());
        frame.set(Region::output, y.there());
        frame.set(Region::output_gradient, dy.there());
        frame.set(Region::input_gradient, part.dx.there());
        frame.targets = {part.targets.there(), nullptr};
        frame.sums = reinterpret_cast<double*>(part.sums.there());
        machine_.call(device_, [&](auto const& stream) {
            shared_.stream = &stream;
            function(call_, frame);
        });
    }

    Machine<Device>& machine_;
    std::size_t layer_;
    TensorTypes inputs_, outputs_, parameter_types_;
    std::size_t own_inputs_ = 0, own_outputs_ = 0; // the others are skips
    std::size_t device_ = 0;
    StepFrame shared_;
    Call call_;
    std::vector<SkipPlace> skips_;
    Memory state_, parameters_, gradients_, scratch_;
    Part parts_[parts];
};

} // namespace gpipe::detail
