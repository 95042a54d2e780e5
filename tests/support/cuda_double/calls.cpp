// What all calls share: the log, errors, faults on demand, handles.
#include "world.hpp"

#include <atomic>

namespace cuda_double::detail {

namespace {

std::unique_ptr<World> the_world;
std::atomic<std::uint64_t> epochs{0};
std::atomic<std::uintptr_t> handles{0x1000};

} // namespace

void begin_anew(Options const& options) {
    the_world.reset();
    the_world = std::make_unique<World>(options);
}

std::recursive_mutex& mutex() {
    static std::recursive_mutex the_mutex;
    return the_mutex;
}

World& world() {
    if (!the_world) the_world = std::make_unique<World>(Options{});
    return *the_world;
}

std::uintptr_t new_handle() { return handles += 0x40; }

World::World(Options const& made_with)
    : options(made_with), epoch(++epochs), chance(made_with.seed),
      allocated(static_cast<std::size_t>(made_with.devices)),
      device_clocks(static_cast<std::size_t>(made_with.devices)),
      device_ends(static_cast<std::size_t>(made_with.devices)) {
    watch_crashes(options.protects);
}

ThreadState& World::thread() {
    thread_local ThreadState state;
    if (state.epoch != epoch) state = ThreadState{epoch};
    return state;
}

cudaError_t World::before(char const* name, unsigned rules) {
    log.emplace_back(name);
    bool const fails = call_trap.hit();
    refused = true;
    if (options.missing != cudaSuccess) return options.missing;
    if (running) {
        fault(describe(running->call) + " calls " + name + " while it runs");
        return cudaErrorNotPermitted;
    }
    if ((rules & unsafe) && sticky == cudaSuccess && prohibits())
        return cudaErrorStreamCaptureUnsupported;
    refused = false;
    failing = fails || sticky != cudaSuccess;
    if (sticky != cudaSuccess) return sticky;
    if (!fails) return cudaSuccess;
    note(" (made to fail)");
    if (is_sticky(call_error)) break_down(call_error);
    return call_error;
}

cudaError_t World::after(cudaError_t status) {
    if (!running) close(); // what is to run next may touch the same pages
    if (status == cudaSuccess) status = sticky;
    // Not to be ready is no error, but may be remembered like one.
    if (status != cudaSuccess) thread().last = status;
    return status;
}

void World::fault(std::string const& sentence) { faults.push_back(sentence); }

std::string World::describe(std::size_t call) {
    if (call == never) return "the host";
    return "call " + std::to_string(call) + ", " + log.at(call) + ",";
}

Stream* World::stream(cudaStream_t handle) {
    auto const found = streams.find(handle);
    if (found != streams.end()) {
        note(" on stream " + std::to_string(found->second.number));
        return &found->second;
    }
    bool const is_default = reinterpret_cast<std::uintptr_t>(handle) <= 2;
    if (is_default && options.default_streams) return default_stream(handle != cudaStreamPerThread);
    fault(describe(log.size() - 1) +
          (is_default ? " uses a default stream" : " has no such stream"));
    return nullptr;
}

// Of the current device; made when it is first used.
Stream* World::default_stream(bool legacy) {
    int const device = thread().device;
    auto const [entry, fresh] = default_streams.try_emplace({device, legacy});
    Stream& s = entry->second;
    if (fresh) {
        s.number = ++made;
        s.device = device;
        s.legacy = legacy;
        s.chain = new_chain();
    }
    note(std::string(legacy ? " on the legacy" : " on the thread's default") +
         " stream of device " + std::to_string(device));
    return &s;
}

// What works only there, as far as anybody has seen, although no page says so.
bool World::is_current(int device) {
    if (device == thread().device) return true;
    fault(describe(log.size() - 1) + " whose device is not the current one");
    return false;
}

Event* World::event(cudaEvent_t handle) {
    auto const found = events.find(handle);
    if (found != events.end()) {
        note(" event " + std::to_string(found->second.number));
        return &found->second;
    }
    fault(describe(log.size() - 1) + " has no such event");
    return nullptr;
}

bool World::drops_call() {
    if (!drop_trap.hit()) return false;
    note(" (dropped)");
    dropped = describe(log.size() - 1);
    return true;
}

bool World::drops_synchronization() {
    if (!synchronization_trap.hit()) return false;
    note(" (dropped)");
    dropped = describe(log.size() - 1);
    return true;
}

} // namespace cuda_double::detail
