#pragma once

#include <gpipe/core/error.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>

namespace gpipe {

/// How processes find each other, see Rendezvous. What is left as it is here comes from the
/// environment, as launchers set it.
struct RendezvousOptions {
    std::size_t ranks = 0;  ///< how many; with 0 this and `rank` are WORLD_SIZE and RANK
    std::size_t rank = 0;   ///< which one this is
    std::string address{};  ///< of rank 0, a name or number, alike for all: MASTER_ADDR
    std::uint16_t port = 0; ///< likewise: MASTER_PORT
    std::string
        token_file{};      ///< with the token of all: GPIPE_TOKEN_FILE, or else GPIPE_TOKEN is it
    std::string file{};    ///< in a folder of all, in place of address, port and token
    std::uint64_t job = 0; ///< alike for all, another for others: GPIPE_JOB, if it is set
    double deadline = 300; ///< seconds that a rank is waited for, each time
};

namespace detail {

/// What a variable of the environment is; "" if it is not set.
inline std::string variable(char const* name) {
    char const* const value = std::getenv(name);
    return value ? value : "";
}
/// The same as a number. Throws std::invalid_argument, which names it, unless it is one from
/// `least` to `most`.
inline std::uint64_t number_of(char const* name, std::uint64_t least, std::uint64_t most) {
    std::string const value = variable(name);
    if (value.empty())
        throw_error<std::invalid_argument>(
            "gpipe: %s is not set, and ranks that are started without "
            "MPI find each other by RANK, WORLD_SIZE, MASTER_ADDR "
            "and MASTER_PORT",
            name);
    std::uint64_t number = 0;
    char const* const end = value.data() + value.size();
    auto const [last, error] = std::from_chars(value.data(), end, number);
    if (error != std::errc{} || last != end || number < least || number > most)
        throw_error<std::invalid_argument>("gpipe: %s=%.100s is no number from %llu to %llu", name,
                                           value.c_str(), static_cast<unsigned long long>(least),
                                           static_cast<unsigned long long>(most));
    return number;
}

inline constexpr std::size_t most_rendezvous_ranks = 1024; ///< more are refused

/// With all that comes from the environment. Throws std::invalid_argument, which names what is
/// wrong.
inline RendezvousOptions resolved(RendezvousOptions o) {
    if (!(o.deadline > 0))
        throw std::invalid_argument("gpipe: RendezvousOptions asks for a deadline of more than 0");
    if (o.ranks == 0) {
        o.ranks = number_of("WORLD_SIZE", 1, most_rendezvous_ranks);
        o.rank = number_of("RANK", 0, o.ranks - 1);
    }
    if (o.ranks > most_rendezvous_ranks || o.rank >= o.ranks)
        throw_error<std::invalid_argument>(
            "gpipe: rank %zu of %zu: ranks count from 0, and there are at most %zu", o.rank,
            o.ranks, most_rendezvous_ranks);
    if (o.address.empty()) o.address = variable("MASTER_ADDR");
    if (o.job == 0 && !variable("GPIPE_JOB").empty())
        o.job = number_of("GPIPE_JOB", 0, std::numeric_limits<std::uint64_t>::max());
    if (o.token_file.empty()) o.token_file = variable("GPIPE_TOKEN_FILE");
    if (o.ranks == 1 || !o.file.empty()) return o; // needs neither address nor port
    if (o.address.empty()) (void)number_of("MASTER_ADDR", 0, 0);
    if (o.port == 0) o.port = static_cast<std::uint16_t>(number_of("MASTER_PORT", 1, 65535));
    return o;
}

} // namespace detail
} // namespace gpipe
