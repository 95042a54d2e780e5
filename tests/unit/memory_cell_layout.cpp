// The layout of a cell against an oracle of its own: which tensor lives when, and who overlaps.
#include <support/random_chain.hpp>

#include <gpipe/memory/cell_layout.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

using gpipe::CellLayout;
using gpipe::ChainShape;
using gpipe::GroupSizes;
using gpipe::LayerInfo;
using gpipe::Place;
using toy::random_chain;
using toy::RandomChain;

namespace {

// A tensor of a cell: where it lies and when it is needed.
struct Tensor {
    std::string what;
    Place place;
    std::size_t bytes;
    std::size_t from, to; // moments, inclusive
};

// Every tensor that one forward (or recompute) of layers [first, last) and the backward behind it
// use. Moments: forward of layer i at i; the loss at n; backward of layer i at 2 n - i. Follows
// from what a forward and a backward read and write, not from how the layout is made.
std::vector<Tensor> tensors_of(ChainShape const& chain, std::size_t first, std::size_t last,
                               std::size_t capacity, bool recompute, bool holds_gradient,
                               CellLayout const& layout) {
    std::vector<Tensor> tensors;
    std::size_t const n = last - first;
    bool const is_last = last == chain.size;
    auto const layer = [&](std::size_t i) -> LayerInfo const& { return chain.layers[first + i]; };
    auto const learns = [&](std::size_t i) { return first + i >= chain.lowest_learner; };
    auto const backward_at = [&](std::size_t i) { return 2 * n - i; };
    auto const add = [&](std::string what, std::size_t i, Place place, GroupSizes const& group,
                         std::size_t from, std::size_t to) {
        if (std::size_t const bytes = group.slots(capacity))
            tensors.push_back({what + std::to_string(i), place, bytes, from, to});
    };
    // A recompute leaves out a last layer whose result only the next cell would read.
    std::size_t const end = recompute && !is_last && layer(n - 1).saved.count == 0 ? n - 1 : n;
    for (std::size_t i = 0; i < end; ++i) {
        gpipe::LayerPlaces const& places = layout.places[i];
        add("scratch of forward ", i, places.forward_scratch, layer(i).scratch, i, i);
        add("saved ", i, places.saved, layer(i).saved, i, learns(i) ? backward_at(i) : i);
        if (i + 1 < n || is_last || recompute) {
            std::size_t until = i; // by the time it is last read
            if (i + 1 < end) until = i + 1;
            if (is_last && i + 1 == n) until = n;
            if (i + 1 < n && learns(i + 1) && layer(i + 1).reads_input)
                until = std::max(until, backward_at(i + 1));
            bool const own_slot = i + 1 < n || is_last;
            if (own_slot && learns(i) && layer(i).reads_output)
                until = std::max(until, backward_at(i));
            add("output ", i, places.output, layer(i).output, i, until);
        }
    }
    if (is_last) {
        add("scratch of the loss ", n, layout.loss_scratch, chain.loss_scratch, n, n);
        add("output gradient ", n - 1, layout.places[n - 1].output_gradient,
            layer(n - 1).output_gradient, n, learns(n - 1) ? backward_at(n - 1) : n);
    }
    for (std::size_t i = 0; i < n; ++i) {
        if (!learns(i)) continue;
        gpipe::LayerPlaces const& places = layout.places[i];
        add("scratch of backward ", i, places.backward_scratch, layer(i).scratch, backward_at(i),
            backward_at(i));
        if (i + 1 < n)
            add("output gradient ", i, places.output_gradient, layer(i).output_gradient,
                backward_at(i + 1), backward_at(i));
        if ((first + i == chain.lowest_learner && !layer(i).accepts_none) ||
            (holds_gradient && i == 0))
            add("input gradient ", i, layout.input_gradient, layer(i).input_gradient,
                backward_at(i), backward_at(i));
    }
    return tensors;
}

std::size_t most_live(std::vector<Tensor> const& tensors, std::size_t moments, int region) {
    std::size_t most = 0;
    for (std::size_t t = 0; t < moments; ++t) {
        std::size_t live = 0;
        for (Tensor const& tensor : tensors)
            if (tensor.from <= t && t <= tensor.to &&
                (region < 0 || tensor.place.region == static_cast<gpipe::Region>(region)))
                live += tensor.bytes;
        most = std::max(most, live);
    }
    return most;
}

// The first two tensors that are live at once and overlap, in words; empty if there are none.
std::string overlap(std::vector<Tensor> const& tensors, bool adjacent) {
    for (std::size_t a = 0; a < tensors.size(); ++a)
        for (std::size_t b = 0; b < a; ++b) {
            Tensor const& x = tensors[a];
            Tensor const& y = tensors[b];
            bool const together = x.from <= y.to && y.from <= x.to;
            bool const same = adjacent || x.place.region == y.place.region;
            if (together && same && x.place.offset < y.place.offset + y.bytes &&
                y.place.offset < x.place.offset + x.bytes)
                return x.what + " and " + y.what;
        }
    return {};
}

struct Found {
    std::size_t layouts = 0;
    std::size_t ratios = 0;
    std::size_t tensors = 0;
    double worst = 0;       // planned bytes over the largest sum of live bytes, adjacent
    double worst_apart = 0; // the same of the region of temporaries alone
    double sum = 0;
};

void check_cell(ChainShape const& chain, std::size_t first, std::size_t last, std::size_t capacity,
                Found& found) {
    CAPTURE(first);
    CAPTURE(last);
    CAPTURE(capacity);
    for (unsigned flags = 0; flags < 8; ++flags) {
        bool const adjacent = (flags & 1) != 0;
        bool const recomputes = (flags & 2) != 0;
        bool const holds_gradient = (flags & 4) != 0;
        if (holds_gradient && chain.lowest_learner >= first) continue; // none crosses
        CAPTURE(adjacent);
        CAPTURE(recomputes);
        CAPTURE(holds_gradient);
        CellLayout const layout = gpipe::lay_out_cell(
            chain, first, last, {adjacent, capacity, recomputes, holds_gradient});
        REQUIRE(layout.places.size() == last - first);
        REQUIRE(layout.adjacent == adjacent);
        std::size_t const moments = 2 * (last - first) + 1;
        std::size_t least = 0;
        std::size_t least_apart = 0;
        for (bool recompute : {false, true}) {
            if (recompute && !recomputes) continue;
            CAPTURE(recompute);
            auto const tensors =
                tensors_of(chain, first, last, capacity, recompute, holds_gradient, layout);
            REQUIRE(overlap(tensors, adjacent) == "");
            for (Tensor const& tensor : tensors) {
                CAPTURE(tensor.what);
                REQUIRE(tensor.place.offset % gpipe::slot_alignment == 0);
                std::size_t const room = adjacent ? layout.bytes(1)
                                         : tensor.place.region == gpipe::Region::kept
                                             ? layout.kept
                                             : layout.temporary;
                REQUIRE(tensor.place.offset + tensor.bytes <= room);
                // What outlives the action that writes it must be in the kept block.
                bool const by_forward = tensor.from < last - first;
                if (by_forward && tensor.to > last - first)
                    REQUIRE(tensor.place.region == gpipe::Region::kept);
            }
            least = std::max(least, most_live(tensors, moments, -1));
            least_apart = std::max(least_apart, most_live(tensors, moments, 1));
            found.tensors += tensors.size();
        }
        ++found.layouts;
        if (adjacent && least > 0) {
            REQUIRE(layout.bytes(1) >= least);
            double const ratio = static_cast<double>(layout.bytes(1)) / static_cast<double>(least);
            found.worst = std::max(found.worst, ratio);
            found.sum += ratio;
            ++found.ratios;
        }
        if (!adjacent && least_apart > 0) {
            REQUIRE(layout.temporary >= least_apart);
            REQUIRE(layout.bytes(3) == 3 * layout.kept + layout.temporary);
            found.worst_apart = std::max(found.worst_apart, static_cast<double>(layout.temporary) /
                                                                static_cast<double>(least_apart));
        }
    }
}

} // namespace

TEST_CASE("no two tensors that are live together overlap, in any cell of random chains") {
    std::mt19937_64 random(1);
    Found found;
    for (int round = 0; round < 3000; ++round) {
        CAPTURE(round);
        std::size_t const length = 1 + random() % 9;
        RandomChain const chain = random_chain(random, length, {});
        ChainShape const shape = chain.shape();
        std::size_t const first = random() % length;
        std::size_t const last = first + 1 + random() % (length - first);
        check_cell(shape, first, last, 1 + random() % 4, found);
        check_cell(shape, first, length, 1 + random() % 4, found);
        check_cell(shape, 0, last, 1 + random() % 4, found);
    }
    MESSAGE(found.layouts << " layouts, " << found.tensors << " tensors; worst height "
                          << found.worst << " of the largest sum of live bytes, mean "
                          << found.sum / static_cast<double>(found.ratios)
                          << "; worst region of temporaries alone " << found.worst_apart);
    CHECK(found.worst < 1.5);
    CHECK(found.worst_apart < 1.5);
}

TEST_CASE("chains with hardly any tensors besides their outputs") {
    std::mt19937_64 random(2);
    Found found;
    for (int round = 0; round < 1500; ++round) {
        CAPTURE(round);
        std::size_t const length = 1 + random() % 7;
        RandomChain const chain = random_chain(random, length,
                                               {.most_bytes = 1200,
                                                .percent_saved = 5,
                                                .percent_scratch = 5,
                                                .percent_integers = 25,
                                                .percent_parameters = 30});
        for (std::size_t first = 0; first < length; ++first)
            for (std::size_t last = first + 1; last <= length; ++last)
                check_cell(chain.shape(), first, last, 1, found);
    }
    MESSAGE(found.layouts << " layouts; worst height " << found.worst);
}

// Layer sizes as in a GPT: layer norm, attention with its probabilities saved, layer norm, an MLP
// of four times the width; in between what reads its output only (dropout, activation).
// Worst is a cell that ends with the narrow layer of an MLP; parameters, gradients and optimizer
// states, which have no gaps at all, come on top.
TEST_CASE("on chains like those that are trained the height is within 1.08 of the live bytes") {
    Found found;
    for (std::size_t width : {64u, 256u, 1024u})
        for (std::size_t context : {32u, 128u})
            for (std::size_t blocks : {1u, 2u, 6u}) {
                RandomChain chain;
                std::size_t const row = 4 * width * context;
                auto const layer = [&](std::size_t in, std::size_t out, std::size_t saved,
                                       std::size_t scratch, gpipe::Reads reads, bool learns) {
                    LayerInfo info;
                    info.input = info.input_gradient = chain.group({in});
                    info.output = info.output_gradient = chain.group({out});
                    if (saved) info.saved = chain.group({saved});
                    if (scratch) info.scratch = chain.group({scratch});
                    if (learns) info.parameters = chain.group({in});
                    info.reads_input = reads == gpipe::Reads::input || reads == gpipe::Reads::both;
                    info.reads_output =
                        reads == gpipe::Reads::output || reads == gpipe::Reads::both;
                    info.output_carries_gradient = true;
                    chain.layers.push_back(info);
                };
                using gpipe::Reads;
                layer(4 * context, row, 0, 0, Reads::input, true); // embedding, of integers
                chain.layers[0].input_gradient = chain.group({0});
                for (std::size_t b = 0; b < blocks; ++b) {
                    layer(row, row, 8 * context, 0, Reads::input, true);                  // norm
                    layer(row, row, 16 * context * context, 3 * row, Reads::input, true); // heads
                    layer(row, row, row / 4, 0, Reads::neither, false);                   // dropout
                    layer(row, 4 * row, 0, 0, Reads::input, true);                        // widen
                    layer(4 * row, 4 * row, 0, 0, Reads::input, false);                   // GELU
                    layer(4 * row, row, 0, 0, Reads::input, true);                        // narrow
                }
                layer(row, 260 * context, 0, 0, Reads::input, true); // head
                chain.loss_scratch = chain.group({260});
                std::size_t const length = chain.layers.size();
                for (std::size_t cells : {1u, 2u, 4u})
                    for (std::size_t c = 0; c < cells; ++c)
                        check_cell(chain.shape(), c * length / cells, (c + 1) * length / cells, 8,
                                   found);
            }
    MESSAGE(found.layouts << " layouts; worst height " << found.worst << ", temporaries "
                          << found.worst_apart);
    CHECK(found.worst <= 1.08);
    CHECK(found.sum / static_cast<double>(found.ratios) <= 1.021);
}

TEST_CASE(
    "the lowest learner is the first with parameters above the last layer without gradients") {
    std::mt19937_64 random(3);
    for (int round = 0; round < 2000; ++round) {
        std::size_t const length = 1 + random() % 6;
        RandomChain const chain =
            random_chain(random, length, {.percent_integers = 30, .percent_parameters = 40});
        std::size_t barrier = 0; // one past the last layer whose output carries none
        for (std::size_t i = 0; i < length; ++i)
            if (!chain.layers[i].output_carries_gradient) barrier = i + 1;
        std::size_t expected = length;
        for (std::size_t i = length; i-- > barrier;)
            if (chain.layers[i].parameters.count > 0) expected = i;
        CHECK(gpipe::lowest_learner(chain.layers.data(), length) == expected);
    }
}
