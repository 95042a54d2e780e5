#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/clock.hpp>
#include <gpipe/device/cuda_memory.hpp>
#include <gpipe/device/cuda_stream.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace gpipe::cuda {

/// The GPUs of other ranks, which the work of this one meets on its streams: so it may wait for
/// ever, and who waits for it must not.
class Peers {
  public:
    /// That work which meets them is about to be put on streams: false, and it is not, where one
    /// of them cannot. Asked once for each run. Throws where one is lost.
    virtual bool begin() { return true; }
    /// What each rank has given, all at once. Throws where one is lost.
    virtual Array<std::uint64_t> gather(std::uint64_t number) = 0;
    /// Whether that is so on all of them, which all ask.
    bool all(bool so) {
        auto const everybody = gather(so);
        return std::find(everybody.begin(), everybody.end(), 0) == everybody.end();
    }
    /// Whether one is lost: then no work waits for others any more. Asked again and again by who
    /// has waited since then, see detail::seconds_now().
    virtual bool lost(double since) noexcept = 0;
    /// Whether work on these GPUs, by device, may meet them.
    virtual bool meet(std::vector<int> const& gpus) = 0;
    /// Between the n-th look of a wait, from 0 on, and the next.
    static void pause(std::size_t n) noexcept {
        if (n < 100)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(std::chrono::microseconds(20));
    }

  protected:
    ~Peers() = default;
};

namespace detail {

// Until ask() says that it is ready; what waits for those who are lost is ended meanwhile. An error
// that comes once need not be the device's, and memory that its work uses is not given back before.
template <class Ask, class Wait> cudaError_t await(Peers* peers, Ask ask, Wait wait) noexcept {
    if (!peers) return wait();
    double const since = gpipe::detail::seconds_now();
    cudaError_t first = cudaSuccess;
    for (std::size_t n = 0, errors = 0;; ++n) {
        static_cast<void>(peers->lost(since));
        cudaError_t const status = ask();
        if (status == cudaSuccess) return first;
        forget(status);
        if (status != cudaErrorNotReady) {
            if (++errors > 3) return status;
            first = first == cudaSuccess ? status : first;
        }
        Peers::pause(n);
    }
}

} // namespace detail

/// Returns when all on a stream, or all that an event stands for, has run, with what was wrong.
/// `peers`: null if there are none.
///@{
inline cudaError_t await(StreamRef stream, Peers* peers) noexcept {
    return detail::await(
        peers, [&] { return cudaStreamQuery(stream.get()); },
        [&] { return cudaStreamSynchronize(stream.get()); });
}
inline cudaError_t await(Event const& event, Peers* peers) noexcept {
    return detail::await(
        peers, [&] { return cudaEventQuery(event.get()); },
        [&] { return cudaEventSynchronize(event.get()); });
}
///@}
/// The same; throws Error.
///@{
inline void finish(StreamRef stream, Peers* peers) {
    check("cudaStreamSynchronize", await(stream, peers));
}
inline void finish(Event const& event, Peers* peers) {
    check("cudaEventSynchronize", await(event, peers));
}
///@}
/// Copies behind what is on a stream. To pageable memory a copy waits for that itself, and could
/// not give up: where there are others it is waited for before.
inline void copy(StreamRef stream, Peers* peers, std::byte* to, std::byte const* from,
                 std::size_t bytes) {
    if (peers && pointer_kind(to).memory == Memory::pageable) finish(stream, peers);
    stream.copy(to, from, bytes);
}

} // namespace gpipe::cuda
