#pragma once

#include <gpipe/core/exact_sum.hpp>
#include <gpipe/runtime/device_work.hpp>
#include <gpipe/runtime/mailboxes.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/step.hpp>
#include <gpipe/runtime/tables.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpipe::detail {

// All ranks commit at once: one decides, by what the others have told it, and tells them. Each of
// them meets that one alone, in their order, so that nobody waits for himself. Each tells last of
// all whether its layers have thrown: by a word, with nothing else, or where messages, which go in
// the order of streams, bring none, by its sign. Where updates are immediate, that one decides by
// the losses of all replicas alone. End: a StepEnd.
template <class End, class Device> class RankCommit {
  public:
    RankCommit(End& end, Device& device, Tables const& tables, Mailboxes<Device> const& mail,
               Run& run, Step const& step)
        : end_(end), device_(device), tables_(tables), mail_(mail), run_(run), step_(step),
          slot_(run.arguments.slot), losses_(tables.micro_batches * tables.loss_row) {}

    // `squares`: whether those of gradients are summed up.
    void commit(bool squares) {
        if (step_.kind == Kind::send_commit) return tell(step_.calls);
        if (std::size_t const all = losses_, filled = run_.filled() * tables_.loss_row;
            ends() && filled < all)
            device_.fill(step_.stream, bytes_of(tables_.loss_sums + filled),
                         (all - filled) * sizeof(double));
        std::uint32_t const up = tables_.channel_of_rank(tables_.ranks.number());
        if (end_.immediate) return up == no_channel ? decide_at_once() : hear(up);
        mail_.sign(slot_) = run_.failure.place();
        up == no_channel ? decide(squares) : obey(up, squares);
    }

  private:
    static constexpr std::size_t signs = calls_enqueue<Device> ? 1 : 0; // that are sent

    void decide_at_once() {
        std::size_t const own = tables_.decider();
        tables_.each_channel_of_rank([&](std::size_t other, std::uint32_t channel) {
            if (other % tables_.ranks.count == own)
                receive(tables_.losses(channel), losses_of(other), losses_);
        });
        end_.commit(run_, step_.stream);
        for (std::size_t rank = 0; rank < tables_.ranks.count; ++rank)
            if (rank == own || !calls_enqueue<Device>) tell(rank);
    }
    // What was decided, to this rank of all replicas.
    void tell(std::size_t rank) {
        if (tables_.channel_of_rank(tables_.ranks.number()) != no_channel) return; // not here
        tables_.each_channel_of_rank([&](std::size_t other, std::uint32_t channel) {
            if (other % tables_.ranks.count == rank)
                send(tables_.commits(channel), mail_.decided(slot_, step_.device).there, 1);
        });
    }
    void hear(std::uint32_t up) {
        Mailbox<StepState> const state = mail_.decided(slot_, step_.device);
        if (ends()) send(tables_.losses(up), tables_.loss_sums, losses_);
        receive(tables_.commits(up), state.there, 1);
        state.get(device_, step_.stream);
        if constexpr (!calls_enqueue<Device>)
            device_.launch(step_.stream, [&run = run_, state]() noexcept {
                if (!state.there->committed) run.dropped = true;
            });
    }
    void obey(std::uint32_t up, bool squares) {
        if (ends()) send(up, tables_.loss_sums, losses_);
        each_square(squares, tables_.ranks.self, [&](std::size_t d) {
            Mailbox<double> const own = mail_.squares(slot_, d);
            send(up, own.there, own.count);
            if (tables_.replicas.any()) send(up, mail_.exact_squares(slot_, d), exact_words);
        });
        Mailbox<std::uint64_t> const sign = own_sign(0);
        sign.put(device_, step_.stream);
        send(up, sign.there, signs);
        Mailbox<StepState> const state = mail_.state(slot_, step_.device);
        receive(up + 1, state.there, 1);
        state.get(device_, step_.stream);
    }
    void decide(bool squares) {
        double* const all = mail_.all_squares(slot_).there;
        each_square(squares, tables_.ranks.self, [&](std::size_t d) {
            Mailbox<double> const own = mail_.squares(slot_, d);
            bring(all + tables_.updates_at[d], own.there, own.count);
            if (tables_.replicas.any())
                bring(all + tables_.exact_squares_at(d), mail_.exact_squares(slot_, d),
                      exact_words);
        });
        own_sign(tables_.ranks.number()).put(device_, step_.stream);
        tables_.each_channel_of_rank([&](std::size_t other, std::uint32_t channel) {
            std::size_t const replica = other / tables_.ranks.count;
            std::size_t const rank = other % tables_.ranks.count;
            if (rank == tables_.decider()) receive(channel, losses_of(other), losses_);
            each_square(squares, rank, [&](std::size_t d) {
                std::size_t const first = tables_.updates_at[d], last = tables_.updates_at[d + 1];
                double* const at = all + replica * tables_.squares();
                receive(channel, at + first, last - first);
                if (tables_.replicas.any())
                    receive(channel, at + tables_.exact_squares_at(d), exact_words);
            });
            receive(channel, own_sign(other).there, signs);
        });
        end_.commit(run_, step_.stream, true);
        tables_.each_channel_of_rank([&](std::size_t, std::uint32_t channel) {
            send(channel + 1, mail_.state(slot_, step_.device).there, 1);
        });
    }

    // As the n-th on the device.
    Mailbox<std::uint64_t> own_sign(std::size_t n) const {
        std::uint64_t* const here = &mail_.sign(slot_);
        return signs > 0 ? mail_.sign(slot_, step_.device, n) : Mailbox<std::uint64_t>{here, here};
    }
    // Those of a replica, by a rank of it.
    double* losses_of(std::size_t rank) const {
        return tables_.loss_sums + rank / tables_.ranks.count * losses_;
    }
    // Whether those of a replica are here.
    bool ends() const { return tables_.ranks.self == tables_.decider(); }
    template <class T> static auto bytes_of(T* at) {
        return reinterpret_cast<
            std::conditional_t<std::is_const_v<T>, std::byte const*, std::byte*>>(at);
    }
    template <class T> void bring(double* to, T const* from, std::size_t count) {
        if (bytes_of(to) != bytes_of(from))
            device_.copy(step_.stream, bytes_of(to), bytes_of(from), count * sizeof(T));
    }
    template <class T> void send(std::uint32_t channel, T const* from, std::size_t count) {
        end_.send(run_, step_.stream, channel, from, count * sizeof(T));
    }
    template <class T> void receive(std::uint32_t channel, T* to, std::size_t count) {
        end_.receive(run_, step_.stream, channel, to, count * sizeof(T));
    }
    // f(device): of a rank, those that have any.
    template <class F> void each_square(bool any, std::size_t rank, F f) const {
        for (std::size_t d = tables_.ranks.begin(rank); any && d < tables_.ranks.end(rank); ++d)
            if (tables_.has_updates(d)) f(d);
    }

    End& end_;
    Device& device_;
    Tables const& tables_;
    Mailboxes<Device> const& mail_;
    Run& run_;
    Step const& step_;
    std::size_t slot_;
    std::size_t losses_; // numbers of a replica
};

} // namespace gpipe::detail
