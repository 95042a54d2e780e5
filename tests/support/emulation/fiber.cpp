#include "fiber.hpp"

#include <cstdint>
#include <new>

#include <sys/mman.h>

// This file is compiled without instrumentation; its program may have some.
extern "C" {
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* at);
[[gnu::weak]] void __tsan_release(void* at);

void emulation_switch(void** save, void* load);
}

// Saves what a function must preserve, and goes on where another called this.
asm(R"(
.text
.globl emulation_switch
.type emulation_switch, @function
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulation_switch, .-emulation_switch
)");

namespace emulation {

namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t stack_bytes = 16 * page;
constexpr unsigned orders_nothing = 1; // __tsan_switch_to_fiber_no_sync

} // namespace

bool Fiber::sanitized() { return __tsan_create_fiber != nullptr; }

Fiber::Fiber() {
    if (sanitized()) sanitizer_ = __tsan_get_current_fiber();
}

Fiber::Fiber(void (*main)(), std::size_t number) {
    // The lowest page stays forbidden: who needs more stack dies there.
    void* const memory = mmap(nullptr, page + stack_bytes, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    stack_ = memory;
    auto* const begin = static_cast<std::byte*>(memory) + page;
    mprotect(begin, stack_bytes, PROT_READ | PROT_WRITE);
    auto** top = reinterpret_cast<void**>(begin + stack_bytes - 64 - number % 60 * 128);
    *--top = nullptr; // where main would return to: it does not
    *--top = reinterpret_cast<void*>(main);
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    top_ = top;
    if (sanitized()) sanitizer_ = __tsan_create_fiber(0);
}

Fiber::~Fiber() {
    if (!stack_) return;
    if (sanitized()) __tsan_destroy_fiber(sanitizer_);
    munmap(stack_, page + stack_bytes);
}

void Fiber::switch_to(Fiber& other) {
    if (sanitized()) __tsan_switch_to_fiber(other.sanitizer_, orders_nothing);
    emulation_switch(&top_, other.top_);
}

void Fiber::release(Fiber const& current, void* at) const {
    if (!sanitized()) return;
    __tsan_switch_to_fiber(sanitizer_, orders_nothing);
    __tsan_release(at);
    __tsan_switch_to_fiber(current.sanitizer_, orders_nothing);
}

void Fiber::acquire(Fiber const& current, void* at) const {
    if (!sanitized()) return;
    __tsan_switch_to_fiber(sanitizer_, orders_nothing);
    __tsan_acquire(at);
    __tsan_switch_to_fiber(current.sanitizer_, orders_nothing);
}

} // namespace emulation
