#pragma once

// What the parts of the double share: its state, and the way into every call.

#include "cuda_double.hpp"
#include "races.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace cuda_double::detail {

inline constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

enum class Kind { copy, fill, kernel, host_function, record, wait, graph, message };

/// One end of a message between ranks (NCCL): its stream goes on when both ends have come, in the
/// order of their streams, so far.
struct Message {
    std::size_t clique = 0; ///< of communicators that belong together
    int from = 0, to = 0;
    bool sends = false;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    bool captured = false;
    bool dropped = false; ///< its communicator was aborted: it goes on by itself
};

struct Work {
    Kind kind = Kind::graph;
    int device = 0;
    std::size_t call = 0; ///< that enqueued or captured it
    std::function<void()> run{};
    std::vector<Range> reads{};
    std::vector<Range> writes{};
    std::shared_ptr<Message> message{};
    double lasts = 0;
};

/// A piece of work that has been enqueued.
struct Node {
    Work work;
    std::size_t stream = 0; ///< by whose number the seed chooses
    std::size_t chain = 0;
    Clock clock;
    std::size_t unmet = 0; ///< pieces of work that must run before
    std::vector<Node*> successors;
    bool done = false;
    bool came = false; ///< to its message
    std::weak_ptr<Node> partner{};
    double begin = 0; ///< so far
    double end = 0;   ///< once it is done
};
using NodePtr = std::shared_ptr<Node>;

struct Captured {
    Work work;
    std::size_t stream = 0;
    std::vector<std::size_t> after;
};
struct Graph {
    std::size_t number = 0;
    int device = 0; ///< whose stream it was captured from
    std::vector<Captured> works;
};
struct Capture {
    std::size_t number = 0;
    cudaStream_t origin = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id thread;
    bool invalid = false;
    std::vector<Captured> works;
};
using CapturePtr = std::shared_ptr<Capture>;

struct Stream {
    std::size_t number = 0;
    int device = 0;
    int priority = 0;
    bool blocking = true; ///< waits for the legacy stream, and that for it
    bool legacy = false;
    std::size_t chain = 0;
    NodePtr tail;
    CapturePtr capture;
    std::vector<std::size_t> after; ///< what the next captured piece of work comes after
};
struct Event {
    std::size_t number = 0;
    int device = 0;
    NodePtr node; ///< of the last record
    CapturePtr capture;
    std::vector<std::size_t> after;
};
struct Executable {
    std::size_t number = 0;
    Graph graph;
    NodePtr last; ///< of the last launch, which the next one comes after
    std::size_t bytes = 0;
    std::map<std::size_t, std::size_t> chain_of_stream;
};

struct Allocation {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    int device = -1; ///< -1: of the host, pinned
    std::size_t number = 0;
    std::size_t mapped = 0; ///< bytes, in pages
    bool live = true;

    bool contains(void const* p) const { return p >= data && p < data + bytes; }
};

/// Protection of pages of devices, where it is not PROT_NONE.
using Pages = std::map<std::byte*, int>;

struct ThreadState {
    std::uint64_t epoch = 0;
    int device = 0;
    cudaError_t last = cudaSuccess;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    double now = 0;      ///< when it goes on
    double enqueued = 0; ///< how long all that lasts
};

/// What is to go wrong, once: when `count` comes to `at`.
struct Trap {
    std::size_t count = 0;
    std::size_t at = never;
    void set(std::size_t n) { at = count + n; }
    bool hit() { return count++ == at; }
};

/// The state of the double. All members are used under mutex().
class World {
  public:
    explicit World(Options const& made_with);
    ~World();

    // work.cpp
    std::size_t new_chain();
    NodePtr add(Work work, std::size_t stream, std::size_t chain,
                std::vector<NodePtr> const& after);
    cudaError_t enqueue(Stream& stream, Work work);
    std::vector<NodePtr> before(Stream const& stream);
    bool run_one();
    void end(Node& node);
    double lasts(Work const& work, std::string const& name);
    void match(NodePtr const& node);
    bool meet(Node& node);
    void drop_messages(std::size_t clique, int rank);
    /// Whether a graph, or a capture, has messages of that communicator.
    bool holds_messages(std::size_t clique, int rank) const;
    void run_until(NodePtr const& node);
    void run_device(int device);
    void host_waits_for(NodePtr const& node);
    void host_accesses(Range range, bool writes);
    void check_accesses(Work const& work, std::size_t chain, Clock const& clock);
    void break_down(cudaError_t error);

    // memory.cpp
    Allocation* find(void const* pointer);
    Allocation* whole(void const* pointer, std::size_t bytes);
    cudaError_t allocate(void** pointer, std::size_t bytes, int device);
    cudaError_t release(void* pointer, bool of_device);
    void open(Work const& work);
    void close() { allow({}); }
    void allow(Pages pages);
    std::string place(void const* pointer);

    // crash.cpp
    static void watch_crashes(bool on);

    // calls.cpp
    cudaError_t before(char const* name, unsigned rules);
    cudaError_t after(cudaError_t status);
    ThreadState& thread();
    void fault(std::string const& sentence);
    void note(std::string const& text) { log.back() += text; }
    std::string describe(std::size_t call);
    Stream* stream(cudaStream_t handle);
    Stream* default_stream(bool legacy);
    bool is_current(int device);
    Event* event(cudaEvent_t handle);
    bool is_device(int device) const { return device >= 0 && device < options.devices; }
    bool drops_call();
    bool drops_synchronization();

    // graphs.cpp
    bool prohibits();
    void end(CapturePtr const& capture);

    Options options;
    std::uint64_t epoch;
    std::mt19937_64 chance;
    std::size_t made = 0; ///< handles and allocations, for their numbers

    std::map<cudaStream_t, Stream> streams;
    std::map<std::pair<int, bool>, Stream> default_streams; ///< by device and whether legacy
    std::map<cudaEvent_t, Event> events;
    std::map<cudaGraph_t, Graph> graphs;
    std::map<cudaGraphExec_t, Executable> executables;
    std::map<std::byte const*, Allocation> allocations; ///< the freed ones, too: no address twice
    Pages allowed;                                      ///< to work that runs
    std::vector<std::size_t> allocated;                 ///< bytes by device
    std::set<std::pair<int, int>> peers;                ///< (who, whose memory)
    std::vector<CapturePtr> captures;                   ///< that have not ended

    std::map<Node*, NodePtr> pending;
    /// Ends of messages without another yet, by clique, ranks, and whether they send.
    std::map<std::tuple<std::size_t, int, int, bool>, std::deque<NodePtr>> single;
    std::function<std::vector<std::string>(World&)> other_leaks{}; ///< of a library's double
    std::map<std::pair<std::size_t, std::size_t>, Node*> ready;    ///< by stream, then age
    std::size_t age = 0;
    std::vector<Clock> device_clocks;
    std::vector<double> device_ends; ///< when all that has run on it had ended
    Clock host{0};
    std::size_t chains = 1;
    Checker checker;
    Work const* running = nullptr;
    bool refused = false; ///< the call that is being made, because of when or where
    bool failing = false; ///< the call that is being made: what it yields, nobody gets

    cudaError_t sticky = cudaSuccess;
    Trap call_trap, work_trap, drop_trap, synchronization_trap;
    cudaError_t call_error = cudaSuccess;
    cudaError_t work_error = cudaSuccess;
    std::string dropped;

    std::vector<std::string> log;
    std::vector<std::string> faults;
    std::vector<std::string> races;
    std::set<std::pair<std::size_t, std::size_t>> racing_calls;
};

std::recursive_mutex& mutex();
World& world();
void begin_anew(Options const& options);

/// Whether nothing works any more in the process after this error.
bool is_sticky(cudaError_t error);

/// A handle that no other has ever had, so that a stale one is always known.
std::uintptr_t new_handle();
template <class Handle> Handle make_handle() { return reinterpret_cast<Handle>(new_handle()); }

/// How a call behaves besides what it does.
enum Rules : unsigned {
    plain = 0,
    happens_anyway = 1, ///< releases or synchronizes even if it is to return an error
    unsafe = 2,         ///< not while capturing
};

/// The way into every call.
template <class Body> cudaError_t enter(char const* name, unsigned rules, Body body) {
    std::lock_guard const lock(mutex());
    World& w = world();
    cudaError_t status = w.before(name, rules);
    if (status == cudaSuccess)
        status = body(w);
    else if ((rules & happens_anyway) && !w.refused)
        static_cast<void>(body(w));
    return w.after(status);
}

} // namespace cuda_double::detail
