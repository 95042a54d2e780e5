#pragma once

#include <support/random_chain.hpp>

#include <gpipe/memory/locate.hpp>
#include <gpipe/plan/ending.hpp>
#include <gpipe/runtime/calls.hpp>
#include <gpipe/runtime/table.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

// The law that a table has to keep: whatever the order, who reads finds what was written for it. It
// is tried, on memory that remembers. No clocks, no proof: nothing of plan/sweep.hpp.
namespace toy {

/// Arenas side by side, the host's memory behind them, room between that belongs to nobody.
class Arenas {
  public:
    using Content = std::uint64_t; // 0: rubbish
    /// Not to be written: room between, parameters, gradients and the optimizer's states.
    static constexpr Content nobodys = ~Content{0};
    static constexpr std::size_t unit = gpipe::slot_alignment;

    explicit Arenas(gpipe::MemoryPlan const& plan) : begin(plan.devices.size()) {
        std::vector<std::size_t> at;
        auto const add = [&](std::size_t bytes, Content content) {
            empty.resize(empty.size() + bytes / unit, content);
        };
        add(unit, nobodys);
        for (gpipe::DeviceBytes const& bytes : plan.devices) {
            at.push_back(empty.size());
            add(bytes.state(), nobodys);
            add(bytes.total() - bytes.state(), 0);
            add(unit, nobodys);
        }
        at.push_back(empty.size());
        add(plan.host, 0);
        add(unit, nobodys);
        bytes_.resize(empty.size() * unit);
        for (std::size_t d = 0; d < begin.size(); ++d) begin[d] = bytes_.data() + at[d] * unit;
        host = bytes_.data() + at.back() * unit;
    }
    /// The number of the unit there; as many as there are: nowhere.
    std::size_t operator()(std::byte const* address, std::size_t bytes) const {
        auto const at = reinterpret_cast<std::uintptr_t>(address) -
                        reinterpret_cast<std::uintptr_t>(bytes_.data());
        bool const here = at <= bytes_.size() && bytes <= bytes_.size() - at && at % unit == 0;
        return here ? at / unit : empty.size();
    }

    gpipe::Array<std::byte*> begin; ///< by device
    std::byte* host = nullptr;
    std::vector<Content> empty; ///< by unit, before anything has run

  private:
    std::vector<std::byte> bytes_;
};

/// A tensor or value that is used: read, or written.
struct Piece {
    std::byte const* at = nullptr;
    std::size_t bytes = 0;
    std::uint32_t what = 0; ///< lies there then; 0: rubbish
    /// It is there from walk to walk: who writes it takes this walk's away, and leaves the next's.
    bool lasts = false;
};
/// What is done at one time, be it an action or a call in it. It takes a while.
struct Work {
    std::vector<Piece> reads = {}, writes = {};
    bool moves = false; ///< it copies what it reads, whatever that is: piece by piece
};

/// What an action does by its operands, slice by slice; where(operand): its address and bytes.
template <class Where>
std::vector<Work> by_operands(gpipe::Operands const& operands, std::size_t action, Where where) {
    std::map<std::uint16_t, Work> slices;
    for (gpipe::Operand const& operand : operands[action]) {
        auto const [at, bytes] = where(operand);
        Piece const piece{at, bytes, operand.value + 1,
                          is_lasting(operands.values[operand.value].holds)};
        bool const reads = operand.use == gpipe::Use::read;
        (reads ? slices[operand.from].reads : slices[operand.from].writes).push_back(piece);
        // Of no bytes: others may not have it before the end.
        if (bytes == 0 && !reads && operand.to != operand.from) {
            slices[operand.to].writes.push_back(piece);
            slices[operand.from].writes.pop_back();
        }
        if (bytes > 0 && operand.to != operand.from) slices[operand.to].reads.push_back(piece);
    }
    std::vector<Work> result;
    for (auto const& [slice, work] : slices) result.push_back(work);
    return result;
}
/// The same at the addresses of its step.
inline std::vector<Work> by_operands(gpipe::Operands const& operands, gpipe::Located const& located,
                                     gpipe::StepTable const& table, gpipe::Step const& step) {
    return by_operands(operands, step.action, [&](gpipe::Operand const& operand) {
        gpipe::Span const& place = located[operand.value];
        std::size_t const bytes = place.end - place.begin;
        return std::pair<std::byte const*, std::size_t>(
            bytes > 0 ? table.of(step)[operand.address] : nullptr, bytes);
    });
}

/// The functions of a layer, and what else a cell calls: only to be told apart.
///@{
template <int> void nothing(gpipe::Call const&, gpipe::Frame const&) {}
inline constexpr gpipe::CallFunction forward_function = &nothing<0>, whole_function = &nothing<1>,
                                     halves_function = &nothing<2>, first_half = &nothing<3>,
                                     second_half = &nothing<4>, loss_function = &nothing<5>;
///@}

/// A model of layers that only exist as values.
inline gpipe::Model model_of(ChainShape const& chain) {
    gpipe::Model model;
    model.layers = gpipe::Array<gpipe::LayerParts>(chain.size);
    model.infos = gpipe::Array<LayerInfo>(chain.size);
    for (std::size_t i = 0; i < chain.size; ++i) {
        LayerInfo const& info = model.infos[i] = chain.layers[i];
        gpipe::LayerFunctions& functions = model.layers[i].functions;
        functions.forward = forward_function;
        functions.backward = functions.lowest_backward = info.has_whole ? whole_function
                                                         : info.splits  ? halves_function
                                                                        : first_half;
        functions.input_gradient = info.splits ? first_half : functions.backward;
        if (!info.splits || info.deferred.count > 0)
            functions.lowest_input_gradient = functions.input_gradient;
        if (info.splits) functions.weight_gradient = second_half;
    }
    model.skips = chain.skips;
    model.loss.train = model.loss.evaluate = loss_function;
    return model;
}

/// What a step does call by call, by the definition of a layer's functions and with no word from
/// plan/: a second opinion on what actions read and write. Where: as the engine's calls say.
/// `ending`: of a training.
class Definition {
  public:
    Definition(ChainShape const& chain, gpipe::MemoryPlan const& plan,
               gpipe::StepTable const& table, gpipe::Ending const* ending)
        : chain_(chain), plan_(plan), table_(table), ending_(ending),
          calls_(make_calls(model_of(chain), plan, gpipe::Array<gpipe::LayerMemory>(chain.size),
                            chain.lowest_learner, {plan.devices.size()})) {}

    std::vector<Work> operator()(gpipe::Step const& step) const {
        std::vector<Work> result;
        if (ends_step(step.kind)) return {end(step)};
        if (is_offload(step.kind)) {
            result = moved(step);
        } else if (is_transfer(step.kind)) {
            TensorName const name = brought(step);
            result = {{{piece(step, name, table_.of(step, gpipe::Region::input))},
                       {piece(step, name, table_.of(step, gpipe::Region::output))}}};
        } else {
            gpipe::Frame const frame = frame_of(step);
            gpipe::Calls::Range const calls = calls_[step.calls];
            for (gpipe::Call const* call = calls.first; call < calls.last; ++call)
                for (LayerCall const& one : functions_of(step, *call))
                    result.push_back(work_of(step, frame, *call, one));
        }
        for (Work& work : result)
            for (auto* const pieces : {&work.reads, &work.writes})
                std::erase_if(*pieces, [](Piece const& one) { return one.bytes == 0; });
        if (table_.evaluation) return result;
        gpipe::Offloads const& offloads = plan_.lowered.offloads;
        if (step.kind == gpipe::Kind::fetch)
            result.insert(result.begin(), Work{{turn(step.cell, step.micro_batch)}});
        if (std::size_t const next = offloads.behind(step.action); next != offloads.none) {
            gpipe::Action const& reversal = plan_.lowered.programs[next];
            result.push_back({{}, {turn(reversal.cell, reversal.micro_batch)}});
        }
        if (is_copy(step.kind)) return result;
        Work all; // the calls take their time between
        if (lasts(step.device)) all.reads.push_back(lasting(parameters, step.device));
        if (ending_->copies_state) all.reads.push_back(lasting(state, step.device));
        // Gradients are added in the program's order (promise P1).
        auto const adds = [](gpipe::Kind kind) {
            return gives_gradient(kind) || ends_backward(kind);
        };
        gpipe::Programs const& programs = plan_.lowered.programs;
        for (std::size_t i = step.action; i-- > 0 && adds(step.kind);)
            if (programs[i].cell == step.cell && adds(programs[i].kind)) {
                all.reads.push_back(token(done, i));
                break;
            }
        // What replicas have told of a micro-batch.
        if (step.kind != gpipe::Kind::forward && !ending_->buffers.empty() &&
            ending_->buffers[step.cell].exchanges)
            for (std::size_t i = 0; i < programs.size(); ++i)
                if (programs[i].kind == gpipe::Kind::forward && programs[i].cell == step.cell &&
                    programs[i].micro_batch == step.micro_batch)
                    all.reads.push_back(token(done, i));
        result.insert(result.begin(), all);
        all.writes.push_back(token(done, step.action));
        result.push_back(all);
        return result;
    }
    /// Whether the engine calls what the definition says, in cells that keep every layer whole.
    bool calls_all(gpipe::Step const& step) const {
        if (!computes(step.kind) || in_pieces(step)) return true;
        std::size_t const last = plan_.first[step.cell + 1];
        auto expected = calls_of(chain_, plan_.first[step.cell], last, step.kind,
                                 plan_.rewrites_output(step.cell));
        if (table_.evaluation && last == chain_.size) expected.push_back(call_of_loss(chain_));
        std::vector<LayerCall> made;
        gpipe::Calls::Range const calls = calls_[step.calls];
        for (gpipe::Call const* call = calls.first; call < calls.last; ++call)
            for (LayerCall const& one : functions_of(step, *call)) made.push_back(one);
        return made == expected;
    }

  private:
    gpipe::Frame frame_of(gpipe::Step const& step) const {
        gpipe::Frame frame;
        frame.addresses = table_.of(step);
        return frame;
    }
    // A recompute of which the backward reads nothing: nobody waits for it.
    bool is_in_vain(gpipe::Action const& a) const {
        if (a.kind != gpipe::Kind::recompute) return false;
        gpipe::CellCalls const& all =
            plan_.parts.of(a.cell, plan_.parts.way(a.cell, a.micro_batch)).calls;
        return std::none_of(all.tensors.begin(), all.tensors.end(), [&](auto const& tensor) {
            return all.begin[1] <= tensor.begin && tensor.begin < all.begin[2] &&
                   all.begin[2] <= tensor.end;
        });
    }
    bool in_pieces(gpipe::Step const& step) const {
        if (table_.evaluation) return false;
        std::size_t const way = plan_.parts.way(step.cell, step.micro_batch);
        gpipe::CellCalls const& all = plan_.parts.of(step.cell, way).calls;
        bool result = (way & gpipe::way_recomputes) != 0 && all.restart > 0;
        // Behind the recompute layers run again, or a half of one runs with the other.
        for (std::size_t c = all.begin[2]; c < all.begin[4]; ++c) {
            std::size_t const layer = plan_.first[step.cell] + all.calls[c].layer;
            result =
                result || all.calls[c].kind == gpipe::CallKind::forward ||
                ((way & gpipe::way_halves) != 0 && layer < chain_.size &&
                 all.calls[c].kind == gpipe::CallKind::backward && chain_.layers[layer].splits);
        }
        return result;
    }
    enum Token { done = 11, committed, squares, parameters, state };
    static Piece token(Token token, std::size_t number) {
        return {nullptr, 0, static_cast<std::uint32_t>(token + 16 * number)};
    }
    static Piece lasting(Token token, std::size_t device) {
        Piece result = Definition::token(token, device);
        result.lasts = true;
        return result;
    }
    bool has_buffers(std::size_t device) const {
        for (std::size_t c = 0; c < ending_->buffers.size(); ++c)
            if (ending_->buffers[c].any && plan_.lowered.programs.device_of(c) == device)
                return true;
        return false;
    }
    // Whether layers read what lasts from step to step.
    bool lasts(std::size_t device) const { return learns(device) || has_buffers(device); }
    bool learns(std::size_t device) const {
        for (std::size_t c = 0; c < ending_->learns.size(); ++c)
            if (ending_->learns[c] && plan_.lowered.programs.device_of(c) == device) return true;
        return false;
    }
    // What an action behind the layers' does: nothing before it knows that it may.
    Work end(gpipe::Step const& step) const {
        using gpipe::Kind;
        gpipe::Programs const& programs = plan_.lowered.programs;
        std::size_t const last = programs.device_of(programs.cells() - 1), d = step.device;
        std::size_t const revoked = plan_.devices.size();
        Work work;
        auto const reads_all = [&](auto which) {
            for (std::size_t i = 0; i < programs.size(); ++i)
                if (computes(programs[i].kind) && which(programs[i]) && !is_in_vain(programs[i]))
                    work.reads.push_back(token(done, i));
        };
        auto const reads = [&](Token what, std::size_t of) {
            work.reads.push_back(token(what, of));
        };
        auto const here = [&](gpipe::Action const& a) { return programs.device_of(a.cell) == d; };
        auto const learners = [&](Token what) {
            for (std::size_t e = 0; e < revoked; ++e)
                if (learns(e)) reads(what, e);
        };
        // Of tied parameters, what finds their sums here, and what those of all replicas.
        std::size_t const ties = ending_->ties.size();
        bool const replicas = ending_->replicas.count > 1, shards = ending_->replicas.shards;
        auto const reduced = [&](std::size_t tie) { return token(squares, revoked + tie); };
        auto const summed = [&](std::size_t c) { return token(squares, revoked + ties + c); };
        Piece const updated = token(squares, revoked + ties + programs.cells() + d);
        // What becomes of buffers.
        auto const next = [&](std::size_t device) {
            return token(squares, 2 * revoked + ties + programs.cells() + device);
        };
        // The gradient of an end of a tie, where they are added up.
        auto const brought = [&](std::size_t end) {
            return token(squares, 3 * revoked + ties + programs.cells() + end);
        };
        auto const sums = [&] {
            reads_all(here);
            for (gpipe::TiedCell const& tied : ending_->ties)
                if (programs.device_of(tied.cell) == d) work.reads.push_back(reduced(tied.tie));
            for (std::size_t c = 0; c < programs.cells(); ++c)
                if (replicas && ending_->learns[c] && programs.device_of(c) == d)
                    work.reads.push_back(summed(c));
        };
        switch (step.kind) {
        case Kind::bring_gradient:
            for (gpipe::TiedCell const& tied : ending_->ties)
                if (tied.end == step.calls)
                    reads_all([&](gpipe::Action const& a) { return a.cell == tied.cell; });
            work.reads.push_back(lasting(parameters, d)); // so the last sum was found
            work.writes = {brought(step.calls)};
            return work;
        case Kind::reduce:
            for (gpipe::TiedCell const& tied : ending_->ties) {
                if (tied.tie != step.calls) continue;
                reads_all([&](gpipe::Action const& a) { return a.cell == tied.cell; });
                if (ending_->copies_state && programs.device_of(tied.cell) != d)
                    work.reads.push_back(brought(tied.end));
            }
            work.writes = {reduced(step.calls)};
            return work;
        case Kind::all_reduce:
        case Kind::reduce_scatter:
            reads_all([&](gpipe::Action const& a) { return a.cell == step.cell; });
            for (gpipe::TiedCell const& tied : ending_->ties)
                if (tied.cell == step.cell) work.reads.push_back(reduced(tied.tie));
            work.writes = {summed(step.cell)};
            return work;
        case Kind::all_gather:
            work.reads = {updated};
            work.writes = {lasting(parameters, d)};
            return work;
        case Kind::next_buffers:
            reads_all([&](gpipe::Action const& a) {
                return here(a) && a.kind == Kind::forward && ending_->buffers[a.cell].gathers;
            });
            work.reads.push_back(lasting(parameters, d));
            work.writes = {next(d)};
            return work;
        case Kind::commit:
            for (std::size_t e = 0; e < revoked; ++e)
                if (has_buffers(e) && !ending_->immediate && !ending_->calls_enqueue)
                    work.reads.push_back(next(e));
            reads_all([&](gpipe::Action const& a) {
                bool const loss = a.cell + 1 == programs.cells() && gives_gradient(a.kind);
                return loss || (ending_->copies_state && !ending_->immediate && here(a)) ||
                       (!ending_->immediate && !ending_->calls_enqueue);
            });
            if (ending_->squares && !ending_->immediate) learners(squares);
            work.writes = {token(committed, last)};
            if (ending_->copies_state && ending_->immediate)
                work.reads.push_back(lasting(state, last));
            else if (ending_->copies_state)
                work.writes.push_back(lasting(state, last));
            return work;
        case Kind::revoke:
            learners(squares);
            if (ending_->copies_state)
                for (std::size_t e = 0; e < revoked; ++e) reads(committed, e);
            work.writes = {token(committed, revoked)};
            return work;
        case Kind::take_state:
            reads_all(here);
            reads(committed, last);
            if (!taken_.insert(d).second) {
                reads(committed, revoked);
                return work;
            }
            work.writes = {lasting(state, d)};
            if (d != last) work.writes.push_back(token(committed, d));
            return work;
        case Kind::sum_squares:
            sums();
            work.writes = {token(squares, d)};
            return work;
        default:
            sums();
            if (has_buffers(d)) work.reads.push_back(next(d));
            if (ending_->squares && !ending_->immediate) learners(squares);
            if (ending_->squares && ending_->immediate && learns(d)) reads(squares, d);
            reads(committed, ending_->copies_state ? d : last);
            work.writes = {lasting(parameters, d)};
            if (replicas && shards && learns(d)) work.writes.push_back(updated);
            return work;
        }
    }
    // That a fetch may begin.
    Piece turn(std::size_t cell, std::size_t micro_batch) const {
        return {nullptr, 0,
                static_cast<std::uint32_t>(16 * (1 + plan_.first[cell] + 64 * micro_batch))};
    }
    Piece piece(gpipe::Step const& step, TensorName const& name, std::byte const* at) const {
        std::size_t const what = 1 + name.what + 16 * (name.layer + 64 * step.micro_batch);
        return {at, bytes_of(chain_, name, plan_.capacity),
                is_scratch(name) ? 0 : static_cast<std::uint32_t>(what)};
    }
    // By an offload or fetch: piece by piece, the input behind the rest.
    std::vector<Work> moved(gpipe::Step const& step) const {
        std::vector<Work> result;
        bool const out = step.kind == gpipe::Kind::offload;
        std::size_t const retained = plan_.pools.pool(gpipe::Holds::retained, step.cell).bytes;
        auto const at = [&](gpipe::Region region) { return table_.of(step, region); };
        auto const move = [&](std::byte const* from, std::byte const* to, std::size_t bytes) {
            result.push_back({{{from, bytes}}, {{to, bytes}}, true});
        };
        std::byte* const input = at(gpipe::Region::input);
        std::byte* const output = at(gpipe::Region::output);
        std::byte* const block = at(gpipe::Region::retained);
        move(out ? block : input, out ? output : block, retained);
        if (plan_.cells[step.cell].input_moves)
            move(out ? input : input + retained, out ? output + retained : output,
                 plan_.lowered.edges[step.cell - 1].bytes);
        return result;
    }
    // By a transfer.
    TensorName brought(gpipe::Step const& step) const {
        bool const output = step.kind <= gpipe::Kind::receive_input;
        for (std::size_t s = 0; s < chain_.skips.size(); ++s)
            if (plan_.skip_edges[s] == step.calls)
                return {output ? TensorName::skip : TensorName::skip_gradient, s};
        return {output ? TensorName::output : TensorName::gradient,
                plan_.first[plan_.lowered.edges[step.calls].to] - 1};
    }
    // One, or two halves.
    std::vector<LayerCall> functions_of(gpipe::Step const& step, gpipe::Call const& call) const {
        std::size_t const last = plan_.first[step.cell + 1], i = call.index;
        if (call.function == loss_function) return {call_of_loss(chain_)};
        std::vector<LayerCall> result;
        if (call.function == forward_function) {
            bool const in_vain = step.kind == gpipe::Kind::recompute && i + 1 == last &&
                                 last < chain_.size && !plan_.rewrites_output(step.cell);
            bool const again = step.kind != gpipe::Kind::forward;
            result.push_back(detail::call_forward(chain_, i, last, again, in_vain));
        }
        if (call.function == whole_function) detail::call_whole(chain_, i, result);
        if (call.function == first_half || call.function == halves_function)
            detail::call_first_half(chain_, i, result);
        if (call.function == second_half || call.function == halves_function)
            detail::call_second_half(chain_, i, result);
        return result;
    }
    Work work_of(gpipe::Step const& step, gpipe::Frame const& frame, gpipe::Call const& call,
                 LayerCall const& names) const {
        Work work;
        for (TensorName const& name : names.reads)
            work.reads.push_back(piece(step, name, address(frame, call, name)));
        for (TensorName const& name : names.writes) {
            work.writes.push_back(piece(step, name, address(frame, call, name)));
            if (name.what == TensorName::saved && !call.saving) work.writes.back().what = 0;
        }
        return work;
    }
    std::byte* address(gpipe::Frame const& frame, gpipe::Call const& call,
                       TensorName const& name) const {
        bool const below = name.layer + 1 == call.index && call.function != loss_function;
        switch (name.what) {
        case TensorName::output:
        case TensorName::again:
            return (below ? call.x : call.y).in(frame);
        case TensorName::gradient:
        case TensorName::unwanted:
            return (below || name.what == TensorName::unwanted ? call.dx : call.dy).in(frame);
        case TensorName::saved:
            return call.saved.in(frame);
        case TensorName::deferred:
            return call.deferred.in(frame);
        default:
            if (!is_skip(name)) return call.scratch.in(frame);
        }
        gpipe::SkipPair const& skip = chain_.skips[name.layer];
        gpipe::SkipPlace const& end = call.skips[call.index == skip.from ? skip.stash : skip.pop];
        return (is_skip_gradient(name) ? end.gradient : end.value).in(frame);
    }

    ChainShape chain_;
    gpipe::MemoryPlan const& plan_;
    gpipe::StepTable const& table_;
    gpipe::Ending const* ending_;
    gpipe::Calls calls_;
    mutable std::set<std::size_t> taken_; // devices that have taken the state
};

/// Whether all that is done of an action lies in what its operands say, read or written.
inline bool covers(std::vector<Work> const& operands, std::vector<Work> const& done) {
    auto const within = [&](Piece const& piece, bool writes) {
        for (std::size_t at = 0; at < piece.bytes; at += Arenas::unit) {
            auto const here = [&](Piece const& one) {
                return one.at <= piece.at + at && piece.at + at < one.at + one.bytes;
            };
            if (std::none_of(operands.begin(), operands.end(), [&](Work const& work) {
                    return std::any_of(work.writes.begin(), work.writes.end(), here) ||
                           (!writes && std::any_of(work.reads.begin(), work.reads.end(), here));
                }))
                return false;
        }
        return true;
    };
    for (Work const& work : done) {
        for (Piece const& piece : work.reads)
            if (!within(piece, false)) return false;
        for (Piece const& piece : work.writes)
            if (!within(piece, true)) return false;
    }
    return true;
}

/// Whether all that the operands of an action read is touched by what is done: what is read in vain
/// lives too long. `retained`: of a cell that offloads, which comes back as a whole.
inline bool touches_all(std::vector<Work> const& operands, std::vector<Work> const& done,
                        std::byte const* retained) {
    auto const touched = [&](Piece const& read) {
        auto const here = [&](Piece const& one) {
            return one.at < read.at + read.bytes && read.at < one.at + one.bytes;
        };
        return std::any_of(done.begin(), done.end(), [&](Work const& work) {
            return std::any_of(work.reads.begin(), work.reads.end(), here) ||
                   std::any_of(work.writes.begin(), work.writes.end(), here);
        });
    };
    for (Work const& work : operands)
        for (Piece const& piece : work.reads)
            if (piece.bytes > 0 && !piece.lasts && piece.at != retained && !touched(piece))
                return false;
    return true;
}

/// Executes a table. What its steps wait for is what the table says, and a mark that nobody
/// publishes, or that a lane publishes behind who waits for it, holds up nobody.
class Law {
  public:
    /// `work`: of each step of the table.
    Law(gpipe::StepTable const& table, Arenas const& arenas, std::vector<std::vector<Work>> work)
        : arenas_(arenas), work_(std::move(work)), streams_(table.streams),
          waits_(table.steps.size()) {
        for (std::size_t n = 0; n < table.steps.size(); ++n) {
            streams_[table.steps[n].stream].push_back(n);
            micro_batch_.push_back(table.steps[n].micro_batch);
            for (Work const& w : work_[n])
                for (auto const* const pieces : {&w.reads, &w.writes})
                    for (Piece const& piece : *pieces) {
                        values_ = std::max(values_, piece.what + 1);
                        if (piece.lasts) lasting_.push_back(piece.what);
                    }
        }
        for (std::size_t n = 0; n < table.steps.size(); ++n) {
            auto const add = [&](gpipe::Wait const& wait, bool before) {
                auto const& stream = streams_[wait.stream];
                for (std::size_t p = 0; p < stream.size(); ++p) {
                    gpipe::Step const& step = table.steps[stream[p]];
                    bool const there = before || table.lanes() > 1 || stream[p] < n;
                    if (step.position == wait.position && step.publishes && step.more && there)
                        waits_[n].push_back({wait.stream, p + 1, before});
                }
            };
            for (gpipe::Wait const& wait : table.waits_of(table.steps[n])) add(wait, false);
            for (gpipe::Wait const& wait : table.waits_before(table.steps[n])) add(wait, true);
        }
    }

    /// Once, in an order by chance; says what went wrong, or nothing. One walk per entry of
    /// `micro_batches`, the next beginning while one is under way: those below that number have
    /// samples, the others keep their places and do nothing. Where some are `slow`, streams are
    /// slowed 1 to 1000 times.
    std::string run(std::mt19937_64& random, std::vector<std::size_t> const& micro_batches,
                    bool slow) const {
        Run run{arenas_.empty, std::vector<bool>(values_ * (micro_batches.size() + 1)),
                std::vector<State>(streams_.size())};
        for (std::uint32_t const what : lasting_) run.there[what] = true;
        std::size_t left = micro_batches.size() * waits_.size();
        std::vector<double> weight(streams_.size(), 1);
        if (slow)
            for (double& w : weight) w = std::pow(10, -static_cast<double>(random() % 4));
        std::vector<std::size_t> possible;
        while (left > 0) {
            possible.clear();
            double sum = 0;
            for (std::size_t s = 0; s < streams_.size(); ++s)
                if (may_go_on(run, s, micro_batches.size()))
                    possible.push_back(s), sum += weight[s];
            if (possible.empty()) return "everybody waits";
            double x = sum * static_cast<double>(random() >> 11) * 0x1p-53;
            std::size_t k = 0;
            while (k + 1 < possible.size() && (x -= weight[possible[k]]) > 0) ++k;
            State& state = run.streams[possible[k]];
            auto const& stream = streams_[possible[k]];
            std::size_t const walk = state.done / stream.size();
            std::size_t const step = stream[state.done % stream.size()];
            auto const& work = work_[step];
            bool const empty = micro_batch_[step] >= micro_batches[walk];
            if (state.call < work.size()) {
                if (!touch(run, state, work[state.call], possible[k], walk, empty))
                    return "a value is lost at step " + std::to_string(step) + ", walk " +
                           std::to_string(walk) + (state.runs ? ", in the end" : "");
                state.call += !(state.runs = !state.runs);
            }
            if (state.call < work.size()) continue;
            state.call = 0;
            ++state.done;
            --left;
        }
        return "";
    }

  private:
    using Content = Arenas::Content;
    struct Target {
        std::size_t stream, count; // of its steps
        bool before;
    };
    struct State {
        std::size_t done = 0, call = 0;
        bool runs = false;
        std::vector<Content> carried = {}; // of a copy, what it found
    };
    struct Run {
        std::vector<Content> memory;
        std::vector<bool> there; // values of no bytes, by walk
        std::vector<State> streams;
    };

    bool may_go_on(Run const& run, std::size_t s, std::size_t walks) const {
        State const& state = run.streams[s];
        auto const& stream = streams_[s];
        if (state.runs || state.call > 0) return true;
        if (state.done == walks * stream.size()) return false;
        std::size_t const walk = state.done / stream.size();
        for (Target const& target : waits_[stream[state.done % stream.size()]]) {
            std::size_t const size = streams_[target.stream].size();
            if (target.before && walk == 0) continue;
            if (run.streams[target.stream].done < (walk - target.before) * size + target.count)
                return false;
        }
        return true;
    }
    // Begins or ends: what is read must be there at both times, what is written is its own between.
    bool touch(Run& run, State& state, Work const& work, std::size_t s, std::size_t walk,
               bool empty) const {
        bool const ends = state.runs;
        auto const each = [&](Piece const& piece, auto f) {
            if (empty || piece.bytes == 0) return true;
            std::size_t const begin = arenas_(piece.at, piece.bytes);
            if (begin == run.memory.size()) return false;
            for (std::size_t u = 0; u < (piece.bytes + Arenas::unit - 1) / Arenas::unit; ++u)
                if (!f(run.memory[begin + u])) return false;
            return true;
        };
        auto const is = [&](Piece const& piece) { return piece.what | Content{walk} << 32; };
        Content const own = Content{1} << 63 | Content{s} << 32;
        auto const reads_find = [&](bool again) {
            std::size_t u = 0;
            for (Piece const& piece : work.reads) {
                if (piece.bytes == 0 && !run.there[walk * values_ + piece.what]) return false;
                if (!each(piece, [&](Content held) {
                        if (!work.moves) return held == is(piece);
                        if (!again) state.carried.push_back(held);
                        return held >> 63 == 0 && held == state.carried[u++];
                    }))
                    return false;
            }
            return true;
        };
        if (!ends) state.carried.clear();
        if (!reads_find(ends)) return false;
        for (std::size_t w = 0; w < work.writes.size(); ++w)
            if (!each(work.writes[w], [&](Content& held) {
                    if (ends) return held == (own | w);
                    bool const free = held != Arenas::nobodys;
                    held = own | w;
                    return free;
                }))
                return false;
        for (Piece const& piece : work.writes)
            if (piece.lasts) run.there[walk * values_ + piece.what] = false;
        if (!ends) return reads_find(true); // has not written over it
        std::size_t u = 0;
        for (Piece const& piece : work.writes) {
            if (piece.bytes == 0) run.there[(walk + piece.lasts) * values_ + piece.what] = true;
            each(piece, [&](Content& held) {
                held = work.moves ? state.carried[u++] : piece.what == 0 ? 0 : is(piece);
                return true;
            });
        }
        return true;
    }

    Arenas const& arenas_;
    std::vector<std::vector<Work>> work_; // by step
    std::vector<std::vector<std::size_t>> streams_;
    std::vector<std::vector<Target>> waits_;
    std::vector<std::uint32_t> micro_batch_;
    std::vector<std::uint32_t> lasting_; // values
    std::uint32_t values_ = 0;
};

} // namespace toy
