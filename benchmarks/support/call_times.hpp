#pragma once

#include <gpipe/memory/memory_plan.hpp>
#include <gpipe/schedule/costs.hpp>
#include <gpipe/schedule/programs.hpp>

#include <cstddef>
#include <vector>

namespace benchmark {

/// Seconds of one call of each layer for a micro-batch, forward and backward.
struct LayerCalls {
    std::vector<double> forward, backward;
};

/// The same by how far away a forward's backward is: what lies between decides from which cache the
/// tensors come, and near ones are cheaper to write, too.
struct CallTimes {
    LayerCalls passing;         ///< never: nobody keeps anything (no backwards)
    LayerCalls next;            ///< the next call
    LayerCalls fresh;           ///< other layers between
    LayerCalls waiting;         ///< other micro-batches between
    std::vector<double> update; ///< of a layer's parameters, once a step
    double loss = 0;
};

/// By cell whether its backwards come right behind a forward or recompute of the same micro-batch.
inline std::vector<bool> backward_follows(gpipe::Programs const& programs) {
    std::vector<std::size_t> behind(programs.cells());
    for (std::size_t d = 0; d < programs.devices(); ++d) {
        auto const program = programs.program(d);
        for (std::size_t i = 1; i < program.size(); ++i)
            behind[program[i].cell] += program[i].kind == gpipe::Kind::backward &&
                                       program[i - 1].kind != gpipe::Kind::backward &&
                                       program[i - 1].cell == program[i].cell &&
                                       program[i - 1].micro_batch == program[i].micro_batch;
    }
    std::vector<bool> result;
    for (std::size_t const count : behind) result.push_back(2 * count > programs.micro_batches());
    return result;
}

/// What the actions of one cell of a plan take if its calls take that.
class CellTimes {
  public:
    CellTimes(CallTimes const& times, gpipe::MemoryPlan const& plan, std::size_t cell,
              bool recomputes, bool follows)
        : times_(times), all_(plan.parts.of(cell, recomputes ? gpipe::way_recomputes : 0).calls),
          follows_(follows), written_(plan.first[cell + 1] - plan.first[cell]) {
        for (std::size_t i = 0; i < all_.calls.size(); ++i)
            add_call(i, plan.first[cell] + all_.calls[i].layer);
    }

    gpipe::CellCosts<double> costs() const {
        gpipe::CellCosts<double> result{.forward = taken_[0], .recompute = taken_[1]};
        result.backward = taken_[2];
        return result;
    }

  private:
    using Kind = gpipe::CallKind;

    void add_call(std::size_t i, std::size_t layer) {
        gpipe::CellCall const& call = all_.calls[i];
        double& taken = taken_[static_cast<std::size_t>(all_.stage_of(i))];
        if (call.kind == Kind::loss) {
            taken += times_.loss;
        } else if (call.kind == Kind::backward) {
            taken += kept(written_[call.layer], i).backward[layer];
        } else {
            written_[call.layer] = i;
            taken += (call.saving ? kept(i, backward_of(i)) : times_.passing).forward[layer];
        }
    }
    // Where call i is the last forward of a layer whose backward is call `at`.
    LayerCalls const& kept(std::size_t i, std::size_t at) const {
        if (i < all_.begin[1] && !follows_) return times_.waiting;
        return at == i + 1 ? times_.next : times_.fresh;
    }
    std::size_t backward_of(std::size_t i) const {
        auto const& calls = all_.calls;
        std::size_t at = i + 1;
        while (calls[at].kind != Kind::backward || calls[at].layer != calls[i].layer) ++at;
        return at;
    }

    CallTimes const& times_;
    gpipe::CellCalls const& all_;
    bool follows_;
    std::vector<std::size_t> written_; // by layer of the cell: its last forward
    double taken_[3] = {};             // by stage
};

/// Of all cells of a plan; `programs` are those that it is for, with whole backwards.
inline gpipe::ChainCosts<double> costs_of(CallTimes const& times, gpipe::Programs const& programs,
                                          gpipe::MemoryPlan const& plan) {
    std::vector<bool> const follows = backward_follows(programs);
    std::vector<bool> recomputes(programs.cells());
    for (std::size_t i = 0; i < programs.size(); ++i)
        if (programs[i].kind == gpipe::Kind::recompute) recomputes[programs[i].cell] = true;
    gpipe::ChainCosts<double> costs{gpipe::Array<gpipe::CellCosts<double>>(programs.cells())};
    for (std::size_t c = 0; c < programs.cells(); ++c)
        costs.cells[c] = CellTimes(times, plan, c, recomputes[c], follows[c]).costs();
    return costs;
}

} // namespace benchmark
