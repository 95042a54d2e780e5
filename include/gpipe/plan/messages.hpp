#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/plan/lowered.hpp>

#include <cstddef>
#include <cstdint>

namespace gpipe {

/// What no action is.
inline constexpr std::uint32_t no_message = 0xFFFFFFFF;

/// By action the one that receives what it sends over an edge that is Link::sent, else no_message.
/// Empty where there is no such edge. In the order of a plan and where lanes are merged both stand
/// next to each other: so ranks that each walk their part of that never wait for each other in a
/// circle, even if nothing is buffered, and what is sent over an edge first is received first. In
/// the end of a step likewise what it takes several ranks to do: a commit behind the one that sends
/// it, a gradient that is brought, and the sums of a tie.
[[gnu::cold]] GPIPE_INLINE constexpr Array<std::uint32_t> messages_of(Lowered const& lowered) {
    bool any = false;
    for (Edge const& edge : lowered.edges) any = any || edge.link == Link::sent;
    if (!any) return {};
    Programs const& all = lowered.programs;
    Array<std::uint32_t> receives(all.size(), no_message);
    Array<std::uint32_t> sent(2 * lowered.edges.size() * all.micro_batches());
    for (bool const receiving : {false, true})
        for (std::size_t i = 0; i < all.size(); ++i) {
            Action const& a = all[i];
            bool const goes_on = receiving && i + 1 < all.size();
            if (goes_on && (a.kind == Kind::send_commit ||
                            ((a.kind == Kind::bring_gradient || a.kind == Kind::reduce) &&
                             a.kind == all[i + 1].kind && a.edge == all[i + 1].edge)))
                receives[i] = static_cast<std::uint32_t>(i + 1);
            if (!is_transfer(a.kind) || lowered.edges[a.edge].link != Link::sent) continue;
            bool const back = a.kind == Kind::send_gradient || a.kind == Kind::receive_gradient;
            std::uint32_t& send = sent[(2 * a.edge + back) * all.micro_batches() + a.micro_batch];
            if (a.kind == Kind::send_output || a.kind == Kind::send_gradient)
                send = static_cast<std::uint32_t>(i);
            else if (receiving)
                receives[send] = static_cast<std::uint32_t>(i);
        }
    return receives;
}

} // namespace gpipe
