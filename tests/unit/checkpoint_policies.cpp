// Policies that reverse each cell by itself, with constant numbers, with numbers at run time, and
// by name.
#include <support/random_chain.hpp>

#include <gpipe/checkpoint/checkpointing_catalogue.hpp>
#include <gpipe/checkpoint/halves_policy.hpp>
#include <gpipe/schedule/fill_drain.hpp>
#include <gpipe/schedule/one_forward_one_backward.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace checkpoint = gpipe::checkpoint;
using checkpoint::Dynamic;
using checkpoint::find_checkpointing;
using gpipe::Array;
using gpipe::Checkpointed;
using gpipe::dynamic;
using gpipe::Keep;
using gpipe::Programs;
using gpipe::Reversal;

namespace {

bool same(Reversal const& a, Reversal const& b) {
    return std::equal(a.forward.begin(), a.forward.end(), b.forward.begin(), b.forward.end()) &&
           std::equal(a.steps.begin(), a.steps.end(), b.steps.begin(), b.steps.end()) &&
           a.offload == b.offload &&
           std::equal(a.weights.begin(), a.weights.end(), b.weights.begin(), b.weights.end());
}
bool same(Programs const& a, Programs const& b) {
    return std::equal(a.actions(), a.actions() + a.size(), b.actions(), b.actions() + b.size());
}
bool same(Checkpointed const& a, Checkpointed const& b) {
    if (a.reversals.size() != b.reversals.size()) return false;
    for (std::size_t c = 0; c < a.reversals.size(); ++c)
        if (!same(a.reversals[c], b.reversals[c])) return false;
    return same(a.programs, b.programs);
}

// Cells of 1, 2, 3, ... layers.
struct Cut {
    toy::RandomChain chain;
    std::vector<std::size_t> first{0};
    Programs schedule;

    explicit Cut(std::size_t cells)
        : schedule(gpipe::schedule::OneForwardOneBackward::programs(cells, 6)) {
        std::mt19937_64 random(cells);
        for (std::size_t c = 0; c < cells; ++c) first.push_back(first.back() + c + 1);
        chain = toy::random_chain(random, first.back(), {});
        for (gpipe::LayerInfo& layer : chain.layers) layer.recompute_is_cheap = random() % 2 == 0;
    }
    gpipe::CutChain cut() const { return {chain.layers.data(), chain.layers.size(), first.data()}; }
    std::size_t layers(std::size_t cell) const { return first[cell + 1] - first[cell]; }
    Checkpointed by(Dynamic const& policy) const { return policy.apply(cut(), schedule); }
};

std::string refusal(std::string const& name) {
    try {
        find_checkpointing(name);
    } catch (std::invalid_argument const& error) {
        return error.what();
    }
    return "";
}

} // namespace

TEST_CASE("a number given at run time makes what the constant makes") {
    for (std::size_t cells : {1u, 2u, 5u}) {
        Cut const cut(cells);
        CHECK(same(cut.by(checkpoint::EverySegment<dynamic>{2}),
                   cut.by(checkpoint::EverySegment<2>{})));
        CHECK(same(cut.by(checkpoint::Revolve<dynamic>{1}), cut.by(checkpoint::Revolve<1>{})));
        if (cells > 2) {
            CHECK(!same(cut.by(checkpoint::EverySegment<dynamic>{1}),
                        cut.by(checkpoint::EverySegment<2>{})));
            CHECK(!same(cut.by(checkpoint::Revolve<dynamic>{0}), cut.by(checkpoint::Revolve<1>{})));
        }
    }
    CHECK_THROWS_AS(Cut(2).by(checkpoint::EverySegment<dynamic>{}), std::invalid_argument);
}

TEST_CASE("a budget is handed on as it was given") {
    Cut const cut(3);
    gpipe::Budget const given = cut.by(checkpoint::Optimal<dynamic, dynamic>{500}).budget;
    CHECK(given.given);
    CHECK(given.bytes == 500);
    CHECK(given.samples == dynamic);
    gpipe::Budget const constant = cut.by(checkpoint::Optimal<700, 3>{}).budget;
    CHECK(constant.bytes == 700);
    CHECK(constant.samples == 3);
    CHECK(cut.by(checkpoint::Optimal<dynamic, 4>{500}).budget.samples == 4);
    CHECK(!cut.by(checkpoint::SquareRoot{}).budget.given);
    Checkpointed const plain = cut.by(checkpoint::Optimal<>{500});
    CHECK(plain.reversals.empty());
    CHECK(same(plain.programs, cut.schedule));
}

TEST_CASE("a choice can be copied, moved and exchanged") {
    Cut const cut(3);
    Dynamic first = checkpoint::Revolve<dynamic>{1};
    Dynamic second = first;
    CHECK(same(cut.by(first), cut.by(second)));
    first = checkpoint::EverySegment<dynamic>{2};
    CHECK(same(cut.by(second), cut.by(checkpoint::Revolve<1>{})));
    CHECK(same(cut.by(first), cut.by(checkpoint::EverySegment<2>{})));
    Dynamic third = std::move(second);
    CHECK(!second);
    CHECK(third.name() == "revolve");
    CHECK(Dynamic().name() == "");
}

TEST_CASE("a policy that reverses cells is no pass over programs alone") {
    Cut const cut(3);
    CHECK_THROWS_AS(Dynamic(checkpoint::SquareRoot{}).lower(cut.schedule), std::logic_error);
    CHECK_THROWS_AS(Dynamic(checkpoint::Optimal<>{5}).lower(cut.schedule), std::logic_error);
    CHECK(same(Dynamic(checkpoint::Never{}).lower(cut.schedule), cut.schedule));
}

TEST_CASE("selective: cheap layers run again, each run of them right before its backwards, all "
          "others are kept whole") {
    std::size_t again = 0;
    for (std::size_t cells = 1; cells <= 6; ++cells) {
        Cut const cut(cells);
        Checkpointed const applied = cut.by(checkpoint::Selective{});
        for (std::size_t c = 0; c < cells; ++c) {
            Reversal const& reversal = applied.reversals[c];
            std::vector<std::size_t> forwards;
            for (std::size_t s = 0; s < reversal.steps.size(); ++s) {
                if (reversal.steps[s].backward) continue;
                forwards.push_back(reversal.steps[s].layer);
                // The next backward is that of the last layer of the run.
                std::size_t end = s;
                while (!reversal.steps[end].backward) ++end;
                CHECK(reversal.steps[end - 1].layer == reversal.steps[end].layer);
            }
            std::sort(forwards.begin(), forwards.end());
            std::vector<std::size_t> cheap;
            for (std::size_t l = 0; l < cut.layers(c); ++l) {
                bool const is_cheap = cut.chain.layers[cut.first[c] + l].recompute_is_cheap;
                if (is_cheap) cheap.push_back(l);
                CHECK((reversal.forward[l] == Keep::all) == !is_cheap);
            }
            CHECK(forwards == cheap);
            again += cheap.size();
        }
    }
    CHECK(again > 10);
}

TEST_CASE("a policy for each cell does in each what it would do there") {
    using checkpoint::ExceptLast;
    using checkpoint::Never;
    Cut const cut(4);
    using Constant =
        checkpoint::PerCell<checkpoint::Revolve<0>, Never, checkpoint::EverySegment<2>, ExceptLast>;
    Checkpointed const applied = cut.by(Constant{});
    CHECK(same(applied, cut.by(find_checkpointing("revolve-0,never,every-segment-2,except-last"))));
    REQUIRE(applied.reversals.size() == 4);
    CHECK(same(applied.reversals[0], cut.by(checkpoint::Revolve<0>{}).reversals[0]));
    CHECK(same(applied.reversals[1], gpipe::keep_everything(2)));
    CHECK(same(applied.reversals[2], cut.by(checkpoint::EverySegment<2>{}).reversals[2]));
    CHECK(same(applied.reversals[3], gpipe::equal_segments(4, 1)));
    for (std::size_t i = 0; i < applied.programs.size(); ++i) {
        gpipe::Action const& a = applied.programs[i];
        if (a.kind == gpipe::Kind::recompute) CHECK(a.cell != 1);
    }
}

TEST_CASE("what is offloaded is what the policy keeps, in all cells or in some") {
    using checkpoint::Offload;
    Cut const cut(3);
    Checkpointed const all = cut.by(Offload<checkpoint::SquareRoot>{});
    Checkpointed const kept = cut.by(checkpoint::SquareRoot{});
    CHECK(same(all.programs, kept.programs));
    for (std::size_t c = 0; c < 3; ++c) {
        CHECK(all.reversals[c].offload);
        CHECK(!kept.reversals[c].offload);
        Reversal moved = kept.reversals[c];
        moved.offload = true;
        CHECK(same(all.reversals[c], moved));
    }
    using Some =
        checkpoint::PerCell<Offload<checkpoint::Never>, checkpoint::Never, checkpoint::SquareRoot>;
    Checkpointed const some = cut.by(Some{});
    CHECK(some.reversals[0].offload);
    CHECK(!some.reversals[1].offload);
    CHECK(same(some, cut.by(find_checkpointing("offload,never,square-root"))));
    for (char const* name : {"offload-always", "offload-offload-always"})
        CHECK(refusal(name) == "gpipe: a policy whose tensors are offloaded is never, except-last "
                               "or one that reverses one cell by itself, not always");
}

namespace {

struct Unnamed {
    using policy_kind = gpipe::policy::Checkpointing;
    static constexpr Programs lower(Programs const& schedule) { return schedule; }
};

} // namespace

TEST_CASE("a policy for each cell needs as many as there are cells, each for one") {
    using Two = checkpoint::PerCell<checkpoint::Never, checkpoint::SquareRoot>;
    Cut const cut(3);
    CHECK_THROWS_WITH_AS(cut.by(Two{}), "gpipe: PerCell has 2 checkpointing policies for 3 cells",
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(cut.by(find_checkpointing("never,never,never,never")),
                         "gpipe: PerCell has 4 checkpointing policies for 3 cells",
                         std::invalid_argument);
    std::string const which =
        "gpipe: a policy for each cell is never, except-last or one that reverses one cell by "
        "itself, not ";
    CHECK(refusal("never,always,never") == which + "always");
    CHECK(refusal("optimal-5,never,never") == which + "optimal");
    CHECK_THROWS_WITH_AS(Dynamic::per_cell(Array<Dynamic>(2)), (which + "none").c_str(),
                         std::invalid_argument);
    CHECK_THROWS_WITH_AS(Dynamic::per_cell(Array<Dynamic>(2, Unnamed{})),
                         (which + "this one").c_str(), std::invalid_argument);
}

TEST_CASE("every policy is found by its name") {
    Cut const cut(4);
    auto const is = [&](char const* name, Dynamic const& policy) {
        INFO(name);
        Dynamic const found = find_checkpointing(name);
        CHECK(found.name() == policy.name());
        CHECK(found.reverses() == policy.reverses());
        CHECK(std::string(name).substr(0, policy.name().size()) == policy.name());
        CHECK(same(cut.by(found), cut.by(policy)));
    };
    is("never", checkpoint::Never{});
    is("always", checkpoint::Always{});
    is("except-last", checkpoint::ExceptLast{});
    is("every-segment-3", checkpoint::EverySegment<3>{});
    is("square-root", checkpoint::SquareRoot{});
    is("revolve-0", checkpoint::Revolve<0>{});
    is("revolve-4", checkpoint::Revolve<4>{});
    is("selective", checkpoint::Selective{});
    is("optimal-1000", checkpoint::Optimal<1000>{});
    is("offload-optimal-1000", checkpoint::Offload<checkpoint::Optimal<1000>>{});
    CHECK(find_checkpointing("offload-optimal-1000").apply({}, cut.schedule).budget.offloads);
    CHECK(!find_checkpointing("optimal-1000").apply({}, cut.schedule).budget.offloads);
    is("offload", checkpoint::Offload<checkpoint::Never>{});
    is("offload-never", checkpoint::Offload<checkpoint::Never>{});
    is("offload-except-last", checkpoint::Offload<checkpoint::ExceptLast>{});
    is("offload-every-segment-3", checkpoint::Offload<checkpoint::EverySegment<3>>{});
    using gpipe::WeightHalf;
    is("at-once-every-segment-3",
       checkpoint::WeightHalves<WeightHalf::at_once, checkpoint::EverySegment<3>>{});
    is("later", checkpoint::WeightHalves<WeightHalf::later, checkpoint::ExceptLast>{});
    is("offload-again-square-root",
       checkpoint::Offload<checkpoint::WeightHalves<WeightHalf::again, checkpoint::SquareRoot>>{});
    auto const bytes = [&](char const* name) {
        return cut.by(find_checkpointing(name)).budget.bytes;
    };
    CHECK(bytes("optimal-1000") == 1000);
    CHECK(bytes("optimal-3KiB") == 3072);
    CHECK(bytes("optimal-5MiB") == 5 * 1024 * 1024);
    CHECK(bytes("optimal-2GiB") == std::size_t{2} << 30);
}

TEST_CASE("A8 any other name is refused with what there is") {
    std::string const list = checkpoint::policies().list();
    for (char const* name :
         {"", "Never", "every-segment", "every-segment-", "every-segment-0", "every-segment-2x",
          "revolve", "revolve-x", "optimal", "optimal-0", "optimal-MiB", "square-root-2",
          "offload-", "offload-x", "offloaded"}) {
        INFO(name);
        CHECK(refusal(name) == "gpipe: there is no checkpointing policy '" + std::string(name) +
                                   "'; there are " + list);
    }
    CHECK(list.find("every-segment-N (N from 1 on)") != std::string::npos);
    CHECK(refusal("never,,never").substr(0, 45) == "gpipe: there is no checkpointing policy ''; t");
}
