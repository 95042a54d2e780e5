// The command line of examples/paper_tables, where the build has it (PAPER_TABLES_PATH).
#include <support/command_line.hpp>

#include <doctest/doctest.h>

#ifdef PAPER_TABLES_PATH

#include <cmath>
#include <string>
#include <vector>

using toy::Json;

namespace {

toy::CommandLine const program(PAPER_TABLES_PATH);

double value(Json const& object, std::string const& key) { return object.at(key).number; }
std::vector<Json> table1(std::string const& arguments = {}) {
    auto const objects = program.objects("--table 1 " + arguments);
    REQUIRE(objects.size() == 5);
    return objects;
}
std::vector<Json> const& usual() {
    static std::vector<Json> const objects = table1();
    return objects;
}
bool about(double a, double b, double share) { return std::abs(a - b) <= share * std::abs(b); }

constexpr double gib = 1024.0 * 1024 * 1024;

} // namespace

TEST_CASE("table 1 has the paper's settings, and its parameters to the last digit published") {
    std::vector<std::string> const names = {"naive-1", "pipeline-1", "pipeline-8", "pipeline-32",
                                            "pipeline-128"};
    double const layers[] = {3, 13, 103, 415, 1663};
    double const digits[] = {0.05e6, 0.05e6, 0.05e9, 0.05e9, 0.05e9};
    auto const& objects = usual();
    for (std::size_t i = 0; i < 5; ++i) {
        Json const& object = objects[i];
        CAPTURE(names[i]);
        CHECK(object.at("setting").string == names[i]);
        CHECK(value(object, "table") == 1);
        CHECK(value(object, "published_layers") == layers[i]);
        // 12 width^2 in a layer and its biases and norms, an embedding and a softmax.
        double const parameters =
            layers[i] * (12.0 * 2048 * 2048 + 9 * 2048 + 8192) + 32000.0 * (2 * 2048 + 1);
        CHECK(value(object, "parameters") == parameters);
        CHECK(std::abs(parameters - value(object, "published_parameters")) <= digits[i]);
        // The parameter and two states; a gradient for each.
        CHECK(about(value(object, "parameter_gib"), 12 * parameters / gib, 1e-6));
        CHECK(about(value(object, "gradient_gib"), 4 * parameters / gib, 1e-6));
        CHECK(
            about(value(object, "parameter_gib"), value(object, "published_parameter_gib"), 0.003));
        CHECK(about(value(object, "activation_gib"), value(object, "published_activation_gib"),
                    0.15));
    }
}

TEST_CASE("activations are those that the program says are kept") {
    // Of a sample, in GiB: a layer, the softmax, a boundary, and what is there for a moment.
    double const tensor = 2.0 * 1024 * 2048 / gib;
    double const layer = (1 + 3 + 16 + 1 + 1 + 4) * tensor;
    double const softmax = 2.0 * 1024 * 32000 / gib;
    double const moment = (4 + 1 + 2 + 1) * tensor;
    auto const& objects = usual();
    auto const check = [&](std::size_t i, double least, double passing) {
        CAPTURE(i);
        CHECK(value(objects[i], "activation_gib") >= least);
        CHECK(value(objects[i], "activation_gib") <= least + passing);
    };
    check(0, 32 * (3 * layer + tensor + softmax), 32 * moment + 0.01);
    check(1, 4 * (13 * layer + tensor + softmax), 4 * moment + 0.01);
    // On each of K devices one micro-batch's, the inputs of the mini-batch, and two that leave.
    for (std::size_t i = 2; i < 5; ++i) {
        double const k = value(objects[i], "devices");
        check(i, 4 * (value(objects[i], "published_layers") * layer + softmax),
              k * (4 * moment + (32 + 4 + 2 * 4) * tensor) + 0.1);
    }
}

TEST_CASE("the layers that fit grow with the devices, and come within one of the published") {
    auto const& objects = usual();
    for (Json const& object : objects) {
        CHECK(value(object, "layers") <= value(object, "layers_without_gradients"));
        CHECK((value(object, "largest_device_gib") <= 16) ==
              (value(object, "published_layers") <= value(object, "layers")));
    }
    for (std::size_t i = 2; i < 5; ++i) {
        double const k = value(objects[i], "devices");
        CHECK(value(objects[i], "layers") + 2 == 13 * k); // the embedding's and the softmax's room
        CHECK(value(objects[i], "published_layers") - value(objects[i], "layers") == 1);
    }
}

TEST_CASE("smaller micro-batches and numbers leave room for more layers, smaller devices do not") {
    auto const& objects = usual();
    auto const finer = table1("--micro-batches 16");
    auto const wider = table1("--activation-bytes 4");
    auto const scarce = table1("--budget 8");
    auto const tiny = table1("--budget 0.5");
    for (std::size_t i = 0; i < 5; ++i) {
        double const layers = value(objects[i], "layers");
        CHECK((value(finer[i], "layers") > layers) == (i > 0));
        CHECK(value(finer[i], "micro_batches") == (i > 0 ? 16 : 1));
        CHECK(value(wider[i], "layers") < layers);
        CHECK(value(scarce[i], "layers") < layers);
        CHECK(value(tiny[i], "layers") == 0);
    }
}

TEST_CASE("table 2 is the closed form, and says what no order of that mini-batch can give") {
    auto const objects = program.objects("--table 2");
    REQUIRE(objects.size() == 9);
    std::size_t n = 0;
    for (double const m : {1, 4, 32})
        for (double const k : {2, 4, 8}) {
            Json const& object = objects[n++];
            CHECK(value(object, "devices") == k);
            CHECK(value(object, "micro_batches") == m);
            CHECK(value(object, "throughput") ==
                  doctest::Approx(3.5 * k * m / (4 * m + 3 * k - 3)).epsilon(1e-8));
            CHECK(value(object, "without_recompute") ==
                  doctest::Approx(3.5 * k * m / (3 * (m + k - 1))).epsilon(1e-8));
            if (m == 32)
                CHECK(about(value(object, "throughput"), value(object, "published"), 0.06));
        }
}

TEST_CASE("as text it has both tables, and marks what cannot be") {
    auto const ran = program.out("");
    CHECK(ran.status == 0);
    CHECK(ran.text.find("Table 1: ") == 0);
    CHECK(ran.text.find("\nTable 2: ") != std::string::npos);
    CHECK(ran.text.find("(4.80)*") != std::string::npos);
    CHECK(ran.text.find("(6.30)*") == std::string::npos);
    CHECK(program.out("--table 2").text.find("Table 2: ") == 0);
    CHECK(program.out("--table 1").text.find("Table 2") == std::string::npos);
}

TEST_CASE("what it cannot do it refuses with one line") {
    for (char const* arguments : {"--table 3", "--table", "--samples 0", "--micro-batches 0",
                                  "--micro-batches x", "--activation-bytes 0", "--budget 0",
                                  "--budget nan", "--budget 1e6", "--json=yes", "surplus"})
        program.check_refused(arguments);
}

#endif
