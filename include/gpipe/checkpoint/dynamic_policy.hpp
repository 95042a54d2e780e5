#pragma once

#include <gpipe/checkpoint/budget.hpp>
#include <gpipe/checkpoint/halves_policy.hpp>
#include <gpipe/checkpoint/per_cell.hpp>
#include <gpipe/checkpoint/reversing.hpp>
#include <gpipe/checkpoint/reversing_policies.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/compiled.hpp>
#include <gpipe/core/shared.hpp>

#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>

namespace gpipe::checkpoint {

/// A policy that is chosen at construction, with its numbers; also the type that holds the choice.
/// (Not constexpr: nvcc 13 does not get through virtual functions there.)
class Dynamic {
  public:
    using policy_kind = policy::Checkpointing;
    Dynamic() = default;
    /// Of any checkpointing policy; an object whose numbers are dynamic is kept as it is.
    template <class C>
        requires(!std::is_same_v<C, Dynamic> && (CheckpointingPass<C> || reverses_cells<C>))
    Dynamic(C policy) : policy_(new Of<C>(std::move(policy))) {}

    /// A policy for each cell, in their order: see PerCell. Throws std::invalid_argument if one of
    /// them decides about all cells, and later if there are more or fewer cells.
    static GPIPE_INLINE Dynamic per_cell(Array<Dynamic> policies);
    /// What the policy keeps is offloaded: see Offload. Throws std::invalid_argument if it is a
    /// pass over all cells.
    static GPIPE_INLINE Dynamic offload(Dynamic policy);
    /// All weight halves come then: see WeightHalves. Throws as offload().
    template <WeightHalf half> static Dynamic weight_halves(Dynamic policy);

    /// Whether it holds a policy.
    explicit operator bool() const { return bool(policy_); }
    /// Without numbers; empty where the policy has none.
    std::string_view name() const { return policy_ ? policy_->name() : std::string_view(); }
    /// Whether it reverses cells piece by piece. Throws std::logic_error if it holds no policy, as
    /// those below.
    bool reverses() const { return held().reverses(); }
    /// Of a policy that does not reverse cells. Throws std::logic_error if it does.
    Programs lower(Programs const& schedule) const {
        if (reverses())
            throw std::logic_error("gpipe: a policy that reverses cells has to see their layers");
        return apply({}, schedule).programs;
    }
    /// What the policy makes of a schedule for these layers.
    Checkpointed apply(CutChain const& chain, Programs const& schedule) const {
        return held().apply(chain, schedule);
    }

  private:
    struct Policy : gpipe::detail::Counted {
        virtual std::string_view name() const = 0;
        virtual bool reverses() const = 0;
        virtual Checkpointed apply(CutChain const& chain, Programs const& schedule) const = 0;
        virtual Budget budget() const = 0;
        virtual bool reverses_in_cell() const = 0;
        virtual Reversal in_cell(CellToReverse const& cell) const = 0;
    };
    template <class C> struct Of final : Policy {
        C policy;
        explicit Of(C value) : policy(std::move(value)) {}
        std::string_view name() const override {
            if constexpr (requires { std::string_view(C::name); })
                return C::name;
            else
                return {};
        }
        bool reverses() const override { return reverses_cells<C>; }
        Checkpointed apply(CutChain const& chain, Programs const& schedule) const override {
            return apply_checkpointing(chain, schedule, policy);
        }
        Budget budget() const override {
            if constexpr (BudgetPolicy<C>)
                return policy.budget();
            else
                return {};
        }
        bool reverses_in_cell() const override { return detail::reverses_in_cell<C>; }
        Reversal in_cell(CellToReverse const& cell) const override {
            if constexpr (detail::reverses_in_cell<C>)
                return detail::reversal_in_cell(policy, cell);
            else
                return {};
        }
    };
    struct EachCell {
        static constexpr std::string_view name = "per-cell";
        Array<Dynamic> policies;
        Reversal reversal(CellToReverse const& cell) const {
            detail::check_per_cell(policies.size(), cell.cells);
            return policies[cell.cell].policy_->in_cell(cell);
        }
    };

    struct InCell;
    // Throws std::invalid_argument unless it can decide about one cell.
    static void check_in_cell(Dynamic const& policy, char const* what) {
        if (policy && policy.policy_->reverses_in_cell()) return;
        std::string_view name = policy ? policy.name() : "none";
        if (name.empty()) name = "this one";
        gpipe::detail::throw_error<std::invalid_argument>(
            "gpipe: %s is never, except-last or one that reverses one cell by itself, not %.*s",
            what, static_cast<int>(name.size()), name.data());
    }

    Policy const& held() const {
        if (!policy_) throw std::logic_error("gpipe: this checkpoint::Dynamic holds no policy");
        return *policy_;
    }

    gpipe::detail::Shared<Policy const> policy_; // copies share what nobody changes
};

/// What Offload and WeightHalves are put around: a policy chosen at construction.
struct Dynamic::InCell {
    Dynamic policy; ///< what decides
    /// Of one cell, by `policy`.
    Reversal reversal(CellToReverse const& cell) const { return policy.policy_->in_cell(cell); }
};

GPIPE_INLINE Dynamic Dynamic::per_cell(Array<Dynamic> policies) {
    for (Dynamic const& policy : policies) check_in_cell(policy, "a policy for each cell");
    return EachCell{std::move(policies)};
}
GPIPE_INLINE Dynamic Dynamic::offload(Dynamic policy) {
    if (Budget const numbers = policy ? policy.policy_->budget() : Budget{}; numbers.given)
        return Offload<Optimal<>>{{numbers.bytes, numbers.samples, numbers.bandwidth}};
    check_in_cell(policy, "a policy whose tensors are offloaded");
    return Offload<InCell>{{std::move(policy)}};
}
template <WeightHalf half> Dynamic Dynamic::weight_halves(Dynamic policy) {
    check_in_cell(policy, "a policy whose weight halves are chosen");
    return WeightHalves<half, InCell>{{std::move(policy)}};
}

} // namespace gpipe::checkpoint
