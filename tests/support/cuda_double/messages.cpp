// Messages between ranks: which ends belong together, and when they go on.
#include "world.hpp"

#include <algorithm>
#include <cstring>

namespace cuda_double::detail {

// The n-th that one rank sends to another is the n-th that this one receives from it.
void World::match(NodePtr const& node) {
    Message const& own = *node->work.message;
    auto& others = single[{own.clique, own.from, own.to, !own.sends}];
    if (others.empty()) {
        single[{own.clique, own.from, own.to, own.sends}].push_back(node);
        return;
    }
    NodePtr const other = others.front();
    others.pop_front();
    node->partner = other;
    other->partner = node;
    Message const& theirs = *other->work.message;
    if (own.bytes != theirs.bytes)
        fault(describe(node->work.call) + " and " + describe(other->work.call) +
              " are of different bytes");
    if (own.captured != theirs.captured)
        fault(describe(node->work.call) + " and " + describe(other->work.call) +
              " meet, and only one is in a graph");
}

// Whether the message is done with. If so its other end has come, too, and goes on.
bool World::meet(Node& node) {
    Message const& own = *node.work.message;
    if (own.dropped) return true;
    node.came = true;
    NodePtr const other = node.partner.lock();
    if (!other || !other->came || other->work.message->dropped) return false;
    Message const& theirs = *other->work.message;
    Message const& from = own.sends ? own : theirs;
    Message const& to = own.sends ? theirs : own;
    Work copy;
    copy.kind = Kind::copy;
    copy.call = node.work.call;
    copy.device = node.work.device;
    copy.reads.push_back({from.data, from.bytes});
    copy.writes.push_back({to.data, to.bytes});
    open(copy);
    if (sticky != cudaSuccess) return true;
    std::memcpy(to.data, from.data, std::min(from.bytes, to.bytes));
    node.begin = other->begin = std::max(node.begin, other->begin);
    node.work.lasts = other->work.lasts = lasts(copy, "");
    end(*other);
    return true;
}

// An aborted communicator lets its stream go on.
void World::drop_messages(std::size_t clique, int rank) {
    std::vector<NodePtr> mine;
    for (auto const& [at, node] : pending)
        if (Message* const m = node->work.message.get();
            m && m->clique == clique && (m->sends ? m->from : m->to) == rank)
            mine.push_back(node);
    for (NodePtr const& node : mine) {
        node->work.message = std::make_shared<Message>(*node->work.message);
        node->work.message->dropped = true;
        if (node->came) end(*node);
    }
}

bool World::holds_messages(std::size_t clique, int rank) const {
    auto const has = [&](std::vector<Captured> const& works) {
        return std::any_of(works.begin(), works.end(), [&](Captured const& captured) {
            Message const* const m = captured.work.message.get();
            return m && m->clique == clique && (m->sends ? m->from : m->to) == rank;
        });
    };
    return std::any_of(executables.begin(), executables.end(),
                       [&](auto const& one) { return has(one.second.graph.works); }) ||
           std::any_of(captures.begin(), captures.end(),
                       [&](CapturePtr const& one) { return has(one->works); });
}

} // namespace cuda_double::detail
