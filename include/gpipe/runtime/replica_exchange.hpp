#pragma once

#include <gpipe/runtime/replica_parts.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/step.hpp>
#include <gpipe/runtime/tables.hpp>

#include <algorithm>
#include <cstddef>

namespace gpipe::detail {

// A device and its like in the other replicas, which all do this at the same place of their order.
// End: a StepEnd.
template <class End> class ReplicaExchange {
  public:
    ReplicaExchange(End& end, Tables const& tables, Run& run, std::size_t device,
                    std::size_t stream)
        : end_(end), tables_(tables), parts_(tables.replicas), run_(run), device_(device),
          stream_(stream), self_(tables.ranks.replica), count_(parts_.replication.count),
          message_(parts_.message[device]), gradients_(tables.devices[device].gradients.data()) {}

    // Of a cell everybody gets what the others have of his part, and adds it up in the order of the
    // replicas: the sum is the same whoever does it.
    void reduce_scatter(std::size_t cell) {
        constexpr Which gradient = &ReplicaParts::Begin::gradient;
        for (std::size_t n = 0; n < messages(gradient, cell); ++n) {
            Bytes const own = bytes(gradient, cell, self_, n);
            each_other([&](std::size_t other) {
                Bytes const theirs = bytes(gradient, cell, other, n);
                exchange(other, gradients_ + theirs.at, theirs.count, room(other), own.count);
            });
            add_up(cell, own);
        }
    }
    // Of all cells of the device.
    void all_gather(bool gradients) {
        for (std::size_t c = 0; c < parts_.first_row.size(); ++c)
            if (std::size_t const row = parts_.first_row[c];
                row < parts_.last_row[c] && tables_.has_row(device_, row))
                all_gather(c, gradients);
    }
    // And all parts: of the gradients, or of the parameters.
    void all_gather(std::size_t cell, bool gradients) {
        Which const which =
            gradients ? &ReplicaParts::Begin::gradient : &ReplicaParts::Begin::parameter;
        std::byte* const all = gradients ? gradients_ : parts_.parameters[device_];
        for (std::size_t n = 0; n < messages(which, cell); ++n)
            each_other([&](std::size_t other) {
                Bytes const own = bytes(which, cell, self_, n);
                Bytes const theirs = bytes(which, cell, other, n);
                exchange(other, all + own.at, own.count, all + theirs.at, theirs.count);
            });
    }

    // Everybody gets these bytes of all, which stand in the order of the replicas.
    void all_gather(std::byte* all, std::size_t bytes) {
        each_other([&](std::size_t other) {
            exchange(other, all + self_ * bytes, bytes, all + other * bytes, bytes);
        });
    }

  private:
    using Which = std::size_t ReplicaParts::Begin::*;
    struct Bytes {
        std::size_t at = 0;
        std::size_t count = 0;
    };

    std::size_t messages(Which which, std::size_t cell) const {
        std::size_t most = 0;
        for (std::size_t r = 0; r < count_; ++r)
            most = std::max(most, parts_.at(cell, r + 1).*which - parts_.at(cell, r).*which);
        return (most + message_ - 1) / message_;
    }
    // Message n of a part: perhaps none.
    Bytes bytes(Which which, std::size_t cell, std::size_t replica, std::size_t n) const {
        std::size_t const end = parts_.at(cell, replica + 1).*which;
        std::size_t const at = std::min(parts_.at(cell, replica).*which + n * message_, end);
        return {at, std::min(message_, end - at)};
    }
    std::byte* room(std::size_t other) const {
        return parts_.room[device_] + (other - (other > self_)) * message_;
    }

    // Together where a device can; else in rounds, in each of which everybody meets one other at
    // the most: with the order of the rounds that of all messages is one line, so that nobody waits
    // for himself even where a send ends when it is received.
    template <class F> void each_other(F f) const {
        end_.together(stream_, [&] {
            for (std::size_t round = 0; round < count_; ++round)
                if (std::size_t const other = (round + count_ - self_) % count_; other != self_)
                    f(other);
        });
    }
    void exchange(std::size_t other, std::byte const* from, std::size_t sent, std::byte* to,
                  std::size_t received) {
        std::size_t const there = parts_.channel(device_, other);
        for (bool const sends : {self_<other, self_> other}) {
            if (sends && sent > 0) end_.send(run_, stream_, there + (self_ > other), from, sent);
            if (!sends && received > 0)
                end_.receive(run_, stream_, there + (self_ < other), to, received);
        }
    }

    void add_up(std::size_t cell, Bytes const& own) {
        end_.launch_rows(run_, stream_, FailureOf::gradient, tables_.updates,
                         parts_.first_row[cell], parts_.last_row[cell],
                         [self = *this, own](UpdateRow const& row, std::size_t i) {
                             self.add_up(row, self.parts_.element[i], own);
                             return std::size_t{1};
                         });
    }
    // What a tensor has of these bytes.
    void add_up(UpdateRow const& row, std::size_t element, Bytes const& own) const {
        std::size_t const at = static_cast<std::size_t>(row.gradient - gradients_);
        std::size_t const first = std::max(at, own.at);
        std::size_t const last = std::min(at + row.elements * element, own.at + own.count);
        if (first >= last) return;
        UpdateRow part = row;
        part.elements = (last - first) / element;
        auto const of = [&](std::size_t replica) {
            return replica == self_ ? gradients_ + first : room(replica) + (first - own.at);
        };
        // The sum so far lies where the first of them is, and from its own on there.
        std::byte* sum = of(0);
        for (std::size_t r = 1; r < count_; ++r) {
            std::byte* const next = of(r);
            part.gradient = r == self_ ? next : sum;
            row.add({r == self_ ? sum : next, end_.stream(stream_)}, part);
            sum = part.gradient;
        }
    }

    End& end_;
    Tables const& tables_;
    ReplicaParts const& parts_;
    Run& run_;
    std::size_t device_;
    std::size_t stream_;
    std::size_t self_;
    std::size_t count_;
    std::size_t message_;
    std::byte* gradients_;
};

} // namespace gpipe::detail
