#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/clock.hpp>
#include <gpipe/device/cuda_memory.hpp>
#include <gpipe/device/cuda_peers.hpp>
#include <gpipe/device/cuda_stream.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/joined.hpp>
#include <gpipe/transport/nccl_communicator.hpp>
#include <gpipe/transport/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

namespace gpipe {

/// Processes with a GPU each, whose tensors go from GPU to GPU by NCCL, on streams, for
/// transport::Nccl: one object in each, made and destroyed by all, behind the Training that it
/// joins. `Control`, MpiRanks or SocketRanks, must outlive it: hosts find each other by it, agree
/// on what a step has come to, and know by it when one of them is lost.
///
/// There is one communicator for all, and all that is put there goes in one order, on one stream,
/// as the plan has it: where a message is sent or received everybody has put there what stands
/// before, so nobody waits in a circle, whether NCCL buffers anything or not. It never blocks the
/// host: where somebody is lost, or somebody has waited for his GPU for Control's deadline,
/// whatever that does, the communicator is aborted, and all waits end.
template <RankTransport Control> class NcclRanks final : cuda::Peers {
  public:
    /// `gpu`: as CUDA counts them, of this process alone; becomes the thread's current one, or CUDA
    /// would have a context on another, too. Throws NcclError and cuda::Error, on the others what
    /// Control says of a rank that is gone; std::invalid_argument where they have different
    /// versions of NCCL.
    NcclRanks(Control& control, int gpu) try
        : control_(control), wire_(made_current(gpu), cuda::Priority::high), here_(gpu),
          there_(gpu), nothing_(gpu, 1) {
        detail::compare(control, static_cast<std::uint64_t>(NcclCommunicator::version()),
                        "gpipe: rank %zu has another version of NCCL than rank 0");
        ncclUniqueId id{};
        if (rank() == 0) id = NcclCommunicator::new_id();
        detail::spread(control, 0, id.internal);
        cuda::DeviceGuard const guard(gpu);
        std::size_t const free = cuda::free_bytes();
        communicator_.open(id, static_cast<int>(rank()), static_cast<int>(ranks()));
        settle();
        took(free);
    } catch (...) { // which leaves as it is
        control.give_up("has no communicator of NCCL");
    }
    NcclRanks(NcclRanks const&) = delete;
    NcclRanks& operator=(NcclRanks const&) = delete;
    /// Waits for the others to do so, too, unless one is lost.
    ~NcclRanks() {
        static_cast<void>(cuda::await(wire_, this));
        if (communicator_) communicator_.finalize();
        await_call();
        communicator_.close();
    }

    /// As RankTransport says, of hosts: Control's.
    ///@{
    std::size_t rank() const { return control_.rank(); }
    std::size_t ranks() const { return control_.ranks(); }
    Array<std::uint64_t> gather(std::uint64_t number) override { return control_.gather(number); }
    void send(std::size_t channel, std::byte const* from, std::size_t bytes,
              std::uint32_t word) noexcept {
        control_.send(channel, from, bytes, word);
    }
    std::uint32_t receive(std::size_t channel, std::byte* to, std::size_t bytes) noexcept {
        return control_.receive(channel, to, bytes);
    }
    std::exception_ptr error() const { return control_.error(); }
    void note(std::uint64_t steps, Kind kind, std::uint32_t cell,
              std::uint32_t micro_batch) noexcept {
        if constexpr (requires { control_.note(steps, kind, cell, micro_batch); })
            control_.note(steps, kind, cell, micro_batch);
    }
    void rest() noexcept {
        if constexpr (requires { control_.rest(); }) control_.rest();
    }
    void give_up(char const* words) noexcept { control_.give_up(words); }
    ///@}
    /// The same, and connects GPUs: NCCL does so when they first meet, which must not be while a
    /// step is captured for a graph.
    void open(Array<Channel> const& channels) {
        Array<Channel> hosts = channels;
        for (Channel& channel : hosts)
            if (!channel.between_hosts) channel.bytes = 0;
        control_.open(hosts);
        channels_ = channels;
        cuda::DeviceGuard const guard(nothing_.device());
        std::size_t const free = cuda::free_bytes();
        for (std::size_t c = 0; c < channels.size(); ++c) {
            if (channels[c].from == rank()) send(c, nullptr, 0, wire_);
            if (channels[c].to == rank()) receive(c, nullptr, 0, wire_);
        }
        cuda::finish(wire_, this);
        if (error()) std::rethrow_exception(error());
        took(free);
    }
    /// What NCCL has taken of the GPU's memory, beside the plan of the Training that it joins, once
    /// that is made: bytes that are not free any more, so what other programs have taken there
    /// meanwhile is in it, too.
    std::size_t used_bytes() const { return used_; }

    /// As StreamTransport says; a message of no bytes is one of a byte elsewhere, for whoever is
    /// behind it relies on who is before it. Throw NcclError.
    ///@{
    void send(std::size_t channel, std::byte const* from, std::size_t bytes,
              cuda::StreamRef stream) {
        exchange(stream, [&, to = static_cast<int>(channels_[channel].to)] {
            bytes > 0 ? communicator_.send(from, bytes, to, wire_)
                      : communicator_.send(nothing_.data(), 1, to, wire_);
        });
    }
    void receive(std::size_t channel, std::byte* to, std::size_t bytes, cuda::StreamRef stream) {
        exchange(stream, [&, from = static_cast<int>(channels_[channel].from)] {
            bytes > 0 ? communicator_.receive(to, bytes, from, wire_)
                      : communicator_.receive(nothing_.data(), 1, from, wire_);
        });
    }
    template <class F> void together(cuda::StreamRef stream, F f) {
        exchange(stream, [&] { communicator_.together(f); });
    }
    cuda::Peers& meets() { return *this; }
    ///@}

  private:
    // In the order of all messages, and in that of a stream.
    template <class Put> void exchange(cuda::StreamRef stream, Put put) {
        if (communicator_.is_grouped()) return put();
        if (!communicator_ || lost(detail::seconds_now())) // in this step, or in one before it
            std::rethrow_exception(error());
        bool const apart = !(stream == wire_);
        if (apart) {
            here_.record(stream);
            wire_.wait(here_);
        }
        put();
        settle(); // before that nothing is on the stream
        if (!apart) return;
        there_.record(wire_);
        stream.wait(there_);
    }
    // Until NCCL is done with a call; false where a rank is lost before, and so the communicator.
    bool await_call() noexcept {
        double const since = detail::seconds_now();
        for (std::size_t n = 0; communicator_ && communicator_.state() == ncclInProgress; ++n) {
            if (lost(since)) return false;
            pause(n);
        }
        return true;
    }
    // The same; throws what NCCL says, or who is lost.
    void settle() {
        if (!await_call()) std::rethrow_exception(error());
        communicator_.check();
    }
    // Since so many bytes were free.
    void took(std::size_t free) {
        std::size_t const now = cuda::free_bytes();
        used_ += free > now ? free - now : 0;
    }

    static int made_current(int gpu) {
        cuda::check("cudaSetDevice", cudaSetDevice(gpu));
        return gpu;
    }
    bool meet(std::vector<int> const& gpus) override { return gpus[0] == nothing_.device(); }
    bool lost(double since) noexcept override {
        if (!control_.error() && communicator_ && communicator_.failed())
            control_.give_up("has an error of NCCL");
        if (!control_.error() && detail::seconds_now() - since > control_.deadline())
            control_.overdue();
        if (!control_.error()) return false;
        communicator_.abort();
        return true;
    }

    Control& control_;
    std::size_t used_ = 0;
    cuda::Stream wire_;
    cuda::Event here_, there_;
    cuda::Buffer nothing_;
    NcclCommunicator communicator_;
    Array<Channel> channels_;
};

namespace transport {

/// Each rank has a GPU, and tensors go from one to the other by NCCL, see NcclRanks; with
/// device::Cuda, whose Options::device names it:
/// `{.samples = 64, .device = {.device = {.gpus = {0}}, .transport = &ranks}}`.
template <RankTransport Control> struct Nccl {
    using policy_kind = policy::Transport;
    /// The devices that a machine has.
    template <class Device> using Of = Joined<Device, NcclRanks<Control>>;
};

} // namespace transport
} // namespace gpipe
