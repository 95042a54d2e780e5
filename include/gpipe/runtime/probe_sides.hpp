#pragma once

#include <gpipe/call/step_sides.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/runtime/probe_memory.hpp>

#include <cstddef>
#include <cstring>
#include <vector>

namespace gpipe::detail {

/// The side inputs of a layer in a few micro-batches, in memory of its own: zeros until they are
/// given.
template <class Bench> class ProbeSides {
  public:
    /// Those of `all` that `read` has, for up to `capacity` samples each.
    ProbeSides(Bench& bench, std::size_t device, Part<SideInfo> all, SideEnds read,
               std::size_t parts, std::size_t capacity)
        : all_(all), table_(parts * all.size()) {
        for (std::size_t s = 0; s < all.size(); ++s)
            for (std::size_t p = 0; p < parts && read.has(all[s].tag); ++p) {
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
