#pragma once

#include <gpipe/balance/balance.hpp>
#include <gpipe/balance/check_cut.hpp>
#include <gpipe/chain/check_chain.hpp>
#include <gpipe/core/array.hpp>
#include <gpipe/core/asked.hpp>
#include <gpipe/core/policy.hpp>
#include <gpipe/device/host.hpp>
#include <gpipe/runtime/check_parts.hpp>
#include <gpipe/schedule/schedule.hpp>
#include <gpipe/transport/local.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpipe {

/// What is chosen when an Inference is constructed: its Options. `cells` (the K of Cells<K>),
/// `micro_batches` and `balance` are for policies that are dynamic.
template <class Device> struct InferenceOptions {
    static_assert(detail::asked<std::vector<std::size_t>, typename Device::Options>);

    /// Of a mini-batch, or a part of one, that memory is planned for: M micro-batches.
    std::size_t samples = 0;
    std::uint64_t seed = 0;        ///< of parameters, until there are others
    std::size_t cells = 0;         ///< k of Cells<dynamic>
    std::size_t micro_batches = 0; ///< 0: 4 K
    /// Of Cells<dynamic>, the layers of each cell. Empty: by costs.
    std::vector<std::size_t> balance{};
    typename Device::Options device{}; ///< what the device lets one choose, e.g. which GPUs
    bool debug = false;                ///< as TrainingOptions::debug
};

namespace detail {

// The policies of an Inference of the Pipeline Net, whatever their order, with the defaults filled
// in.
template <class Net, class... Policies> struct InferencePolicies {
    using Cut = policy_or<policy::Cut, Cells<1>, Policies...>;
    using OwnDevice = policy_or<policy::Device, device::Host, Policies...>;
    using Device = typename policy_or<policy::Transport, transport::Local,
                                      Policies...>::template Of<OwnDevice>;
    static constexpr std::size_t device_count = devices_of<Cut>(1);
    static constexpr std::size_t micro_batch_count =
        policy_or<policy::MicroBatches, MicroBatches<micro_batches_for(device_count)>,
                  Policies...>::count;
    static constexpr bool constant = device_count != dynamic && micro_batch_count != dynamic;
    // Says what is wrong, and that alone.
    static consteval bool check() {
        if constexpr (!check_policies_by<CheckInferencePolicy, List<Policies...>, policy::Cut,
                                         policy::MicroBatches, policy::Transport, policy::Device>())
            return false;
        else if constexpr (!CheckDevice<Device>::ok())
            return false;
        else if constexpr (!CheckKernels<Device>::ok())
            return false;
        else if constexpr (!CheckCut<Cut, Net::size>::ok())
            return false;
        else
            return CheckMicroBatches<micro_batch_count, device_count>::ok();
    }
};

template <class Net, bool is_pipeline> struct CheckInferenceModel {
    static consteval bool ok() {
        static_assert(is_pipeline,
                      "gpipe: the first argument of Inference is the model: a gpipe::Pipeline");
        return is_pipeline;
    }
};

// Whether an Inference is what it should be; says what is not.
template <class Net, class... Policies> consteval bool check_inference() {
    if constexpr (!CheckInferenceModel<Net, is_pipeline<Net>>::ok())
        return false;
    else if constexpr (!is_sound<Net>) // has been said
        return false;
    else
        return InferencePolicies<Net, Policies...>::check();
}

} // namespace detail
} // namespace gpipe
