#pragma once

#include <gpipe/core/bytes.hpp>
#include <gpipe/runtime/arenas.hpp>
#include <gpipe/runtime/model.hpp>
#include <gpipe/runtime/tables.hpp>

#include <cstddef>
#include <utility>

namespace gpipe {

/// Parameters that are one tensor in several layers, each of which has them: gives what one end
/// holds, and its state, to the others of its rank, while nothing runs.
template <DeviceRuntime Device> class TiedParameters {
  public:
    /// References must outlive it.
    TiedParameters(Arenas<Device> const& arenas, Model const& model, Tables const& tables)
        : arenas_(arenas), model_(model), tables_(tables) {}

    /// From the first ends of all.
    void spread() const {
        for (Tables::Tie const& tie : tables_.ties) spread(tie, tie.first);
    }
    /// From this layer's, once they are written. Of two ends that it has `tensor` is meant, or the
    /// first.
    void spread(std::size_t layer, std::size_t tensor = 0) const {
        for (Tables::Tie const& tie : tables_.ties) {
            std::size_t from = none;
            for (std::size_t i = tie.first; i < tie.last; ++i)
                if (model_.ties[i].layer == layer &&
                    (from == none || model_.ties[i].tensor == tensor))
                    from = i;
            if (from != none) spread(tie, from);
        }
    }
    /// That somebody may write the layer's until take_back() is called, which spreads them.
    void lend(std::size_t layer, std::size_t tensor = 0) {
        for (TiedTensor const& end : model_.ties)
            if (end.layer == layer) lent_ = layer, lent_tensor_ = tensor;
    }
    /// See lend().
    void take_back() {
        if (std::size_t const layer = std::exchange(lent_, none); layer != none)
            spread(layer, lent_tensor_);
    }
    /// Where an end lies; null on another rank.
    std::byte* parameter(std::size_t end) const {
        TiedTensor const& tied = model_.ties[end];
        std::byte* const* const parameters = tables_.layers[tied.layer].parameters;
        return parameters ? parameters[tied.tensor] : nullptr;
    }

  private:
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    void spread(Tables::Tie const& tie, std::size_t from) const {
        std::byte const* const written = parameter(from);
        auto const state = [&](std::size_t end) {
            return tables_.learns(tie) ? tables_.updates[tables_.tied[end]].state : nullptr;
        };
        for (std::size_t i = tie.first; i < tie.last; ++i) {
            std::byte* const to = parameter(i);
            if (!to || !written || to == written) continue; // on another rank, or one memory
            arenas_.copy(to, written, tie.bytes);
            if (std::byte* const states = state(i)) // else frozen, or sharded, and alike
                arenas_.copy(states, state(from), model_.states * slot_bytes(tie.bytes));
        }
    }

    Arenas<Device> const& arenas_;
    Model const& model_;
    Tables const& tables_;
    std::size_t lent_ = none; // whose may have been written
    std::size_t lent_tensor_ = 0;
};

} // namespace gpipe
