// The command line of examples/convnet, where the build has it (CONVNET_PATH).
#include <support/command_line.hpp>
#include <support/digit_files.hpp>
#include <support/drawn_digits.hpp>
#include <support/long_tests.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#ifdef CONVNET_PATH

namespace {

toy::CommandLine const program(CONVNET_PATH);

// What twenty steps come to: losses, and what the parameters and running statistics are worth.
struct Came {
    double first, last, held_out, right;
    bool operator==(Came const&) const = default;
};

} // namespace

TEST_CASE("twenty steps of convnet give the same losses for all K, schedules and policies") {
    toy::DigitFiles files;
    files.write(support::drawn_digits(200, 3));
    auto const run = [&](std::string const& arguments) {
        CAPTURE(arguments);
        auto const found = program.objects("--steps 20" + files.arguments() + ' ' + arguments);
        REQUIRE(found.size() == 1);
        CHECK(found[0].at("training_samples").number == 160);
        CHECK(found[0].at("planned_bytes").number == found[0].at("used_bytes").number);
        return Came{found[0].at("first_loss").number, found[0].at("final_loss").number,
                    found[0].at("held_out_loss").number, found[0].at("held_out_accuracy").number};
    };
    auto const all_equal = [&](std::vector<std::string> const& ways) {
        Came const expected = run(ways[0]);
        CHECK(expected.last < 0.5 * expected.first);
        CHECK(std::isfinite(expected.held_out));
        for (std::string const& way : ways) {
            CAPTURE(way);
            CHECK((run(way) == expected));
        }
        return expected;
    };
    Came const descending = all_equal({"--cells 1 --checkpointing never", "--cells 2",
                                       "--cells 4 --checkpointing always --threads 1"});
    Came const ascending =
        all_equal({"--schedule GPipeAscending --cells 1",
                   "--schedule OneForwardOneBackward --cells 2 --checkpointing always",
                   "--schedule ZeroBubbleV --cells 4 --checkpointing except-last"});
    CHECK(descending.first == ascending.first);
    CHECK(descending.held_out != ascending.held_out);    // added up in another order
    all_equal({"--cells 1 --micro-batches 5 --batch 63", // of 13 and 12 samples
               "--cells 2 --micro-batches 5 --batch 63 --checkpointing always"});
    Came const other = run("--seed 2");
    CHECK(other.first != descending.first);
    Came const whole = run("--micro-batches 1");
    CHECK(whole.first != descending.first); // normalised by other samples
}

TEST_CASE("convnet tells what it trained, and refuses what does not go together") {
    toy::DigitFiles files;
    files.write(support::drawn_digits(10, 3));
    auto const found = program.objects("--steps 1" + files.arguments());
    REQUIRE(found.size() == 1);
    CHECK(found[0].at("parameters").number == 77754);
    CHECK(found[0].at("layers").number == 32);
    CHECK(found[0].at("learning_rate").number == 0.1);
    for (char const* name : {"steps", "batch", "devices", "cells", "micro_batches", "optimizer",
                             "threads", "seed", "schedule", "checkpointing", "kernels",
                             "samples_per_second", "step_milliseconds", "seconds"})
        CHECK_NOTHROW(found[0].at(name));
    for (char const* arguments :
         {"--cells 3", "--micro-batches 0", "--schedule None", "--checkpointing None",
          "--per-device 3", "--schedule DualPipeV --cells 4 --micro-batches 7",
          "--schedule BreadthFirst --per-device 5 --cells 8 --micro-batches 8",
          "--images /nonexistent", "--batch 0", "--threads 257"})
        program.check_refused(files.arguments() + " --steps 1 " + arguments);
}

TEST_CASE("convnet tells 97 of 100 digits that it has not seen" *
          doctest::skip(!toy::long_tests())) {
    for (toy::DigitsToLearn const& digits : toy::digits_to_learn())
        for (char const* arguments : {"", " --micro-batches 1"}) {
            CAPTURE(digits.arguments);
            CAPTURE(arguments);
            auto const found = program.objects(digits.arguments + arguments);
            REQUIRE(found.size() == 1);
            CHECK(found[0].at("held_out_samples").number == double(digits.held_out));
            CHECK(found[0].at("held_out_accuracy").number >= 0.97);
            MESSAGE(found[0].at("held_out_accuracy").number, " after ",
                    found[0].at("seconds").number, " s");
        }
}

#endif
