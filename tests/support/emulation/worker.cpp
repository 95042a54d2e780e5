#include "worker.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <cxxabi.h>
#include <dlfcn.h>

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim{}, gridDim{};

namespace emulation {

namespace {

constinit thread_local Worker* worker = nullptr;

std::string text(uint3 at) {
    return "(" + std::to_string(at.x) + ", " + std::to_string(at.y) + ", " + std::to_string(at.z) +
           ")";
}
std::string text(Place place) { return std::string(place.file) + ":" + std::to_string(place.line); }
std::string text_of_mask(unsigned mask) {
    char digits[16];
    std::snprintf(digits, sizeof digits, "0x%08x", mask);
    return digits;
}

// Of a function that the program exports: not of one in an unnamed namespace.
std::string name_of(void const* kernel) {
    Dl_info found{};
    if (!dladdr(kernel, &found) || found.dli_saddr != kernel) return "without a name";
    int status = 0;
    std::unique_ptr<char, void (*)(void*)> const name(
        abi::__cxa_demangle(found.dli_sname, nullptr, nullptr, &status), std::free);
    return status == 0 ? name.get() : found.dli_sname;
}

bool same(Place a, Place b) { return a.line == b.line && std::strcmp(a.file, b.file) == 0; }

/// For tests that are to fail: the n-th barrier that the program comes to, counted by place, is as
/// if it had been forgotten. n is GPIPE_WITHOUT_BARRIER in the environment.
bool is_forgotten(Place place) {
    static char const* const n = std::getenv("GPIPE_WITHOUT_BARRIER");
    if (!n) return false;
    // Nothing here orders threads, or ThreadSanitizer would think that the barrier still did.
    static std::atomic<std::size_t> places[64];
    std::size_t const own = std::hash<std::string_view>{}(place.file) + std::size_t(place.line);
    for (auto at = std::begin(places); at != std::end(places); ++at)
        if (std::size_t other = 0;
            at->compare_exchange_strong(other, own, std::memory_order_relaxed) || other == own)
            return at - places == std::atoi(n);
    return false;
}

} // namespace

void barrier(Place place) { worker->barrier(place); }
Got exchange(unsigned mask, unsigned from, Gift const& gift, Place place) {
    return worker->exchange(mask, from, gift, place);
}
unsigned lane() { return worker->lane(); }

void Worker::run(cudaLaunchConfig_t const& config, void const* kernel,
                 std::function<void()> const& body, std::uint64_t seed, std::size_t first,
                 std::size_t step) {
    Fiber host;
    worker = this;
    host_ = running_ = &host;
    kernel_ = kernel;
    body_ = &body;
    blockDim = config.blockDim;
    gridDim = config.gridDim;
    count_ = blockDim.x * blockDim.y * blockDim.z;
    if (threads_.size() < count_) threads_.resize(count_);
    for (unsigned t = 0; t < count_; ++t) {
        if (!threads_[t].fiber) threads_[t].fiber = std::make_unique<Fiber>(main, t);
        threads_[t].index = {t % blockDim.x, t / blockDim.x % blockDim.y,
                             t / blockDim.x / blockDim.y};
    }
    chance_.seed(static_cast<std::uint32_t>(seed));
    shuffled_.resize(count_);
    std::iota(shuffled_.begin(), shuffled_.end(), 0u);
    std::shuffle(shuffled_.begin(), shuffled_.end(), chance_);
    ready_.resize(count_);
    std::size_t const blocks = std::size_t{gridDim.x} * gridDim.y * gridDim.z;
    for (std::size_t b = first; b < blocks && failure_.empty(); b += step) {
        blockIdx = {static_cast<unsigned>(b % gridDim.x),
                    static_cast<unsigned>(b / gridDim.x % gridDim.y),
                    static_cast<unsigned>(b / gridDim.x / gridDim.y)};
        run_block();
    }
    if (failure_.empty()) return;
    threads_.clear(); // they stand in the middle of their kernel
    throw std::runtime_error(std::exchange(failure_, {}));
}

void Worker::run_block() {
    ended_ = at_barrier_ = next_ = ready_count_ = 0;
    newest_first_ = chance_() / 8 % 2; // warps run ahead of others, or side by side
    warps_.assign((count_ + lanes - 1) / lanes, {});
    if (count_ % lanes != 0) warps_.back().absent = ~0u << count_ % lanes;
    if (Fiber::sanitized()) {
        host_->release(*host_, this);
        for (unsigned t = 0; t < count_; ++t) threads_[t].fiber->acquire(*host_, this);
    }
    make_others_ready(nobody);
    go_on();
    if (failure_.empty() && ended_ < count_) fail_deadlock();
    if (!Fiber::sanitized()) return;
    for (unsigned t = 0; t < count_; ++t) threads_[t].fiber->release(*host_, this);
    host_->acquire(*host_, this);
}

void Worker::main() {
    for (;;) {
        (*worker->body_)();
        worker->end_thread();
    }
}

void Worker::make_ready(unsigned thread) {
    unsigned const at = next_ + ready_count_++;
    ready_[at < count_ ? at : at - count_] = thread;
}

// All of the block but one; each time another begins.
void Worker::make_others_ready(unsigned running) {
    auto const first = static_cast<unsigned>(chance_() % count_);
    for (unsigned i = first; i < first + count_; ++i)
        if (unsigned const t = shuffled_[i < count_ ? i : i - count_]; t != running) make_ready(t);
}

// With the next thread that can; the host, where none can.
void Worker::go_on() {
    Fiber& from = *running_;
    if (ready_count_ == 0) {
        running_ = host_;
    } else {
        --ready_count_;
        unsigned const at = newest_first_ ? next_ + ready_count_ : next_;
        current_ = ready_[at < count_ ? at : at - count_];
        if (!newest_first_) next_ = next_ + 1 < count_ ? next_ + 1 : 0;
        threadIdx = threads_[current_].index;
        running_ = threads_[current_].fiber.get();
    }
    from.switch_to(*running_);
}

// What `group` did comes before what it will do. What else has met at this address, whose thread is
// among the group, did so before.
template <class Group> void Worker::order(Group const& group, void* at) {
    if (!Fiber::sanitized()) return;
    group([&](unsigned t) { threads_[t].fiber->release(*running_, at); });
    group([&](unsigned t) { threads_[t].fiber->acquire(*running_, at); });
}

void Worker::barrier(Place place) {
    if (is_forgotten(place)) return;
    if (ended_ > 0)
        fail("is at the barrier " + text(place) + ", which " + who(first_ended_) +
             " has not come to: it has ended");
    if (at_barrier_ == 0) {
        barrier_ = place;
        first_at_barrier_ = current_;
    } else if (!same(barrier_, place)) {
        fail("is at the barrier " + text(place) + ", " + who(first_at_barrier_) + " at another, " +
             text(barrier_));
    }
    if (++at_barrier_ < count_) return go_on();
    at_barrier_ = 0;
    order(
        [&](auto each) {
            for (unsigned t = 0; t < count_; ++t) each(t);
        },
        &threads_[0]);
    make_others_ready(current_);
}

Got Worker::exchange(unsigned mask, unsigned from, Gift const& gift, Place place) {
    unsigned const own = lane(), first = current_ - own;
    Warp& warp = warps_[current_ / lanes];
    Thread& thread = threads_[current_];
    auto const wrong = [&](std::string const& what) {
        fail("exchanges at " + text(place) + " with mask " + text_of_mask(mask) + what);
    };
    if (!(mask >> own & 1)) wrong(", which leaves it out");
    if (from >= lanes || !(mask >> from & 1))
        wrong(", and reads lane " + std::to_string(from) + ", which that leaves out");
    if (mask & warp.absent)
        wrong(", but lane " + std::to_string(std::countr_zero(mask & warp.absent)) +
              " has ended, or is not in the block");
    thread.place = place;
    thread.mask = mask;
    thread.from = from;
    thread.gift = gift;
    warp.arrived |= 1u << own;
    if ((warp.arrived & mask) != mask) {
        go_on();
        return {threads_[first + own].taken.bytes, threads_[first + own].votes};
    }
    warp.arrived &= ~mask;
    auto const group = [&](auto each) {
        for (unsigned left = mask; left != 0; left &= left - 1)
            each(first + static_cast<unsigned>(std::countr_zero(left)));
    };
    unsigned votes = 0;
    group([&](unsigned t) {
        Thread const& other = threads_[t];
        if (other.mask != mask || !same(other.place, place))
            wrong(", " + who(t) + " at " + text(other.place) + " with mask " +
                  text_of_mask(other.mask));
        votes |= unsigned{other.gift.vote} << t % lanes;
    });
    group([&](unsigned t) {
        threads_[t].taken = threads_[first + threads_[t].from].gift;
        threads_[t].votes = votes;
        if (t != current_) make_ready(t);
    });
    order(group, &threads_[first + static_cast<unsigned>(std::countr_zero(mask))]);
    return {thread.taken.bytes, votes};
}

void Worker::end_thread() {
    if (at_barrier_ > 0)
        fail("has ended, and " + who(first_at_barrier_) + " waits for it at the barrier " +
             text(barrier_));
    Warp& warp = warps_[current_ / lanes];
    unsigned const own = lane(), first = current_ - own;
    for (unsigned left = warp.arrived; left != 0; left &= left - 1)
        if (unsigned const t = first + static_cast<unsigned>(std::countr_zero(left));
            threads_[t].mask >> own & 1)
            fail("has ended, and " + who(t) + " waits for it at " + text(threads_[t].place));
    warp.absent |= 1u << own;
    if (ended_++ == 0) first_ended_ = current_;
    go_on();
}

std::string Worker::who(unsigned thread) const { return "thread " + text(threads_[thread].index); }

// Ends the launch from one of its threads.
void Worker::fail(std::string const& what) {
    failure_ = "kernel " + name_of(kernel_) + ", block " + text(blockIdx) + ", " + who(current_) +
               ": " + what;
    running_->switch_to(*host_);
    std::abort(); // nobody goes on with it
}

// Each thread that has not ended waits for one that does not come.
void Worker::fail_deadlock() {
    failure_ = "kernel " + name_of(kernel_) + ", block " + text(blockIdx) + ", deadlock:";
    if (at_barrier_ > 0)
        failure_ += " " + who(first_at_barrier_) + " at the barrier " + text(barrier_);
    for (unsigned w = 0; w < warps_.size(); ++w)
        for (unsigned left = warps_[w].arrived; left != 0; left &= left - 1) {
            unsigned const t = w * lanes + static_cast<unsigned>(std::countr_zero(left));
            failure_ += (failure_.back() == ':' ? " " : ", ") + who(t) + " at " +
                        text(threads_[t].place) + " with mask " + text_of_mask(threads_[t].mask);
            break; // one of each warp will do
        }
}

} // namespace emulation
