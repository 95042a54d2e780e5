// Communicators, and what they put on streams.
#include "nccl_double.hpp"

#include "../cuda_double/world.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace cuda_double::detail;

struct ncclComm {
    std::size_t clique = 0;
    int rank = 0;
    int device = 0;
    bool initialized = false;
    bool finalized = false;
    std::size_t polls = 0;            // before what was called last is done
    std::function<void()> then{};     // what that does
    ncclResult_t error = ncclSuccess; // it is of no use any more
    cudaStream_t stream = nullptr;
    std::set<std::pair<int, bool>> met; // by rank, and whether that is sent to
    void* memory = nullptr;             // nccl_double::memory bytes of its device
};

namespace {

struct Clique {
    int ranks = 0;
    std::set<int> joined;
    int aborted = 0, destroyed = 0;
};
struct Put {
    ncclComm* communicator = nullptr;
    cudaStream_t stream = nullptr;
    std::shared_ptr<Message> message;
};
// What becomes of one message, besides that it succeeds.
struct Change {
    int rank = -1; // whose
    bool swaps = false;
    Trap trap;
    std::optional<Put> held; // comes behind the next
    nccl_double::Changed done;
};
struct Nccl {
    std::uint64_t epoch = 0;
    std::map<std::uint64_t, Clique> cliques; // by id
    std::map<ncclComm_t, std::unique_ptr<ncclComm>> communicators;
    std::map<std::thread::id, std::vector<Put>> groups; // that have begun
    // By stream, and place in a group.
    std::map<std::pair<std::size_t, std::size_t>, std::size_t> chains;
    Trap trap;
    ncclResult_t trapped = ncclSuccess;
    Change change;
    std::uint64_t ids = 0;
};

// Of the session that goes on.
Nccl& nccl(World& w) {
    static Nccl the;
    if (the.epoch != w.epoch) {
        the.cliques.clear();
        the.communicators.clear();
        the.groups.clear();
        the.chains.clear();
        the.trap = {};
        the.change = {};
        the.ids = 0;
        the.epoch = w.epoch;
        w.other_leaks = [](World& of) {
            std::vector<std::string> alive;
            for (auto const& [handle, c] : nccl(of).communicators)
                alive.push_back("communicator of rank " + std::to_string(c->rank) +
                                " is still alive");
            for (auto const& [id, clique] : nccl(of).cliques)
                if (clique.aborted > 0 && clique.destroyed > 0)
                    alive.push_back("some ranks have aborted their communicators, others not");
            return alive;
        };
    }
    return the;
}

// That a thread is within a call of a communicator, from before it waits for the double on.
class Within {
  public:
    explicit Within(ncclComm_t of) : of_(of) {
        std::lock_guard const lock(guard_);
        alone_ = counts_[of_]++ == 0;
    }
    Within(Within const&) = delete;
    Within& operator=(Within const&) = delete;
    ~Within() {
        std::lock_guard const lock(guard_);
        if (--counts_[of_] == 0) counts_.erase(of_);
    }
    bool alone() const { return alone_ || !of_; }

  private:
    static inline std::mutex guard_;
    static inline std::map<ncclComm_t, std::size_t> counts_;

    ncclComm_t of_;
    bool alone_ = true;
};

// `of`: the communicator that it is a call of, if any.
template <class Body> ncclResult_t enter(char const* name, ncclComm_t of, Body body) {
    Within const within(of);
    std::lock_guard const lock(mutex());
    World& w = world();
    Nccl& all = nccl(w);
    w.log.emplace_back(name);
    if (!within.alone())
        w.fault(w.describe(w.log.size() - 1) +
                " while another thread is in one of this communicator");
    if (w.running) {
        w.fault(w.describe(w.running->call) + " calls " + name + " while it runs");
        return ncclInvalidUsage;
    }
    return body(w, all);
}

ncclResult_t refuse(World& w, std::string const& why, ncclResult_t code = ncclInvalidUsage) {
    w.fault(w.describe(w.log.size() - 1) + " " + why);
    return code;
}

ncclComm* find(World& w, Nccl& all, ncclComm_t handle) {
    auto const found = all.communicators.find(handle);
    if (found == all.communicators.end()) {
        refuse(w, "has no such communicator");
        return nullptr;
    }
    for (auto const& [thread, puts] : all.groups)
        for (Put const& put : puts)
            if (put.communicator == handle && thread != std::this_thread::get_id())
                refuse(w, "while another thread has a group of this communicator");
    return found->second.get();
}

// What was called is done now, or later.
ncclResult_t begin(World& w, ncclComm& c, std::function<void()> then) {
    c.then = std::move(then);
    c.polls = w.options.seed > 1 ? w.chance() % 3 : w.options.seed;
    if (c.polls > 0) return ncclInProgress;
    std::exchange(c.then, nullptr)();
    return ncclSuccess;
}

// Each goes on by itself behind what is on their stream, and what comes next is behind all.
void enqueue(World& w, std::vector<Put> const& puts) {
    auto const found = w.streams.find(puts[0].stream);
    if (found == w.streams.end()) return;
    Stream& s = found->second;
    Stream const before = s;
    std::vector<NodePtr> ends;
    std::vector<std::size_t> captured;
    for (std::size_t i = 0; i < puts.size(); ++i) {
        Message& message = *puts[i].message;
        message.captured = s.capture != nullptr;
        Work work;
        work.kind = Kind::message;
        (message.sends ? work.reads : work.writes).push_back({message.data, message.bytes});
        work.message = puts[i].message;
        s.tail = before.tail;
        s.after = before.after;
        if (puts.size() > 1) { // a stream of its own, as it were
            s.number = before.number + 1000 * (i + 1);
            if (!s.capture) { // its groups come one after the other
                auto const [own, fresh] = nccl(w).chains.try_emplace({before.number, i});
                if (fresh) own->second = w.new_chain();
                s.chain = own->second;
            }
        }
        if (w.enqueue(s, std::move(work)) != cudaSuccess)
            puts[i].communicator->error = ncclUnhandledCudaError;
        ends.push_back(s.tail);
        captured.insert(captured.end(), s.after.begin(), s.after.end());
    }
    if (puts.size() == 1) return;
    s.number = before.number;
    s.chain = before.chain;
    s.after = captured;
    Work all;
    all.device = s.device;
    all.call = w.log.size() - 1;
    if (s.capture) {
        static_cast<void>(w.enqueue(s, std::move(all)));
    } else {
        s.tail = w.add(std::move(all), s.number, s.chain, ends);
    }
}

// What goes on in its place.
std::vector<Put> changed(World& w, Change& change, Put const& put) {
    if (put.communicator->rank != change.rank) return {put};
    if (change.held) {
        Message const &first = *change.held->message, &second = *put.message;
        change.done.what += " behind " + w.describe(w.log.size() - 1);
        change.done.alike = first.sends == second.sends && first.from == second.from &&
                            first.to == second.to && first.data != second.data;
        return {put, *std::exchange(change.held, std::nullopt)};
    }
    if (!change.trap.hit()) return {put};
    change.done.what = w.describe(w.log.size() - 1);
    if (change.swaps) change.held = put;
    return {};
}

ncclResult_t put(char const* name, void* data, std::size_t count, ncclDataType_t type, int peer,
                 ncclComm_t handle, cudaStream_t stream, bool sends) {
    return enter(name, handle, [&](World& w, Nccl& all) {
        ncclComm* const c = find(w, all, handle);
        Stream* const s = w.stream(stream);
        if (!c || !s) return ncclInvalidArgument;
        Clique const& clique = all.cliques.at(c->clique);
        if (c->then || !c->initialized) return refuse(w, "comes before the call before it is done");
        if (c->error != ncclSuccess || c->finalized) return refuse(w, "has no use any more");
        if (type != ncclUint8) return refuse(w, "is not of bytes");
        auto const group = all.groups.find(std::this_thread::get_id());
        bool const grouped = group != all.groups.end();
        if (peer < 0 || peer >= clique.ranks || (peer == c->rank && !grouped))
            return refuse(w, "is to nobody else", ncclInvalidArgument);
        if (s->device != c->device) return refuse(w, "is on a stream of another device");
        if (!c->stream) c->stream = stream;
        if (c->stream != stream) return refuse(w, "is on another stream than those before");
        if (all.trap.hit()) return c->error = all.trapped;
        if (s->capture && !c->met.count({peer, sends}))
            return refuse(w, "is in a graph, and these two have never met");
        c->met.insert({peer, sends});
        auto message = std::make_shared<Message>();
        message->clique = c->clique;
        message->from = sends ? c->rank : peer;
        message->to = sends ? peer : c->rank;
        message->sends = sends;
        message->data = static_cast<std::byte*>(data);
        message->bytes = count;
        std::vector<Put> const puts = changed(w, all.change, {c, stream, message});
        if (grouped) {
            group->second.insert(group->second.end(), puts.begin(), puts.end());
            return ncclSuccess;
        }
        if (puts.empty()) return ncclSuccess;
        return begin(w, *c, [&w, puts] {
            for (Put const& put : puts) enqueue(w, {put});
        });
    });
}

} // namespace

namespace nccl_double {

void fail_call(std::size_t n, ncclResult_t error) {
    std::lock_guard const lock(mutex());
    nccl(world()).trap.set(n);
    nccl(world()).trapped = error;
}
std::size_t calls() {
    std::lock_guard const lock(mutex());
    return nccl(world()).trap.count;
}
void drop_message(int rank, std::size_t n) {
    std::lock_guard const lock(mutex());
    Change& change = nccl(world()).change = {};
    change.rank = rank;
    change.trap.set(n);
}
void swap_messages(int rank, std::size_t n) {
    drop_message(rank, n);
    std::lock_guard const lock(mutex());
    nccl(world()).change.swaps = true;
}
Changed changed() {
    std::lock_guard const lock(mutex());
    return nccl(world()).change.done;
}

} // namespace nccl_double

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    *version = nccl_double::version;
    return ncclSuccess;
}

char const* ncclGetErrorString(ncclResult_t result) {
    return result == ncclSystemError          ? "unhandled system error"
           : result == ncclRemoteError        ? "remote process exited or there was a network error"
           : result == ncclUnhandledCudaError ? "unhandled cuda error"
           : result == ncclInvalidUsage       ? "invalid usage"
                                              : "another error";
}

char const* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    return enter("ncclGetUniqueId", nullptr, [&](World&, Nccl& all) {
        *id = {};
        std::uint64_t const number = ++all.ids;
        std::memcpy(id->internal, &number, sizeof number);
        std::memset(id->internal + sizeof number, 0x5A, sizeof id->internal - sizeof number);
        return ncclSuccess;
    });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
    *handle = nullptr;
    return enter("ncclCommInitRankConfig", nullptr, [&](World& w, Nccl& all) {
        std::uint64_t number = 0;
        std::memcpy(&number, id.internal, sizeof number);
        if (number == 0 || number > all.ids || id.internal[sizeof number] != 0x5A)
            return refuse(w, "has no such id", ncclInvalidArgument);
        if (!config || config->blocking != 0)
            return refuse(w, "makes a communicator that cannot be aborted safely");
        if (all.trap.hit()) return all.trapped;
        Clique& clique = all.cliques[number];
        clique.ranks = clique.ranks ? clique.ranks : ranks;
        if (clique.ranks != ranks || rank < 0 || rank >= ranks ||
            !clique.joined.insert(rank).second)
            return refuse(w, "is of another number of ranks, or for a rank that is there",
                          ncclInvalidArgument);
        auto c = std::make_unique<ncclComm>();
        c->clique = number;
        c->rank = rank;
        c->device = w.thread().device;
        for (auto const& [other, of] : all.communicators)
            if (of->device == c->device) return refuse(w, "is of a GPU that has one already");
        if (w.allocate(&c->memory, nccl_double::memory, c->device) != cudaSuccess)
            return ncclUnhandledCudaError;
        *handle = c.get();
        all.communicators.emplace(c.get(), std::move(c));
        return ncclInProgress;
    });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
    return enter("ncclCommGetAsyncError", handle, [&](World& w, Nccl& all) {
        w.log.pop_back(); // asked again and again
        ncclComm* const c = find(w, all, handle);
        if (!c) return ncclInvalidArgument;
        Clique const& clique = all.cliques.at(c->clique);
        if (!c->initialized)
            c->initialized = static_cast<int>(clique.joined.size()) == clique.ranks;
        else if (c->then && --c->polls == 0)
            std::exchange(c->then, nullptr)();
        *error = c->error != ncclSuccess      ? c->error
                 : c->then || !c->initialized ? ncclInProgress
                                              : ncclSuccess;
        return ncclSuccess;
    });
}

ncclResult_t ncclSend(void const* data, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
    return put("ncclSend", const_cast<void*>(data), count, type, peer, communicator, stream, true);
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t communicator, cudaStream_t stream) {
    return put("ncclRecv", data, count, type, peer, communicator, stream, false);
}

ncclResult_t ncclGroupStart() {
    return enter("ncclGroupStart", nullptr, [&](World& w, Nccl& all) {
        if (!all.groups.try_emplace(std::this_thread::get_id()).second)
            return refuse(w, "is in a group");
        return ncclSuccess;
    });
}
ncclResult_t ncclGroupEnd() {
    return enter("ncclGroupEnd", nullptr, [&](World& w, Nccl& all) {
        auto const group = all.groups.extract(std::this_thread::get_id());
        if (group.empty()) return refuse(w, "ends no group");
        std::vector<Put> const puts = group.mapped();
        if (puts.empty()) return ncclSuccess;
        ncclComm& c = *puts[0].communicator;
        if (c.error != ncclSuccess) return c.error;
        for (Put const& put : puts)
            if (put.communicator != &c) return refuse(w, "is of several communicators");
        std::size_t own[2] = {0, 0};
        for (Put const& put : puts)
            if (put.message->from == put.message->to) ++own[put.message->sends];
        if (own[0] != own[1]) return refuse(w, "sends to itself what it does not receive");
        if (all.trap.hit()) return c.error = all.trapped;
        return begin(w, c, [&w, puts] { enqueue(w, puts); });
    });
}

ncclResult_t ncclCommFinalize(ncclComm_t handle) {
    return enter("ncclCommFinalize", handle, [&](World& w, Nccl& all) {
        ncclComm* const c = find(w, all, handle);
        if (!c) return ncclInvalidArgument;
        if (c->then || c->finalized) return refuse(w, "comes too early, or again");
        for (auto const& [at, node] : w.pending)
            if (Message const* const m = node->work.message.get();
                m && m->clique == c->clique && (m->sends ? m->from : m->to) == c->rank)
                return refuse(w, "while a message is on its way");
        return begin(w, *c, [c] { c->finalized = true; });
    });
}

ncclResult_t ncclCommDestroy(ncclComm_t handle) {
    return enter("ncclCommDestroy", handle, [&](World& w, Nccl& all) {
        ncclComm* const c = find(w, all, handle);
        if (!c) return ncclInvalidArgument;
        if (!c->finalized) refuse(w, "of a communicator that is not finalized");
        ++all.cliques.at(c->clique).destroyed;
        static_cast<void>(w.release(c->memory, true));
        all.communicators.erase(handle);
        return ncclSuccess;
    });
}

// As NCCL's, whose kernels end at once, waits for the graphs that have messages of it.
ncclResult_t ncclCommAbort(ncclComm_t handle) {
    Within const within(handle);
    std::size_t waits = 0;
    for (bool held = true; held && waits < 5000; ++waits) {
        {
            std::lock_guard const lock(mutex());
            World& w = world();
            auto const found = nccl(w).communicators.find(handle);
            if (found == nccl(w).communicators.end()) break;
            ncclComm const& c = *found->second;
            w.drop_messages(c.clique, c.rank);
            held = w.holds_messages(c.clique, c.rank);
        }
        if (held) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return enter("ncclCommAbort", nullptr, [&](World& w, Nccl& all) {
        ncclComm* const c = find(w, all, handle);
        if (!c) return ncclInvalidArgument;
        if (waits == 5000) return refuse(w, "waits for a graph that has messages of it");
        if (!within.alone()) refuse(w, "while another thread is in a call of it");
        ++all.cliques.at(c->clique).aborted;
        static_cast<void>(w.release(c->memory, true));
        all.communicators.erase(handle);
        return ncclSuccess;
    });
}

} // extern "C"
