#pragma once

// A double of the CUDA runtime for tests, to be linked instead of libcudart. It defines the cuda*
// functions themselves, in host memory, on no GPU. Nothing that is enqueued runs before somebody
// synchronizes, or the test says so; then work runs piece by piece in an order that streams and
// events allow and a seed chooses. Memory of its devices cannot be touched by the host, every call
// is noted, accesses that nothing orders are reported, and calls can be made to fail.
//
// Stricter than CUDA's documentation: a capture begins, and a graph is instantiated and launched,
// while its device is the current one; no executable graph is destroyed while it runs; and default
// streams are used only where a test allows it.
//
// Time is counted, in units of a test: work begins when all that streams and events have it wait
// for has ended, and when the thread that has enqueued it had come to that; kernels on several
// streams of a device do not slow each other down.
//
// Not there: priorities (kept, but no work is preferred), managed memory, graphs within graphs,
// kernels (tests/support/emulation has them). All threads of the host count as one where
// accesses are ordered (and share cudaStreamPerThread), an error that CUDA cannot recover from ends
// all devices, and work that is not declared (a function of the host) is not checked.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cuda_double {

/// What of a piece of work says how long it takes.
struct Piece {
    std::string name{};     ///< of a kernel; else empty
    int from = -1, to = -1; ///< of a copy or message: devices, -1: the host's memory
    std::size_t bytes = 0;  ///< likewise
};

struct Options {
    int devices = 1;
    /// Of what can go on. 0: the lowest stream, as far as it can; 1: the highest; else by chance.
    std::uint64_t seed = 0;
    /// Whatever the seed, of what can go on that of the first device, and of that kernels last.
    bool first_device = false;
    /// Whether the first device can have access to the second's memory; empty: any can.
    std::function<bool(int, int)> peers{};
    int most_peers = 8; ///< of a device
    /// Memory of a device can be touched by nobody but running work, and by that only where it said
    /// that it would (to a page). false: by everybody. That takes a third of the time, so that
    /// sweeps have it in one order of some.
    bool protects = seed == 0;
    /// Bytes of memory of each device.
    std::size_t memory = std::size_t{1} << 30;
    /// Bytes of it that an executable graph takes for each piece of work, on its device.
    std::size_t graph_memory = 0;
    /// Whether default streams may be used; else using one is a fault.
    bool default_streams = false;
    /// How long kernels, copies and messages take; empty: no time. The rest takes none.
    std::function<double(Piece const&)> lasts{};
    /// What every call returns where there is no driver or no device; cudaSuccess: there are.
    cudaError_t missing = cudaSuccess;
};

/// Forgets everything, live handles included, and begins anew.
void reset(Options const& options = {});

/// One test's use of the double. Ends with a message and abort() if there are complaints() that
/// nobody has asked for.
class Session {
  public:
    explicit Session(Options const& options = {}) { reset(options); }
    Session(Session const&) = delete;
    Session& operator=(Session const&) = delete;
    ~Session();
};

/// Bytes that a piece of work reads or writes.
struct Range {
    void const* data = nullptr;
    std::size_t bytes = 0;
};

/// Stands in for a kernel: enqueues `work`, which reads and writes these ranges of device or pinned
/// memory, on a stream of the current device. Counts as a call of the name cudaLaunchKernel; in a
/// captured graph it runs at every replay. `work` must not call CUDA.
cudaError_t launch(cudaStream_t stream, std::function<void()> work, std::vector<Range> reads,
                   std::vector<Range> writes, std::string const& name = "kernel");

/// Runs up to this many pieces of enqueued work; returns how many there were to run.
std::size_t progress(std::size_t pieces = SIZE_MAX);

/// When all that has run so far had ended, from 0 on.
double time();
/// How long what the calling thread has enqueued, or captured, is to last, all in all.
double enqueued();

/// Tells the checker that the host accesses memory, between the calls around it.
void host_reads(void const* data, std::size_t bytes);
void host_writes(void const* data, std::size_t bytes);

/// Look into memory of a device, and change it, behind CUDA's back; orders nothing.
void peek(void* to, void const* device_memory, std::size_t bytes);
void poke(void* device_memory, void const* from, std::size_t bytes);

/// @name Faults, each counted from now on, from 0.
/// @{

/// The n-th call does nothing and returns `error`, except that what releases and what synchronizes
/// does so nonetheless. An error that CUDA cannot recover from is returned by all later calls.
void fail_call(std::size_t n, cudaError_t error);
/// The n-th piece of work fails when it runs: synchronizing returns `error`, and so does every
/// later call.
void fail_work(std::size_t n, cudaError_t error = cudaErrorLaunchFailure);
/// The n-th call of a wait on a stream, a record, or a copy succeeds without doing anything.
void drop_call(std::size_t n);
/// The n-th wait of the host (for an event, a stream, or a device) returns at once.
void drop_synchronization(std::size_t n);

/// @}
/// @name How many there were since reset(), for sweeps over n.
/// @{

std::size_t calls();
std::size_t works();
std::size_t droppable_calls();
std::size_t synchronizations();

/// @}

/// Every call, in order, with what is worth knowing of it.
std::vector<std::string> call_log();
/// How many of these calls there were, from one of all on.
std::size_t count(char const* call, std::size_t from = 0);
/// What drop_call() or drop_synchronization() dropped; empty if nothing yet.
std::string dropped();

/// Pairs of conflicting accesses that neither streams nor events nor the host order.
std::vector<std::string> races();
/// Wrong use of CUDA: handles that are none, memory freed twice or while in use, and the like.
std::vector<std::string> faults();
/// Handles and memory that are alive now.
std::vector<std::string> leaks();
/// All three, a line each; forgets races and faults.
std::string complaints();

} // namespace cuda_double
