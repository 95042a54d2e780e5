#pragma once

#include <gpipe/memory/plan.hpp>
#include <gpipe/runtime/table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

// Walks a step table on a memory that remembers what was written where.
namespace toy {

/// Which of the orders that streams and waits allow.
enum class Pace { any, copies_late, copies_early, one_starved, one_ahead };
inline constexpr Pace paces[] = {Pace::any, Pace::copies_late, Pace::copies_early,
                                 Pace::one_starved, Pace::one_ahead};

/// Arenas side by side, the host's memory behind them, with room between that belongs to nobody.
class Places {
  public:
    explicit Places(gpipe::MemoryPlan const& plan)
        : arenas(plan.devices.size()), begin_(plan.devices.size() + 2) {
        std::size_t at = gap;
        for (std::size_t d = 0; d < arenas.size(); ++d) {
            begin_[d] = at;
            at += plan.devices[d].total() + gap;
        }
        begin_[arenas.size()] = at;
        begin_[arenas.size() + 1] = at + plan.host + gap;
        bytes_.resize(begin_.back());
        for (std::size_t d = 0; d < arenas.size(); ++d) arenas[d] = bytes_.data() + begin_[d];
        host = bytes_.data() + at;
    }
    std::size_t offset(std::byte const* address) const {
        return static_cast<std::size_t>(address - bytes_.data());
    }
    std::size_t size() const { return bytes_.size(); }
    /// Whether these bytes lie in [begin, end) of a device's arena.
    bool within(std::byte const* address, std::size_t bytes, std::size_t device, std::size_t begin,
                std::size_t end) const {
        return address && address >= arenas[device] + begin &&
               address + bytes <= arenas[device] + end;
    }
    bool in_host(std::byte const* address, std::size_t bytes) const {
        return address && address >= host && address + bytes + gap <= bytes_.data() + size();
    }

    gpipe::Array<std::byte*> arenas;
    std::byte* host = nullptr;

  private:
    static constexpr std::size_t gap = gpipe::slot_alignment;
    std::vector<std::size_t> begin_;
    std::vector<std::byte> bytes_;
};

/// What a tensor of a boundary is: whose, and of which micro-batch. 0 is rubbish.
inline std::uint32_t tag(bool gradient, std::size_t boundary, std::size_t micro_batch) {
    return static_cast<std::uint32_t>(1 + gradient + 2 * (boundary + 16 * micro_batch));
}

/// What one action does to boundary tensors, from its definition and not from the plan.
struct Effect {
    struct Tensor {
        std::byte const* at;
        std::size_t bytes;
        std::uint32_t tag;
    };
    std::vector<Tensor> reads;
    std::vector<Tensor> writes;
};

class Walker {
  public:
    Walker(gpipe::ChainShape const& chain, gpipe::MemoryPlan const& plan, Places const& places)
        : chain_(chain), plan_(plan), places_(places) {}

    bool crosses(std::size_t boundary) const {
        return chain_.lowest_learner < plan_.first[boundary];
    }
    Effect effect(gpipe::Step const& step) const {
        using gpipe::Kind;
        Effect result;
        std::size_t const c = step.cell;
        std::size_t const m = step.micro_batch;
        std::size_t const cells = plan_.first.size() - 1;
        auto const value = [&](std::byte const* at, std::size_t boundary) -> Effect::Tensor {
            return {at, chain_.layers[plan_.first[boundary]].input.slots(plan_.capacity),
                    tag(false, boundary, m)};
        };
        auto const gradient = [&](std::byte const* at, std::size_t boundary) -> Effect::Tensor {
            return {at, chain_.layers[plan_.first[boundary]].input_gradient.slots(plan_.capacity),
                    tag(true, boundary, m)};
        };
        bool const has_behind = c + 1 < cells;
        bool const learns = chain_.lowest_learner < plan_.first[c + 1];
        gpipe::LayerInfo const& bottom = chain_.layers[plan_.first[c]];
        gpipe::LayerInfo const& top = chain_.layers[plan_.first[c + 1] - 1];
        switch (step.kind) {
        case Kind::forward:
            if (c > 0) result.reads.push_back(value(step.input, c));
            if (has_behind) result.writes.push_back(value(step.output, c + 1));
            break;
        case Kind::recompute:
            if (!learns) break;
            if (c > 0) result.reads.push_back(value(step.input, c));
            if (has_behind && step.output) result.writes.push_back(value(step.output, c + 1));
            break;
        case Kind::backward:
            if (!learns) break;
            if (c > 0 && chain_.lowest_learner <= plan_.first[c] && bottom.reads_input)
                result.reads.push_back(value(step.input, c));
            if (has_behind && top.reads_output) result.reads.push_back(value(step.output, c + 1));
            if (has_behind) result.reads.push_back(gradient(step.output_gradient, c + 1));
            if (c > 0 && crosses(c)) result.writes.push_back(gradient(step.input_gradient, c));
            break;
        case Kind::send_output:
            result.reads.push_back(value(step.input, c + 1));
            result.writes.push_back(value(step.output, c + 1));
            break;
        case Kind::receive_input:
            result.reads.push_back(value(step.input, c));
            result.writes.push_back(value(step.output, c));
            break;
        case Kind::send_gradient:
            result.reads.push_back(gradient(step.input, c));
            result.writes.push_back(gradient(step.output, c));
            break;
        case Kind::receive_gradient:
            result.reads.push_back(gradient(step.input, c + 1));
            result.writes.push_back(gradient(step.output, c + 1));
            break;
        default:
            break;
        }
        return result;
    }

    /// Walks the table once; says what went wrong, or nothing. An action takes its time: others
    /// start and end before it ends, and what it reads has to stay as long.
    std::string walk(gpipe::StepTable const& table, std::size_t devices, Pace pace,
                     std::mt19937_64& random) const {
        std::vector<std::vector<gpipe::Step const*>> streams(table.streams);
        for (gpipe::Step const& step : table.steps) streams[step.stream].push_back(&step);
        std::vector<std::size_t> done(table.streams);
        std::vector<bool> runs(table.streams);
        std::vector<Effect> effects(table.streams);
        std::vector<std::uint32_t> memory(places_.size() / gpipe::slot_alignment);
        std::size_t const odd = random() % table.streams;

        auto const ready = [&](std::size_t s) {
            if (runs[s]) return true;
            if (done[s] == streams[s].size()) return false;
            gpipe::Step const& step = *streams[s][done[s]];
            for (std::size_t w = 0; w < 2; ++w)
                if (done[step.wait_stream[w]] < step.wait_position[w]) return false;
            return true;
        };
        auto const urgency = [&](std::size_t s) {
            if (pace == Pace::copies_late) return s < devices;
            if (pace == Pace::copies_early) return s >= devices;
            if (pace == Pace::one_starved) return s != odd;
            if (pace == Pace::one_ahead) return s == odd;
            return true;
        };
        for (std::size_t left = 2 * table.steps.size(); left > 0; --left) {
            std::vector<std::size_t> choice;
            for (bool const urgent : {true, false})
                if (choice.empty())
                    for (std::size_t s = 0; s < table.streams; ++s)
                        if (urgency(s) == urgent && ready(s)) choice.push_back(s);
            if (choice.empty()) return "everybody waits";
            std::size_t const s = choice[random() % choice.size()];
            gpipe::Step const& step = *streams[s][done[s]];
            Effect& effect = effects[s];
            auto const place = " at " + std::string(name(step.kind)) + " " +
                               std::to_string(step.cell) + "," + std::to_string(step.micro_batch);
            auto const each_unit = [&](Effect::Tensor const& tensor, auto f) {
                std::size_t const begin = places_.offset(tensor.at) / gpipe::slot_alignment;
                for (std::size_t u = 0; u < tensor.bytes / gpipe::slot_alignment; ++u)
                    if (!f(memory[begin + u])) return false;
                return true;
            };
            bool const starts = !runs[s];
            if (starts) {
                effect = this->effect(step);
                for (auto const& tensors : {effect.reads, effect.writes})
                    for (Effect::Tensor const& tensor : tensors)
                        if (!tensor.at || places_.offset(tensor.at) + tensor.bytes > places_.size())
                            return "no address" + place;
            }
            for (Effect::Tensor const& tensor : effect.reads)
                if (!each_unit(tensor, [&](std::uint32_t held) { return held == tensor.tag; }))
                    return "reads something else" + place;
            for (Effect::Tensor const& tensor : effect.writes) {
                std::uint32_t const torn = ~step.action;
                if (!each_unit(tensor, [&](std::uint32_t& held) {
                        bool const mine = starts || held == torn;
                        held = starts ? torn : tensor.tag;
                        return mine;
                    }))
                    return "two write at once" + place;
            }
            runs[s] = starts;
            if (!starts) ++done[s];
        }
        return "";
    }

  private:
    gpipe::ChainShape const& chain_;
    gpipe::MemoryPlan const& plan_;
    Places const& places_;
};

} // namespace toy
