#pragma once

// A Training on ranks, as if it were one.

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace toy {

/// All do the same, each on a thread of its own. What they return has to be the same on all, and
/// what they throw is kept by rank. Member: what a rank has, of which `train` points to its
/// Training.
template <class Member> class AnyCrew {
  public:
    using Train = typename decltype(Member::train)::element_type;
    static constexpr std::size_t layer_count = Train::layer_count;

    std::vector<std::exception_ptr> errors; ///< of the last call, by rank
    std::size_t first = 0;                  ///< rank of the replica that is looked at

    Train& operator[](std::size_t rank) { return *members_[rank].train; }
    std::size_t ranks() const { return members_.size(); }
    /// Calls f(rank) on a thread for each, and keeps what they throw.
    template <class F> void each(F f) {
        std::vector<std::thread> threads;
        for (std::size_t r = 0; r < ranks(); ++r)
            threads.emplace_back([&, r] {
                errors[r] = nullptr;
                try {
                    f(r);
                } catch (...) {
                    errors[r] = std::current_exception();
                }
            });
        for (std::thread& thread : threads) thread.join();
    }
    /// Throws the first of what they have thrown.
    void rethrow() const {
        for (std::exception_ptr const& error : errors)
            if (error) std::rethrow_exception(error);
    }
    /// What f(train) returns, on all ranks the same.
    template <class F> auto all(F f) {
        return all_of([&](std::size_t r) { return f((*this)[r]); });
    }
    /// A step that all have started.
    struct Pending {
        AnyCrew* crew;
        std::vector<std::optional<typename Train::Pending>> steps; ///< by rank

        auto result() {
            return crew->all_of([&](std::size_t r) { return steps[r]->result(); });
        }
    };

    /// As Training.
    ///@{
    template <class X, class Y> Pending start(X const& inputs, Y const& targets) {
        Pending step{this, {}};
        step.steps.resize(ranks());
        each([&](std::size_t r) { step.steps[r].emplace((*this)[r].start(inputs, targets)); });
        rethrow();
        return step;
    }
    template <class X, class Y> auto step(X const& inputs, Y const& targets) {
        return all([&](Train& train) { return train.step(inputs, targets); });
    }
    template <class X, class Y> void accumulate(X const& inputs, Y const& targets) {
        each([&](std::size_t r) { (*this)[r].accumulate(inputs, targets); });
        rethrow();
    }
    template <class X, class Y> auto compute_gradients(X const& inputs, Y const& targets) {
        return all([&](Train& train) { return train.compute_gradients(inputs, targets); });
    }
    template <class X, class Y> auto evaluate(X const& inputs, Y const& targets) {
        return all([&](Train& train) { return train.evaluate(inputs, targets); });
    }
    std::size_t tensors(std::size_t layer) { return (*this)[0].tensors(layer); }
    template <class T> void read_gradient(std::size_t layer, std::size_t t, std::span<T> to) {
        of(layer).read_gradient(layer, t, to);
    }
    template <class T> void read_parameter(std::size_t layer, std::size_t t, std::span<T> to) {
        of(layer).read_parameter(layer, t, to);
    }
    template <class T> void read_buffer(std::size_t layer, std::size_t t, std::span<T> to) {
        of(layer).read_buffer(layer, t, to);
    }
    ///@}
    /// Who has a layer.
    std::size_t rank_of(std::size_t layer) const {
        auto const& plan = members_[0].train->plan();
        std::size_t cell = 0;
        while (plan.first[cell + 1] <= layer) ++cell;
        std::size_t const device = plan.lowered.programs.device_of(cell);
        std::size_t rank = 0, end = devices_[0];
        while (end <= device) end += devices_[++rank];
        return first + rank;
    }
    Train& of(std::size_t layer) { return *members_[rank_of(layer)].train; }

  protected:
    // `devices`: of each rank.
    explicit AnyCrew(std::vector<std::size_t> devices)
        : errors(devices.size()), members_(devices.size()), devices_(std::move(devices)) {}
    ~AnyCrew() = default;

    std::vector<Member> members_;

  private:
    // What f(rank) returns, likewise.
    template <class F> auto all_of(F f) {
        std::vector<decltype(f(0))> results(ranks());
        each([&](std::size_t r) { results[r] = f(r); });
        rethrow();
        for (auto const& result : results)
            if (result.loss != results[0].loss || result.weight != results[0].weight ||
                result.skipped() != results[0].skipped() ||
                (!result.skipped() && result.gradient_norm != results[0].gradient_norm))
                throw std::logic_error("ranks return different losses");
        if (std::string const wrong = fault(); !wrong.empty()) throw std::logic_error(wrong);
        return results[0];
    }
    // What was wrong with their messages; nothing if it is empty.
    virtual std::string fault() const { return ""; }

    std::vector<std::size_t> devices_;
};

} // namespace toy
