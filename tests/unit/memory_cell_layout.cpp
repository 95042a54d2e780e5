// The layout of a cell against an oracle of its own, which tensor lives when: who overlaps, and how
// much room it takes.
#include <support/long_tests.hpp>
#include <support/random_chain.hpp>

#include <gpipe/checkpoint/reversal.hpp>
#include <gpipe/memory/reversal_layout.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

using gpipe::CellLayout;
using gpipe::CellUse;
using gpipe::ChainShape;
using gpipe::Kind;
using gpipe::LayerInfo;
using gpipe::Place;
using gpipe::Region;
using toy::random_chain;
using toy::RandomChain;
using toy::TensorName;

namespace {

// What a micro-batch goes through in a cell, from the action that leaves its activations on.
using Way = std::vector<Kind>;

// A tensor of a cell: where it lies and from which call of its micro-batch's way to which it is
// needed.
struct Tensor {
    TensorName name;
    Place place;
    std::size_t bytes;
    std::size_t from, to;  // inclusive
    Kind writer, last_use; // the actions that these calls belong to
};

// Every tensor inside the cell of layers [first, last) on a micro-batch's way. Follows from what
// calls read and write, not from how the layout is made.
std::vector<Tensor> tensors_of(ChainShape const& chain, std::size_t first, std::size_t last,
                               CellUse const& use, Way const& way, CellLayout const& layout) {
    std::vector<Tensor> tensors;
    std::size_t now = 0;
    auto const is_inside = [&](TensorName const& name) {
        if (is_skip(name)) {
            gpipe::SkipPair const& skip = chain.skips[name.layer];
            return is_scratch(name) || (skip.from >= first && skip.to < last);
        }
        if (name.layer < first) return name.what == TensorName::gradient && use.holds_gradient;
        if (name.what == TensorName::again) return use.recomputes; // else it has a slot
        bool const boundary = name.what == TensorName::output || name.what == TensorName::gradient;
        return !boundary || name.layer + 1 < last || last == chain.size;
    };
    for (Kind const kind : way)
        for (toy::LayerCall const& call : toy::calls_of(chain, first, last, kind)) {
            for (TensorName const& name : call.reads)
                for (Tensor& tensor : tensors)
                    if (tensor.name == name) tensor.to = now, tensor.last_use = kind;
            for (TensorName const& name : call.writes)
                if (std::size_t const bytes = toy::bytes_of(chain, name, use.capacity))
                    if (is_inside(name))
                        tensors.push_back({name, toy::place_of(layout, first, name), bytes, now,
                                           now, kind, kind});
            ++now;
        }
    return tensors;
}

// The largest sum of the bytes that live at one time, of those that `counts`.
template <class Counts> std::size_t most_live(std::vector<Tensor> const& tensors, Counts counts) {
    std::size_t most = 0;
    for (Tensor const& begins : tensors) {
        std::size_t live = 0;
        for (Tensor const& tensor : tensors)
            if (counts(tensor) && tensor.from <= begins.from && begins.from <= tensor.to)
                live += tensor.bytes;
        most = std::max(most, live);
    }
    return most;
}

bool overlap(Tensor const& x, Tensor const& y, bool adjacent) {
    auto const memory = [&](Region region) {
        return adjacent && region == Region::kept ? Region::temporary : region;
    };
    return memory(x.place.region) == memory(y.place.region) &&
           x.place.offset < y.place.offset + y.bytes && y.place.offset < x.place.offset + x.bytes;
}
// Whether no two that are live at once do; nor a weight gradient's with what another micro-batch
// keeps meanwhile.
bool apart(std::vector<Tensor> const& tensors, bool adjacent) {
    for (Tensor const& x : tensors)
        for (Tensor const& y : tensors)
            if (((&x != &y && x.from <= y.to && y.from <= x.to) ||
                 (x.writer == Kind::weight_gradient && y.place.region == Region::kept)) &&
                overlap(x, y, adjacent))
                return false;
    return true;
}
bool stays(Tensor const& tensor) { return tensor.writer != tensor.last_use; }

struct Found {
    std::size_t layouts = 0;
    std::size_t tensors = 0;
    struct Ratio {
        std::size_t count = 0;
        double worst = 0; // planned bytes over the largest sum of live bytes
        double sum = 0;

        void add(std::size_t planned, std::size_t least) {
            double const ratio = static_cast<double>(planned) / static_cast<double>(least);
            worst = std::max(worst, ratio);
            sum += ratio;
            ++count;
        }
        double mean() const { return sum / static_cast<double>(count); }
    };
    // By what a cell's backwards are (whole, in halves, of both kinds): adjacent, and the region of
    // temporaries alone.
    Ratio height[3], apart[3];
};

void check_layout(ChainShape const& chain, std::size_t first, std::size_t last, CellUse const& use,
                  Found& found) {
    CellLayout const layout = gpipe::lay_out_cell(chain, first, last, use);
    REQUIRE(layout.places.size() == last - first);
    REQUIRE(layout.adjacent == use.adjacent);
    std::vector<Way> ways;
    for (Kind const begin : {Kind::forward, Kind::recompute}) {
        if (use.splits) ways.push_back({begin, Kind::input_gradient, Kind::weight_gradient});
        if (!use.splits || use.mixes) ways.push_back({begin, Kind::backward});
    }
    auto const temporary = [&](Tensor const& tensor) {
        return tensor.place.region == Region::temporary;
    };
    std::size_t least = 0;
    std::size_t least_apart = 0;
    for (Way const& way : ways) {
        std::string const begins(gpipe::name(way[0]));
        std::string const goes_on(gpipe::name(way[1]));
        CAPTURE(begins);
        CAPTURE(goes_on);
        bool const halves = way.size() == 3;
        auto const tensors = tensors_of(chain, first, last, use, way, layout);
        REQUIRE(apart(tensors, use.adjacent));
        std::size_t room[gpipe::region_count] = {}; // by region: of all tensors there
        for (Tensor const& tensor : tensors) {
            REQUIRE(tensor.place.offset % gpipe::slot_alignment == 0);
            Region const region = tensor.place.region;
            std::size_t const size = region == Region::held       ? layout.held
                                     : region == Region::deferred ? layout.deferred
                                     : region == Region::kept     ? layout.kept
                                                                  : layout.temporary;
            REQUIRE(tensor.place.offset + tensor.bytes <= size);
            room[static_cast<std::size_t>(region)] += tensor.bytes;
            if (stays(tensor)) REQUIRE(region != Region::temporary);
        }
        // Blocks have no gaps and are full when the actions that fill them end.
        if (!use.splits || halves) {
            REQUIRE(layout.kept == room[static_cast<std::size_t>(Region::kept)]);
            REQUIRE(layout.held == room[static_cast<std::size_t>(Region::held)]);
            REQUIRE(layout.deferred == room[static_cast<std::size_t>(Region::deferred)]);
        }
        least = std::max(least, most_live(tensors, [&](Tensor const& tensor) {
                             return tensor.place.region == Region::kept || temporary(tensor);
                         }));
        least = std::max(least, layout.kept + most_live(tensors, [&](Tensor const& tensor) {
                                    return tensor.writer == Kind::weight_gradient;
                                }));
        least_apart = std::max(least_apart, most_live(tensors, temporary));
        found.tensors += tensors.size();
    }
    ++found.layouts;
    std::size_t const kind = use.mixes ? 2 : use.splits ? 1 : 0;
    if (use.adjacent) {
        REQUIRE(layout.bytes(1) == layout.temporary);
        REQUIRE(layout.temporary >= least);
        if (least > 0) found.height[kind].add(layout.temporary, least);
    } else {
        REQUIRE(layout.bytes(3) == 3 * layout.kept + layout.temporary);
        REQUIRE(layout.temporary >= least_apart);
        if (least_apart > 0) found.apart[kind].add(layout.temporary, least_apart);
    }
}

void check_cell(ChainShape const& chain, std::size_t first, std::size_t last, std::size_t capacity,
                Found& found) {
    CAPTURE(first);
    CAPTURE(last);
    CAPTURE(capacity);
    for (unsigned flags = 0; flags < 32; ++flags) {
        CellUse use;
        use.capacity = capacity;
        use.runs_again = true;
        use.adjacent = (flags & 1) != 0;
        use.recomputes = (flags & 2) != 0;
        use.holds_gradient = (flags & 4) != 0;
        use.splits = (flags & 8) != 0;
        use.mixes = (flags & 16) != 0;
        if (use.holds_gradient && (chain.lowest_learner >= first || use.splits)) continue;
        if (use.recomputes && last < chain.size && chain.lowest_learner >= last) continue;
        if (use.mixes && !use.splits) continue;
        CAPTURE(flags);
        check_layout(chain, first, last, use, found);
    }
}

void report(std::string const& what, Found const& found) {
    MESSAGE(what << ": " << found.layouts << " layouts, " << found.tensors << " tensors");
    std::string const kinds[] = {"whole", "in halves", "mixed"};
    for (std::size_t k = 0; k < 3; ++k)
        MESSAGE(kinds[k] << ": worst height " << found.height[k].worst
                         << " of the largest sum of live bytes, mean " << found.height[k].mean()
                         << "; worst region of temporaries alone " << found.apart[k].worst);
}

} // namespace

TEST_CASE("nothing that lives overlaps, blocks are full, and no cell is half as high again as its "
          "live bytes") {
    for (int const percent_skips : {0, 40}) {
        std::mt19937_64 random(1);
        Found found;
        for (std::size_t round = 0; round < 3000 / toy::one_of(1); ++round) {
            CAPTURE(round);
            std::size_t const length = 1 + random() % 9;
            RandomChain const chain =
                random_chain(random, length, {.percent_skips = percent_skips});
            ChainShape const shape = chain.shape();
            std::size_t const first = random() % length;
            std::size_t const last = first + 1 + random() % (length - first);
            check_cell(shape, first, last, 1 + random() % 4, found);
            check_cell(shape, first, length, 1 + random() % 4, found);
            check_cell(shape, 0, last, 1 + random() % 4, found);
        }
        report(percent_skips > 0 ? "any chains, with skips" : "any chains", found);
        // What waits of skips lies above all else, wherever there is room below.
        bool const skips = percent_skips > 0;
        for (std::size_t k = 0; k < 3; ++k) {
            CHECK(found.height[k].worst < (skips ? 2 : 1.5));
            CHECK(found.height[k].mean() < (skips ? 1.05 : 1.005));
            CHECK(found.apart[k].worst <= (skips ? 2 : 1));
        }
    }
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
                    info.splits = learns;
                    info.has_whole = true;
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
    report("as trained", found);
    for (std::size_t k = 0; k < 3; ++k) {
        CHECK(found.height[k].worst <= 1.08);
        CHECK(found.height[k].mean() <= 1.021);
    }
}

TEST_CASE("one piece that is reversed as such takes no more than the layout by layers") {
    std::mt19937_64 random{7};
    double sum = 0;
    std::size_t cells = 0;
    for (std::size_t n = 0; n < 4000 / toy::one_of(1); ++n) {
        CAPTURE(n);
        RandomChain const chain = random_chain(random, 1 + random() % 9, {});
        std::size_t const first = random() % chain.layers.size();
        std::size_t const last = first + 1 + random() % (chain.layers.size() - first);
        CellUse use;
        use.capacity = 1 + random() % 3;
        use.adjacent = random() % 2;
        use.recomputes = random() % 2;
        auto const layers = gpipe::lay_out_cell(chain.shape(), first, last, use).bytes(1);
        auto const piece = gpipe::lay_out_reversal(chain.shape(), first, last, use,
                                                   gpipe::equal_segments(last - first, 1));
        std::size_t const bytes = piece.temporary + (use.adjacent ? 0 : piece.kept);
        REQUIRE(bytes <= layers);
        if (layers > 0) ++cells, sum += static_cast<double>(bytes) / static_cast<double>(layers);
    }
    MESSAGE("it takes " << sum / static_cast<double>(cells) << " of that");
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
