// What tests ask of the double: faults, counts, reports.
#include "world.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

namespace cuda_double {

using namespace detail;

namespace {

template <class Body> auto locked(Body body) {
    std::lock_guard const lock(mutex());
    return body(world());
}

void append(std::string& lines, std::vector<std::string> const& more) {
    for (std::string const& line : more) lines += line + "\n";
}

} // namespace

void reset(Options const& options) {
    std::lock_guard const lock(mutex());
    begin_anew(options);
}

Session::~Session() {
    std::string const unheard = complaints();
    if (unheard.empty() || std::uncaught_exceptions() > 0) return;
    std::fprintf(stderr, "cuda_double: a test ends without asking for complaints():\n%s",
                 unheard.c_str());
    std::abort();
}

std::size_t progress(std::size_t pieces) {
    return locked([&](World& w) {
        std::size_t done = 0;
        while (done < pieces && w.run_one()) ++done;
        w.close();
        return done;
    });
}

double time() {
    return locked(
        [](World& w) { return *std::max_element(w.device_ends.begin(), w.device_ends.end()); });
}
double enqueued() {
    return locked([](World& w) { return w.thread().enqueued; });
}

void host_reads(void const* data, std::size_t bytes) {
    locked([&](World& w) { w.host_accesses({data, bytes}, false); });
}
void host_writes(void const* data, std::size_t bytes) {
    locked([&](World& w) { w.host_accesses({data, bytes}, true); });
}

void fail_call(std::size_t n, cudaError_t error) {
    locked([&](World& w) { w.call_trap.set(n), w.call_error = error; });
}
void fail_work(std::size_t n, cudaError_t error) {
    locked([&](World& w) { w.work_trap.set(n), w.work_error = error; });
}
void drop_call(std::size_t n) {
    locked([&](World& w) { w.drop_trap.set(n); });
}
void drop_synchronization(std::size_t n) {
    locked([&](World& w) { w.synchronization_trap.set(n); });
}

std::size_t calls() {
    return locked([](World& w) { return w.call_trap.count; });
}
std::size_t works() {
    return locked([](World& w) { return w.work_trap.count; });
}
std::size_t droppable_calls() {
    return locked([](World& w) { return w.drop_trap.count; });
}
std::size_t synchronizations() {
    return locked([](World& w) { return w.synchronization_trap.count; });
}
std::string dropped() {
    return locked([](World& w) { return w.dropped; });
}
std::vector<std::string> call_log() {
    return locked([](World& w) { return w.log; });
}
std::size_t count(char const* call, std::size_t from) {
    return locked([=](World& w) {
        return static_cast<std::size_t>(
            std::count_if(w.log.begin() + static_cast<std::ptrdiff_t>(from), w.log.end(),
                          [=](std::string const& line) { return line.find(call) == 0; }));
    });
}
std::vector<std::string> races() {
    return locked([](World& w) { return w.races; });
}
std::vector<std::string> faults() {
    return locked([](World& w) { return w.faults; });
}

std::vector<std::string> leaks() {
    return locked([](World& w) {
        std::vector<std::string> alive;
        auto const leak = [&](char const* what, std::size_t number) {
            alive.push_back(std::string(what) + " " + std::to_string(number) + " is still alive");
        };
        for (auto const& [handle, s] : w.streams) leak("stream", s.number);
        for (auto const& [handle, e] : w.events) leak("event", e.number);
        for (auto const& [handle, g] : w.graphs) leak("graph", g.number);
        for (auto const& [handle, e] : w.executables) leak("executable graph", e.number);
        for (auto const& [data, a] : w.allocations)
            if (a.live) leak("allocation", a.number);
        for (auto const& capture : w.captures) leak("capture", capture->number);
        if (w.other_leaks)
            for (std::string const& other : w.other_leaks(w)) alive.push_back(other);
        return alive;
    });
}

std::string complaints() {
    std::string all;
    append(all, races());
    append(all, faults());
    append(all, leaks());
    locked([](World& w) { w.races.clear(), w.faults.clear(); });
    return all;
}

} // namespace cuda_double
