#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/plan/stage.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// How the tensors of an edge get from one device to the other.
enum class Link : std::uint8_t {
    shared, ///< one writes where the other reads
    copied, ///< from memory to memory, on a stream of the sender
    staged, ///< through the host's memory: the sender copies there, the receiver from there
    sent,   ///< as a message to another rank: nobody has memory between the two
};

/// Tensors that go from one cell to a later one, and whose gradient comes back: the chain's own, or
/// a skip. That the ends are neighbours is nothing special: no rule about edges looks for the cell
/// before or behind.
struct Edge {
    std::uint32_t from = 0;   ///< cell that makes the tensors
    std::uint32_t to = 0;     ///< cell that takes them
    bool gradient = true;     ///< whether one comes back
    Link link = Link::shared; ///< what lies between the two devices
    /// When the tensors are read behind the forwards, by calls of the cell that takes them and of
    /// the one that gives them; and the gradient, by those.
    ///@{
    CallReads taker_reads{};
    CallReads giver_reads{};
    CallReads gradient_reads{};
    ///@}
    /// By which addresses layers know them: a skip has two, for the tensor and for its gradient; 0
    /// of what are inputs and outputs, else counted from 1.
    ///@{
    std::uint16_t giver_slot = 0;
    std::uint16_t taker_slot = 0;
    ///@}
    std::size_t bytes = 0;          ///< of the tensors of a micro-batch
    std::size_t gradient_bytes = 0; ///< of their gradients, none larger than its tensor

    /// Whether they lie once for both ends.
    constexpr bool shared() const { return link == Link::shared; }
    /// Whether who takes them brings them there.
    constexpr bool received() const { return link >= Link::staged; }
    /// Whether it goes past the chain.
    constexpr bool is_skip() const { return taker_slot > 0; }
    /// Whether a recompute of the giver has to write them again: what it has sent is gone.
    constexpr bool written_again() const { return !shared() && giver_reads.any(); }
};

/// All edges between some cells, and which begin and end at each.
class Edges {
  public:
    constexpr Edges() = default;
    /// In this order they are numbered.
    constexpr Edges(std::size_t cells, Array<Edge> all)
        : all_(static_cast<Array<Edge>&&>(all)), into_(cells + 1), out_of_(cells + 1),
          by_taker_(all_.size()), by_giver_(all_.size()) {
        for (Edge const& edge : all_) ++into_[edge.to + 1], ++out_of_[edge.from + 1];
        for (std::size_t c = 0; c < cells; ++c)
            into_[c + 1] += into_[c], out_of_[c + 1] += out_of_[c];
        Array<std::size_t> in = into_, out = out_of_;
        for (std::uint32_t e = 0; e < all_.size(); ++e) {
            by_taker_[in[all_[e].to]++] = e;
            by_giver_[out[all_[e].from]++] = e;
        }
    }

    /// How many there are.
    constexpr std::size_t size() const { return all_.size(); }
    /// By number.
    ///@{
    constexpr Edge const& operator[](std::size_t edge) const { return all_[edge]; }
    constexpr Edge& operator[](std::size_t edge) { return all_[edge]; }
    ///@}
    constexpr Edge const* begin() const { return all_.begin(); } ///< the first
    constexpr Edge const* end() const { return all_.end(); }     ///< one past the last
    /// Numbers of those that end at a cell.
    constexpr Part<std::uint32_t> into(std::size_t cell) const {
        return {by_taker_.data() + into_[cell], into_[cell + 1] - into_[cell]};
    }
    /// Numbers of those that begin there.
    constexpr Part<std::uint32_t> out_of(std::size_t cell) const {
        return {by_giver_.data() + out_of_[cell], out_of_[cell + 1] - out_of_[cell]};
    }

  private:
    Array<Edge> all_;
    Array<std::size_t> into_;       // by cell: where its part of by_taker_ begins
    Array<std::size_t> out_of_;     // likewise, of by_giver_
    Array<std::uint32_t> by_taker_; // numbers of edges
    Array<std::uint32_t> by_giver_;
};

} // namespace gpipe
