#pragma once

#include <gpipe/call/step_sides.hpp>
#include <gpipe/chain/element.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/checked.hpp>
#include <gpipe/core/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

namespace gpipe::detail {

/// Memory of a device with its image in the host's. `Bench`: who has the device, a Machine between
/// steps or a LayerBench.
template <class Bench> class ProbeMemory {
  public:
    ProbeMemory() = default;
    ProbeMemory(Bench& bench, std::size_t device, std::size_t bytes)
        : bench_(&bench), there_(bench.allocate(device, bytes)), here_(bytes) {}

    std::byte* there() const { return bench_ ? there_.data() : nullptr; }
    std::byte* here() { return here_.data(); }
    std::byte const* here() const { return here_.data(); }
    std::size_t size() const { return here_.size(); }
    void upload(std::size_t first, std::size_t bytes) {
        if (bytes > 0) bench_->copy(there() + first, here() + first, bytes);
    }
    void upload() { upload(0, size()); }
    void download() {
        if (size() > 0) bench_->copy(here(), there(), size());
    }
    void fill(int value) {
        std::fill(here_.begin(), here_.end(), static_cast<std::byte>(value));
        upload();
    }

  private:
    Bench* bench_ = nullptr;
    decltype(std::declval<Bench&>().allocate(0, 0)) there_;
    std::vector<std::byte> here_;
};

/// A group of tensors in such memory, one behind the other as layers find them.
template <class Bench> class ProbeTensors : public ProbeMemory<Bench> {
  public:
    ProbeTensors() = default;
    /// With room for so many samples. `gradients`: of those that carry one.
    ProbeTensors(Bench& bench, std::size_t device, TensorTypes types, std::size_t samples,
                 bool gradients = false)
        : ProbeMemory<Bench>(bench, device, begin(types, types.size(), samples, gradients)),
          types_(types), samples_(samples), gradients_(gradients) {}

    /// Where a tensor begins, or, of the one past the last, all end.
    std::size_t begin(std::size_t tensor) const {
        return begin(types_, tensor, samples_, gradients_);
    }
    /// Calls f(element type, where) for so many samples of a tensor, element by element, if it
    /// carries a gradient and is there.
    template <class F> void each(std::size_t tensor, std::size_t samples, F f) {
        TensorType const& type = types_[tensor];
        if (!type.element.get || type.absent) return;
        std::byte* at = this->here() + begin(tensor);
        for (std::size_t i = 0; i < type.count * samples; ++i, at += type.element.bytes)
            f(type.element, at);
    }
    /// The same of all tensors.
    template <class F> void each(std::size_t samples, F f) {
        for (std::size_t t = 0; t < types_.size(); ++t) each(t, samples, f);
    }

    /// Fills what may carry a gradient with this byte, all else with 0.
    void fill_numbers(int value) {
        this->fill(0);
        each(samples_, [value](ElementType const& type, std::byte* at) {
            std::fill_n(at, type.bytes, static_cast<std::byte>(value));
        });
        this->upload();
    }

  private:
    static std::size_t begin(TensorTypes types, std::size_t tensor, std::size_t samples,
                             bool gradients) {
        std::size_t total = 0;
        for (std::size_t t = 0; t < tensor; ++t)
            if (TensorType const& type = types[t]; !gradients || type.element.get)
                total = checked_sum(
                    total, padded(checked_product({type.element.bytes, type.count, samples})));
        if (total > most_bytes)
            throw_error<std::invalid_argument>("gpipe: the tensors of %zu samples have more bytes "
                                               "than memory has addresses",
                                               samples);
        return total;
    }
    static std::size_t padded(std::size_t bytes) {
        return bytes > most_bytes ? too_large : slot_bytes(bytes);
    }

    TensorTypes types_;
    std::size_t samples_ = 0;
    bool gradients_ = false;
};

/// The side inputs of a layer in a few micro-batches, in memory of its own: zeros until they are
/// given.
template <class Bench> class ProbeSides {
  public:
    /// Those of `all` that `read` has, for up to `capacity` samples each.
    ProbeSides(Bench& bench, std::size_t device, Part<SideInfo> all, SideEnds read,
               std::size_t parts, std::size_t capacity)
        : all_(all), table_(parts * all.size()) {
        for (std::size_t s = 0; s < all.size(); ++s)
            for (std::size_t p = 0; p < parts && has(read, all[s].tag); ++p) {
                tensors_.push_back({s, p, {bench, device, all[s].bytes * capacity}});
                table_[p * all.size() + s] = tensors_.back().memory.there();
            }
    }

    /// As frames have them.
    StepSides addresses() const { return {all_, table_.data()}; }
    /// Sets one of a sample, by its number there; what is not read is left out.
    void give(std::size_t part, std::size_t sample, std::size_t side, std::byte const* data) {
        for (auto& tensor : tensors_)
            if (tensor.side == side && tensor.part == part)
                std::memcpy(tensor.memory.here() + sample * all_[side].bytes, data,
                            all_[side].bytes);
    }
    void upload() {
        for (auto& tensor : tensors_) tensor.memory.upload();
    }

  private:
    struct Tensor {
        std::size_t side, part;
        ProbeMemory<Bench> memory;
    };

    Part<SideInfo> all_;
    std::vector<Tensor> tensors_;
    Array<std::byte*> table_; // [part][side]
};

} // namespace gpipe::detail
