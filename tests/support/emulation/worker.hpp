#pragma once

#include "emulation.hpp"
#include "fiber.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace emulation {

/// Runs those blocks of a launch that fall to one thread of the host, one after the other.
class Worker {
  public:
    /// Blocks first, first + step, ... of the grid. Throws std::runtime_error where a kernel does
    /// what it must not, and does not run the rest then.
    void run(cudaLaunchConfig_t const& config, void const* kernel,
             std::function<void()> const& body, std::uint64_t seed, std::size_t first,
             std::size_t step);

    void barrier(Place place);
    Got exchange(unsigned mask, unsigned from, Gift const& gift, Place place);
    unsigned lane() const { return current_ % lanes; }

  private:
    static constexpr unsigned lanes = 32;
    static constexpr unsigned nobody = ~0u;
    struct Thread {
        uint3 index{};
        std::unique_ptr<Fiber> fiber{};
        // Of its last exchange:
        Place place{};
        unsigned mask = 0, from = 0, votes = 0;
        Gift gift{}, taken{};
    };
    struct Warp {
        unsigned arrived = 0; ///< at an exchange
        unsigned absent = 0;  ///< ended, or never there
    };

    static void main();
    void run_block();
    void end_thread();
    void go_on();
    void make_ready(unsigned thread);
    void make_others_ready(unsigned running);
    template <class Group> void order(Group const& group, void* at);
    std::string who(unsigned thread) const;
    [[noreturn]] void fail(std::string const& what);
    void fail_deadlock();

    void const* kernel_ = nullptr;
    std::function<void()> const* body_ = nullptr;
    std::minstd_rand chance_;
    unsigned count_ = 0; ///< threads of a block
    std::vector<Thread> threads_;
    std::vector<Warp> warps_;
    std::vector<unsigned> shuffled_; ///< threads, in the order of their turns

    Fiber* host_ = nullptr;
    Fiber* running_ = nullptr;
    unsigned current_ = 0;        ///< the thread that runs
    std::vector<unsigned> ready_; ///< a ring of threads that can go on
    unsigned next_ = 0, ready_count_ = 0;
    bool newest_first_ = false;
    unsigned ended_ = 0, at_barrier_ = 0;
    unsigned first_at_barrier_ = 0, first_ended_ = 0;
    Place barrier_{};
    std::string failure_;
};

} // namespace emulation
