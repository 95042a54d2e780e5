#pragma once

#include <gpipe/core/clock.hpp>
#include <gpipe/core/error.hpp>
#include <gpipe/transport/descriptor.hpp>
#include <gpipe/transport/rendezvous_file.hpp>
#include <gpipe/transport/rendezvous_guest.hpp>
#include <gpipe/transport/rendezvous_host.hpp>
#include <gpipe/transport/rendezvous_key.hpp>
#include <gpipe/transport/rendezvous_messages.hpp>
#include <gpipe/transport/rendezvous_options.hpp>
#include <gpipe/transport/rendezvous_star.hpp>
#include <gpipe/transport/socket_address.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/socket.h>

namespace gpipe {

/// Processes that were started without MPI find each other: rank 0 listens at an address that all
/// are told, the others come there, and all exchange what they need to be connected in other ways.
/// Where the address is not the loopback they need a token, in the environment or in a file of mode
/// 600, and both ends prove that they have it (HMAC-SHA-256 of random numbers of both, and of who
/// comes and for which job). Strangers are dropped, however many come; whoever has the token and is
/// there by mistake ends it for all with a sentence. The token is neither sent nor kept.
///
/// Or rank 0 tells them by a file in a folder of all, which nobody but their user can read, where
/// it listens, with a token for this once: then there is nothing to choose but the file.
///
/// What is exchanged is not encrypted, nor is it sealed: whoever can read or change what others
/// send on that network is not kept out here, as little as by MPI and NCCL.
class Rendezvous {
  public:
    using Options = RendezvousOptions; ///< what may be chosen

    /// All ranks make theirs, and each waits for the others. Throws std::invalid_argument for what
    /// is wrong with the options or the environment; std::runtime_error for a token that is
    /// missing, for a file that others can read, where the system refuses, and where within the
    /// deadline not all have come, or one that is not meant.
    Rendezvous() : Rendezvous(Options{}) {}
    /// The same, with what was chosen.
    explicit Rendezvous(Options const& options) : options_(detail::resolved(options)) {
        if (ranks() == 1) return;
        double const end = detail::seconds_now() + options_.deadline;
        if (rank() == 0)
            options_.file.empty() ? host(end) : host_by_file(end);
        else
            options_.file.empty() ? join(end) : join_by_file(end);
        star_.exchange(nullptr, 0, nullptr); // all have come
    }
    Rendezvous(Rendezvous const&) = delete;
    Rendezvous& operator=(Rendezvous const&) = delete;

    /// Which one this is, and of how many.
    ///@{
    std::size_t rank() const { return options_.rank; }
    std::size_t ranks() const { return options_.ranks; }
    ///@}
    /// The address of this host, as a number, by which this rank and rank 0 have met; "" of a rank
    /// that is alone.
    std::string const& address() const { return address_; }

    /// By rank what all have given. All call it. Throws std::runtime_error where not all have
    /// within the deadline, or of another size.
    template <class Card>
        requires std::is_trivially_copyable_v<Card> std::vector<Card> exchange(Card const& own) {
            std::vector<Card> all(ranks(), own);
            if (ranks() > 1) star_.exchange(&own, sizeof own, all.data());
            return all;
        }

  private:
    using Key = detail::RendezvousKey;
    using Address = detail::SocketAddress;

    void host(double end) {
        bool has_token = false;
        Key const key = Key::find(options_.token_file, has_token);
        Address address = addresses(has_token)[0];
        detail::Descriptor const listener = detail::listen_at(address);
        admit(key, options_.job, listener, end);
        address_ = address.host();
    }
    void host_by_file(double end) {
        detail::RendezvousRecord record;
        record.address = detail::find_addresses(
            options_.address.empty() ? "127.0.0.1" : options_.address, options_.port)[0];
        record.token = detail::random_bytes<sizeof record.token>();
        auto const job = detail::random_bytes<sizeof record.job>();
        std::memcpy(&record.job, job.data(), sizeof record.job);
        // Before the file: who finds that finds somebody.
        detail::Descriptor const listener = detail::listen_at(record.address);
        detail::RendezvousFile const file(options_.file, record);
        admit(record.key(), record.job, listener, end);
        address_ = record.address.host();
    }
    void admit(Key const& key, std::uint64_t job, detail::Descriptor const& listener, double end) {
        detail::RendezvousHost host(ranks(), job, key);
        try {
            host.admit(listener, end);
        } catch (std::exception const& error) {
            detail::RendezvousStar(0, std::move(host.ways), 0).leave(error.what());
            throw;
        }
        star_ = {0, std::move(host.ways), options_.deadline};
    }
    void join(double end) {
        bool has_token = false;
        Key const key = Key::find(options_.token_file, has_token);
        detail::RendezvousGuest::Place const place{addresses(has_token), key, options_.job};
        auto const find = [&](detail::RendezvousGuest::Place& found) {
            found = place;
            return true;
        };
        join(find, "", end);
    }
    void join_by_file(double end) {
        // One from before this began may be of a rank 0 that began before, too: it waits as long,
        // and where that is for ever thirty years are enough.
        double const age = std::min(options_.deadline, 1e9);
        auto const oldest = std::time(nullptr) - static_cast<std::time_t>(age) - 1;
        auto const find = [&](detail::RendezvousGuest::Place& found) {
            detail::RendezvousRecord record;
            if (!detail::RendezvousFile::read(options_.file, oldest, record)) return false;
            found = {{record.address}, record.key(), record.job};
            return true;
        };
        join(find, "there is no file '" + options_.file + "', or an old one", end);
    }
    template <class Find> void join(Find find, std::string const& nowhere, double end) {
        std::vector<detail::Descriptor> ways(ranks());
        bool const is_fixed = options_.file.empty();
        ways[0] = detail::RendezvousGuest(rank(), ranks()).join(find, nowhere, is_fixed, end);
        Address own;
        own.length = sizeof own.bytes;
        ::getsockname(ways[0].get(), own.get(), &own.length);
        address_ = own.host();
        star_ = {rank(), std::move(ways), options_.deadline};
    }
    // Where rank 0 is to be, which without a token is the loopback.
    std::vector<Address> addresses(bool has_token) const {
        auto found = detail::find_addresses(options_.address, options_.port);
        for (Address const& address : found)
            if (!has_token && !address.is_loopback())
                detail::throw_error<std::runtime_error>(
                    "gpipe: rank 0's address %.200s (MASTER_ADDR) is not the loopback, and where "
                    "others can come ranks need a token, in GPIPE_TOKEN or in a file of mode 600 "
                    "that GPIPE_TOKEN_FILE names",
                    options_.address.c_str());
        return found;
    }

    Options options_;
    std::string address_;
    detail::RendezvousStar star_;
};

} // namespace gpipe
