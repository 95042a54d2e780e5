#pragma once

#include <gpipe/checkpoint/dynamic_policy.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/registry.hpp>

#include <string_view>

namespace gpipe::checkpoint {

/// Every checkpointing policy of the library by its name. Several joined by commas are one for each
/// cell: see PerCell.
GPIPE_INLINE Registry<Dynamic> policies() {
    constexpr auto made = []<class C>(C) { return +[](Numbers const&) -> Dynamic { return C{}; }; };
    Named<Dynamic> const all[] = {
        {Never::name, "keep everything", made(Never{})},
        {Always::name, "keep the cells' inputs, run every micro-batch again", made(Always{})},
        {ExceptLast::name, "the same but for the last micro-batch", made(ExceptLast{})},
        {EverySegment<dynamic>::name,
         "keep the input of every N-th layer of a cell",
         [](Numbers const& n) -> Dynamic { return EverySegment<dynamic>{n[0]}; },
         {{.name = "N", .low = 1}}},
        {SquareRoot::name, "as many segments as take the least memory", made(SquareRoot{})},
        {Revolve<dynamic>::name,
         "the fewest forwards with so many inputs kept in a cell",
         [](Numbers const& n) -> Dynamic { return Revolve<dynamic>{n[0]}; },
         {{.name = "SLOTS"}}},
        {Selective::name, "run again what its layers call cheap", made(Selective{})},
        {Optimal<dynamic, dynamic>::name,
         "the fastest that fits into so many bytes of each device",
         [](Numbers const& n) -> Dynamic { return Optimal<dynamic, dynamic>{n[0]}; },
         {{.name = "BYTES", .low = 1, .bytes = true}}},
        {"offload",
         "move what NAME, else never, keeps in a cell to the host's memory and back",
         [](Numbers const&) { return Dynamic::offload(Never{}); },
         {},
         &Dynamic::offload},
        {name(WeightHalf::at_once),
         "what NAME, else except-last, does, but every weight gradient with its layer's other half",
         [](Numbers const&) { return Dynamic::weight_halves<WeightHalf::at_once>(ExceptLast{}); },
         {},
         &Dynamic::weight_halves<WeightHalf::at_once>},
        {name(WeightHalf::later),
         "likewise, but each in the second half of the backward",
         [](Numbers const&) { return Dynamic::weight_halves<WeightHalf::later>(ExceptLast{}); },
         {},
         &Dynamic::weight_halves<WeightHalf::later>},
        {name(WeightHalf::again),
         "likewise, with the layer run again for it",
         [](Numbers const&) { return Dynamic::weight_halves<WeightHalf::again>(ExceptLast{}); },
         {},
         &Dynamic::weight_halves<WeightHalf::again>}};
    return {"checkpointing policy", all, &Dynamic::per_cell,
            "or one for each cell with commas between them"};
}

/// The checkpointing policy of that name. Throws std::invalid_argument, listing what there is, if
/// there is none.
GPIPE_INLINE Dynamic find_checkpointing(std::string_view name) { return policies().find(name); }

} // namespace gpipe::checkpoint
