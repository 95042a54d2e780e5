#pragma once

#include <cstddef>

namespace emulation {

/// A stack of its own on which a function runs, in turns with others of one thread of the host.
/// ThreadSanitizer, where it is, takes each for a thread of its own.
class Fiber {
  public:
    /// The thread of the host itself.
    Fiber();
    /// Begins main() when it is first switched to; main must not return. `number` places the
    /// stacks of neighbours in different lines of the caches.
    Fiber(void (*main)(), std::size_t number);
    Fiber(Fiber const&) = delete;
    Fiber& operator=(Fiber const&) = delete;
    ~Fiber();

    /// Goes on there, until somebody switches to this one. Orders nothing.
    void switch_to(Fiber& other);

    /// @name What ThreadSanitizer is to know: what this fiber did before release(at) comes before
    /// what another does after acquire(at). Called from the fiber `current`.
    /// @{
    void release(Fiber const& current, void* at) const;
    void acquire(Fiber const& current, void* at) const;
    static bool sanitized(); ///< else both do nothing
                             /// @}

  private:
    void* stack_ = nullptr; // lowest address
    void* top_ = nullptr;
    void* sanitizer_ = nullptr;
};

} // namespace emulation
