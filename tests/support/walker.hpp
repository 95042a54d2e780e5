#pragma once

#include "random_chain.hpp"

#include <gpipe/memory/plan.hpp>
#include <gpipe/plan/evaluation.hpp>
#include <gpipe/runtime/placement.hpp>
#include <gpipe/runtime/table_proof.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

// Step tables walked on a memory that remembers what was written where, call by call.
namespace toy {

/// Which of the orders that streams and waits allow.
enum class Pace { any, copies_late, copies_early, one_starved, one_ahead };
inline constexpr Pace paces[] = {Pace::any, Pace::copies_late, Pace::copies_early,
                                 Pace::one_starved, Pace::one_ahead};

/// Arenas side by side, the host's memory behind them, with room between that belongs to nobody.
class Places {
  public:
    /// What is no call's to write: the gaps, and parameters, gradients and the optimizer's states.
    static constexpr std::uint32_t nobodys = 0x7FFFFFFF;

    explicit Places(gpipe::MemoryPlan const& plan) : arenas(plan.devices.size()) {
        std::vector<std::size_t> begin(arenas.size());
        auto const add = [&](std::size_t bytes, std::uint32_t what) {
            empty_.resize(empty_.size() + bytes / gpipe::slot_alignment, what);
        };
        add(gap, nobodys);
        for (std::size_t d = 0; d < arenas.size(); ++d) {
            begin[d] = empty_.size() * gpipe::slot_alignment;
            gpipe::DeviceBytes const& bytes = plan.devices[d];
            std::size_t const state = bytes.parameters + bytes.gradients + bytes.optimizer;
            add(state, nobodys);
            add(bytes.total() - state, 0);
            add(gap, nobodys);
        }
        std::size_t const host_begin = empty_.size() * gpipe::slot_alignment;
        add(plan.host, 0);
        add(gap, nobodys);
        bytes_.resize(empty_.size() * gpipe::slot_alignment);
        for (std::size_t d = 0; d < arenas.size(); ++d) arenas[d] = bytes_.data() + begin[d];
        host = bytes_.data() + host_begin;
    }
    /// By unit of slot_alignment bytes: what is nobody's, and rubbish.
    std::vector<std::uint32_t> const& empty() const { return empty_; }
    /// Whether these bytes are here at all.
    bool has(std::byte const* address, std::size_t bytes) const {
        auto const at = reinterpret_cast<std::uintptr_t>(address);
        auto const begin = reinterpret_cast<std::uintptr_t>(bytes_.data());
        return at >= begin && at + bytes <= begin + bytes_.size();
    }
    std::size_t offset(std::byte const* address) const {
        return static_cast<std::size_t>(address - bytes_.data());
    }
    std::size_t size() const { return bytes_.size(); }

    gpipe::Array<std::byte*> arenas;
    std::byte* host = nullptr;

  private:
    static constexpr std::size_t gap = gpipe::slot_alignment;
    std::vector<std::uint32_t> empty_;
    std::vector<std::byte> bytes_;
};

/// The table of a training step over a plan, or of an evaluation, as a device that enqueues has it:
/// a stream per program, one walker. It is proven.
struct Tabled {
    explicit Tabled(gpipe::MemoryPlan const& plan, Places const& places, bool evaluates = false)
        : lowered(plan.lowered), operands(plan.operands) {
        if (evaluates) {
            lowered = evaluation_of(plan.lowered);
            operands = find_operands(lowered, plan.cells);
            lowered.needs =
                find_needs(walk_of(lowered), operands, gpipe::Located(plan, operands, true));
        }
        auto const cost = [](gpipe::Action const& a) {
            return a.kind == gpipe::Kind::backward ? 2.0 : 1.0;
        };
        auto const placement = gpipe::place_programs(lowered, 1, true, cost);
        table =
            step_table(plan, lowered, operands, placement, merge_lanes(lowered, placement, cost),
                       places.arenas, places.host, evaluates);
        check_table(table, plan, lowered, operands, false);
    }
    gpipe::Lowered lowered;
    gpipe::Operands operands;
    gpipe::StepTable table;
};

/// What lies somewhere: which tensor of which micro-batch. 0 is rubbish.
inline std::uint32_t tag(TensorName const& name, std::size_t micro_batch) {
    return static_cast<std::uint32_t>(1 + name.what + 16 * (name.layer + 64 * micro_batch));
}

/// What one call does to memory: by its definition, at the addresses that it is given.
struct Effect {
    struct Tensor {
        std::byte const* at;
        std::size_t bytes;
        std::uint32_t tag; ///< 0: rubbish
        TensorName name;
    };
    std::vector<Tensor> reads;
    std::vector<Tensor> writes;
};

/// Walks a table once, in an order that streams and waits allow; says what went wrong, or nothing.
/// `effects_of(step)`: what a step does, call by call. A call takes its time: others start and end
/// before it ends, what it reads has to stay as long, and what it writes must be its own.
template <class EffectsOf>
std::string walk(gpipe::StepTable const& table, Places const& places, std::size_t devices,
                 Pace pace, std::mt19937_64& random, EffectsOf effects_of) {
    std::vector<std::vector<gpipe::Step const*>> streams(table.streams);
    for (gpipe::Step const& step : table.steps) streams[step.stream].push_back(&step);
    std::vector<std::size_t> done(table.streams);
    std::vector<std::vector<Effect>> effects(table.streams); // of the step that runs
    std::vector<std::size_t> call(table.streams);            // that comes next in it
    std::vector<bool> runs(table.streams);                   // whether that has begun
    auto memory = places.empty();
    std::size_t const odd = random() % table.streams;

    auto const ready = [&](std::size_t s) {
        if (call[s] > 0 || runs[s]) return true;
        if (done[s] == streams[s].size()) return false;
        for (gpipe::Wait const& wait : table.waits_of(*streams[s][done[s]]))
            if (done[wait.stream] < wait.position) return false;
        return true;
    };
    auto const urgency = [&](std::size_t s) {
        if (pace == Pace::copies_late) return s < devices;
        if (pace == Pace::copies_early) return s >= devices;
        if (pace == Pace::one_starved) return s != odd;
        if (pace == Pace::one_ahead) return s == odd;
        return true;
    };
    // Begins or ends a call; empty if nothing is wrong.
    auto const touch = [&](Effect const& effect, bool starts, std::uint32_t torn) -> std::string {
        auto const each_unit = [&](Effect::Tensor const& tensor, auto f) {
            std::size_t const begin = places.offset(tensor.at) / gpipe::slot_alignment;
            for (std::size_t u = 0; u < tensor.bytes / gpipe::slot_alignment; ++u)
                if (!f(memory[begin + u])) return false;
            return true;
        };
        for (auto const* tensors : {&effect.reads, &effect.writes})
            for (Effect::Tensor const& tensor : *tensors)
                if (!places.has(tensor.at, tensor.bytes)) return "no address";
        for (Effect::Tensor const& tensor : effect.reads)
            if (!each_unit(tensor, [&](std::uint32_t held) { return held == tensor.tag; }))
                return "reads something else";
        for (Effect::Tensor const& tensor : effect.writes)
            if (!each_unit(tensor, [&](std::uint32_t& held) {
                    bool const mine =
                        starts ? held != Places::nobodys && held < 0x80000000 : held == torn;
                    held = starts ? torn : tensor.tag;
                    return mine;
                }))
                return "writes where something else is";
        return "";
    };
    for (std::size_t left = table.steps.size(); left > 0;) {
        std::vector<std::size_t> choice;
        for (bool const urgent : {true, false})
            if (choice.empty())
                for (std::size_t s = 0; s < table.streams; ++s)
                    if (urgency(s) == urgent && ready(s)) choice.push_back(s);
        if (choice.empty()) return "everybody waits";
        std::size_t const s = choice[random() % choice.size()];
        gpipe::Step const& step = *streams[s][done[s]];
        if (call[s] == 0 && !runs[s]) effects[s] = effects_of(step);
        if (call[s] < effects[s].size()) {
            bool const starts = !runs[s];
            std::string const wrong =
                touch(effects[s][call[s]], starts, ~static_cast<std::uint32_t>(s));
            if (!wrong.empty())
                return wrong + " at " + std::string(gpipe::name(step.kind)) + " " +
                       std::to_string(step.cell) + "," + std::to_string(step.micro_batch);
            runs[s] = starts;
            if (!starts) ++call[s];
        }
        if (call[s] < effects[s].size()) continue;
        call[s] = 0;
        ++done[s];
        --left;
    }
    return "";
}

/// What steps do, by the definition of their kind: from chain and layouts.
class Walker {
  public:
    Walker(gpipe::ChainShape const& chain, gpipe::MemoryPlan const& plan)
        : chain_(chain), plan_(plan) {}

    /// What a step does, call by call; `evaluates`: a forward of the last cell then calls the loss.
    std::vector<Effect> effects(gpipe::Step const& step, bool evaluates = false) const {
        std::vector<Effect> result;
        if (is_transfer(step.kind)) {
            bool const gradient = step.kind == gpipe::Kind::send_gradient ||
                                  step.kind == gpipe::Kind::receive_gradient;
            bool const next =
                step.kind == gpipe::Kind::send_output || step.kind == gpipe::Kind::receive_gradient;
            std::size_t const boundary = step.cell + next;
            TensorName const name{gradient ? TensorName::gradient : TensorName::output,
                                  plan_.first[boundary] - 1};
            auto const tensor = [&](std::byte const* at) -> Effect::Tensor {
                return {at, bytes_of(chain_, name, plan_.capacity), tag(name, step.micro_batch),
                        name};
            };
            result.push_back(
                {{tensor(step[gpipe::Region::input])}, {tensor(step[gpipe::Region::output])}});
            return result;
        }
        std::size_t const c = step.cell;
        bool const last_cell = c + 2 == plan_.first.size();
        bool const rewrites = !last_cell && plan_.rewrites_output(c);
        auto calls = calls_of(chain_, plan_.first[c], plan_.first[c + 1], step.kind, rewrites);
        if (evaluates && last_cell) calls.push_back(call_of_loss(chain_));
        for (LayerCall const& call : calls) {
            Effect effect;
            for (auto const* names : {&call.reads, &call.writes})
                for (TensorName const& name : *names) {
                    Effect::Tensor const tensor = find(step, name);
                    if (tensor.bytes == 0) continue;
                    (names == &call.reads ? effect.reads : effect.writes).push_back(tensor);
                }
            result.push_back(effect);
        }
        return result;
    }

  private:
    // Where a step finds or puts a tensor.
    Effect::Tensor find(gpipe::Step const& step, TensorName const& name) const {
        std::size_t const c = step.cell;
        std::size_t const first = plan_.first[c];
        std::size_t const top = plan_.first[c + 1] - 1;
        bool const last_cell = top + 1 == chain_.size;
        Effect::Tensor tensor{nullptr, bytes_of(chain_, name, plan_.capacity),
                              is_scratch(name) ? 0 : tag(name, step.micro_batch), name};
        bool const crosses = (name.layer == top && !last_cell) || name.layer < first;
        if (name.what == TensorName::output && crosses) {
            tensor.at =
                name.layer == top ? step[gpipe::Region::output] : step[gpipe::Region::input];
            return tensor;
        }
        if (name.what == TensorName::gradient && crosses) {
            tensor.at = name.layer == top ? step[gpipe::Region::output_gradient]
                                          : step[gpipe::Region::input_gradient];
            return tensor;
        }
        if (name.what == TensorName::again) {
            tensor.at = step[gpipe::Region::output];
            return tensor;
        }
        gpipe::Place const place = place_of(plan_.layouts[c], first, name);
        std::byte const* const region = step[place.region];
        tensor.at = region ? region + place.offset : nullptr;
        return tensor;
    }

    gpipe::ChainShape const& chain_;
    gpipe::MemoryPlan const& plan_;
};

} // namespace toy
