// Pieces of work: what they wait for, which one runs next, and what the host may rely on.
#include "world.hpp"

#include <algorithm>
#include <exception>
#include <string>

namespace cuda_double::detail {

std::size_t World::new_chain() { return chains++; }

NodePtr World::add(Work work, std::size_t stream_number, std::size_t chain,
                   std::vector<NodePtr> const& after) {
    auto node = std::make_shared<Node>();
    node->stream = stream_number;
    node->chain = chain;
    node->clock = host;
    node->begin = thread().now;
    if (node->clock.size() <= chain) node->clock.resize(chain + 1);
    for (NodePtr const& other : after) {
        if (!other) continue;
        join(node->clock, other->clock);
        node->begin = std::max(node->begin, other->end);
        if (other->done) continue;
        other->successors.push_back(node.get());
        ++node->unmet;
    }
    ++node->clock[chain];
    check_accesses(work, chain, node->clock);
    auto const device = static_cast<std::size_t>(work.device);
    join(device_clocks[device], node->clock);
    node->work = std::move(work);
    if (node->work.message) match(node);
    if (sticky != cudaSuccess) {
        node->done = true;
        return node;
    }
    pending.emplace(node.get(), node);
    if (node->unmet == 0) ready.emplace(std::pair(node->stream, age++), node.get());
    return node;
}

cudaError_t World::enqueue(Stream& s, Work work) {
    work.device = s.device;
    work.call = log.size() - 1;
    if (!s.capture) {
        std::vector<NodePtr> const after = before(s);
        if (s.legacy)
            for (auto const& [handle, other] : streams)
                if (other.capture && other.blocking && other.device == s.device) {
                    other.capture->invalid = true;
                    return cudaErrorStreamCaptureImplicit;
                }
        s.tail = add(std::move(work), s.number, s.chain, after);
        return cudaSuccess;
    }
    if (s.capture->invalid) return cudaErrorStreamCaptureInvalidated;
    std::vector<Captured>& works = s.capture->works;
    works.push_back({std::move(work), s.number, s.after});
    s.after = {works.size() - 1};
    return cudaSuccess;
}

// What the next piece of work on a stream comes after: the legacy stream and those that are not
// told otherwise wait for each other.
std::vector<NodePtr> World::before(Stream const& s) {
    std::vector<NodePtr> after{s.tail};
    auto const meet = [&](Stream const& other) {
        bool const meets = s.legacy ? other.blocking : s.blocking && other.legacy;
        if (meets && other.device == s.device && &other != &s) after.push_back(other.tail);
    };
    for (auto const& [handle, other] : streams) meet(other);
    for (auto const& [of, other] : default_streams) meet(other);
    return after;
}

bool World::run_one() {
    if (ready.empty()) return false;
    auto next = ready.begin();
    if (options.first_device) {
        auto const rank = [](auto const& entry) {
            Work const& work = entry.second->work;
            return std::pair(work.device, work.kind == Kind::kernel);
        };
        next = std::min_element(ready.begin(), ready.end(),
                                [&](auto const& a, auto const& b) { return rank(a) < rank(b); });
    } else if (options.seed == 1) {
        next = ready.lower_bound({ready.rbegin()->first.first, 0});
    } else if (options.seed > 1) {
        std::advance(next, static_cast<std::ptrdiff_t>(chance() % ready.size()));
    }
    NodePtr const node = pending.at(next->second);
    ready.erase(next);
    Work& work = node->work;
    if (work.message && !meet(*node)) return true; // its stream waits
    if (work.run && work_trap.hit()) {
        break_down(work_error);
    } else if (work.run) {
        open(work);
        if (sticky == cudaSuccess) {
            running = &work;
            try {
                work.run();
            } catch (std::exception const& error) {
                fault(describe(work.call) + " failed while it ran: " + error.what());
                break_down(cudaErrorLaunchFailure);
            } catch (...) {
                fault(describe(work.call) + " threw an exception while it ran");
                break_down(cudaErrorLaunchFailure);
            }
            running = nullptr;
        }
    }
    end(*node);
    return true;
}

void World::end(Node& node) {
    node.work.run = nullptr;
    node.done = true;
    node.end = node.begin + node.work.lasts;
    double& last = device_ends[static_cast<std::size_t>(node.work.device)];
    last = std::max(last, node.end);
    for (Node* successor : node.successors) {
        successor->begin = std::max(successor->begin, node.end);
        if (--successor->unmet == 0 && sticky == cudaSuccess)
            ready.emplace(std::pair(successor->stream, age++), successor);
    }
    node.successors.clear();
    pending.erase(&node);
}

void World::run_until(NodePtr const& node) {
    while (node && !node->done && run_one()) {
    }
}

void World::run_device(int device) {
    auto const busy = [&] {
        return std::any_of(pending.begin(), pending.end(),
                           [&](auto const& entry) { return entry.second->work.device == device; });
    };
    while (busy() && run_one()) {
    }
    if (sticky != cudaSuccess) return;
    join(host, device_clocks[static_cast<std::size_t>(device)]);
    thread().now = std::max(thread().now, device_ends[static_cast<std::size_t>(device)]);
}

void World::host_waits_for(NodePtr const& node) {
    run_until(node);
    if (node && !node->done && sticky == cudaSuccess)
        fault(describe(log.size() - 1) + " waits for a message, and could never give up");
    if (!node || sticky != cudaSuccess) return;
    join(host, node->clock);
    thread().now = std::max(thread().now, node->end);
}

double World::lasts(Work const& work, std::string const& name) {
    if (!options.lasts) return 0;
    Piece piece{name};
    auto const look = [&](std::vector<Range> const& ranges, int& device) {
        if (ranges.empty()) return;
        Allocation const* const of = find(ranges[0].data);
        device = of ? of->device : -1;
        piece.bytes = ranges[0].bytes;
    };
    if (name.empty()) {
        look(work.reads, piece.from);
        look(work.writes, piece.to);
    }
    double const time = options.lasts(piece);
    thread().enqueued += time;
    return time;
}

// Nothing runs on the devices any more.
void World::break_down(cudaError_t error) {
    sticky = error;
    for (auto const& [node, owner] : pending) {
        node->done = true;
        node->successors.clear();
        node->unmet = 0;
    }
    ready.clear();
    pending.clear();
}

void World::check_accesses(Work const& work, std::size_t chain, Clock const& clock) {
    auto const report = [&](Checker::Access const& other, bool other_writes, bool writes,
                            std::byte const* at) {
        if (!racing_calls.insert({other.call, work.call}).second) return;
        races.push_back(describe(other.call) + (other_writes ? " writes" : " reads") + " and " +
                        describe(work.call) + (writes ? " writes " : " reads ") + place(at) +
                        ", and nothing orders them");
    };
    Checker::Access const access{chain, clock[chain], work.call};
    for (Range const& range : work.reads) checker.access(range, false, access, clock, report);
    for (Range const& range : work.writes) checker.access(range, true, access, clock, report);
}

// The host's chain needs no count: whatever is enqueued later comes after.
void World::host_accesses(Range range, bool writes) {
    Work work;
    work.call = never;
    (writes ? work.writes : work.reads).push_back(range);
    check_accesses(work, 0, host);
}

} // namespace cuda_double::detail
