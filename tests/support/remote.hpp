#pragma once

// A device for tests only: as Deferred, with memory of its own. While the host puts work on the
// streams nobody may touch the arenas, so whatever reads or writes them without being enqueued ends
// the program. In caller_memory() the caller's arrays can be as far from the work: only copies may
// touch them while work runs.

#include "deferred.hpp"

#include <gpipe/core/bytes.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace toy {

/// Zeroed pages of the process, which can be closed to everybody and opened again.
class Pages {
  public:
    Pages() = default;
    explicit Pages(std::size_t bytes) : size_(bytes) {
        if (bytes == 0) return;
        void* const data =
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (data == MAP_FAILED) throw std::bad_alloc();
        data_ = {static_cast<std::byte*>(data), Unmap{bytes}};
    }
    std::byte* data() const { return data_.get(); }
    std::size_t size() const { return size_; }
    void close() const { protect(PROT_NONE); }
    void open() const { protect(PROT_READ | PROT_WRITE); }

  private:
    struct Unmap {
        std::size_t bytes;
        void operator()(std::byte* data) const { munmap(data, bytes); }
    };
    void protect(int how) const {
        if (data_) mprotect(data_.get(), size_, how);
    }
    std::unique_ptr<std::byte, Unmap> data_;
    std::size_t size_ = 0;
};

class Remote : public Deferred {
  public:
    using gpipe::device::SharedMemory::host_view;
    template <class F> static constexpr std::invoke_result_t<F> staged(F make) {
        return gpipe::device::OwnMemory::staged(make);
    }

    struct Options {
        std::uint64_t seed = 0; ///< as Deferred's
        /// Is increased by all that is allocated.
        std::size_t* allocated = nullptr;
        /// Closed to everything but copies while work runs.
        Pages const* caller = nullptr;
        /// Whether the arenas are closed between runs, too.
        bool closed = false;
        /// Between any two devices.
        gpipe::Link link = gpipe::Link::shared;
        /// Whether anything is closed at all: it takes far longer than what small layers compute.
        bool guards = true;
    };

    Remote(Options options, std::size_t devices)
        : Deferred({options.seed, options.allocated, options.link}, devices), options_(options) {}

    /// Shared with the device, which closes it.
    class Buffer {
      public:
        Buffer() = default;
        explicit Buffer(std::shared_ptr<Pages const> pages) : pages_(std::move(pages)) {}
        std::byte* data() const { return pages_ ? pages_->data() : nullptr; }
        std::size_t size() const { return pages_ ? pages_->size() : 0; }

      private:
        std::shared_ptr<Pages const> pages_;
    };
    Buffer allocate(std::size_t, std::size_t bytes) {
        if (options_.allocated) *options_.allocated += bytes;
        arenas_.push_back(std::make_shared<Pages const>(bytes));
        if (options_.closed) arenas_.back()->close();
        return Buffer(arenas_.back());
    }

    template <class F> void run(F&& f) {
        if (!options_.guards) return Deferred::run(f);
        for (auto const& arena : arenas_) arena->close();
        f();
        for (auto const& arena : arenas_) arena->open();
        if (options_.caller) options_.caller->close();
        drain();
        if (options_.caller) options_.caller->open();
        if (options_.closed)
            for (auto const& arena : arenas_) arena->close();
    }
    template <gpipe::DeviceWalk Walk> bool submit(gpipe::Ticket const& ticket, Walk const& walk) {
        run([&] { put(ticket, walk); });
        return true;
    }
    void feed(std::size_t i, std::byte* to, std::byte const* from, std::size_t bytes, std::byte*) {
        copy(feed_stream(i), to, from, bytes);
    }
    void copy(std::size_t stream, std::byte* to, std::byte const* from, std::size_t bytes) {
        launch(stream, [=, this] {
            if (options_.caller) options_.caller->open();
            std::memcpy(to, from, bytes);
            if (options_.caller) options_.caller->close();
        });
    }

  private:
    Options options_;
    std::vector<std::shared_ptr<Pages const>> arenas_;
};

static_assert(gpipe::DeviceRuntime<Remote>);

} // namespace toy
