#pragma once

#include <cerrno>
#include <csignal>
#include <system_error>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace benchmark {

// Another process, which wants a core as long as this object lives.
class SpinningProcess {
  public:
    // Throws std::system_error.
    SpinningProcess() : id_(fork()) {
        if (id_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
        if (id_ > 0) return;
        prctl(PR_SET_PDEATHSIG, SIGKILL); // goes with this program, however that ends
        for (volatile unsigned n = 0;;) n = n + 1;
    }
    SpinningProcess(SpinningProcess const&) = delete;
    SpinningProcess& operator=(SpinningProcess const&) = delete;
    ~SpinningProcess() {
        kill(id_, SIGKILL);
        waitpid(id_, nullptr, 0);
    }

  private:
    pid_t id_;
};

} // namespace benchmark
