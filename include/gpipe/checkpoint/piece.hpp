#pragma once

#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>

#include <cstddef>

/// Pieces of a chain: layers [first, last), first < last.
namespace gpipe::detail {

/// Rows of a table by piece.
GPIPE_INLINE constexpr std::size_t pieces(std::size_t layers) { return layers * (layers + 1) / 2; }
GPIPE_INLINE constexpr std::size_t piece(std::size_t first, std::size_t last) {
    return last * (last - 1) / 2 + first;
}

/// Appends the steps that reverse a piece, beginning with its input, as a table has it: split() is
/// the first layer of which something is kept beyond that input, `first` if it is kept whole;
/// beside_all() and beside_input() say what room is left beside what is kept.
template <class Table>
constexpr void append_piece(Table const& table, std::size_t first, std::size_t last,
                            std::size_t room, StepList& steps) {
    struct Part {
        std::size_t first, last; // the backward of `first`, if equal
        std::size_t room;
        bool store; // whether the input of `first` is yet to be stored
    };
    Array<Part> stack(2 * (last - first) + 2); // still to be done, the next on top
    std::size_t size = 0;
    stack[size++] = {first, last, room, false};
    while (size > 0) {
        Part const part = stack[--size];
        std::size_t const s = part.first;
        if (s == part.last) {
            steps.backward(s);
            continue;
        }
        std::size_t const k = table.split(s, part.last, part.room);
        if (k == s) {
            steps.forward(s, Keep::all);
            stack[size++] = {s, s, 0, false};
            if (s + 1 < part.last)
                stack[size++] = {s + 1, part.last, table.beside_all(s, part.room), false};
            continue;
        }
        for (std::size_t l = s; l < k; ++l)
            steps.forward(l, l == s && part.store ? Keep::input : Keep::nothing);
        stack[size++] = {s, k, part.room, false};
        stack[size++] = {k, part.last, table.beside_input(k, part.room), true};
    }
}

/// Writes down a chain's reversal from its end: pieces are what the steps run again, and the input
/// of a piece or of a layer kept whole is retained where the layer in front of it is not.
class PieceWriter {
  public:
    constexpr explicit PieceWriter(std::size_t layers) { reversal_.forward = Array<Keep>(layers); }

    constexpr void whole(std::size_t layer) {
        reversal_.forward[layer] = Keep::all;
        steps_.backward(layer);
    }
    template <class Table>
    constexpr void piece(Table const& table, std::size_t first, std::size_t last,
                         std::size_t room) {
        if (first > 0) reversal_.forward[first] = Keep::input; // means nothing behind a whole layer
        append_piece(table, first, last, room, steps_);
    }
    constexpr Reversal finish() {
        for (std::size_t l = 1; l < reversal_.layers(); ++l)
            if (reversal_.forward[l] == Keep::input && reversal_.forward[l - 1] == Keep::all)
                reversal_.forward[l] = Keep::nothing;
        reversal_.steps = steps_.steps();
        return static_cast<Reversal&&>(reversal_);
    }

  private:
    Reversal reversal_;
    StepList steps_;
};

} // namespace gpipe::detail
