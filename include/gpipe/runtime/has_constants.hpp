#pragma once

#include <gpipe/chain/info.hpp>
#include <gpipe/core/policy.hpp>
#include <gpipe/device/host.hpp>
#include <gpipe/layer/constants.hpp>
#include <gpipe/runtime/check_parts.hpp>

#include <cstddef>
#include <new>

namespace gpipe {

/// That a type is among the constants of a chain, or of its loss.
template <class C, class Net, class Loss> struct CheckConstant {
    static consteval bool ok() {
        constexpr bool declared = [] {
            for (LayerInfo const& info : Net::leaf_info)
                if (has(info.constants, type_name<C>)) return true;
            return has(detail::constant_needs<Loss>(), type_name<C>);
        }();
        static_assert(declared, "gpipe: no layer of this training, nor its loss, declares the "
                                "constants C: using Constants = gpipe::Constants<C>");
        return declared;
    }
};

namespace detail {

/// The constants of a chain and its loss, as the host sets them.
class ConstantValues {
  public:
    ConstantValues(LayerInfo const* layers, std::size_t count, ConstantNeeds loss) {
        for (std::size_t i = 0; i < count; ++i) table_.add(layers[i].constants);
        table_.add(loss);
        values_ = device::HostBuffer(table_.bytes());
        table_.make(values_.data());
    }
    std::byte* find(void const* id) const { return values_.data() + table_.offset_of(id); }
    StepConstants all() const { return {&table_, values_.data()}; }

  private:
    ConstantTable table_;
    device::HostBuffer values_;
};

} // namespace detail

/// What a Training's layers and loss read of a step, see Constants.
template <class Net, class... Policies> class HasConstants {
    using LossFunctor =
        typename detail::policy_or<policy::Loss, Loss<detail::NoLoss>, Policies...>::functor;

  public:
    /// The value of type C, to be set between steps: what starts next, a step, or a part of
    /// one, or an evaluation, compute_gradients() or check_gradients(), sees it as it is then, and
    /// those under way go on with what they have. With several ranks each sets its own, alike, as
    /// with the optimizer. It is no part of saved states.
    template <class C> C& constant() {
        static_cast<void>(CheckConstant<C, Net, LossFunctor>::ok());
        return *std::launder(reinterpret_cast<C*>(values_.find(&detail::type_mark<C>)));
    }

  protected:
    /// @cond
    HasConstants() = default;
    StepConstants constants() const { return values_.all(); }
    /// @endcond

  private:
    detail::ConstantValues values_{Net::leaf_info.data(), Net::leaf_info.size(),
                                   detail::constant_needs<LossFunctor>()};
};

} // namespace gpipe
