#include "races.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cuda_double::detail {

void join(Clock& clock, Clock const& other) {
    if (clock.size() < other.size()) clock.resize(other.size());
    for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

namespace {

bool happened_before(Checker::Access const& access, Clock const& clock) {
    return access.chain < clock.size() && access.time <= clock[access.chain];
}

} // namespace

void Checker::split(std::byte const* at) {
    auto next = stretches_.upper_bound(at);
    if (next == stretches_.begin()) return;
    auto const& [begin, stretch] = *std::prev(next);
    if (begin == at || stretch.end <= at) return;
    Stretch second = stretch;
    std::prev(next)->second.end = at;
    stretches_.emplace_hint(next, at, std::move(second));
}

void Checker::access(Range range, bool writes, Access const& access, Clock const& clock,
                     Report const& report) {
    auto const* at = static_cast<std::byte const*>(range.data);
    std::byte const* const end = at + range.bytes;
    split(at);
    split(end);
    while (at < end) {
        auto place = stretches_.lower_bound(at);
        std::byte const* const next =
            place == stretches_.end() || place->first > end ? end : place->first;
        if (at < next) { // nobody has been here
            Stretch fresh;
            fresh.end = next;
            place = stretches_.emplace_hint(place, at, fresh);
        }
        Stretch& stretch = place->second;
        if (stretch.written && !happened_before(stretch.write, clock))
            report(stretch.write, true, writes, at);
        if (writes) {
            for (Access const& read : stretch.reads)
                if (!happened_before(read, clock)) report(read, false, true, at);
            stretch.written = true;
            stretch.write = access;
            stretch.reads.clear();
        } else {
            std::erase_if(stretch.reads,
                          [&](Access const& read) { return read.chain == access.chain; });
            stretch.reads.push_back(access);
        }
        at = stretch.end;
    }
}

} // namespace cuda_double::detail
