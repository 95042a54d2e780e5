#pragma once

#include <gpipe/core/error.hpp>
#include <gpipe/runtime/mini_batch.hpp>
#include <gpipe/runtime/run.hpp>
#include <gpipe/runtime/told_rates.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace gpipe::detail {

// What a rank is told to do in a run.
struct RankCall {
    enum Kind : std::uint64_t {
        evaluates,
        predicts,
        computes_gradients,
        accumulates,
        trains,
        refuses, // what it was told, and has thrown
        saves,   // and what else is no run
        starts_saving,
        loads,
        checks_gradients,
        shows,
        reads
    };

    std::uint64_t kind = evaluates;
    std::uint64_t samples = 0; // of the mini-batch, with what more runs of this call see
    std::uint64_t before = 0;  // of it, accumulated already
    std::uint64_t step = 0;
    std::uint64_t seed = 0;
    std::uint64_t absent = 0; // see StepOptionals
    std::uint64_t number = 0; // see MiniBatch
    ToldRates rates{};        // of a step

    explicit RankCall(std::uint64_t of = evaluates) : kind(of) {}
    RankCall(RunArguments const& of, MiniBatch const& batch, ToldRatesFunction told)
        : kind(!of.training() ? of.measures ? evaluates : predicts
               : !of.updates  ? computes_gradients
               : !of.last     ? accumulates
                              : trains),
          samples(of.samples + of.more), before(of.before), step(of.step), seed(of.seed),
          absent(batch.optionals().absent), number(batch.number()) {
        if (kind == trains && told) rates = told(of.optimizer);
    }
    friend bool operator==(RankCall const&, RankCall const&) = default;

    Message words() const {
        static constexpr char const* kinds[] = {"evaluate",
                                                "predict from",
                                                "compute the gradients of",
                                                "accumulate",
                                                "train on",
                                                "do what it refuses (its own error says why)",
                                                "save",
                                                "start a save",
                                                "load",
                                                "check gradients",
                                                "show a timeline",
                                                "make a Loader"};
        if (kind >= refuses) return Message("%s", kinds[kind]);
        auto const count = [](std::uint64_t n) { return static_cast<unsigned long long>(n); };
        Message const nothing("%s", "");
        Message const behind = before > 0 ? Message(" behind %llu", count(before)) : nothing;
        std::string without;
        for (std::size_t i = 0; i < 64; ++i)
            if (absent >> i & 1)
                without += (without.empty() ? " without tensors " : ", ") + std::to_string(i);
        if (absent > 0) without += " (of the inputs, then the targets)";
        Message const loaded =
            number > 0 ? Message(" of mini-batch %llu", count(number - 1)) : nothing;
        return Message("%s %llu samples%s%s%s after %llu steps of seed %llu", kinds[kind],
                       count(samples), loaded.text, behind.text, without.c_str(), count(step),
                       count(seed));
    }
};
// What who decides has found: the first rank that is told something else than he is.
struct RankVerdict {
    static constexpr std::uint64_t nobody = ~std::uint64_t{0};
    std::uint64_t rank = nobody;
    RankCall call{}; // of that rank
    std::uint64_t decider = 0;
    RankCall decides{}; // of him

    // As that one, of another rank.
    void compare(std::uint64_t self, RankCall const& own, std::uint64_t other,
                 RankCall const& theirs) {
        RankCall same = theirs;
        if (same.number == 0 || own.number == 0) same.number = own.number; // not said
        if (rank == nobody && !(own == same)) *this = {other, same, self, own};
    }
    void check() const {
        if (rank == nobody) return;
        auto const here = static_cast<std::size_t>(decider), there = static_cast<std::size_t>(rank);
        RankCall same = call;
        same.rates = decides.rates;
        if (double const rate = call.rates.learning_rate, own = decides.rates.learning_rate;
            same == decides && !call.rates.has_rate_of(decides.rates)) {
            int const digits =
                std::abs(rate - own) < 1e-5 * std::abs(own) ? 17 : 6; // to be told apart
            throw_error<std::invalid_argument>(
                "gpipe: rank %zu is told to train with learning rate %.*g, but rank %zu with %.*g: "
                "all have to be told the same",
                there, digits, rate, here, digits, own);
        }
        if (same == decides)
            throw_error<std::invalid_argument>(
                "gpipe: the optimizer of rank %zu is another, or has another weight decay or other "
                "numbers or groups, than that of rank %zu: all have to be told the same",
                there, here);
        throw_error<std::invalid_argument>(
            "gpipe: rank %zu is told to %s, but rank %zu to %s: all have to be told the same",
            there, call.words().text, here, decides.words().text);
    }
};

} // namespace gpipe::detail
