#pragma once

#include <gpipe/core/array.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/runtime/agreement.hpp>
#include <gpipe/runtime/joined.hpp>
#include <gpipe/transport/mpi_session.hpp>
#include <gpipe/transport/mpi_ways.hpp>
#include <gpipe/transport/mpi_window.hpp>
#include <gpipe/transport/transport.hpp>
#include <gpipe/transport/watch.hpp>
#include <gpipe/transport/watched_ranks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpipe {

/// The processes of an MPI program as ranks, for transport::Mpi: one object in each, made and
/// destroyed by all, in one order where there are several. It starts MPI unless the program has,
/// with MPI_THREAD_SERIALIZED at the least, and ends it with the last of them if it did.
///
/// Within a host messages go through a shared window (MPI-3.1, 11.2.3), elsewhere as such, from and
/// to buffers of its own: so receives are posted before anybody sends, and who sends goes on at
/// once as long as less than Options::ahead messages of a channel are on their way. Longer ones go
/// in pieces (MpiWay), so that the one copies out while the other still copies in. Nothing blocks
/// in MPI once it is made: whoever waits looks again and again, soon asleep between two looks, and
/// gives up where a rank has left, or nothing has come for Options::deadline.
class MpiRanks : public WatchedRanks {
  public:
    /// What may be chosen, by all ranks alike.
    struct Options {
        MPI_Comm communicator = MPI_COMM_WORLD; ///< a duplicate of it is used
        double deadline = 300; ///< seconds that a rank is waited for, or may be silent
        std::string address{}; ///< where others reach this host, see Watch; not alike
        std::size_t ahead = 4; ///< messages of a channel that have been sent and not received
        bool shares = true;    ///< whether processes of one host share memory
    };

    /// All ranks make theirs at once, see Watch. Throws std::runtime_error if MPI has ended, or was
    /// started for fewer threads, or if a rank is late; std::invalid_argument for a deadline that
    /// is not positive, `ahead` of 0, above 65,536 or, as `shares`, not the same on all, and for
    /// too many ranks.
    MpiRanks() : MpiRanks(Options{}) {}
    /// The same, with what was chosen.
    explicit MpiRanks(Options const& options) : MpiRanks(options, nullptr) {
        detail::compare(*this, 2 * std::uint64_t{options.ahead} + options.shares,
                        "gpipe: rank %zu has other MpiRanks::Options (ahead, shares) than rank 0");
    }
    MpiRanks(MpiRanks const&) = delete;
    MpiRanks& operator=(MpiRanks const&) = delete;
    /// Waits for the others to do so, too, however long what they have to do before takes. Where
    /// one of them is lost MPI is left as it is, for to end it would wait for that one: the program
    /// has to end with a status that is not 0, so that all are ended.
    ~MpiRanks() {
        for (detail::MpiWay& way : own_->ways)
            for (MPI_Request& request : way.requests)
                if (!way.receives) wait(way.peer, [&] { return is_done(way.peer, request); });
        watch_->leave(!watch_->lost());
        bool const good = wait(Watch::nobody, [&] { return watch_->all_left(); }) && watch_->good();
        std::lock_guard const lock(calls);
        if (!good) {
            static_cast<void>(own_.release()); // to MPI, which may still write there
            return;
        }
        for (detail::MpiWay& way : own_->ways)
            for (MPI_Request& request : way.requests)
                if (request != MPI_REQUEST_NULL && way.receives) {
                    MPI_Cancel(&request);
                    MPI_Wait(&request, MPI_STATUS_IGNORE);
                }
        window_.close();
        MPI_Comm_free(&all_);
        session_.end();
    }

    /// As RankTransport says.
    ///@{
    Array<std::uint64_t> gather(std::uint64_t number) {
        Array<std::uint64_t> result(ranks());
        own_->number = number;
        together([&](MPI_Request* request) {
            return MPI_Iallgather(&own_->number, 1, MPI_UINT64_T, own_->numbers.data(), 1,
                                  MPI_UINT64_T, all_, request);
        });
        std::copy(own_->numbers.begin(), own_->numbers.end(), result.begin());
        return result;
    }
    void open(Array<Channel> const& channels) {
        if (!own_->ways.empty())
            throw std::logic_error(
                "gpipe: an MpiRanks joins the devices of one Training, be it a refused one");
        void* limit = nullptr;
        int is_set = 0;
        {
            std::lock_guard const lock(calls);
            MPI_Comm_get_attr(all_, MPI_TAG_UB, &limit, &is_set);
        }
        if (is_set && channels.size() > at(*static_cast<int*>(limit)))
            detail::throw_error<std::length_error>(
                "gpipe: %zu channels between ranks are more than MPI has tags", channels.size());
        own_->ways = std::vector<detail::MpiWay>(channels.size());
        for (std::size_t c = 0; c < channels.size(); ++c)
            if (channels[c].from == rank() || channels[c].to == rank())
                own_->ways[c] = {channels[c], rank(), options_.ahead};
        if (options_.shares)
            together([&](MPI_Request* request) {
                Watch::Section const blocks(*watch_);
                int const code = window_.open(all_, channels, options_.ahead, own_->ways);
                return code == MPI_SUCCESS ? MPI_Ibarrier(all_, request) : code;
            });
        for (std::size_t c = 0; c < channels.size(); ++c) {
            detail::MpiWay& way = own_->ways[c];
            if (way.count() == 0 || way.counters) continue; // another's, or in the window
            way.own_memory();
            for (std::size_t n = 0; way.receives && n < way.count(); ++n) post(c, n);
        }
    }
    void send(std::size_t channel, std::byte const* from, std::size_t bytes,
              std::uint32_t word) noexcept {
        detail::MpiWay& way = own_->ways[channel];
        way.write(
            from, bytes, word,
            [&] {
                return wait_for_buffer(way, &detail::MpiCounters::received, [&](auto received) {
                    return way.next - received < way.count();
                });
            },
            [&](int size) {
                if (way.counters) return way.counters->sent.set(way.next + 1);
                std::lock_guard const lock(calls);
                std::size_t const turn = way.turn();
                check(way.peer, MPI_Isend(way.buffer(turn), size, MPI_BYTE, way.peer,
                                          tag_of(channel), all_, &way.requests[turn]));
            });
    }
    std::uint32_t receive(std::size_t channel, std::byte* to, std::size_t bytes) noexcept {
        detail::MpiWay& way = own_->ways[channel];
        std::uint32_t word = 0;
        bool const good = way.read(
            to, bytes, word,
            [&] {
                return wait_for_buffer(way, &detail::MpiCounters::sent,
                                       [&](auto sent) { return sent > way.next; });
            },
            [&] {
                if (way.counters) return way.counters->received.set(way.next + 1);
                std::lock_guard const lock(calls);
                post(channel, way.turn());
            });
        if (!good) watch_->lose(way.peer, "has sent a message of other bytes than are received");
        return word;
    }
    ///@}

    /// Of the buffers that messages go through, beside the plan of the Training that it joins: its
    /// own, and of those that two ranks share the sender's.
    std::size_t used_bytes() const {
        std::size_t bytes = 0;
        for (detail::MpiWay const& way : own_->ways)
            if (!way.counters || !way.receives) bytes += way.count() * way.piece();
        return bytes;
    }

  private:
    MpiRanks(Options const& options, std::nullptr_t)
        : WatchedRanks(options.deadline), options_(checked(options)) {
        try { // all but what is to be destroyed in good order if it throws
            join(options);
        } catch (...) {
            if (!watch_ || !watch_->anybody_lost()) session_.give_up();
            throw;
        }
    }
    // All that MPI may read and write: it outlives this where a rank was lost.
    struct Buffers {
        std::vector<detail::MpiWay> ways;   // by channel
        std::uint64_t number = 0;           // that gather() was given
        std::vector<std::uint64_t> numbers; // and what it has got, by rank
    };
    static int tag_of(std::size_t channel) { return static_cast<int>(channel); }

    static Options const& checked(Options const& options) {
        if (options.communicator == MPI_COMM_NULL)
            throw std::invalid_argument("gpipe: MpiRanks::Options::communicator is MPI_COMM_NULL: "
                                        "this process is none of its ranks");
        if (!(options.deadline > 0) || options.ahead - 1 >= 65'536) // so that no bytes wrap
            throw std::invalid_argument("gpipe: MpiRanks::Options asks for a deadline, and for "
                                        "messages ahead, of more than 0, and at most 65,536");
        return options;
    }
    void join(Options const& options) {
        int self = 0, count = 1;
        {
            std::lock_guard const lock(calls);
            MPI_Comm_rank(options.communicator, &self);
            MPI_Comm_size(options.communicator, &count);
        }
        own_ = std::make_unique<Buffers>();
        own_->numbers = std::vector<std::uint64_t>(at(count));
        // It stands before there is any communicator of ours: so to make them has a deadline, too.
        begin(at(self), at(count), options.address, [&](detail::WatchMesh::Card const& card) {
            return detail::mpi_exchange(options.communicator, card, options.deadline);
        });
        together([&](MPI_Request* request) {
            return MPI_Comm_idup(options.communicator, &all_, request);
        });
        std::lock_guard const lock(calls);
        MPI_Comm_set_errhandler(all_, MPI_ERRORS_RETURN);
    }
    template <class T> static std::size_t at(T number) { return static_cast<std::size_t>(number); }
    // So that a piece that may come is received there.
    void post(std::size_t channel, std::size_t n) {
        detail::MpiWay& way = own_->ways[channel];
        check(way.peer, MPI_Irecv(way.buffer(n), static_cast<int>(way.piece()), MPI_BYTE, way.peer,
                                  tag_of(channel), all_, &way.requests[n]));
    }
    bool is_done(int peer, MPI_Request& request) noexcept {
        if (request == MPI_REQUEST_NULL) return true;
        std::lock_guard const lock(calls);
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
        std::string const text = std::string("is out of reach: ") + words;
        peer < 0 ? give_up(text.c_str()) : watch_->lose(peer, text.c_str());
    }
    // What all ranks do at once.
    template <class Start> void together(Start start) {
        MPI_Request request = MPI_REQUEST_NULL;
        {
            std::lock_guard const lock(calls);
            check(Watch::everybody, start(&request));
        }
        wait(Watch::everybody, [&] { return is_done(Watch::everybody, request); });
        if (watch_->anybody_lost()) std::rethrow_exception(watch_->error());
    }

    // Until this end has the buffer of the next piece; where both see it: until ready(count).
    template <class Ready>
    bool wait_for_buffer(detail::MpiWay& way, detail::SharedCounter detail::MpiCounters::*count,
                         Ready ready) noexcept {
        if (way.counters)
            return ready(way.known) || wait_counted(way.counters->*count, way.peer, [&](auto now) {
                       return ready(way.known = now);
                   });
        return wait(way.peer, [&] { return is_done(way.peer, way.requests[way.turn()]); });
    }

    static constexpr auto& calls = detail::MpiSession::calls;

    Options options_;
    detail::MpiSession session_;
    MPI_Comm all_ = MPI_COMM_NULL;
    detail::MpiWindow window_;
    std::unique_ptr<Buffers> own_;
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
