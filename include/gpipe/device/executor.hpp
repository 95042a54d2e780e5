#pragma once

#include <gpipe/core/version.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>

namespace gpipe {

/// What of a mini-batch a run sees.
struct MiniBatchPart {
    std::size_t samples = 0;  ///< how many
    std::size_t before = 0;   ///< that were seen by runs before
    bool last = true;         ///< whether it ends with these
    std::uint64_t absent = 0; ///< which of its tensors are absent, see StepOptionals

    /// Whether they are the same.
    friend bool operator==(MiniBatchPart const&, MiniBatchPart const&) = default;
};

/// A run, as an executor is told of it.
struct Ticket {
    std::size_t slot = 0;  ///< of the runs that may be under way, less than the executor's depth
    std::size_t lanes = 1; ///< that are walked
    void const* work = nullptr; ///< the same one over the same part means the very same calls
    MiniBatchPart part{};       ///< in numbers of the whole mini-batch
    bool repeats = false;       ///< whether it may be kept, and then run without being walked
    bool overlaps = false;      ///< whether another run of this work may begin before it has ended
    std::size_t reader = 0;     ///< the lane that reads the caller's arrays, or nobody
    static constexpr std::size_t nobody = static_cast<std::size_t>(-1); ///< for there are copies
};

/// How far a lane has been walked.
struct Progress {
    bool begun = false;     ///< whether anything has been done
    std::size_t at = 0;     ///< the walk's own count of what has
    std::size_t walker = 0; ///< who goes on
};

/// What an executor runs. Small, and trivially copied.
/// - feed(): puts what the caller gives on the queues; called first;
/// - begin(follows): before its lanes are walked; of one that is walked once more, again.
///   `follows`: whether the run before, over the same work, may be under way;
/// - (lane): walks a lane, where no wait is refused. Never throws. False: what the lane has put on
///   queues is of no use;
/// - error(): what was wrong with that;
/// - deliver(copy): has what it leaves for the caller copied, by copy(to, from, bytes); behind the
///   rest, by an executor that keeps runs;
/// - go_on(lane, progress): walks a lane from there on. Never throws. False: before its end, for a
///   wait was refused, see DeviceQueue; to be called again.
template <class W>
concept DeviceWalk = requires(W const walk, std::size_t lane, Progress& progress,
                              void (*copy)(std::byte*, std::byte const*, std::size_t)) {
    walk.feed();
    walk.begin(false);
    walk.deliver(copy);
    { walk(lane) }
    noexcept->std::same_as<bool>;
    { walk.error() } -> std::same_as<std::exception_ptr>;
    { walk.go_on(lane, progress) }
    noexcept->std::same_as<bool>;
};

namespace device {

/// What an executor is that has one lane and is done with a run when submit() returns.
struct OneRunAtATime {
    /// See DeviceExecutor.
    ///@{
    static constexpr std::size_t depth = 1;
    static constexpr std::size_t lanes() { return 1; }
    static constexpr std::size_t walkers() { return 1; }
    static constexpr bool chooses_lanes() { return false; }
    static constexpr std::size_t kept() { return 0; }
    static void finish(std::size_t) {}
    static void abort() noexcept {}
    static void forget() {}
    static constexpr bool launched() { return true; }
    static constexpr bool spoilt() noexcept { return false; }
    ///@}
};

} // namespace device

namespace detail {

// A walk to ask an executor for.
struct SomeWalk {
    void feed() const;
    void begin(bool) const;
    bool operator()(std::size_t) const noexcept;
    std::exception_ptr error() const;
    template <class Copy> void deliver(Copy) const;
    bool go_on(std::size_t, Progress&) const noexcept;
};

} // namespace detail

/// Who walks programs.
/// - depth: how many runs may be under way, in slots;
/// - lanes(): how many a run can have, each for some of the devices; walkers(): how many can be
///   walked at a time; chooses_lanes(): whether one will do where handing over costs more than it
///   saves;
/// - submit(ticket, walk): has all lanes walked, concurrently, but no lane by two at a time. True
///   if all that they put on queues is done when it returns; else finish(slot) returns when it is;
/// - kept(): how many runs it has kept, each of which it launches without having it walked;
/// - run(f): calls f() and returns when what that put on queues is done;
/// - abort(): waits for all there is, whatever was wrong with it;
/// - forget(): runs that were kept are no longer what their tickets say; none is under way;
/// - launched(): whether of the run that submit() threw for, or that was walked badly, anything may
///   have run; spoilt(): whether every call fails now, because of one before.
template <class D>
concept DeviceExecutor = requires(D device, D const constant, std::size_t n, void (*f)(),
                                  Ticket const& ticket, detail::SomeWalk const& walk) {
    { D::depth } -> std::convertible_to<std::size_t>;
    { constant.lanes() } -> std::same_as<std::size_t>;
    { constant.walkers() } -> std::same_as<std::size_t>;
    { constant.chooses_lanes() } -> std::same_as<bool>;
    { constant.kept() } -> std::same_as<std::size_t>;
    { device.submit(ticket, walk) } -> std::same_as<bool>;
    device.run(f);
    device.finish(n);
    { device.abort() }
    noexcept;
    device.forget();
    { constant.launched() } -> std::same_as<bool>;
    { constant.spoilt() }
    noexcept->std::same_as<bool>;
};

} // namespace gpipe
