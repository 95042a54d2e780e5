// What is proven keeps its values, and what loses one is refused: tables of random programs are
// executed, as they are and with one thing wrong.
#include <support/law.hpp>
#include <support/long_tests.hpp>
#include <support/random_plan.hpp>

#include <gpipe/plan/ending.hpp>
#include <gpipe/plan/evaluation.hpp>
#include <gpipe/plan/ranks.hpp>
#include <gpipe/runtime/lanes.hpp>
#include <gpipe/runtime/rank_table.hpp>
#include <gpipe/runtime/table_proof.hpp>
#include <gpipe/schedule/verify.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using gpipe::Array;
using gpipe::EndedStep;
using gpipe::Kind;
using gpipe::Link;
using gpipe::Lowered;
using gpipe::MemoryPlan;
using gpipe::Operand;
using gpipe::Operands;
using gpipe::Programs;
using gpipe::Ranks;
using gpipe::Step;
using gpipe::StepTable;
using gpipe::Use;
using gpipe::Wait;
using Random = std::mt19937_64;

namespace {

// Of up to 6 devices with up to 3 cells each and 8 micro-batches, in halves or not, before
// recomputation.
Programs any_schedule(Random& random) {
    std::size_t const m = 1 + random() % 8;
    if (random() % 2 == 0)
        return toy::mixed_by_chance(1 + random() % 6, m, static_cast<int>(random() % 2) * 50,
                                    random);
    toy::chance = random();
    std::size_t const cells = 1 + random() % 6;
    std::vector<Programs> all{toy::Dealt::programs(cells, m), toy::Scattered::programs(cells, m),
                              toy::ByChance::programs(cells, m), toy::OneByOne::programs(cells, m)};
    toy::each_of_catalogue(6, 6, m, [&](gpipe::schedule::Dynamic schedule, std::size_t k) {
        if (random() % 4 == 0) all.push_back(schedule.programs(k, m));
    });
    return all[random() % all.size()];
}
Programs some_schedule(Random& random) {
    Programs result = any_schedule(random);
    while (verify(result).problem == gpipe::Problem::idle_device) result = any_schedule(random);
    return result;
}

// Programs over a chain of layers, with all that a table is made of.
struct Case : toy::RandomPlan {
    Lowered forwards; // of an evaluation
    Operands of_forwards;
};
std::size_t some_slack(Random& random) {
    std::size_t const slacks[] = {gpipe::no_wait, gpipe::chosen_slack, 1 + random() % 4, 0};
    return slacks[random() % 4];
}
Case some_case(Random& random) {
    Programs const schedule = some_schedule(random);
    Case result{toy::some_plan(schedule, random() % 3 == 0, random, random() % 2 == 0 ? 40 : 0,
                               nullptr, some_slack(random)),
                {},
                {}};
    result.forwards = evaluation_of(result.plan.lowered);
    result.of_forwards =
        find_operands(result.forwards, result.plan.cells, result.plan.part_table(true));
    result.forwards.needs = find_needs(walk_of(result.forwards), result.of_forwards,
                                       gpipe::Located(result.plan, result.of_forwards, true));
    return result;
}

// A table as it is walked, and what it is proven by.
struct Walked {
    MemoryPlan const& plan;
    Lowered const& lowered;
    Operands const& operands;
    toy::Arenas const& arenas;
    gpipe::Ending const* ending = nullptr; // null: an evaluation
    StepTable table = {};
    bool evaluation = !ending;
    bool repeats = ending && ending->immediate;
    gpipe::Located located{plan, operands, evaluation};

    void fill(gpipe::Placement const& placement, Lowered const& with_needs, std::uint64_t seed) {
        // Costs decide which devices a lane walks, and in which order.
        auto const cost = [=](gpipe::Action const& a) {
            return 1 + static_cast<double>(seed * (3 + a.cell) *
                                           (7 + static_cast<unsigned>(a.kind)) % 5);
        };
        table = step_table(plan, with_needs, operands, placement,
                           merge_lanes(with_needs, placement, cost), arenas.begin, arenas.host,
                           evaluation);
        table.repeats = repeats;
        if (repeats) add_waits_before(table, plan, operands);
    }
    // Empty where it is proven.
    std::string refusal() const {
        try {
            check_table(table, plan, lowered, operands);
        } catch (std::logic_error const& error) {
            return error.what();
        }
        return "";
    }
    bool proven() const { return refusal().empty(); }
    // Of each step: by its operands or, call by call, by the definition of layers.
    std::vector<std::vector<toy::Work>> work() const {
        std::vector<std::vector<toy::Work>> result;
        for (Step const& step : table.steps)
            result.push_back(toy::by_operands(operands, located, table, step));
        return result;
    }
    std::vector<std::vector<toy::Work>> work(toy::ChainShape const& chain) const {
        toy::Definition const definition(chain, plan, table, ending);
        std::vector<std::vector<toy::Work>> result;
        for (Step const& step : table.steps) result.push_back(definition(step));
        return result;
    }
    // All micro-batches, or as many as there are samples; two or three walks of what repeats.
    std::vector<std::size_t> walks(Random& random) const {
        std::vector<std::size_t> result(repeats ? 2 + random() % 2 : 1);
        for (std::size_t& m : result)
            m = lowered.programs.micro_batches() -
                (random() % 2 == 0) * (random() % lowered.programs.micro_batches());
        return result;
    }
};

// What goes from device to device does so as it is told.
bool links_serve(toy::RandomPlan const& test) {
    std::size_t const cells = test.plan.lowered.programs.cells();
    for (std::size_t c = 1; c < cells; ++c)
        if (test.plan.lowered.edges[c - 1].link != test.links[c]) return false;
    for (std::size_t s = 0; s < test.chain.skips.size(); ++s)
        if (std::uint32_t const e = test.plan.skip_edges[s];
            e != Operands::none && test.plan.lowered.edges[e].link != test.links[cells + s])
            return false;
    return true;
}
gpipe::Ending some_ending(gpipe::ChainShape const& chain, MemoryPlan const& plan, bool immediate,
                          bool enqueues, Random& random) {
    bool const copies_state = enqueues && random() % 2 == 0;
    gpipe::Ending result{Array<bool>(plan.cells.size()), random() % 2 == 0, immediate,
                         copies_state && random() % 2 == 0, copies_state};
    for (std::size_t c = 0; c < plan.cells.size(); ++c)
        for (std::size_t i = plan.first[c]; i < plan.first[c + 1]; ++i)
            result.learns[c] = result.learns[c] || chain.layers[i].learned_slots() > 0;
    if (random() % 2 == 0) {
        result.buffers = Array<gpipe::CellBuffers>(plan.cells.size());
        for (gpipe::CellBuffers& cell : result.buffers) {
            cell.any = random() % 3 == 0;
            cell.gathers = cell.any && random() % 3 > 0;
            cell.exchanges = random() % 3 == 0;
        }
    }
    // Ties of cells with parameters, each of one or several ends.
    std::vector<gpipe::TiedCell> ties;
    std::uint32_t tie = 0;
    for (std::size_t n = random() % 4; n > 0; --n) {
        for (std::uint32_t c = 0; c < plan.cells.size(); ++c)
            for (std::size_t end = random() % 5; end < 2; ++end)
                if (result.learns[c])
                    ties.push_back({tie, c, static_cast<std::uint32_t>(ties.size())});
        tie += !ties.empty() && ties.back().tie == tie;
    }
    if (random() % 2 == 0) result.replicas = {2 + random() % 3, random() % 2 == 0};
    result.ties = Array<gpipe::TiedCell>(ties.size());
    std::copy(ties.begin(), ties.end(), result.ties.begin());
    return result;
}

// Calls f(walked, by_stream, random) for tables of random programs: of a step, of one behind which
// the next begins, of an evaluation; on any number of lanes, or every program a stream.
template <class F> void each_table(std::size_t cases, std::uint64_t seed, F f) {
    for (std::size_t n = 0; n < cases; ++n) {
        CAPTURE(n);
        Random random(seed + n);
        Case const test = some_case(random);
        REQUIRE(links_serve(test));
        toy::Arenas const arenas(test.plan);
        for (int const flavour : {0, 1, 2}) {
            bool const enqueues = random() % 2 == 0;
            std::size_t const lanes = enqueues ? 1 : 1 + random() % test.plan.devices.size();
            gpipe::Ending const ending =
                some_ending(test.chain.shape(), test.plan, flavour == 1, enqueues, random);
            Lowered lowered = test.plan.lowered;
            if (enqueues && random() % 2 == 0) gpipe::add_streams_beside(lowered, 1 + random() % 2);
            EndedStep const step = with_ending(lowered, test.plan.operands, ending);
            bool const evaluation = flavour == 2;
            Walked walked{test.plan, evaluation ? test.forwards : step.lowered,
                          evaluation ? test.of_forwards : step.operands, arenas,
                          evaluation ? nullptr : &ending};
            auto const cost = [](gpipe::Action const&) { return 1.0; };
            CAPTURE(flavour);
            CAPTURE(enqueues);
            CAPTURE(lanes);
            auto const placement =
                place_programs(walked.lowered, {test.plan.devices.size()}, lanes, enqueues, cost);
            walked.fill(placement, walked.lowered, random() % 5);
            f(walked, placement, test.chain.shape(), random);
        }
    }
}

// Of a failure all behind it is skipped: so who computes has its place in the linear order, a copy
// that of who made what it brings, a fetch that of the first action that needs it.
std::string wrong_ranks(Walked const& walked) {
    Lowered const& lowered = walked.lowered;
    Programs const computing = lowered.computing();
    std::map<std::array<std::size_t, 3>, std::size_t> rank; // by cell, micro-batch and what it does
    enum { forward, reversal, gradient };
    auto const order = linear_order(computing);
    Array<std::size_t> own(computing.size());
    for (std::size_t r = 0; r < order.size(); ++r) {
        gpipe::Action const& a = computing[order[r]];
        own[order[r]] = r;
        if (a.kind == Kind::forward) rank[{a.cell, a.micro_batch, forward}] = r;
        if (gives_gradient(a.kind)) rank[{a.cell, a.micro_batch, gradient}] = r;
        rank.insert({{a.cell, a.micro_batch, a.kind == Kind::forward ? forward : reversal}, r});
    }
    for (Step const& step : walked.table.steps) {
        gpipe::Action const& a = lowered.programs[step.action];
        if (ends_step(a.kind)) continue;
        bool const output = a.kind == Kind::send_output || a.kind == Kind::receive_input;
        std::size_t const maker = !is_transfer(a.kind) ? a.cell
                                  : output             ? lowered.edges[a.edge].from
                                                       : lowered.edges[a.edge].to;
        std::size_t const what = output || a.kind == Kind::offload ? forward
                                 : a.kind == Kind::fetch           ? reversal
                                                                   : gradient;
        if (step.place !=
            (is_copy(a.kind) ? rank.at({maker, a.micro_batch, what}) : own[step.action]))
            return std::string(name(a.kind));
    }
    return "";
}
// Where steps are not repeated, marks are there where somebody waits on another stream, and only
// there.
bool marks_serve(StepTable const& table) {
    std::set<std::pair<std::size_t, std::size_t>> marks;
    for (Step const& step : table.steps)
        for (Wait const& wait : table.waits_of(step)) {
            if (wait.stream == step.stream) return false;
            marks.insert({wait.stream, wait.position});
        }
    return std::all_of(table.steps.begin(), table.steps.end(), [&](Step const& step) {
        return step.publishes == (marks.count({step.stream, step.position}) > 0);
    });
}
// A stream that copies is of one device, for one kind of copy.
bool streams_serve(Lowered const& lowered) {
    Programs const& programs = lowered.programs;
    for (std::size_t s = 0; s < lowered.streams(); ++s)
        for (gpipe::Action const& a : programs.program(s))
            if (programs.device_of(a.cell) != lowered.device[s] ||
                (s >= lowered.devices() && a.kind != programs.program(s)[0].kind))
                return false;
    return true;
}
// Every layer that learns runs backward once, from the last to the first, and a forward is told to
// save something where anybody reads it.
bool calls_serve(MemoryPlan const& plan, toy::ChainShape const& chain) {
    using gpipe::CallKind;
    for (std::size_t c = 0; c < plan.cells.size(); ++c)
        for (std::size_t w = 0; w < gpipe::way_evaluates; ++w) {
            gpipe::CellCalls const& all = plan.parts.of(c, w).calls;
            if (all.calls.empty()) continue;
            std::size_t const lowest = std::max(plan.first[c], chain.lowest_learner);
            std::size_t next = plan.first[c + 1];
            for (std::size_t i = 0; i < all.calls.size(); ++i) {
                gpipe::CellCall const& call = all.calls[i];
                bool const backward =
                    call.kind == CallKind::backward || call.kind == CallKind::input_gradient;
                if (backward && plan.first[c] + call.layer != --next) return false;
                if (call.kind == CallKind::forward && call.saved != gpipe::tensor::none &&
                    call.saving != (all.tensors[call.saved].end > i))
                    return false;
            }
            // Of the lowest learner the first half may be nobody's.
            next -=
                next == lowest + 1 && lowest == chain.lowest_learner && chain.layers[lowest].splits;
            if (next != std::min(lowest, plan.first[c + 1])) return false;
        }
    return true;
}

// Predictions are taken from where a step says that the output of the chain is.
bool gives_output(StepTable const& table, Step const& step, std::vector<toy::Work> const& calls,
                  toy::ChainShape const& chain) {
    std::byte const* const output_at = table.of(step, gpipe::Region::output);
    std::size_t const output = 1 + 16 * (chain.size - 1 + 64 * step.micro_batch);
    for (toy::Work const& work : calls)
        for (toy::Piece const& piece : work.writes)
            if (piece.what == output) return piece.at == output_at;
    return false;
}

// By value, whether anybody reads it.
std::vector<bool> read_values(Operands const& operands) {
    std::vector<bool> read(operands.values.size());
    for (Operand const& operand : operands.all)
        if (operand.use == Use::read) read[operand.value] = true;
    return read;
}
// Values that others were to read, and nobody does.
std::size_t unread(Operands const& operands) {
    std::vector<bool> const read = read_values(operands);
    std::size_t count = 0;
    for (std::uint32_t v = 0; v < read.size(); ++v) {
        gpipe::Value const& value = operands.values[v];
        count += !read[v] && value.holds < gpipe::Holds::discarded &&
                 operands.number(value.holds, value.owner, value.micro_batch) == v;
    }
    return count;
}

} // namespace

TEST_CASE("G4 a table that is proven loses nothing, in whatever order it runs") {
    std::map<std::string, std::size_t> seen;
    std::size_t in_vain = 0;
    each_table(toy::long_tests() ? 5000
               : toy::sanitized  ? 54
                                 : 1000,
               1, [&](Walked const& walked, auto const&, auto const& chain, Random& random) {
                   REQUIRE_NOTHROW(
                       check_table(walked.table, walked.plan, walked.lowered, walked.operands));
                   REQUIRE(wrong_ranks(walked) == "");
                   REQUIRE((walked.repeats || marks_serve(walked.table)));
                   REQUIRE(streams_serve(walked.lowered));
                   REQUIRE(calls_serve(walked.plan, chain));
                   toy::Definition const definition(chain, walked.plan, walked.table,
                                                    walked.ending);
                   for (Step const& step : walked.table.steps) REQUIRE(definition.calls_all(step));
                   if (!walked.evaluation) in_vain += unread(walked.plan.operands);
                   for (std::uint32_t const e : walked.plan.skip_edges)
                       seen[e == Operands::none ? "skips within cells" : "skips"] += 1;
                   auto const work = walked.work(), calls = walked.work(chain);
                   for (std::size_t n = 0; n < work.size(); ++n) {
                       Step const& step = walked.table.steps[n];
                       REQUIRE(covers(work[n], calls[n]));
                       if (computes(step.kind))
                           REQUIRE(touches_all(work[n], calls[n],
                                               walked.table.of(step, gpipe::Region::retained)));
                       if (step.delivers)
                           REQUIRE(gives_output(walked.table, step, calls[n], chain));
                   }
                   toy::Law const by_operands(walked.table, walked.arenas, work);
                   toy::Law const by_definition(walked.table, walked.arenas, calls);
                   for (int order = 0; order < 10; ++order) {
                       auto const micro_batches = walked.walks(random);
                       REQUIRE(by_operands.run(random, micro_batches, order % 3 != 0) == "");
                       if (order < 4)
                           REQUIRE(by_definition.run(random, micro_batches, order % 3 != 0) == "");
                       seen["executions"] += 1;
                       seen["empty micro-batches"] +=
                           micro_batches[0] < walked.lowered.programs.micro_batches();
                   }
                   for (Step const& step : walked.table.steps) {
                       seen[std::string(name(step.kind))] += 1;
                       seen["waits"] += step.waits;
                       seen["waits for the step before"] += step.waits_before;
                   }
               });
    for (auto const& [what, count] : seen) MESSAGE(what << ": " << count);
    CHECK(seen.size() == 6 + gpipe::kind_count - 1); // a commit is sent between ranks alone
    CHECK(in_vain == 0);
    for (auto const& each : seen)
        CHECK_MESSAGE((each.second > 40 || toy::sanitized), each.first); // rare: waits for before
}

namespace {

enum class Mutation {
    wait,
    wait_before,
    mark,
    reader,
    value,
    micro_batch,
    swap,
    copy,
    operand,
    skip,
};
std::string const mutations[] = {"wait dropped",
                                 "wait for the walk before dropped",
                                 "mark not published",
                                 "address moved, at a reader",
                                 "address moved, at all users",
                                 "address of another micro-batch",
                                 "two steps of a stream swapped",
                                 "copy dropped",
                                 "operand dropped",
                                 "address of a skip moved"};

// Makes one thing wrong with a table, if there is any of that kind.
class Mutator {
  public:
    Mutator(Walked& walked, gpipe::Placement const& placement, Random& random)
        : walked_(walked), table_(walked.table), placement_(placement), random_(random) {}

    /// Whether it is about an action of the step's end.
    bool at_end = false;

    bool apply(Mutation mutation) {
        for (int tries = 0; tries < 30; ++tries)
            if (one(mutation)) return true;
        return false;
    }

  private:
    bool one(Mutation mutation) {
        std::size_t const n = random_() % table_.steps.size();
        Step& step = table_.steps[n];
        at_end = ends_step(step.kind);
        auto const operands = walked_.operands[step.action];
        Operand const operand =
            operands.size() == 0 ? Operand{} : operands[random_() % operands.size()];
        bool const reads = operands.size() > 0 && operand.use == Use::read;
        bool const somewhere = operands.size() > 0 && bytes(operand) > 0;
        switch (mutation) {
        case Mutation::wait:
            if (step.waits == 0) return false;
            drop_wait(step, random_() % step.waits);
            --step.waits;
            return true;
        case Mutation::wait_before:
            if (step.waits_before == 0) return false;
            drop_wait(step, step.waits + random_() % step.waits_before);
            --step.waits_before;
            return true;
        case Mutation::mark:
            return step.publishes &&
                   std::exchange(random_() % 2 == 0 ? step.publishes : step.more, false);
        case Mutation::reader:
            return reads && somewhere && move(step, operand, elsewhere(operand));
        case Mutation::value: {
            if (!somewhere) return false;
            std::byte* const at = elsewhere(operand);
            bool moved = false;
            for (Step& user : table_.steps)
                for (Operand const& other : walked_.operands[user.action])
                    if (other.value == operand.value) moved = move(user, other, at);
            return moved;
        }
        case Mutation::micro_batch: {
            Step const& other = table_.steps[random_() % table_.steps.size()];
            return somewhere && other.kind == step.kind && other.cell == step.cell &&
                   operand.address < addresses(other) &&
                   move(step, operand, table_.of(other)[operand.address]);
        }
        case Mutation::swap:
            return swap_with_next(n);
        case Mutation::copy:
            return is_copy(step.kind) && remove(n);
        case Mutation::operand:
            return reads && !walked_.evaluation && forget(step.action, operand);
        default:
            return is_of_skip(step, operand) && somewhere &&
                   move(step, operand, elsewhere(operand));
        }
    }
    std::size_t bytes(Operand const& operand) const {
        gpipe::Span const& at = walked_.located[operand.value];
        return at.end - at.begin;
    }
    bool is_of_skip(Step const& step, Operand const& operand) const {
        std::size_t const first = static_cast<std::size_t>(gpipe::Region::inside);
        return computes(step.kind) && operand.address >= first &&
               operand.address < first_part_address(walked_.plan.cells[step.cell]);
    }
    std::size_t addresses(Step const& step) const {
        return gpipe::detail::tensors_of(walked_.plan, walked_.lowered.programs[step.action],
                                         walked_.evaluation)
            .addresses;
    }
    // Anywhere in its arena.
    std::byte* elsewhere(Operand const& operand) {
        std::size_t const space = walked_.located[operand.value].space;
        bool const host = space == walked_.plan.devices.size();
        std::size_t const size = host ? walked_.plan.host : walked_.plan.devices[space].total();
        std::size_t const units = (size - bytes(operand)) / toy::Arenas::unit + 1;
        return (host ? walked_.arenas.host : walked_.arenas.begin[space]) +
               random_() % units * toy::Arenas::unit;
    }
    bool move(Step& step, Operand const& operand, std::byte* to) {
        return std::exchange(table_.of(step)[operand.address], to) != to;
    }
    void drop_wait(Step const& step, std::size_t dropped) {
        Wait* const waits = table_.waits.data() + step.first_wait;
        for (std::size_t w = dropped; w + 1 < step.waits + step.waits_before; ++w)
            waits[w] = waits[w + 1];
    }
    // Who waits for one still waits for the same.
    bool swap_with_next(std::size_t n) {
        for (Step& next : table_.steps) {
            Step& step = table_.steps[n];
            if (next.stream != step.stream || next.position != step.position + 1) continue;
            for (Wait& wait : table_.waits)
                if (wait.stream == step.stream) {
                    if (wait.position == step.position)
                        wait.position = next.position;
                    else if (wait.position == next.position)
                        wait.position = step.position;
                }
            std::swap(step, next);
            std::swap(step.position, next.position);
            return true;
        }
        return false;
    }
    // Who waits for it waits for what was before it.
    bool remove(std::size_t n) {
        Step const gone = table_.steps[n];
        std::size_t lane = 0;
        while (table_.begin[lane + 1] <= n) ++lane;
        for (; lane + 1 < table_.begin.size(); ++lane) --table_.begin[lane + 1];
        Array<Step> steps(table_.steps.size() - 1);
        for (std::size_t i = 0; i < steps.size(); ++i) {
            steps[i] = table_.steps[i + (i >= n)];
            if (steps[i].stream == gone.stream && steps[i].position > gone.position)
                --steps[i].position;
            if (steps[i].stream == gone.stream && steps[i].position + 1 == gone.position)
                steps[i].publishes = steps[i].more = true;
        }
        table_.steps = std::move(steps);
        for (Wait& wait : table_.waits)
            if (wait.stream == gone.stream && wait.position > 1 && wait.position >= gone.position)
                --wait.position;
        return true;
    }
    // As if an action did not read this.
    bool forget(std::size_t action, Operand const& forgotten) {
        Operands fewer = walked_.operands;
        fewer.all = Array<Operand>(fewer.all.size() - 1);
        std::size_t size = 0;
        for (std::size_t i = 0; i < fewer.begin.size() - 1; ++i) {
            fewer.begin[i] = static_cast<std::uint32_t>(size);
            for (Operand const& operand : walked_.operands[i])
                if (i != action || operand.value != forgotten.value) fewer.all[size++] = operand;
        }
        fewer.begin[fewer.begin.size() - 1] = static_cast<std::uint32_t>(size);
        Lowered lowered = walked_.lowered;
        gpipe::Walk const walk = apart(lowered);
        lowered.needs = find_needs(walk, fewer, walked_.located);
        walked_.repeats = false;
        walked_.fill(placement_, lowered, 0);
        return lowered.needs.count() != find_needs(walk, walked_.operands, walked_.located).count();
    }

    // The end of every device on a stream of its own.
    static gpipe::Walk apart(Lowered const& lowered) {
        gpipe::Walk walk = walk_of(lowered);
        for (std::size_t i = lowered.programs.begin(walk.streams); i < walk.order.size(); ++i) {
            walk.stream[i] = static_cast<std::uint32_t>(
                walk.streams + lowered.programs.device_of(lowered.programs[i].cell));
            walk.position[i] = static_cast<std::uint32_t>(i + 1);
        }
        walk.streams += lowered.devices();
        return walk;
    }

    Walked& walked_;
    StepTable& table_;
    gpipe::Placement const& placement_;
    Random& random_;
};

struct Count {
    std::size_t made = 0, refused = 0, first = 0, tenth = 0, last = 0;
};

} // namespace

TEST_CASE("what loses a value is refused, whatever is wrong with the table") {
    std::array<Count, std::size(mutations)> counts;
    std::size_t const orders = toy::long_tests() ? 100 : 10;
    auto const mutate = [&](Walked walked, gpipe::Placement const& placement,
                            toy::ChainShape const& chain, Mutation mutation, Random& random) {
        Mutator mutator(walked, placement, random);
        if (!mutator.apply(mutation)) return;
        Count& count = counts[static_cast<std::size_t>(mutation)];
        CAPTURE(mutations[static_cast<std::size_t>(mutation)]);
        bool const proven = walked.proven();
        ++count.made;
        count.refused += !proven;
        // Where every program has its stream, no wait is there that others imply, unless what ends
        // the step may come before what the last layers of its device have waited for.
        if (mutation <= Mutation::wait_before && walked.table.streams == walked.lowered.streams() &&
            !mutator.at_end)
            CHECK(!proven);
        toy::Law const by_operands(walked.table, walked.arenas, walked.work());
        toy::Law const by_definition(walked.table, walked.arenas, walked.work(chain));
        for (std::size_t order = 0; order < (proven ? 10 : orders); ++order) {
            auto const micro_batches = walked.walks(random);
            std::string lost = by_operands.run(random, micro_batches, order % 3 != 0);
            if (lost.empty() && order < 4)
                lost = by_definition.run(random, micro_batches, order % 3 != 0);
            if (lost.empty()) continue;
            CHECK_MESSAGE(!proven, lost);
            count.first += order == 0;
            count.tenth += order < 10;
            ++count.last;
            break;
        }
    };
    each_table(toy::long_tests() ? 5000 : 700 / toy::one_of(1), 10000,
               [&](Walked const& walked, auto const& placement, auto const& chain, Random& random) {
                   for (std::size_t m = 0; m < counts.size(); ++m)
                       mutate(walked, placement, chain, static_cast<Mutation>(m), random);
               });
    for (std::size_t m = 0; m < counts.size(); ++m) {
        Count const& c = counts[m];
        MESSAGE(mutations[m] << ": " << c.made << " made, " << c.refused << " refused, "
                             << c.made - c.refused << " equivalent; the law finds of the refused "
                             << c.first << " in one order, " << c.tenth << " in ten, " << c.last
                             << " in " << orders);
        CHECK_MESSAGE((c.last > 0 || c.made < 10), mutations[m]); // fewer: under sanitizers
    }
}

TEST_CASE("what lies outside of its arena, or in what lives for ever, is refused") {
    std::size_t made = 0;
    std::string const flaw(sentence(gpipe::Flaw::outside));
    each_table(200, 50000, [&](Walked walked, auto const&, auto const&, Random& random) {
        Step const& step = walked.table.steps[random() % walked.table.steps.size()];
        auto const operands = walked.operands[step.action];
        if (operands.size() == 0) return;
        Operand const operand = operands[random() % operands.size()];
        gpipe::Span const& at = walked.located[operand.value];
        if (at.begin == at.end) return;
        bool const host = at.space == walked.plan.devices.size();
        std::byte* const arena = walked.table.arenas[at.space];
        std::byte* const first = arena + (host ? 0 : walked.plan.devices[at.space].state());
        std::byte* const last = arena +
                                (host ? walked.plan.host : walked.plan.devices[at.space].total()) -
                                (at.end - at.begin);
        std::byte*& to = walked.table.of(step)[operand.address];
        for (std::byte* const inside : {first, last}) {
            to = inside;
            CHECK(walked.refusal().find(flaw) == std::string::npos);
        }
        gpipe::Action const& a = walked.lowered.programs[step.action];
        gpipe::Value const& value = walked.operands.values[operand.value];
        std::string const words = "gpipe: the table that would be walked is wrong at the " +
                                  std::string(name(a.kind)) + " of cell " + std::to_string(a.cell) +
                                  ", micro-batch " + std::to_string(a.micro_batch) + ": " + flaw +
                                  " (" + std::string(name(value.holds)) + " " +
                                  std::to_string(value.owner) + " of micro-batch " +
                                  std::to_string(value.micro_batch) + ")";
        for (std::byte* const outside : {first - 1, last + 1}) {
            to = outside;
            CHECK(walked.refusal() == words);
        }
        ++made;
    });
    CHECK(made > 50);
}

TEST_CASE("P6 where calls only enqueue no step ends before all its layers have been called") {
    std::size_t made = 0;
    each_table(600, 30000, [&](Walked walked, auto const&, auto const&, Random&) {
        Array<Step>& steps = walked.table.steps;
        if (walked.evaluation || walked.repeats || !walked.ending->calls_enqueue) return;
        std::size_t end = 0;
        while (!ends_step(steps[end].kind) || adds_replicas(steps[end].kind)) ++end;
        if (steps[end].stream == steps[end - 1].stream || ends_step(steps[end - 1].kind)) return;
        REQUIRE(walked.proven());
        std::swap(steps[end], steps[end - 1]);
        CHECK(walked.refusal() == "gpipe: the steps of a table are not its actions");
        ++made;
    });
    CHECK(made > 10);
}

TEST_CASE("steps that are not the actions, and lanes that wait in a circle, are refused") {
    std::map<std::string, std::size_t> made;
    each_table(100, 40000, [&](Walked const& walked, auto const&, auto const&, Random& random) {
        auto const refused = [&](char const* what, auto spoil, char const* words) {
            Walked wrong = walked;
            Array<Step>& steps = wrong.table.steps;
            if (!spoil(wrong.table, steps[random() % steps.size()])) return;
            CAPTURE(what);
            CHECK(wrong.refusal() == words);
            ++made[what];
        };
        auto const no_actions = [&](char const* what, auto spoil) {
            refused(what, spoil, "gpipe: the steps of a table are not its actions");
        };
        auto const size = static_cast<std::uint32_t>(walked.lowered.programs.size());
        no_actions("one is missing", [](StepTable& table, Step&) {
            table.steps = Array<Step>::copy_of(table.steps.data(), table.steps.size() - 1);
            for (std::size_t& begin : table.begin) begin = std::min(begin, table.steps.size());
            return true;
        });
        no_actions("of no action", [&](auto&, Step& step) {
            step.action = size;
            return true;
        });
        no_actions("twice", [](StepTable& table, Step&) { // be it another of the same name
            for (Step& step : table.steps)
                for (Step const* other = table.steps.begin(); other != &step; ++other)
                    if (other->kind == step.kind && other->cell == step.cell &&
                        other->micro_batch == step.micro_batch) {
                        step.action = other->action;
                        return true;
                    }
            return false;
        });
        no_actions("on no stream", [](StepTable& table, Step& step) {
            step.stream = static_cast<decltype(step.stream)>(table.streams);
            return true;
        });
        no_actions("at another position", [](auto&, Step& step) {
            ++step.position;
            return true;
        });
        no_actions("of another kind", [](auto&, Step& step) {
            step.kind = step.kind == Kind::forward ? Kind::recompute : Kind::forward;
            return true;
        });
        no_actions("of another cell", [](auto&, Step& step) {
            ++step.cell;
            return true;
        });
        no_actions("of another micro-batch", [](auto&, Step& step) {
            ++step.micro_batch;
            return true;
        });
        auto const wait_of = [](StepTable& table, Step const& step) {
            bool const any = step.waits + step.waits_before > 0;
            return any ? &table.waits[step.first_wait] : nullptr;
        };
        no_actions("waits for no stream", [&](StepTable& table, Step const& step) {
            Wait* const wait = wait_of(table, step);
            if (wait) wait->stream = static_cast<decltype(wait->stream)>(table.streams);
            return wait != nullptr;
        });
        no_actions("waits for no position", [&](StepTable& table, Step const& step) {
            Wait* const wait = wait_of(table, step);
            if (wait) wait->position = 0;
            return wait != nullptr;
        });
        no_actions("waits for more than there is", [&](StepTable& table, Step const& step) {
            Wait* const wait = wait_of(table, step);
            if (wait) wait->position = size + 1;
            return wait != nullptr;
        });
        refused(
            "waits for itself",
            [](StepTable& table, Step const& step) {
                if (step.waits > 0) table.waits[step.first_wait] = {step.stream, step.position};
                return step.waits > 0;
            },
            "gpipe: the lanes of a table wait for each other");
    });
    CHECK(made.size() == 12);
    for (auto const& each : made) CHECK_MESSAGE(each.second > 10, each.first);
}

TEST_CASE("a cell's gradients are added up over replicas while its device does what is left") {
    std::size_t early = 0, apart = 0, behind_others = 0;
    each_table(
        toy::sanitized ? 100 : 600, 60000, [&](Walked walked, auto const&, auto const&, Random&) {
            if (walked.evaluation || walked.repeats || walked.ending->replicas.count == 1) return;
            if (walked.table.lanes() > 1) return; // of which one may be ahead of another
            Array<Step> const& steps = walked.table.steps;
            Array<gpipe::TiedCell> const& ties = walked.ending->ties;
            std::size_t other = 0; // the sum before
            for (std::size_t sum = 0; sum < steps.size(); ++sum) {
                Step const& own = steps[sum];
                auto const is_own = [&](gpipe::TiedCell const& end) {
                    return end.cell == own.cell;
                };
                if (!adds_replicas(own.kind) || std::any_of(ties.begin(), ties.end(), is_own))
                    continue;
                std::size_t whole = sum;
                while (steps[whole].cell != own.cell || !ends_backward(steps[whole].kind)) --whole;
                // Nothing comes between, unless another cell's was not whole before.
                std::size_t const ready = std::max(whole, other);
                other = sum;
                behind_others += ready > whole;
                for (std::size_t between = ready + 1; between < sum; ++between)
                    CHECK((steps[between].device != own.device || !computes(steps[between].kind)));
                bool left = false;
                for (std::size_t later = sum + 1; later < steps.size(); ++later) {
                    if (steps[later].device != own.device || !computes(steps[later].kind)) continue;
                    left = true;
                    for (gpipe::Wait const& wait : walked.table.waits_of(steps[later]))
                        CHECK((wait.stream != own.stream || wait.position < own.position));
                }
                early += left;
                apart += left && own.stream != steps[whole].stream;
            }
        });
    MESSAGE(early << " early, " << apart << " of them on a stream of their own; " << behind_others
                  << " behind others");
    CHECK(apart > 0);
    CHECK(early > apart);
}

namespace {

// What ranks that share no memory do with their parts of a table, in any order that their lanes and
// marks allow; with `meets` a send goes on together with its receive, else at once. By operands:
// what is read has to be on the rank, where it lies. Says what went wrong, or nothing.
struct RankWalk {
    MemoryPlan const& plan;
    Lowered const& lowered;
    Operands const& operands;
    gpipe::Located located;
    Ranks ranks;
    std::vector<StepTable> tables; // by rank
    bool meets;

    std::string run(Random& random) const {
        struct Lane {
            std::size_t rank, lane, next, end;
        };
        std::vector<Lane> lanes;
        std::vector<std::vector<std::uint32_t>> reached; // by rank and stream
        for (std::size_t r = 0; r < tables.size(); ++r) {
            reached.emplace_back(tables[r].streams);
            for (std::size_t l = 0; l < tables[r].lanes(); ++l)
                lanes.push_back({r, l, tables[r].begin[l], tables[r].begin[l + 1]});
        }
        std::vector<std::vector<std::uint32_t>> memory; // by space and byte: the value there
        for (gpipe::DeviceBytes const& device : plan.devices)
            memory.emplace_back(device.total(), Operands::none);
        memory.emplace_back(plan.host, Operands::none);
        std::vector<std::vector<bool>> there(tables.size(),
                                             std::vector<bool>(operands.values.size()));
        // By edge and direction; then by rank, for commits, and by end, for gradients of ties.
        std::map<std::size_t, std::vector<std::uint32_t>> on_its_way;
        std::vector<bool> told(ranks.count);
        for (gpipe::Action const& a : lowered.programs)
            if (a.kind == Kind::send_commit) told[a.edge] = true;
        // Of gradients of ties: 1 who sends, 2 who receives.
        std::vector<int> ends(lowered.programs.size());
        for (std::size_t i = 1; i < lowered.programs.size(); ++i) {
            gpipe::Action const &before = lowered.programs[i - 1], &a = lowered.programs[i];
            if (a.kind == Kind::bring_gradient && before.kind == a.kind && before.edge == a.edge)
                ends[i - 1] = 1, ends[i] = 2;
        }
        auto const way = [&](Step const& step) -> std::size_t {
            bool const back =
                step.kind == Kind::send_gradient || step.kind == Kind::receive_gradient;
            if (is_transfer(step.kind)) return 2 * step.calls + back;
            if (ends[step.action] > 0) return 2 * lowered.edges.size() + ranks.count + step.calls;
            return 2 * lowered.edges.size() +
                   (step.kind == Kind::commit ? ranks.of(step.device) : step.calls);
        };
        auto const crosses = [&](Step const& step) {
            return (is_transfer(step.kind) && lowered.edges[step.calls].link == Link::sent) ||
                   step.kind == Kind::send_commit || ends[step.action] > 0 ||
                   (step.kind == Kind::commit && told[ranks.of(step.device)]);
        };
        auto const sends = [&](Step const& step) {
            return step.kind == Kind::send_output || step.kind == Kind::send_gradient ||
                   step.kind == Kind::send_commit || ends[step.action] == 1;
        };
        auto const step_of = [&](Lane const& lane) -> Step const* {
            return lane.next < lane.end ? &tables[lane.rank].steps[lane.next] : nullptr;
        };
        auto const ready = [&](Lane const& lane) {
            Step const* const step = step_of(lane);
            bool result = step != nullptr;
            if (step)
                for (Wait const& wait : tables[lane.rank].waits_of(*step))
                    result = result && reached[lane.rank][wait.stream] >= wait.position;
            return result;
        };
        std::string wrong;
        auto const execute = [&](Lane& lane) {
            Step const& step = *step_of(lane);
            for (bool const writes : {false, true})
                for (Operand const& operand : operands[step.action]) {
                    if ((operand.use != Use::read) != writes) continue;
                    gpipe::Value const& value = operands.values[operand.value];
                    gpipe::Span const at = located[operand.value];
                    bool const here = !is_lasting(value.holds) &&
                                      value.holds != gpipe::Holds::told &&
                                      value.holds != gpipe::Holds::staged_output &&
                                      value.holds != gpipe::Holds::staged_gradient;
                    if (!writes && here && !there[lane.rank][operand.value])
                        wrong = "a value is missing";
                    there[lane.rank][operand.value] = true;
                    for (std::size_t b = at.begin; b < at.end; ++b)
                        if (writes)
                            memory[at.space][b] = operand.value;
                        else if (memory[at.space][b] != operand.value)
                            wrong = "something else lies there";
                }
            reached[lane.rank][step.stream] = step.position;
            ++lane.next;
        };
        for (;;) {
            std::vector<std::size_t> can;
            for (std::size_t l = 0; l < lanes.size(); ++l) {
                if (!ready(lanes[l])) continue;
                Step const& step = *step_of(lanes[l]);
                bool goes_on = !crosses(step) || !meets;
                if (crosses(step) && !sends(step)) goes_on = !on_its_way[way(step)].empty();
                if (crosses(step) && sends(step) && meets)
                    for (Lane const& other : lanes)
                        goes_on = goes_on ||
                                  (ready(other) && crosses(*step_of(other)) &&
                                   !sends(*step_of(other)) && way(*step_of(other)) == way(step));
                if (goes_on) can.push_back(l);
            }
            if (can.empty()) break;
            Lane& lane = lanes[can[random() % can.size()]];
            Step const& step = *step_of(lane);
            if (crosses(step)) {
                auto& messages = on_its_way[way(step)];
                if (sends(step)) {
                    messages.push_back(step.micro_batch);
                } else {
                    if (messages.front() != step.micro_batch) return "mismatch";
                    messages.erase(messages.begin());
                }
                if (sends(step) && meets)
                    for (Lane& other : lanes)
                        if (ready(other) && crosses(*step_of(other)) && !sends(*step_of(other)) &&
                            way(*step_of(other)) == way(step)) {
                            if (step_of(other)->micro_batch != step.micro_batch) return "mismatch";
                            messages.clear();
                            execute(other);
                            break;
                        }
            }
            execute(lane);
            if (!wrong.empty()) return wrong;
        }
        for (Lane const& lane : lanes)
            if (lane.next < lane.end) return "deadlock";
        return "";
    }
};

// Ranks of some devices each.
struct SomeRanks {
    std::vector<std::size_t> first{0}, lanes;
    SomeRanks(std::size_t devices, Random& random) {
        for (std::size_t d = 1; d < devices; ++d)
            if (random() % 2 == 0) first.push_back(d);
        first.push_back(devices);
        for (std::size_t r = 0; r + 1 < first.size(); ++r)
            lanes.push_back(1 + random() % (first[r + 1] - first[r]));
    }
    Ranks all() const { return {first.back(), lanes.size(), 0, first.data(), lanes.data()}; }
};

} // namespace

TEST_CASE("ranks meet at every message without a buffer, a tag, or a deadlock") {
    std::map<std::string, std::size_t> swapped;
    std::size_t messages = 0, commits = 0, brought = 0, several = 0;
    bool const whole = toy::long_tests();
    std::size_t const cases = whole || !toy::sanitized ? 3000 : 8;
    std::size_t const at_ends = whole ? 6000 : 600 / toy::one_of(1);
    for (std::size_t n = 0; n < cases + at_ends; ++n) {
        CAPTURE(n);
        bool const at_once = n >= cases; // updates, so that messages of the end are among others
        Random random(at_once ? 3000 - cases + n : n);
        Programs const schedule = some_schedule(random);
        SomeRanks some(schedule.devices(), random);
        bool const on_streams = random() % 2 == 0 || at_once;
        if (on_streams) std::fill(some.lanes.begin(), some.lanes.end(), 1);
        Ranks ranks = some.all();
        Case test{toy::some_plan(schedule, random() % 3 == 0, random, random() % 2 == 0 ? 40 : 0,
                                 &ranks, some_slack(random)),
                  {},
                  {}};
        several += ranks.count > 1;
        MemoryPlan const& plan = test.plan;
        // So none of them waits for who waits for what was sent.
        auto const receives = gpipe::messages_of(plan.lowered);
        for (std::size_t r = 0; r < plan.lowered.order.size() && !receives.empty(); ++r)
            if (std::uint32_t const i = receives[plan.lowered.order[r]]; i != gpipe::no_message)
                REQUIRE(plan.lowered.order[r + 1] == i);
        bool const evaluation = random() % 3 == 0 && !at_once;
        Lowered lowered;
        Operands operands;
        if (evaluation) {
            lowered = evaluation_of(plan.lowered);
            operands = find_operands(lowered, plan.cells, plan.part_table(true));
            lowered.needs =
                find_needs(walk_of(lowered), operands, gpipe::Located(plan, operands, true));
        } else {
            gpipe::Ending ending = some_ending(test.chain.shape(), plan, false, false, random);
            ending.ranks = ranks;
            if (on_streams) {
                ending.calls_enqueue = ending.copies_state = true;
                ending.immediate = random() % 2 == 0 || at_once;
                ending.squares = ending.squares && !ending.immediate;
            }
            EndedStep step = with_ending(plan.lowered, plan.operands, ending);
            lowered = std::move(step.lowered);
            operands = std::move(step.operands);
        }
        toy::Arenas const arenas(plan);
        std::uint64_t const seed = random() % 5;
        auto const cost = [=](gpipe::Action const& a) {
            return 1 + static_cast<double>(seed * (3 + a.cell) % 5);
        };
        auto const placement = place_programs(lowered, ranks, 1 + random() % 4, on_streams, cost);
        StepTable const all =
            step_table(plan, lowered, operands, placement, merge_lanes(lowered, placement, cost),
                       arenas.begin, arenas.host, evaluation);
        REQUIRE_NOTHROW(check_table(all, plan, lowered, operands));
        RankWalk walk{plan,  lowered, operands, gpipe::Located(plan, operands, evaluation),
                      ranks, {},      true};
        std::size_t steps = 0;
        for (ranks.self = 0; ranks.self < ranks.count; ++ranks.self) {
            walk.tables.push_back(gpipe::detail::rank_table(all, lowered, placement, ranks));
            steps += walk.tables.back().steps.size();
            for (Step const& step : walk.tables.back().steps)
                messages += step.kind == Kind::send_output || step.kind == Kind::send_gradient;
            for (Step const& step : walk.tables.back().steps) {
                commits += step.kind == Kind::send_commit;
                brought += step.kind == Kind::bring_gradient;
            }
        }
        REQUIRE(steps == lowered.programs.size());
        for (bool const meets : {true, false}) {
            walk.meets = meets;
            REQUIRE(walk.run(random) == "");
        }
        walk.meets = true;
        StepTable& table = walk.tables[random() % walk.tables.size()];
        std::size_t const lane = random() % table.lanes();
        std::size_t const size = table.begin[lane + 1] - table.begin[lane];
        if (ranks.count == 1 || size < 2) continue;
        Step* const step = &table.steps[table.begin[lane] + random() % (size - 1)];
        std::swap(step[0], step[1]);
        std::swap(step[0].position, step[1].position);
        ++swapped[walk.run(random)];
    }
    MESSAGE(several << " cases of several ranks, " << messages << " messages, " << commits
                    << " commits, " << brought << " of gradients of ties; with two steps of a "
                    << "lane swapped:");
    for (auto const& [what, count] : swapped)
        MESSAGE(count << " " << (what.empty() ? "equivalent" : what));
    CHECK((several > 1500 || toy::sanitized));
    CHECK((swapped.size() >= 4 || toy::sanitized)); // it sees what it says it sees
}

namespace {

// Programs with copies wherever an edge goes from device to device, and edges that skip cells.
Lowered some_edges(Random& random) {
    Programs const programs = toy::lowerings[random() % 3](some_schedule(random));
    std::size_t const cells = programs.cells();
    std::vector<gpipe::Edge> all;
    for (std::uint32_t from = 0; from < cells; ++from)
        for (std::uint32_t to = from + 1; to < cells; ++to) {
            if (to > from + 1 && random() % 4 != 0) continue;
            gpipe::Edge edge{from, to};
            edge.gradient = random() % 4 != 0;
            if (programs.device_of(from) != programs.device_of(to)) edge.link = Link::copied;
            for (gpipe::CallReads* const reads :
                 {&edge.taker_reads, &edge.giver_reads, &edge.gradient_reads})
                for (gpipe::Stage const stage :
                     {gpipe::Stage::backward, gpipe::Stage::weight_gradient})
                    if (random() % 2 == 0) toy::read_in(*reads, stage);
            if (random() % 2 == 0) toy::read_in(edge.taker_reads, gpipe::Stage::recompute);
            all.push_back(edge);
        }
    Array<gpipe::Edge> edges(all.size());
    std::copy(all.begin(), all.end(), edges.begin());
    Array<bool> offloads(cells);
    for (bool& cell : offloads) cell = random() % 4 == 0;
    return toy::lower(programs, {cells, std::move(edges)}, offloads);
}

// Any table, skips and all, with its values in one memory for all devices, each in the first room
// that there was when its writer's turn came: what is written overlaps with pieces of what was.
struct Anywhere {
    Lowered lowered;
    Operands operands;
    gpipe::Walk walk;
    std::vector<gpipe::Span> at; // by value
    gpipe::Needs needs, before;

    auto spans() const {
        return [this](std::size_t, Operand const& operand) { return at[operand.value]; };
    }
    explicit Anywhere(Random& random) : lowered(some_edges(random)) {
        Programs const& programs = lowered.programs;
        Array<gpipe::CellValues> cells(programs.cells());
        auto const some = [&] { return random() % 2 == 0; };
        for (gpipe::CellValues& cell : cells) {
            cell.retained = some();
            cell.discards = some();
            cell.input_moves = some();
        }
        for (std::size_t i = 0; i < programs.size(); ++i)
            if (is_offload(programs[i].kind)) cells[programs[i].cell].retained = true;
        operands = find_operands(lowered, cells);
        lowered.order = order_of(lowered, operands);
        walk = walk_of(lowered);
        add_lasting(random);
        at.resize(operands.values.size());
        std::vector<std::size_t> end(at.size());
        for (std::size_t r = 0; r < walk.order.size(); ++r)
            for (Operand const& operand : operands[walk.order[r]]) end[operand.value] = r;
        std::vector<std::uint32_t> there;
        for (std::size_t r = 0; r < walk.order.size(); ++r) {
            for (Operand const& operand : operands[walk.order[r]]) {
                gpipe::Holds const holds = operands.values[operand.value].holds;
                if (operand.use == Use::read || !has_bytes(holds)) continue;
                gpipe::Span& span = at[operand.value];
                std::size_t const bytes = (1 + random() % 4) * unit;
                span = {0, bytes};
                for (std::size_t v = 0; v < there.size(); ++v)
                    if (gpipe::Span const& other = at[there[v]];
                        span.begin < other.end && other.begin < span.end) {
                        span = {other.end, other.end + bytes};
                        v = static_cast<std::size_t>(-1);
                    }
                there.push_back(operand.value);
            }
            std::erase_if(there, [&](std::uint32_t value) { return end[value] == r; });
        }
        needs = find_needs(walk, operands, spans());
        before = find_needs_before(walk, operands, needs, spans());
    }
    // Something that a few streams read, before one action hands it on to the next walk.
    void add_lasting(Random& random) {
        std::size_t const size = walk.order.size(), v = operands.values.size();
        std::size_t const last = size - 1 - random() % std::min<std::size_t>(size, 3);
        Operands more = operands;
        more.values = Array<gpipe::Value>(v + 1);
        std::copy(operands.values.begin(), operands.values.end(), more.values.begin());
        more.values[v] = {walk.order[last], 0, 0, gpipe::Holds::parameters};
        more.all = Array<Operand>(operands.all.size() + size);
        std::vector<std::size_t> rank(size);
        for (std::size_t r = 0; r < size; ++r) rank[walk.order[r]] = r;
        std::uint32_t count = 0;
        for (std::size_t i = 0; i < size; ++i) {
            more.begin[i] = count;
            for (Operand const& operand : operands[i]) more.all[count++] = operand;
            bool const reads = rank[i] < last && walk.stream[i] < 3 && random() % 4 == 0;
            if (reads || rank[i] == last)
                more.all[count++] = {static_cast<std::uint32_t>(v), 0,
                                     reads ? Use::read : Use::next};
        }
        more.begin[size] = count;
        operands = std::move(more);
    }
    bool proven() const { return bool(prove(walk, operands, needs, spans(), &before)); }
    // One lane for all streams.
    toy::Law law(toy::Arenas const& arenas) const {
        StepTable table;
        table.streams = walk.streams;
        table.begin = Array<std::size_t>(2);
        table.begin[1] = walk.order.size();
        table.steps = Array<Step>(walk.order.size());
        table.waits = Array<Wait>(needs.count() + before.count());
        std::vector<std::vector<toy::Work>> work;
        std::uint32_t waits = 0;
        for (std::size_t n = 0; n < walk.order.size(); ++n) {
            std::uint32_t const i = walk.order[n];
            Step& step = table.steps[n];
            step.publishes = step.more = true;
            step.stream = walk.stream[i];
            step.position = walk.position[i];
            step.micro_batch = lowered.programs[i].micro_batch;
            step.first_wait = waits;
            step.waits = static_cast<std::uint16_t>(needs[i].size());
            step.waits_before = static_cast<std::uint16_t>(before[i].size());
            for (auto const& all : {needs[i], before[i]})
                for (std::uint32_t const needed : all)
                    table.waits[waits++] = {walk.stream[needed], walk.position[needed]};
            work.push_back(toy::by_operands(operands, i, [&](Operand const& operand) {
                gpipe::Span const span = at[operand.value];
                return std::pair<std::byte const*, std::size_t>(arenas.begin[0] + span.begin,
                                                                span.end - span.begin);
            }));
        }
        return {table, arenas, std::move(work)};
    }
    std::size_t height() const {
        std::uint64_t end = 0;
        for (gpipe::Span const& span : at) end = std::max(end, span.end);
        return end;
    }
    static constexpr std::size_t unit = toy::Arenas::unit;
};

// Without one of them, if there is any.
bool drop_one(gpipe::Needs& needs, Random& random) {
    std::size_t left = needs.count() > 0 ? random() % needs.count() : 0;
    gpipe::Needs fewer(needs.size(), needs.count());
    for (std::size_t i = 0; i < needs.size(); ++i) {
        std::vector<std::uint32_t> all(needs[i].begin(), needs[i].end());
        if (left < all.size()) all.erase(all.begin() + static_cast<std::ptrdiff_t>(left));
        left -= needs[i].size(); // wraps behind it
        fewer.set(i, {all.data(), all.size()});
    }
    return std::exchange(needs, fewer).count() != needs.count();
}

} // namespace

TEST_CASE("G3 wherever values lie, what is waited for is enough and none of it too much") {
    std::map<std::string, std::array<std::size_t, 3>> counts; // made, refused, found
    for (std::size_t n = 0; n < (toy::long_tests() ? 3000 : 500 / toy::one_of(1)); ++n) {
        CAPTURE(n);
        Random random(20000 + n);
        Anywhere const table(random);
        MemoryPlan plan;
        plan.devices = Array<gpipe::DeviceBytes>(1);
        plan.devices[0].activations = table.height();
        toy::Arenas const arenas(plan);
        std::size_t const all = table.lowered.programs.micro_batches();
        auto const lost = [&](Anywhere const& one) {
            toy::Law const law = one.law(arenas);
            for (int order = 0; order < 10; ++order)
                if (!law.run(random, {all, 1 + random() % all, all}, order % 3 != 0).empty())
                    return true;
            return false;
        };
        REQUIRE(table.proven());
        REQUIRE(!lost(table));
        for (std::string const kind : {"need", "need before", "place"}) {
            Anywhere wrong = table;
            if (kind == "need" && !drop_one(wrong.needs, random)) continue;
            if (kind == "need before" && !drop_one(wrong.before, random)) continue;
            if (kind == "place" && wrong.at.empty()) continue;
            if (kind == "place") { // anywhere, or where the same action has something else
                auto const own = wrong.operands[random() % wrong.walk.order.size()];
                if (own.size() == 0) continue;
                std::size_t const v = own[random() % own.size()].value;
                std::size_t const other = own[random() % own.size()].value;
                std::size_t const bytes = wrong.at[v].end - wrong.at[v].begin;
                std::size_t const most = table.height() - bytes;
                std::size_t const to =
                    random() % 2 == 0
                        ? random() % (most / toy::Arenas::unit + 1) * toy::Arenas::unit
                        : std::min<std::size_t>(wrong.at[other].begin, most);
                if (bytes > 0) wrong.at[v] = {to, to + bytes};
            }
            bool const proven = wrong.proven(), loses = lost(wrong);
            CAPTURE(kind);
            CHECK(!(proven && loses));
            if (kind != "place") CHECK(!proven);
            counts[kind][0] += 1, counts[kind][1] += !proven, counts[kind][2] += loses;
        }
    }
    for (auto const& [kind, count] : counts) {
        MESSAGE(kind << ": " << count[0] << " made, " << count[1] << " refused, " << count[2]
                     << " found in ten orders");
        CHECK((count[2] > 0 || count[0] < 10));
    }
}
