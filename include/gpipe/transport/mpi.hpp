#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/bytes.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/runtime/joined.hpp>
#include <gpipe/transport/transport.hpp>

// The C interface is all that is used: not the obsolete C++ one, nor its library.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace gpipe {

/// The processes of an MPI program as ranks, for transport::Mpi: one object in each, made and
/// destroyed by all, in one order where there are several. It starts MPI unless the program has,
/// with MPI_THREAD_SERIALIZED at the least, and ends it with the last of them if it did.
///
/// Within a host messages go through a shared window (MPI-3.1, 11.2.3), elsewhere as such, from and
/// to buffers of its own: so receives are posted before anybody sends, and who sends goes on at
/// once as long as less than Options::ahead messages of a channel are on their way. Nothing blocks
/// in MPI once it is made: whoever waits looks again and again, soon asleep between two looks, and
/// gives up where a rank has left, or nothing has come for Options::deadline.
class MpiRanks {
  public:
    /// What may be chosen, by all ranks alike.
    struct Options {
        MPI_Comm communicator = MPI_COMM_WORLD; ///< a duplicate of it is used
        double deadline =
            300; ///< seconds that a message is waited for, before its rank is given up
        std::size_t ahead = 4; ///< messages of a channel that have been sent and not received
        bool shares = true;    ///< whether processes of one host share memory
    };

    /// Throws std::runtime_error if MPI has ended, or was started for fewer threads; and
    /// std::invalid_argument for a deadline that is not positive, or no message ahead.
    MpiRanks() : MpiRanks(Options{}) {}
    /// The same, with what was chosen.
    explicit MpiRanks(Options const& options)
        : options_(options), own_(std::make_unique<Buffers>()) {
        if (!(options.deadline > 0) || options.ahead == 0)
            throw std::invalid_argument("gpipe: MpiRanks::Options asks for a deadline, and for "
                                        "messages ahead, of more than 0");
        begin();
        MPI_Comm_dup(options.communicator, &all_);
        MPI_Comm_rank(all_, &self_);
        MPI_Comm_size(all_, &count_);
        MPI_Comm_set_errhandler(all_, MPI_ERRORS_RETURN);
        own_->leaving = std::vector<MPI_Request>(ranks(), MPI_REQUEST_NULL);
        own_->farewells = std::vector<Farewell>(ranks(), Farewell::unsaid);
        own_->numbers = std::vector<std::uint64_t>(ranks());
        for (int r = 0; r < count_; ++r)
            if (r != self_)
                MPI_Irecv(&own_->farewells[at(r)], 1, MPI_BYTE, r, leaves, all_,
                          &own_->leaving[at(r)]);
    }
    MpiRanks(MpiRanks const&) = delete;
    MpiRanks& operator=(MpiRanks const&) = delete;
    /// Waits for the others to do so, too. Where one of them was lost MPI is left as it is, for to
    /// end it would wait for that one: the program has to end with a status that is not 0, so that
    /// all are ended.
    ~MpiRanks() {
        for (Way& way : own_->ways)
            for (MPI_Request& request : way.requests)
                if (!way.receives) wait(way.peer, [&] { return is_done(way.peer, request); });
        Farewell& own = own_->farewell;
        own = lost_.load() ? Farewell::after_loss : Farewell::good;
        std::vector<MPI_Request> told(ranks(), MPI_REQUEST_NULL);
        {
            std::lock_guard const lock(mutex_);
            for (int r = 0; r < count_; ++r)
                if (r != self_) MPI_Isend(&own, 1, MPI_BYTE, r, leaves, all_, &told[at(r)]);
        }
        bool good = own == Farewell::good;
        for (int r = 0; r < count_; ++r)
            good = good && (r == self_ ||
                            wait(nobody, [&] { return is_done(r, told[at(r)]) && has_left(r); }));
        for (Farewell const farewell : own_->farewells)
            good = good && farewell != Farewell::after_loss;
        std::lock_guard const lock(mutex_);
        for (Way& way : own_->ways)
            for (MPI_Request& request : way.requests)
                if (request != MPI_REQUEST_NULL && way.receives) {
                    MPI_Cancel(&request);
                    MPI_Request_free(&request);
                }
        if (!good) {
            static std::vector<std::unique_ptr<Buffers>> kept;
            kept.push_back(std::move(own_));
            return;
        }
        if (window_ != MPI_WIN_NULL) MPI_Win_free(&window_);
        if (host_ != MPI_COMM_NULL) MPI_Comm_free(&host_);
        MPI_Comm_free(&all_);
        if (--objects() == 0 && starts_mpi()) MPI_Finalize();
    }

    /// As RankTransport says.
    ///@{
    std::size_t rank() const { return at(self_); }
    std::size_t ranks() const { return at(count_); }
    Array<std::uint64_t> gather(std::uint64_t number) {
        own_->number = number;
        MPI_Request request;
        {
            std::lock_guard const lock(mutex_);
            check(everybody, MPI_Iallgather(&own_->number, 1, MPI_UINT64_T, own_->numbers.data(), 1,
                                            MPI_UINT64_T, all_, &request));
        }
        finish(request);
        Array<std::uint64_t> result(ranks());
        std::copy(own_->numbers.begin(), own_->numbers.end(), result.begin());
        return result;
    }
    void open(Array<Channel> const& channels) {
        if (!own_->ways.empty())
            throw std::logic_error("gpipe: an MpiRanks joins the devices of one Training");
        own_->ways = std::vector<Way>(channels.size());
        void* limit = nullptr;
        int is_set = 0;
        MPI_Comm_get_attr(all_, MPI_TAG_UB, &limit, &is_set);
        if (is_set && channels.size() > at(*static_cast<int*>(limit)))
            detail::throw_error<std::length_error>(
                "gpipe: %zu channels between ranks are more than MPI has tags", channels.size());
        share(channels);
        for (std::size_t c = 0; c < channels.size(); ++c) {
            Way& way = own_->ways[c];
            Channel const& channel = channels[c];
            if (!joins(channel) || way.counters) continue;
            if (slot_of(channel) > at(std::numeric_limits<int>::max()))
                detail::throw_error<std::invalid_argument>(
                    "gpipe: a message from rank %u to rank %u has %zu bytes, and MPI sends no more "
                    "than %d at a time",
                    channel.from, channel.to, slot_of(channel), std::numeric_limits<int>::max());
            way.slot = slot_of(channel);
            way.memory = std::vector<std::byte>(options_.ahead * way.slot);
            way.slots = way.memory.data();
            way.requests = std::vector<MPI_Request>(options_.ahead, MPI_REQUEST_NULL);
            way.receives = channel.to == rank();
            way.peer = static_cast<int>(way.receives ? channel.from : channel.to);
            for (std::size_t n = 0; way.receives && n < options_.ahead; ++n) post(c, n);
        }
    }
    void send(std::size_t channel, std::byte const* from, std::size_t bytes,
              std::uint32_t word) noexcept {
        Way& way = own_->ways[channel];
        std::size_t const n = way.next % options_.ahead;
        std::byte* const slot = way.slots + n * way.slot;
        auto const put = [&] {
            Head const head{bytes, word};
            std::memcpy(slot, &head, sizeof head);
            if (bytes > 0) std::memcpy(slot + header, from, bytes);
        };
        if (way.counters) {
            Counters& counters = *way.counters;
            if (!wait(way.peer, [&] {
                    return way.next - counters.received.load(std::memory_order_acquire) <
                           options_.ahead;
                }))
                return;
            put();
            counters.sent.store(++way.next, std::memory_order_release);
            return;
        }
        if (!wait(way.peer, [&] { return is_done(way.peer, way.requests[n]); })) return;
        put();
        std::lock_guard const lock(mutex_);
        check(way.peer, MPI_Isend(slot, static_cast<int>(header + bytes), MPI_BYTE, way.peer,
                                  static_cast<int>(channel) + 1, all_, &way.requests[n]));
        ++way.next;
    }
    std::uint32_t receive(std::size_t channel, std::byte* to, std::size_t bytes) noexcept {
        Way& way = own_->ways[channel];
        std::size_t const n = way.next % options_.ahead;
        std::byte const* const slot = way.slots + n * way.slot;
        Head head{};
        auto const take = [&] {
            std::memcpy(&head, slot, sizeof head);
            if (head.bytes != bytes)
                return lose(way.peer, "has sent a message of other bytes than are received");
            if (bytes > 0) std::memcpy(to, slot + header, bytes);
            ++way.next;
        };
        if (way.counters) {
            Counters& counters = *way.counters;
            if (!wait(way.peer,
                      [&] { return counters.sent.load(std::memory_order_acquire) > way.next; }))
                return 0;
            take();
            counters.received.store(way.next, std::memory_order_release);
            return head.word;
        }
        if (!wait(way.peer, [&] { return is_done(way.peer, way.requests[n]); })) return 0;
        take();
        std::lock_guard const lock(mutex_);
        post(channel, n);
        return head.word;
    }
    std::exception_ptr error() const {
        if (!lost_.load(std::memory_order_acquire)) return nullptr;
        std::lock_guard const lock(mutex_);
        return error_;
    }
    ///@}

  private:
    // In the memory of who receives, seen by who sends.
    struct Counters {
        alignas(64) std::atomic<std::uint64_t> sent{0};
        alignas(64) std::atomic<std::uint64_t> received{0};
    };
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
    // In front of a message.
    struct Head {
        std::uint64_t bytes;
        std::uint32_t word;
    };
    // One end of a channel.
    struct Way {
        int peer = 0;
        bool receives = false;
        std::uint64_t next = 0;        // message
        std::size_t slot = 0;          // bytes of one: a Head, then the message
        std::byte* slots = nullptr;    // [ahead]
        Counters* counters = nullptr;  // of a shared window
        std::vector<std::byte> memory; // elsewhere
        std::vector<MPI_Request> requests;
    };
    // What who leaves says.
    enum class Farewell : unsigned char { unsaid, good, after_loss };
    // All that MPI may read and write: it outlives this where a rank was lost.
    struct Buffers {
        std::vector<Way> ways;                // by channel
        std::vector<MPI_Request> leaving;     // by rank
        std::vector<Farewell> farewells;      // likewise: what came with that
        Farewell farewell = Farewell::unsaid; // its own
        std::uint64_t number = 0;             // that gather() was given
        std::vector<std::uint64_t> numbers;   // and what it has got, by rank
    };
    static constexpr std::size_t header = slot_alignment; // so that tensors are aligned
    static constexpr int leaves = 0;                      // tags: that; channel c has c + 1

    template <class Integer> static std::size_t at(Integer number) {
        return static_cast<std::size_t>(number);
    }
    // How many there are in this process, and whether the first of them has started MPI.
    static int& objects() {
        static int count = 0;
        return count;
    }
    static bool& starts_mpi() {
        static bool starts = false;
        return starts;
    }
    static void begin() {
        std::lock_guard const lock(mutex_);
        int begun = 0, ended = 0, threads = 0;
        MPI_Initialized(&begun);
        MPI_Finalized(&ended);
        if (ended) throw std::runtime_error("gpipe: MPI has ended, and cannot be started again");
        if (!begun) {
            MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &threads);
            starts_mpi() = true;
        }
        MPI_Query_thread(&threads);
        if (threads < MPI_THREAD_SERIALIZED)
            throw std::runtime_error("gpipe: MPI was started for fewer threads than "
                                     "MPI_THREAD_SERIALIZED");
        ++objects();
    }

    bool joins(Channel const& channel) const {
        return channel.from == rank() || channel.to == rank();
    }
    static std::size_t slot_of(Channel const& channel) {
        return header + slot_bytes(channel.bytes);
    }
    // Where ranks of this host have windows: each has room for what it receives from the others.
    void share(Array<Channel> const& channels) {
        if (!options_.shares) return;
        MPI_Comm_split_type(all_, MPI_COMM_TYPE_SHARED, self_, MPI_INFO_NULL, &host_);
        MPI_Group those, here;
        MPI_Comm_group(all_, &those);
        MPI_Comm_group(host_, &here);
        std::vector<int> global(ranks()), local(ranks());
        for (int r = 0; r < count_; ++r) global[at(r)] = r;
        MPI_Group_translate_ranks(those, count_, global.data(), here, local.data());
        MPI_Group_free(&those);
        MPI_Group_free(&here);
        std::vector<std::size_t> bytes(ranks()); // by rank: of its window so far
        std::vector<std::size_t> begin(channels.size());
        auto const is_here = [&](Channel const& channel) {
            return local[channel.from] != MPI_UNDEFINED && local[channel.to] != MPI_UNDEFINED;
        };
        for (std::size_t c = 0; c < channels.size(); ++c) {
            if (!is_here(channels[c])) continue;
            begin[c] = bytes[channels[c].to];
            bytes[channels[c].to] +=
                slot_bytes(sizeof(Counters)) + options_.ahead * slot_of(channels[c]);
        }
        void* own = nullptr;
        MPI_Info info;
        MPI_Info_create(&info);
        MPI_Info_set(info, "alloc_shared_noncontig", "true"); // each near to who has it
        MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes[rank()]), 1, info, host_, &own,
                                &window_);
        MPI_Info_free(&info);
        for (std::size_t c = 0; c < channels.size(); ++c) {
            if (!is_here(channels[c]) || !joins(channels[c])) continue;
            Way& way = own_->ways[c];
            way.receives = channels[c].to == rank();
            way.peer = static_cast<int>(way.receives ? channels[c].from : channels[c].to);
            MPI_Aint size = 0;
            int unit = 0;
            void* base = nullptr;
            MPI_Win_shared_query(window_, local[channels[c].to], &size, &unit, &base);
            std::byte* const at = static_cast<std::byte*>(base) + begin[c];
            way.counters =
                way.receives ? new (at) Counters : std::launder(reinterpret_cast<Counters*>(at));
            way.slots = at + slot_bytes(sizeof(Counters));
            way.slot = slot_of(channels[c]);
        }
        MPI_Request request; // nobody sends before counters are there
        MPI_Ibarrier(all_, &request);
        finish(request);
    }
    // So that a message that may come is received there.
    void post(std::size_t channel, std::size_t n) {
        Way& way = own_->ways[channel];
        check(way.peer, MPI_Irecv(way.slots + n * way.slot, static_cast<int>(way.slot), MPI_BYTE,
                                  way.peer, static_cast<int>(channel) + 1, all_, &way.requests[n]));
    }
    bool is_done(int peer, MPI_Request& request) noexcept {
        std::lock_guard const lock(mutex_);
        int done = 0;
        check(peer, MPI_Test(&request, &done, MPI_STATUS_IGNORE));
        return done != 0;
    }
    // What MPI has returned.
    void check(int peer, int code) noexcept {
        if (code == MPI_SUCCESS) return;
        char words[MPI_MAX_ERROR_STRING + 1] = {};
        int length = 0;
        MPI_Error_string(code, words, &length);
        lose(peer, words);
    }
    // Of all ranks.
    void finish(MPI_Request request) {
        if (!wait(everybody, [&] { return is_done(everybody, request); }))
            std::rethrow_exception(error());
    }

    // Until that is so; returns false where a rank is lost first. `peer`: who is waited for.
    static constexpr int everybody = -1, nobody = -2;
    template <class Ready> bool wait(int peer, Ready ready) noexcept {
        using Clock = std::chrono::steady_clock;
        using Seconds = std::chrono::duration<double>;
        for (int n = 0; n < 100; ++n)
            if (ready()) return true;
        // About as long as it takes to fall asleep and wake up.
        auto since = Clock::now();
        while (Clock::now() - since < std::chrono::microseconds(60)) {
            if (ready()) return true;
            if (lost_.load(std::memory_order_relaxed)) return false;
            std::this_thread::yield(); // to a rank on the same core
        }
        double patience = options_.deadline;
        static constexpr char const left[] = "has left";
        char const* why = "has sent nothing for so long as MpiRanks::Options::deadline";
        while (!ready()) {
            if (lost_.load(std::memory_order_relaxed)) return false;
            std::this_thread::sleep_for(std::chrono::microseconds(20));
            for (int r = 0; r < count_ && peer != nobody && why != left; ++r)
                if (r != self_ && (r == peer || peer == everybody) && has_left(r)) {
                    // What it sent before may be on its way yet.
                    since = Clock::now();
                    patience = std::min(patience, 1.0);
                    peer = r;
                    why = left;
                }
            if (Seconds(Clock::now() - since).count() > patience) lose(peer, why);
        }
        return true;
    }
    bool has_left(int peer) noexcept {
        std::lock_guard const lock(mutex_);
        MPI_Request& request = own_->leaving[at(peer)];
        if (request != MPI_REQUEST_NULL) is_done(peer, request);
        return request == MPI_REQUEST_NULL;
    }
    void lose(int peer, char const* why) noexcept {
        std::lock_guard const lock(mutex_);
        if (lost_.load()) return;
        try {
            std::string const who =
                peer < 0 ? std::string("a rank ") : "rank " + std::to_string(peer) + " ";
            error_ = std::make_exception_ptr(std::runtime_error("gpipe: " + who + why));
        } catch (...) {
            error_ = std::current_exception();
        }
        lost_.store(true, std::memory_order_release);
    }

    Options options_;
    MPI_Comm all_ = MPI_COMM_NULL;
    MPI_Comm host_ = MPI_COMM_NULL;
    MPI_Win window_ = MPI_WIN_NULL;
    int self_ = 0, count_ = 1;
    std::unique_ptr<Buffers> own_;
    // Of calls of MPI in this process, and of error_.
    inline static std::recursive_mutex mutex_;
    std::atomic<bool> lost_{false};
    std::exception_ptr error_;
};

namespace transport {

/// Each rank of an MPI program has some of the devices, see Joined; Options::device names its
/// MpiRanks: `{.samples = 64, .device = {.transport = &ranks}}`.
struct Mpi {
    using policy_kind = policy::Transport;
    template <class Device> using Of = Joined<Device, MpiRanks>; ///< the devices that a machine has
};

} // namespace transport
} // namespace gpipe
