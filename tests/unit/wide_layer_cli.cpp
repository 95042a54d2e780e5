// The command line of examples/wide_layer, where the build has it (WIDE_LAYER_PATH).
#include <support/command_line.hpp>

#include <doctest/doctest.h>

#ifdef WIDE_LAYER_PATH

#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

using toy::Json;

namespace {

toy::CommandLine const program(WIDE_LAYER_PATH);

Json object(std::string const& arguments) {
    auto const found = program.objects("--steps 4 --batch 16 " + arguments);
    REQUIRE(found.size() == 1);
    return found[0];
}
std::vector<double> list(Json const& object, std::string const& name) {
    std::vector<double> result;
    for (Json const& number : object.at(name).array) result.push_back(number.number);
    return result;
}
double sum(std::vector<double> const& numbers) {
    return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}
// The matrix, and the one in front of it.
constexpr double wide = 4 * 4096 * 128, front = 4 * 128 * 32;

} // namespace

TEST_CASE("losses are those of the whole matrix in every bit, however it is cut and on how many "
          "devices") {
    for (std::string const cut : {"rows", "columns"})
        for (std::string const arguments : {"--parts 2 --micro-batches 32", "--parts 4 --cells 1",
                                            "--parts 4 --cells 5 --micro-batches 3"}) {
            CAPTURE(cut);
            CAPTURE(arguments);
            Json const found = object("--cut " + cut + ' ' + arguments);
            CHECK(found.at("cut").string == cut);
            CHECK(found.at("same_losses").number == 1);
            CHECK(found.at("final_loss").number == found.at("whole_final_loss").number);
        }
    Json const longer = object("--steps 60 --batch 64");
    CHECK(longer.at("first_loss").number == doctest::Approx(8.35).epsilon(0.02)); // log(4096)
    CHECK(longer.at("final_loss").number < 1);
}

TEST_CASE(
    "each device holds a block, its gradient and optimizer state, and of the whole matrix one "
    "holds all") {
    for (std::string const cut : {"rows", "columns"})
        for (std::size_t const parts : {2u, 4u}) {
            CAPTURE(cut);
            CAPTURE(parts);
            Json const found = object("--cut " + cut + " --parts " + std::to_string(parts));
            CHECK(found.at("devices").number == double(parts));
            auto const parameters = list(found, "parameters");
            REQUIRE(parameters.size() == parts);
            for (std::size_t d = 0; d < parts; ++d)
                CHECK(parameters[d] == wide / double(parts) + (d == 0 ? front : 0));
            CHECK(list(found, "gradients") == parameters);
            CHECK(sum(list(found, "optimizer")) == 2 * (wide + front)); // of Adam
            CHECK(list(found, "whole_parameters") == std::vector<double>{wide + front});
            CHECK(list(found, "whole_gradients") == std::vector<double>{wide + front});
            CHECK(list(found, "whole_optimizer") == std::vector<double>{2 * (wide + front)});
            auto const total = list(found, "total");
            for (std::size_t d = 0; d < parts; ++d)
                CHECK(total[d] == parameters[d] + list(found, "gradients")[d] +
                                      list(found, "optimizer")[d] + list(found, "activations")[d]);
            // In rows x and a block of y leave each device but the last, in columns a sum reaches
            // each but the first, and a block of x.
            double const n = double(parts);
            CHECK(found.at("sent_per_sample").number ==
                  4 * (n - 1) * (cut == "rows" ? 128 + 4096 / n : 4096 + 128 / n));
        }
    CHECK(object("--cells 1").at("sent_per_sample").number == 0);
}

TEST_CASE("its text is a table of all devices, and says that the losses are the same") {
    auto const ran = program.out("--steps 2");
    CHECK(ran.status == 0);
    CHECK(ran.lines() == 9);
    for (std::string const words :
         {"4096 x 128 in 4 blocks of rows", "\nwhole ", "\ndevice 0 ", "\ndevice 3 ",
          "13824 in rows, 49536 in columns", "the same in every bit"}) {
        CAPTURE(words);
        CHECK(ran.text.find(words) != std::string::npos);
    }
}

TEST_CASE("what it cannot do it refuses with one line") {
    for (std::string const arguments :
         {"--parts 3", "--cut diagonal", "--parts 2 --cells 4", "--cells 6", "--micro-batches 0",
          "--steps 0", "--batch 0", "--learning-rate 0", "--json=yes", "surplus"})
        program.check_refused(arguments);
}

#endif
