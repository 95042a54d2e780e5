#pragma once

#include "support/digits.hpp"
#include "support/json.hpp"
#include "support/options.hpp"
#include "support/progress.hpp"

#include <gpipe/loader.hpp>
#include <gpipe/training.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace support {

/// What programs that train on digits have in common: their options, mini-batches, a learning rate
/// that falls in a line to 0, the progress bar, and what they print at the end.
class DigitRun {
  public:
    struct Defaults {
        std::uint64_t steps = 1000;
        std::uint64_t batch = 64;
        double learning_rate = 1e-3;
        DigitScale scale{}; ///< of the pixels
    };
    DigitRun(std::string program, std::string purpose, Defaults defaults)
        : program_(program), options_(std::move(program), std::move(purpose)), chosen_(defaults) {
        task_.scale = defaults.scale;
        task_.declare(options_);
        options_.number("steps", "train for n mini-batches", chosen_.steps, 1, 10'000'000);
        options_.number("batch", "samples in a mini-batch", chosen_.batch, 1, 4096);
        options_.number("learning-rate", "of the first step; it falls to 0", chosen_.learning_rate,
                        1e-9, 10);
        options_.number("seed", "of parameters and the order of samples", seed_, 0,
                        ~std::uint64_t{0});
        options_.flag("json", "print one JSON object at the end", json_);
    }

    /// For a program to declare its own, too, before main().
    Options& options() { return options_; }

    /// Calls train(), and says what went wrong. Returns the exit status of the program.
    template <class Train> int main(int count, char const* const* arguments, Train train) {
        if (auto const status = options_.parse(count, arguments)) return *status;
        try {
            task_.load();
            progress_.emplace(chosen_.steps);
            begin_ = now();
            train();
            return 0;
        } catch (UsageError const& error) {
            return options_.refuse(error.what());
        } catch (std::exception const& error) {
            std::fprintf(stderr, "%s: %s\n", program_.c_str(), error.what());
            return 1;
        }
    }

    std::size_t batch() const { return chosen_.batch; }
    std::uint64_t seed() const { return seed_; }
    Digits const& held_out() const { return task_.held_out; }
    /// Calls step(mini-batch, learning rate), which returns the loss, for all of the training.
    template <class Train, class Step> void each_step(Train& train, Step step) {
        auto const all = static_cast<double>(chosen_.steps);
        gpipe::Loader loader(train, DigitSource{task_.training}, {.batch = batch(), .seed = seed_});
        for (std::uint64_t done = 0; done < chosen_.steps; ++done) {
            double const rate = chosen_.learning_rate * (1 - static_cast<double>(done) / all);
            add(step(loader.next(), static_cast<float>(rate)));
        }
    }
    /// Prints what came of it: the loss over the digits held out, and of them the share that is
    /// told right. `more(object)` adds what was chosen to what --json prints.
    template <class Train, class Result, class More>
    void report(Train const& train, std::string_view optimizer, Result const& result, More more) {
        double const seconds = now() - begin_;
        progress_->end();
        if (!json_) {
            std::printf("%.2f %% of %zu digits held out are told right, their loss is %.4f, after "
                        "%.1f s\n",
                        100 * result.metric[0], held_out().size(), result.loss, seconds);
            return;
        }
        auto const steps = static_cast<double>(losses_.size());
        JsonObject object;
        object.add("steps", losses_.size()).add("batch", chosen_.batch).add("optimizer", optimizer);
        add_training(object, train)
            .add("learning_rate", chosen_.learning_rate)
            .add("training_samples", task_.training.size())
            .add("held_out_samples", held_out().size())
            .add("first_loss", losses_.front())
            .add("final_loss", mean(std::max<std::size_t>(1, losses_.size() / 10)))
            .add("held_out_loss", result.loss)
            .add("held_out_accuracy", result.metric[0])
            .add("samples_per_second", steps * static_cast<double>(chosen_.batch) / seconds)
            .add("step_milliseconds", 1e3 * seconds / steps)
            .add("seconds", seconds);
        more(object);
        std::printf("%s\n", object.text().c_str());
    }

    /// The same of a training whose policies nobody has chosen.
    template <class Net, class... Policies, class Result>
    void report(gpipe::Training<Net, Policies...> const& train, std::string_view optimizer,
                Result const& result) {
        static_assert(sizeof...(Policies) == 4, "cells, micro-batches, loss and optimizer; of "
                                                "another policy report() has to be told");
        report(train, optimizer, result, [](JsonObject& object) {
            object.add("schedule", gpipe::schedule::GPipe::name)
                .add("checkpointing", gpipe::checkpoint::ExceptLast::name)
                .add("device", "host")
                .add("replicas", 1)
                .add("ranks", 1)
                .add("parameters", Net::parameters());
        });
    }

  private:
    void add(double loss) {
        losses_.push_back(loss);
        if (!progress_->due(losses_.size())) return;
        char words[80];
        std::snprintf(words, sizeof words, "loss %.4f, %.0f s", mean(20), now() - begin_);
        progress_->show(losses_.size(), words);
    }
    static double now() {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }
    // Of the last losses.
    double mean(std::size_t count) const {
        count = std::min(count, losses_.size());
        auto const first = losses_.end() - static_cast<std::ptrdiff_t>(count);
        return std::accumulate(first, losses_.end(), 0.0) / static_cast<double>(count);
    }

    std::string program_;
    Options options_;
    Defaults chosen_;
    std::uint64_t seed_ = 1;
    bool json_ = false;
    DigitTask task_;
    std::optional<Progress> progress_;
    double begin_ = 0;
    std::vector<double> losses_;
};

} // namespace support
