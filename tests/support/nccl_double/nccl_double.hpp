#pragma once

// A double of NCCL for tests, to be linked instead of libnccl, on the double of the CUDA runtime:
// ranks are threads of one process, each with a device of its own. It defines the nccl* functions
// of communicators, sends and receives. A message is done when both ends have come to it, each in
// the order of its stream, and holds that stream until then: nothing is buffered. Communicators do
// not block: by chance a call is done only after its state was asked for several times, and only
// then is anything on the stream.
//
// Stricter than NCCL's documentation: a device has one communicator at a time, so there is one
// order of all that is launched there, and that one stream; no two threads are at once in calls of
// a communicator, nor does one call what another has in a group; two ranks have met before either
// puts a message to the other into a graph; a message in a graph meets one in a graph; every
// communicator is finalized and destroyed, or aborted, and where one is aborted, all are; and the
// host never waits for a message where it could not give up.
//
// What is in a group goes on in any order; there alone a rank may send to itself, what it receives.
// Not there: groups in groups or of several communicators, collectives, blocking communicators,
// splits, registered memory.

#include <nccl.h>

#include <cstddef>
#include <string>

namespace nccl_double {

/// Bytes of its device's memory that a communicator takes.
inline constexpr std::size_t memory = 3 << 14;

/// @name Faults, each counted from now on, from 0.
/// @{

/// The n-th call that makes a communicator, sends or receives fails.
void fail_call(std::size_t n, ncclResult_t error = ncclSystemError);
/// How many there were since the session of the CUDA double began.
std::size_t calls();
/// The n-th message that this rank sends or receives succeeds without doing anything.
void drop_message(int rank, std::size_t n);
/// The n-th message that this rank sends or receives comes behind its next.
void swap_messages(int rank, std::size_t n);

/// What became of the last that was to be dropped or swapped.
struct Changed {
    std::string what{}; ///< which it was; empty if it has not come
    bool alike =
        false; ///< swapped with another one of the same way: each arrives in the other's place
};
Changed changed();

/// @}

/// Of the library, as the calling thread's rank has it.
inline thread_local int version = NCCL_VERSION_CODE;

} // namespace nccl_double
