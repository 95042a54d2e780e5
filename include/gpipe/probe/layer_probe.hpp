#pragma once

#include <gpipe/call/call.hpp>
#include <gpipe/probe/probe_inputs.hpp>
#include <gpipe/probe/probe_memory.hpp>
#include <gpipe/runtime/calls.hpp>
#include <gpipe/runtime/model.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace gpipe::detail {

/// One layer of a bench, or its loss: two micro-batches run through it, by functions that see,
/// beside what they are given, what they would see in the bench's next step.
template <class Bench> class LayerProbe : public ProbeInputs<Bench> {
    using Inputs = ProbeInputs<Bench>;
    using Memory = ProbeMemory<Bench>;
    using Tensors = ProbeTensors<Bench>;

  public:
    using Inputs::parts;
    using typename Inputs::Place;
    using typename Inputs::Sizes;
    /// A way to the gradients.
    enum class Way { backward, halves, without_input };

    /// `layer`: L for the loss, which has no output. `optionals`: of the mini-batch.
    LayerProbe(Bench& bench, std::size_t layer, LayerElements const& elements, Sizes const& sizes,
               StepOptionals optionals = {})
        : Inputs(bench, device_of(bench, layer), elements,
                 layer == bench.model().layers.size() ? bench.model().targets : GroupSizes{},
                 sizes),
          bench_(bench), layer_(layer), device_(device_of(bench, layer)),
          sides_(bench, device_, bench.model().sides,
                 is_loss() ? SideEnds{} : bench.model().infos[layer].sides, parts, capacity_) {
        Model const& model = bench.model();
        shared_.capacity = capacity_;
        shared_.seed = bench.seed();
        shared_.step = bench.steps();
        shared_.is_probe = true;
        shared_.handles = &bench.handles(device_);
        state_ = memory(sizeof(StepState));
        StepState const state{shared_.seed, shared_.step, 0, 0, 0};
        std::memcpy(state_.here(), &state, sizeof state);
        state_.upload();
        shared_.state = reinterpret_cast<StepState const*>(state_.there());
        if (StepConstants const& all = model.constants; all.table) {
            constants_ = memory(all.table->bytes());
            if (constants_.size() > 0)
                std::memcpy(constants_.here(), all.values, constants_.size());
            constants_.upload();
            shared_.constants = {all.table, constants_.there()};
        }
        shared_.sides = sides_.addresses();
        shared_.optionals = optionals;
        call_.index = static_cast<std::uint32_t>(layer);
        call_.saving = true;
        GroupSizes saved, deferred, scratch = model.loss.scratch;
        if (is_loss()) {
            call_.layer = model.loss.object;
        } else {
            LayerInfo const& info = model.infos[layer];
            call_.layer = model.layers[layer].object;
            scratch = info.scratch;
            saved = info.saved;
            deferred = info.deferred;
            gradients_ = {bench, device_, elements.parameters, 1};
            LayerMemory const own = bench.layer(layer);
            for (std::size_t t = 0; t < info.parameters.count; ++t)
                bench.copy(info.parameters.find(parameters_.here(), t), own.parameters[t],
                           info.parameters.bytes[t]);
            parameters_.upload();
            parameters_there_ = info.parameters.addresses(parameters_.there());
            gradients_there_ = info.parameters.addresses(gradients_.there());
            call_.parameters = parameters_there_.data();
            call_.gradients = gradients_there_.data();
            call_.unwanted = info.unwanted();
            // What a forward finds out goes nowhere.
            std::size_t const buffers = info.buffers.slots(1), found = info.statistics.slots(1);
            // And there is one replica.
            std::size_t const told = info.exchanged.slots(1);
            std::size_t const told_back = info.exchanged_gradient.slots(1);
            lasting_ = memory(buffers + 2 * found + parts * told + told_back);
            lasting_.fill(0);
            bench.copy(lasting_.here(), own.buffers.buffers, buffers);
            lasting_.upload();
            std::byte* const there = lasting_.there();
            std::byte* const all = there + buffers + 2 * found;
            buffers_ = {there,
                        nullptr,
                        there + buffers,
                        there + buffers + found,
                        0,
                        0,
                        {all, told, all + parts * told, told_back}};
            call_.buffers = &buffers_;
        }
        scratch_ = memory(scratch.slots(capacity_));
        for (std::size_t p = 0; p < parts; ++p) {
            std::size_t const room = given_[p].samples > 0 ? capacity_ : 0;
            parts_[p] = {{bench, device_, elements.takes, room, true},
                         {bench, device_, elements.gives, room},
                         {bench, device_, elements.gives, room, true},
                         memory(saved.slots(room)),
                         memory(deferred.slots(room)),
                         memory(is_loss() ? model.sums * sizeof(double) : 0)};
            parts_[p].y.fill_numbers(rubbish);
        }
        // By end: what it stashes, then what it pops.
        auto const add_skips = [&](std::size_t from, Tensors const& tensors, Region tensor,
                                   Tensors const& gradients, Region gradient, std::size_t count) {
            for (std::size_t t = from; t < from + count; ++t)
                skips_.push_back({{tensors.begin(t), tensor}, {gradients.begin(t), gradient}});
        };
        add_skips(elements.outputs, parts_[0].y, Region::output, parts_[0].dy,
                  Region::output_gradient, elements.stashed().size());
        add_skips(elements.inputs, given_[0].x, Region::input, parts_[0].dx, Region::input_gradient,
                  elements.popped().size());
        call_.skips = skips_.data();
    }
    LayerProbe(LayerProbe const&) = delete;
    LayerProbe& operator=(LayerProbe const&) = delete;

    bool is_loss() const { return layer_ == bench_.model().layers.size(); }
    /// Whether it has a backward: one gives numbers that carry a gradient.
    bool has_backward() const {
        return is_loss() || bench_.model().layers[layer_].functions.backward;
    }

    /// Sets a side input of a sample.
    void give_side(std::size_t sample, std::size_t side, std::byte const* data) {
        std::size_t const p = sample < given_[1].first ? 0 : 1;
        sides_.give(p, sample - given_[p].first, side, data);
    }
    void upload() {
        Inputs::upload();
        sides_.upload();
    }
    /// What the layer behind is given of a micro-batch, by a forward.
    std::vector<std::byte> output(std::size_t p) {
        std::vector<double> unused;
        forward(p, unused);
        Tensors const& y = parts_[p].y;
        return {y.here(), y.here() + y.begin(elements_.outputs)};
    }
    /// What forward() has left of a skip, by its end.
    std::vector<std::byte> stashed(std::size_t p, std::uint32_t end) const {
        Tensors const& y = parts_[p].y;
        std::size_t const t = elements_.outputs + end;
        return {y.here() + y.begin(t), y.here() + y.begin(t + 1)};
    }

    /// The numbers that the layer gives one micro-batch: outputs that carry a gradient, or the
    /// loss's sum.
    void forward(std::size_t p, std::vector<double>& outputs) {
        Part& part = parts_[p];
        if (is_loss())
            call(bench_.model().loss.train, p, Phase::backward);
        else
            call(bench_.model().layers[layer_].functions.forward, p, Phase::forward);
        outputs.clear();
        if (is_loss()) {
            part.sums.download();
            double sums[2];
            std::memcpy(sums, part.sums.here(), sizeof sums);
            outputs.push_back(sums[0]);
            part.weight = sums[1];
            return;
        }
        part.y.download();
        part.y.each(given_[p].samples, append_to(outputs));
    }
    double weight(std::size_t p) const { return parts_[p].weight; } ///< the loss's, of a forward
    /// The gradients of what forward() gives; rounds them to what there is.
    void set_output_gradients(std::size_t p, std::vector<double>& gradients) {
        double* next = gradients.data();
        parts_[p].dy.each(given_[p].samples, [&](ElementType const& type, std::byte* to) {
            type.set(to, *next);
            *next++ = type.get(to);
        });
        parts_[p].dy.upload();
    }

    /// Whether a parameter tensor has a gradient.
    bool learns(std::size_t tensor) const {
        return !is_loss() && bench_.model().infos[layer_].learns(tensor);
    }
    bool has(Way way) const {
        if (way == Way::backward) return true;
        if (is_loss()) return false;
        LayerInfo const& info = bench_.model().infos[layer_];
        return way == Way::halves ? info.splits : info.accepts_none && info.learns();
    }
    void clear_gradients() { gradients_.fill(0); }
    /// Whether a number is what was there before, or was calculated from that.
    static bool is_rubbish(double value) {
        constexpr std::uint64_t quiet = std::uint64_t{0xFFF8} << 48; // of no number, as x86 has it
        return std::bit_cast<std::uint64_t>(value) > quiet;
    }
    /// Runs both micro-batches forward, then backward. What a function has to write, and what it
    /// may not count on, holds no numbers before.
    void backward(Way way) {
        std::vector<double> unused;
        for (std::size_t p = 0; p < parts; ++p) {
            Part& part = parts_[p];
            for (Memory* const memory : {&scratch_, static_cast<Memory*>(&part.y), &part.saved,
                                         &part.deferred, static_cast<Memory*>(&part.dx)})
                memory->fill(rubbish);
            forward(p, unused);
        }
        if (is_loss()) return;
        LayerFunctions const& functions = bench_.model().layers[layer_].functions;
        for (std::size_t p = 0; p < parts; ++p) {
            scratch_.fill(rubbish);
            if (way == Way::backward) {
                call(functions.backward, p, Phase::backward);
            } else if (way == Way::without_input) {
                call(functions.lowest_backward, p, Phase::backward);
            } else {
                call(functions.input_gradient, p, Phase::input_gradient);
                scratch_.fill(rubbish);
                call(functions.weight_gradient, p, Phase::weight_gradient);
            }
        }
    }
    /// Those of a tensor that it has left.
    std::vector<double> gradients(Place place) {
        std::vector<double> values;
        auto const read = [&](Tensors& group, std::size_t samples) {
            group.download();
            group.each(place.tensor, samples, append_to(values));
        };
        if (!place.input) return read(gradients_, 1), values;
        for (std::size_t p = 0; p < parts; ++p) read(parts_[p].dx, given_[p].samples);
        return values;
    }

    /// Has a function of the layer, or of the loss, run on a micro-batch, and waits for it.
    void call(CallFunction function, std::size_t p, Phase phase) {
        Part& part = parts_[p];
        Tensors& x = given_[p].x;
        OwnFrame frame(&shared_, given_[p].first, given_[p].samples, phase);
        frame.micro_batch = p;
        frame.set(Region::saved, part.saved.there());
        frame.set(Region::deferred, part.deferred.there());
        frame.set(Region::scratch, scratch_.there());
        frame.set(Region::input, x.there());
        frame.set(Region::output, is_loss() ? x.there() : part.y.there());
        frame.set(Region::output_gradient, is_loss() ? part.dx.there() : part.dy.there());
        frame.set(Region::input_gradient, part.dx.there());
        shared_.ends.targets = {{given_[p].targets.there()}};
        shared_.ends.sums = reinterpret_cast<double*>(part.sums.there());
        call_.exchanges =
            !is_loss() && phase != Phase::recompute && bench_.model().infos[layer_].exchanges();
        bench_.call(device_, [&](auto const& stream) {
            shared_.stream = &stream;
            function(call_, frame);
        });
    }

  private:
    using Inputs::capacity_;
    using Inputs::elements_;
    using Inputs::given_;
    using Inputs::parameters_;
    static constexpr int rubbish = 0xFF; // of floating-point types no number

    struct Part {
        Tensors dx, y, dy;
        Memory saved, deferred, sums;
        double weight = 0;
    };

    static std::size_t device_of(Bench const& bench, std::size_t layer) {
        return bench.device_of(layer == bench.model().layers.size() ? layer - 1 : layer);
    }
    static auto append_to(std::vector<double>& to) {
        return [&to](ElementType const& type, std::byte const* at) { to.push_back(type.get(at)); };
    }
    Memory memory(std::size_t bytes) { return Memory(bench_, device_, bytes); }

    Bench& bench_;
    std::size_t layer_;
    std::size_t device_;
    ProbeSides<Bench> sides_;
    StepFrame shared_;
    Call call_;
    std::vector<SkipPlace> skips_;
    BufferMemory buffers_;
    Array<std::byte*> parameters_there_, gradients_there_; // by tensor
    Memory state_, constants_, scratch_, lasting_;
    Tensors gradients_;
    Part parts_[parts];
};

} // namespace gpipe::detail
