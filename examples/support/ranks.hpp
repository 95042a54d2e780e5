#pragma once

// Programs that run as several processes: --ranks n starts them, by mpirun, or finds itself one.
// With GPIPE_EXAMPLE_MPI only, which targets have that link gpipe::mpi; those with a GPU each with
// GPIPE_EXAMPLE_NCCL, of targets that link gpipe::nccl, too.

#include "support/gpus.hpp"
#include "support/options.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#ifdef GPIPE_EXAMPLE_MPI
#include <gpipe/transport/mpi.hpp>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#endif
#ifdef GPIPE_EXAMPLE_NCCL
#include <gpipe/gpipe.cuh>
#include <gpipe/transport/nccl.hpp>
#endif

namespace support {

/// A process that has all devices.
struct Alone {
    static bool speaks() { return true; }
    static std::uint64_t told(std::uint64_t number, std::size_t) { return number; }
    static std::size_t transport_bytes() { return 0; }
};

#ifdef GPIPE_EXAMPLE_MPI

/// Whether a launcher has started this process as one of several: Open MPI's, MPICH's or Slurm's.
inline bool is_launched() {
    for (char const* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMI_RANK"})
        if (std::getenv(name)) return true;
    return false;
}

/// Has mpirun start this program, with the same arguments, as so many processes: as root, too, on
/// however few cores, and on all of them, where it would leave each of two processes one core for
/// all its threads (Open MPI 4 and 5; others take no notice of the variables). Prints what
/// they print, for mpirun does not tell where that cannot be written, and ends as it does. Throws
/// UsageError if there is none.
[[noreturn]] inline void launch(std::size_t ranks, int count, char** arguments) {
    for (char const* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                             "OMPI_MCA_rmaps_base_oversubscribe"})
        ::setenv(name, "1", 0);
    ::setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 0);
    ::setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0); // which that means with Open MPI 5
    std::vector<std::string> words{"mpirun", "-n", std::to_string(ranks)};
    words.insert(words.end(), arguments, arguments + count);
    std::vector<char*> list;
    for (std::string& word : words) list.push_back(word.data());
    list.push_back(nullptr);
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw UsageError("--ranks needs a pipe, and there is none");
    constexpr int none = 127; // as a shell says it
    pid_t const self = ::getpid();
    pid_t const child = ::fork();
    if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGTERM); // who kills this program means all of it
        if (::getppid() == self && ::dup2(ends[1], STDOUT_FILENO) >= 0)
            ::execvp(list[0], list.data());
        ::_exit(none);
    }
    if (child < 0) throw UsageError("--ranks needs another process, and there is none");
    ::close(ends[1]);
    std::signal(SIGINT, SIG_IGN); // a terminal tells mpirun, whose end is waited for
    char part[4096];
    for (ssize_t size = 1; size != 0;) {
        size = ::read(ends[0], part, sizeof part);
        if (size < 0 && errno != EINTR) break;
        if (size <= 0) continue;
        std::fwrite(part, 1, static_cast<std::size_t>(size), stdout);
        std::fflush(stdout);
    }
    int status = none << 8;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == none)
        throw UsageError("--ranks needs mpirun, and there is none (Debian: openmpi-bin)");
    std::exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/// This process among so many. Throws UsageError if there are others.
class Rank {
  public:
    explicit Rank(std::size_t count) {
        if (all_.ranks() != count)
            throw UsageError("--ranks " + std::to_string(count) + ", but " +
                             std::to_string(all_.ranks()) + " processes were started");
    }
    gpipe::MpiRanks* all() { return &all_; }
    /// That it has beside the plan.
    std::size_t transport_bytes() const { return all_.used_bytes(); }
    /// Of its own devices.
    static gpipe::device::Host::Options device(std::size_t threads) { return {threads}; }
    /// Whether this is the one that prints.
    bool speaks() const { return all_.rank() == 0; }
    /// What this one of them says; all call it.
    std::uint64_t told(std::uint64_t number, std::size_t rank) { return all_.gather(number)[rank]; }

  private:
    gpipe::MpiRanks all_;
};

#ifdef GPIPE_EXAMPLE_NCCL

/// The same with a GPU.
class GpuRank : public Rank {
  public:
    /// `gpus`: which, by process; if it is empty they have the GPUs of their machine in turn.
    GpuRank(std::size_t count, std::string const& gpus)
        : Rank(count), gpu_(chosen(gpus)), all_(*Rank::all(), gpu_) {}
    gpipe::NcclRanks<gpipe::MpiRanks>* all() { return &all_; }
    std::size_t transport_bytes() const { return all_.used_bytes(); }
    gpipe::device::Cuda::Options device(std::size_t) const { return {.gpus = {gpu_}}; }

  private:
    int chosen(std::string const& gpus) {
        std::size_t const rank = Rank::all()->rank();
        if (!gpus.empty()) return gpu_list(gpus, Rank::all()->ranks())[rank];
        return static_cast<int>(rank % static_cast<std::size_t>(gpipe::cuda::device_count()));
    }

    int gpu_;
    gpipe::NcclRanks<gpipe::MpiRanks> all_;
};

#endif
#endif

} // namespace support
