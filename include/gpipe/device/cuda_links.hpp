#pragma once

#include <gpipe/device/cuda_stream.hpp>
#include <gpipe/plan/edge.hpp>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {

/// The GPUs that a pipeline's devices run on, in this order; the same one may be named again.
template <class... Ints> std::vector<int> gpus(Ints... numbers) {
    return {static_cast<int>(numbers)...};
}

namespace cuda {

/// The fastest link from one GPU to another, which it makes ready: with peer access, a matter of
/// the whole process; what another pipeline enabled is fine.
inline Link natural_link(int from, int to) {
    if (from == to) return Link::shared;
    int can = 0;
    check("cudaDeviceCanAccessPeer", cudaDeviceCanAccessPeer(&can, from, to));
    if (!can) return Link::staged;
    DeviceGuard const guard(from);
    cudaError_t const status = cudaDeviceEnablePeerAccess(to, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled || status == cudaErrorTooManyPeers)
        detail::forget(status);
    else
        check("cudaDeviceEnablePeerAccess", status);
    return status == cudaErrorTooManyPeers ? Link::staged : Link::copied;
}

/// Which GPUs the devices of a pipeline run on, and how tensors get from one to another.
class Links {
  public:
    /// `gpus`: by device, at least `devices` of them; empty: all that CUDA sees. `fastest`: the
    /// fastest link that may be taken. Throws NoDevice, TooFewDevices, and std::invalid_argument
    /// for GPUs that are not there, and for Link::sent.
    Links(std::vector<int> gpus, std::size_t devices, Link fastest)
        : gpus_(chosen(std::move(gpus), devices)), fastest_(fastest),
          natural_(devices * devices, Link::shared) {
        if (fastest > Link::staged)
            throw std::invalid_argument("gpipe: GPUs of one process are linked by Link::shared, "
                                        "copied or staged, not by messages");
        // A GPU may have few peers: neighbours come first.
        for (std::size_t apart = 1; apart < devices; ++apart)
            for (std::size_t a = 0, b; (b = a + apart) < devices; ++a) {
                natural_[a * devices + b] = natural_link(gpus_[a], gpus_[b]);
                natural_[b * devices + a] = natural_link(gpus_[b], gpus_[a]);
            }
    }
    /// How many devices.
    std::size_t devices() const { return gpus_.size(); }
    /// The GPU, as CUDA counts them, of a device.
    int gpu(std::size_t device) const { return gpus_[device]; }
    /// By device.
    std::vector<int> const& gpus() const { return gpus_; }
    /// As there and back.
    Link link(std::size_t a, std::size_t b) const {
        std::size_t const devices = gpus_.size();
        return a == b ? Link::shared
                      : std::max({fastest_, natural_[a * devices + b], natural_[b * devices + a]});
    }

  private:
    static std::vector<int> chosen(std::vector<int> gpus, std::size_t devices) {
        int const present = device_count();
        if (gpus.empty()) {
            for (int gpu = 0; gpu < present; ++gpu) gpus.push_back(gpu);
            if (gpus.size() < devices) throw TooFewDevices(static_cast<int>(devices), present);
        }
        if (gpus.size() < devices)
            throw std::invalid_argument(
                "gpipe: Options::device.gpus has " + std::to_string(gpus.size()) + " entries for " +
                std::to_string(devices) + " devices: one for each, and one GPU may be there twice");
        gpus.resize(devices);
        for (int const gpu : gpus)
            if (gpu < 0 || gpu >= present)
                throw std::invalid_argument("gpipe: there is no GPU " + std::to_string(gpu) +
                                            ", but " + std::to_string(present) + " of them");
        return gpus;
    }
    std::vector<int> gpus_;
    Link fastest_;
    std::vector<Link> natural_; // by device and device
};

} // namespace cuda
} // namespace gpipe
