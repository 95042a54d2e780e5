#pragma once

#include <gpipe/core/compiled.hpp>

#include <cstddef>
#include <system_error>

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

/// @file
/// What a training needs of threads and mutexes: the standard's headers of these, and of clocks
/// with them, would take a program a seventh of a second to parse.

namespace gpipe::detail {

/// A thread, waited for when this goes.
class Thread {
  public:
    Thread() = default;
    Thread(Thread const&) = delete;
    Thread& operator=(Thread const&) = delete;
    ~Thread() { join(); }

    /// Calls work() on a thread of its own. Once only. Throws std::system_error if the system has
    /// none left.
    template <class Work> void start(Work& work) {
        start(&work, [](void* it) -> void* {
            (*static_cast<Work*>(it))();
            return nullptr;
        });
    }
    /// Returns when that has; at once if nothing has been started.
    void join() {
        if (runs_) pthread_join(thread_, nullptr);
        runs_ = false;
    }

  private:
    void start(void* work, void* (*call)(void*)) {
        if (int const error = pthread_create(&thread_, nullptr, call, work))
            throw std::system_error(error, std::generic_category());
        runs_ = true;
    }

    pthread_t thread_{};
    bool runs_ = false;
};

/// How many processors this thread, and those that it starts, may use: of those that the machine
/// has a launcher (`mpirun`, `taskset`, a container) may have left it some. (What the standard says
/// of hardware_concurrency(), glibc's does not look at.) 0 if nobody knows.
GPIPE_INLINE std::size_t processors() {
#if defined(__linux__)
    cpu_set_t allowed; // where there are more than it can name the call fails
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        return static_cast<std::size_t>(CPU_COUNT(&allowed));
#endif
    long const count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? static_cast<std::size_t>(count) : 0;
}

/// One thread at a time has it, for as long as it has a Lock.
class Mutex {
  public:
    Mutex() = default;
    Mutex(Mutex const&) = delete;
    Mutex& operator=(Mutex const&) = delete;

    /// Of one thread.
    class Lock {
      public:
        explicit Lock(Mutex& mutex) : mutex_(mutex.mutex_) { pthread_mutex_lock(&mutex_); }
        Lock(Lock const&) = delete;
        Lock& operator=(Lock const&) = delete;
        ~Lock() { pthread_mutex_unlock(&mutex_); }

      private:
        pthread_mutex_t& mutex_;
    };

  private:
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

} // namespace gpipe::detail
