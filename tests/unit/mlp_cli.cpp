// The digits that examples train on, and the command line of examples/mlp, where the build has it
// (MLP_PATH).
#include <support/command_line.hpp>
#include <support/digit_files.hpp>
#include <support/digits.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace {

using support::Digits;
using Files = toy::DigitFiles;

} // namespace

TEST_CASE("drawn digits are the same each time, of all kinds, and no two alike") {
    Digits const digits = support::drawn_digits(2000, 1);
    Digits const fewer = support::drawn_digits(50, 1);
    REQUIRE(digits.size() == 2000);
    CHECK(std::equal(fewer.images.begin(), fewer.images.end(), digits.images.begin()));
    CHECK(std::equal(fewer.labels.begin(), fewer.labels.end(), digits.labels.begin()));
    CHECK(support::drawn_digits(50, 2).images != fewer.images);
    std::array<std::size_t, 10> counts{}, held_out{};
    std::set<std::vector<float>> different;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        float const* const image = digits.image(i);
        different.insert({image, image + Digits::pixels});
        ++counts.at(static_cast<std::size_t>(digits.labels[i]));
        if (i % 5 == 4) ++held_out.at(static_cast<std::size_t>(digits.labels[i]));
        CHECK_UNARY(std::all_of(image, image + Digits::pixels,
                                [](float pixel) { return pixel >= 0 && pixel <= 1; }));
        float const ink = std::accumulate(image, image + Digits::pixels, 0.f);
        CHECK_UNARY(ink > 20 && ink < 300);
    }
    CHECK(different.size() == digits.size());
    for (std::size_t d = 0; d < 10; ++d) {
        CHECK(counts[d] > 140);
        CHECK(held_out[d] > 20);
    }
}

TEST_CASE("digits are read from IDX files as they were written, every fifth is held out") {
    Files files;
    Digits const digits = support::drawn_digits(23, 3);
    files.write(Files::images_of(digits), Files::labels_of(digits));
    Digits const read = support::read_digits(files.images, files.labels);
    CHECK(read.labels == digits.labels);
    REQUIRE(read.images.size() == digits.images.size());
    CHECK(std::equal(read.images.begin(), read.images.end(), digits.images.begin(),
                     [](float a, float b) { return std::abs(a - b) <= 0.5f / 255 + 1e-6f; }));
    support::DigitTask task;
    task.images = files.images;
    task.labels = files.labels;
    task.load();
    REQUIRE(task.held_out.size() == 4);
    REQUIRE(task.training.size() == 19);
    for (std::size_t i = 0; i < 4; ++i)
        CHECK(std::equal(task.held_out.image(i), task.held_out.image(i) + Digits::pixels,
                         read.image(5 * i + 4)));
    CHECK(task.training.labels[4] == read.labels[5]);
}

#ifdef MLP_PATH

namespace {

toy::CommandLine const program(MLP_PATH);

} // namespace

TEST_CASE("the perceptron tells 94 of 100 digits that it has not seen, be they drawn or MNIST's") {
    for (toy::DigitsToLearn const& digits : toy::digits_to_learn()) {
        CAPTURE(digits.arguments);
        auto const found = program.objects(digits.arguments);
        REQUIRE(found.size() == 1);
        CHECK(found[0].at("held_out_samples").number == double(digits.held_out));
        CHECK(found[0].at("held_out_accuracy").number >= 0.94);
        CHECK(found[0].at("final_loss").number < 0.1 * found[0].at("first_loss").number);
        MESSAGE(found[0].at("held_out_accuracy").number, " after ", found[0].at("seconds").number,
                " s");
    }
}

TEST_CASE("it says what it has trained, and how") {
    auto const found = program.objects("--steps 3");
    REQUIRE(found.size() == 1);
    CHECK(found[0].at("planned_bytes").number == found[0].at("used_bytes").number);
    for (char const* name :
         {"steps", "batch", "devices", "cells", "micro_batches", "optimizer", "threads", "seed",
          "learning_rate", "layers", "held_out_loss", "samples_per_second", "step_milliseconds",
          "seconds", "used_bytes", "device", "replicas", "ranks"})
        CHECK_NOTHROW(found[0].at(name));
    CHECK(found[0].at("schedule").string == "GPipe");
    CHECK(found[0].at("checkpointing").string == "except-last");
    CHECK(found[0].at("parameters").number == (784 + 1) * 128 + (128 + 1) * 10);
    CHECK(program.out("--steps 3").text.find(" % of 1000 digits held out are told right") !=
          std::string::npos);
}

TEST_CASE("it trains on files, the same for a seed") {
    Files files;
    Digits const digits = support::drawn_digits(60, 3);
    files.write(Files::images_of(digits), Files::labels_of(digits));
    auto const loss = [&](std::string const& arguments) {
        auto const found = program.objects("--steps 20" + files.arguments() + arguments);
        REQUIRE(found.size() == 1);
        CHECK(found[0].at("training_samples").number == 48);
        CHECK(found[0].at("held_out_samples").number == 12);
        return found[0].at("final_loss").number;
    };
    CHECK(loss("") == loss(" --seed 1"));
    CHECK(loss("") != loss(" --seed 2"));
    CHECK(program.errors("--steps 30 --learning-rate 10 --batch 1" + files.arguments()).status <=
          1);
}

TEST_CASE("it tells as many on files, which have pixels in 256 steps") {
    Files files;
    files.write(support::drawn_digits(5000, 2)); // others than it draws itself
    auto const found = program.objects(files.arguments());
    REQUIRE(found.size() == 1);
    CHECK(found[0].at("held_out_samples").number == 1000);
    CHECK(found[0].at("held_out_accuracy").number >= 0.94);
}

TEST_CASE("files that are no digits are refused with one line that names the file") {
    Files files;
    Digits const digits = support::drawn_digits(10, 3);
    std::string const images = Files::images_of(digits);
    std::string const labels = Files::labels_of(digits);
    auto const refused = [&](std::string const& image_bytes, std::string const& label_bytes,
                             std::string const& words) {
        files.write(image_bytes, label_bytes);
        CAPTURE(words);
        program.check_refused(files.arguments());
        CHECK(program.errors(files.arguments()).text.find(words) != std::string::npos);
    };
    auto const with = [](std::string text, std::size_t at, std::string const& part) {
        return text.replace(at, part.size(), part);
    };
    for (std::size_t const size : {0, 1, 3, 15}) {
        refused(images.substr(0, size), labels, "images' is no IDX file of images of 28 x 28: it ");
        refused(images, labels.substr(0, std::min<std::size_t>(size, 7)),
                "labels' is no IDX file of labels: it ");
    }
    refused(images.substr(0, images.size() - 1), labels, "it would have 7856 bytes, not 7855");
    refused(images + '\0', labels, "it would have 7856 bytes, not 7857");
    refused(images, labels + '\1', "it would have 18 bytes, not 19");
    refused(with(images, 4, Files::word(0xffffffff)), labels, "of 4294967295 it would have");
    refused(with(images, 8, Files::word(27)), labels, "extent 1 is 27, not 28");
    refused(with(images, 12, Files::word(0)), labels, "extent 2 is 0, not 28");
    refused("\x1f\x8b" + images, labels, "it is compressed, gunzip it first");
    refused(labels, images, "it does not begin as one");
    refused(images, with(labels, 11, "\x0a"), "label 3 in '" + files.labels + "' is 10, no digit");
    refused(images, Files::labels_of(support::drawn_digits(9, 3)),
            "there are 10 images in '" + files.images + "', but 9 labels in '" + files.labels);
    Digits const four = support::drawn_digits(4, 3);
    refused(Files::images_of(four), Files::labels_of(four), "of five one is held out");

    files.write(images, labels);
    for (std::string const& arguments :
         {" --images " + files.images, " --labels " + files.labels,
          " --images /nonexistent --labels " + files.labels,
          " --images " + files.folder + " --labels " + files.labels,
          files.arguments() + " --steps 0", files.arguments() + " --batch 0"})
        program.check_refused(arguments);
    CHECK(program.errors(" --images /nonexistent --labels x").text ==
          "mlp: cannot read '/nonexistent': No such file or directory\n");
}

#endif
