#pragma once

#include <gpipe/chain/info.hpp>
#include <gpipe/layer/random.hpp>
#include <gpipe/probe/probe_memory.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace gpipe::detail {

/// What a layer, or a loss, is given in two micro-batches, in memory of its own: inputs, targets
/// and parameters, of which every element can be changed. Where there are no samples for the second
/// one it takes no memory.
template <class Bench> class ProbeInputs {
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

    /// `targets`: of a loss.
    ProbeInputs(Bench& bench, std::size_t device, LayerElements const& elements,
                GroupSizes const& targets, Sizes const& sizes)
        : elements_(elements), targets_(targets), capacity_(sizes[0]),
          parameters_(bench, device, elements.parameters, 1) {
        std::size_t first = 0;
        for (std::size_t p = 0; p < parts; ++p) {
            std::size_t const room = sizes[p] > 0 ? capacity_ : 0;
            given_[p] = {first,
                         sizes[p],
                         {bench, device, elements.takes, room},
                         {bench, device, targets.slots(room)}};
            first += sizes[p];
        }
    }

    LayerElements const& elements() const { return elements_; }
    std::size_t part_samples(std::size_t p) const { return given_[p].samples; }
    std::size_t samples() const { return given_[parts - 1].first + given_[parts - 1].samples; }
    /// How many elements a tensor has that the layer is given; 0 of one that carries no gradient,
    /// or is absent.
    std::size_t size(Place place) const {
        TensorType const& type = type_of(place);
        return !type.element.get || type.absent ? 0
               : place.input                    ? type.count * samples()
                                                : type.count;
    }
    /// The greatest distance from 1 to the next number in its tensors.
    double epsilon() const {
        double most = 0;
        for (TensorTypes const& types : {elements_.takes, elements_.gives, elements_.parameters})
            for (TensorType const& type : types)
                if (type.element.get) most = std::max(most, type.element.epsilon());
        return most;
    }

    /// Sets what the layer is given of a sample: one tensor of its inputs, or of the loss's
    /// targets; or of a micro-batch what the layer before has as output.
    /// `again`: how often there has been such a one. Then its numbers are a little smaller: what
    /// samples do together (BatchNorm) bends without bounds where they are all equal.
    void give(std::size_t sample, std::size_t tensor, std::byte const* data, std::size_t again) {
        Given& part = of_sample(sample);
        TensorType const& type = elements_.takes[tensor];
        std::size_t const bytes = type.element.bytes * type.count;
        std::byte* const to = part.x.here() + part.x.begin(tensor) + (sample - part.first) * bytes;
        std::memcpy(to, data, bytes);
        if (again == 0 || !type.element.set) return;
        InitialRandom random(again, 0, static_cast<std::uint32_t>(tensor));
        for (std::size_t e = 0; e < type.count; ++e) {
            std::byte* const at = to + e * type.element.bytes;
            type.element.set(at, type.element.get(at) * (1 - random.uniform() / 8));
        }
    }
    void give_output(std::size_t p, std::vector<std::byte> const& before) {
        std::memcpy(given_[p].x.here(), before.data(), before.size());
    }
    /// Normal numbers, and zeros where elements carry no gradient.
    void give_random(std::size_t p, std::uint64_t seed) {
        InitialRandom random(seed, 0, 0);
        given_[p].x.each(given_[p].samples, [&](ElementType const& type, std::byte* at) {
            type.set(at, random.normal());
        });
    }
    void give_target(std::size_t sample, std::size_t tensor, std::byte const* data) {
        Given& part = of_sample(sample);
        std::size_t at = (sample - part.first) * targets_.bytes[tensor];
        for (std::size_t t = 0; t < tensor; ++t) at += slot_bytes(targets_.bytes[t] * capacity_);
        std::memcpy(part.targets.here() + at, data, targets_.bytes[tensor]);
    }
    /// What the layer pops at an end of its skips.
    void give_popped(std::size_t p, std::uint32_t end, std::vector<std::byte> const& tensor) {
        auto& x = given_[p].x;
        std::size_t const t = elements_.inputs + end - elements_.stashed().size();
        std::memcpy(x.here() + x.begin(t), tensor.data(), tensor.size());
    }
    void upload() {
        for (Given& part : given_) {
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
        for (Given& part : given_) part.x.upload();
    }
    /// The micro-batch that a change of an input's element reaches; `parts` if it reaches both.
    std::size_t reached(Place place) const {
        if (!place.input || place.entry == whole) return parts;
        return place.entry / type_of(place).count < given_[1].first ? 0 : 1;
    }

  protected:
    struct Given {
        std::size_t first = 0;
        std::size_t samples = 0;
        ProbeTensors<Bench> x;
        ProbeMemory<Bench> targets;
    };

    LayerElements const elements_;
    GroupSizes const targets_;
    std::size_t const capacity_; ///< samples of the larger micro-batch
    ProbeTensors<Bench> parameters_;
    Given given_[parts];

  private:
    struct Found {
        ProbeMemory<Bench>* memory = nullptr;
        std::byte* here = nullptr;
    };

    Given& of_sample(std::size_t sample) { return given_[sample < given_[1].first ? 0 : 1]; }
    TensorType const& type_of(Place place) const {
        return (place.input ? elements_.takes : elements_.parameters)[place.tensor];
    }
    Found at(Place place) {
        TensorType const& type = type_of(place);
        ProbeTensors<Bench>* tensors = &parameters_;
        if (place.input) {
            Given& part = of_sample(place.entry / type.count);
            place.entry -= part.first * type.count;
            tensors = &part.x;
        }
        return {tensors,
                tensors->here() + tensors->begin(place.tensor) + place.entry * type.element.bytes};
    }
};

} // namespace gpipe::detail
