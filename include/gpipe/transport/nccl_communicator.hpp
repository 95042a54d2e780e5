#pragma once

#include <gpipe/device/cuda_stream.hpp>

#include <nccl.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace gpipe {

/// A call of NCCL failed. what() has the call, NCCL's text of the error, and what it last said.
class NcclError : public std::runtime_error {
  public:
    /// `communicator`: whose call it was, or null.
    NcclError(char const* call, ncclResult_t code, ncclComm_t communicator = nullptr)
        : std::runtime_error(std::string("gpipe: ") + call +
                             " failed: " + ncclGetErrorString(code) + said(communicator)),
          code_(code) {}

    /// What it returned.
    ncclResult_t code() const noexcept { return code_; }

  private:
    static std::string said(ncclComm_t communicator) {
        char const* const words = ncclGetLastError(communicator);
        return words && *words ? std::string(" (") + words + ")" : std::string();
    }

    ncclResult_t code_;
};

/// A communicator of NCCL that never blocks the host (NCCL user guide, "Fault Tolerance"): calls
/// may return before they are done, and before state() says that they are nothing else may be
/// called but abort(). Default constructed, it is none.
class NcclCommunicator {
  public:
    NcclCommunicator() = default;
    NcclCommunicator(NcclCommunicator const&) = delete;
    NcclCommunicator& operator=(NcclCommunicator const&) = delete;
    ~NcclCommunicator() { close(); }

    /// Whether there is one.
    explicit operator bool() const { return communicator_ != nullptr; }

    /// Of the library.
    static int version() {
        int number = 0;
        check("ncclGetVersion", ncclGetVersion(&number));
        return number;
    }
    /// By which ranks meet: a secret, for whoever knows it may join. Listens at an address that
    /// NCCL_SOCKET_IFNAME may choose.
    static ncclUniqueId new_id() {
        ncclUniqueId id{};
        check("ncclGetUniqueId", ncclGetUniqueId(&id));
        return id;
    }

    /// On the current GPU; all ranks do so. Throws NcclError, as do all below.
    void open(ncclUniqueId const& id, int rank, int ranks) {
        cuda::detail::forget(cudaGetDevice(&gpu_)); // what is wrong there NCCL says, too
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        begun("ncclCommInitRankConfig",
              ncclCommInitRankConfig(&communicator_, ranks, id, rank, &config));
    }
    /// On a stream of its GPU.
    ///@{
    void send(std::byte const* from, std::size_t bytes, int to, cuda::StreamRef stream) {
        begun("ncclSend", ncclSend(from, bytes, ncclUint8, to, communicator_, stream.get()));
    }
    void receive(std::byte* to, std::size_t bytes, int from, cuda::StreamRef stream) {
        begun("ncclRecv", ncclRecv(to, bytes, ncclUint8, from, communicator_, stream.get()));
    }
    ///@}
    /// What f() sends and receives is one: it goes on together, in both directions and with all
    /// others, and is on the stream once that is done.
    template <class F> void together(F f) {
        check("ncclGroupStart", ncclGroupStart());
        grouped_ = true;
        try {
            f();
        } catch (...) { // what has begun has to be ended
            grouped_ = false;
            static_cast<void>(ncclGroupEnd());
            throw;
        }
        grouped_ = false;
        begun("ncclGroupEnd", ncclGroupEnd());
    }
    /// Whether that is going on.
    bool is_grouped() const { return grouped_; }
    /// What has become of the call, and of what it put on a stream: ncclInProgress before it is
    /// done.
    ncclResult_t state() noexcept {
        if (state_ != ncclInProgress && state_ != ncclSuccess) return state_;
        ncclResult_t result = ncclSuccess;
        ncclResult_t const asked = ncclCommGetAsyncError(communicator_, &result);
        return state_ = asked == ncclSuccess ? result : asked;
    }
    /// Whether it is of no use any more.
    bool failed() noexcept {
        ncclResult_t const now = state();
        return now != ncclSuccess && now != ncclInProgress;
    }
    /// Throws what state() has said.
    void check() const {
        if (state_ != ncclSuccess) throw NcclError(call_, state_, communicator_);
    }

    /// All ranks begin to end it: nothing is on streams any more.
    void finalize() noexcept { state_ = ncclCommFinalize(communicator_); }
    /// Gives it back if it is finalized, else aborts it; no graph may have messages of it.
    void close() noexcept {
        if (communicator_ && state_ == ncclSuccess)
            static_cast<void>(ncclCommDestroy(std::exchange(communicator_, nullptr)));
        abort();
        if (aborting_.joinable()) aborting_.join();
    }
    /// What is on streams of it ends now, whatever it has done. In a thread: NCCL returns from this
    /// when no graph has messages of it any more, and whoever has graphs waits for his streams
    /// before these go.
    void abort() noexcept {
        if (!communicator_) return;
        auto const end = [own = std::exchange(communicator_, nullptr), gpu = gpu_] {
            cuda::detail::forget(cudaSetDevice(gpu));
            static_cast<void>(ncclCommAbort(own));
        };
        try {
            aborting_ = std::thread(end);
        } catch (...) { // there is none to be had
            end();
        }
    }

  private:
    static void check(char const* call, ncclResult_t code) {
        if (code != ncclSuccess) throw NcclError(call, code);
    }
    void begun(char const* call, ncclResult_t code) {
        call_ = call;
        state_ = code;
        if (code != ncclInProgress) check();
    }

    ncclComm_t communicator_ = nullptr;
    int gpu_ = 0;
    ncclResult_t state_ = ncclSuccess;
    char const* call_ = "";
    bool grouped_ = false;
    std::thread aborting_;
};

} // namespace gpipe
