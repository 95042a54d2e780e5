#pragma once

#include <gpipe/core/version.hpp>

namespace gpipe {

namespace policy {
struct Update;
} // namespace policy

/// When a device updates its parameters.
namespace update {

/// Behind one commit of the whole step, the default: a step in which anything goes wrong leaves all
/// parameters as they were, and the next step begins when all devices are done.
struct AfterCommit {
    using policy_kind = policy::Update;
    /// Whether a device updates before the whole step is done.
    static constexpr bool immediate = false;
};

/// As soon as its own backwards are done, and then it goes on with the next step. What a device
/// would idle at the end of a step is filled with the begin of the next (zero bubble; Qi et al.,
/// 2024), if that has been started: with Training::start(), not step(). Where several cells have
/// taken their time the first device is the first to go on.
///
/// It gives up that a step which fails leaves the parameters as they were: where some devices had
/// updated theirs, the object is of no use any more, and says so. A step that had begun when the
/// one before failed fails, too (FailureOf::before): it has the number, and the random numbers, of
/// another. Gradients cannot be clipped by their norm, which is known only when all devices are
/// done; where Options::finite_gradients asks, each device looks at its own before it updates (with
/// shard::OptimizerState each replica's at its part of them). A loss that is not finite is known
/// before the first does, and changes nothing. On a device that enqueues steps do not overlap.
///
/// With several ranks or replicas, which are then hosts, each goes on so, when it has heard of the
/// losses; it copies mini-batches, into memory beside the plan, and walks steps on threads of its
/// own, which call MPI: a program that does so while steps are under way starts that with
/// MPI_THREAD_MULTIPLE. Where steps are under way nobody asks what the others do: all start them,
/// and wait for their results, in one order. One that refuses a step then is lost to the others;
/// another learning rate on one of them is heard of at its end, when it is too late.
struct Immediate {
    using policy_kind = policy::Update;
    /// Whether a device updates before the whole step is done.
    static constexpr bool immediate = true;
};

} // namespace update
} // namespace gpipe
