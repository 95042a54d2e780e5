// The command line of examples/memory, where the build has it (MEMORY_PATH).
#include <support/command_line.hpp>
#include <support/xml_reader.hpp>

#include "../../examples/support/transformer.hpp"

#include <gpipe/balance/partition.hpp>
#include <gpipe/checkpoint/checkpointing_catalogue.hpp>
#include <gpipe/memory/plan.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>
#include <gpipe/schedule/simulate.hpp>

#include <doctest/doctest.h>

#ifdef MEMORY_PATH

#include <cstddef>
#include <set>
#include <string>
#include <vector>

using toy::Json;

namespace {

toy::CommandLine const program(MEMORY_PATH);

double value(Json const& object, std::string const& key) { return object.at(key).number; }
Json const& find(std::vector<Json> const& objects, std::string const& policy) {
    for (Json const& object : objects)
        if (object.at("policy").string == policy) return object;
    FAIL("no object of " << policy);
    return objects.front();
}

} // namespace

TEST_CASE("peaks and step times are those of the library's planner and simulator") {
    // 7 layers and two ends, with what the options say.
    support::TransformerShape const shape{64, 256, 2, 16, 100, 4};
    support::TransformerChain const chain(shape, 7);
    for (std::size_t const k : {1u, 2u, 3u})
        for (std::string const schedule : {"GPipe", "OneForwardOneBackward"}) {
            CAPTURE(k);
            CAPTURE(schedule);
            auto const objects = program.objects(
                "--layers 7 --width 64 --heads 2 --context 16 --vocabulary 100 --batch 9 "
                "--micro-batches 4 --gflops 1 --cells " +
                std::to_string(k) + " --schedule " + schedule);
            std::vector<double> costs;
            for (auto const& layer : chain.layers()) costs.push_back(layer.cost);
            gpipe::Array<std::size_t> first(k + 1);
            gpipe::cut_by_bottleneck(costs.data(), costs.size(), k, first.data());
            gpipe::Programs const plain =
                gpipe::schedule::find_schedule(schedule, 1).programs(k, 4);
            for (std::string const name : {"never", "except-last", "always"}) {
                gpipe::Programs const programs =
                    gpipe::checkpoint::find_checkpointing(name).lower(plain);
                gpipe::MemoryPlan const plan =
                    gpipe::plan_memory({chain.shape(), first, 2, 3}, programs);
                Json const& object = find(objects, name);
                REQUIRE(object.at("peak_by_device").array.size() == k);
                double most = 0;
                for (std::size_t d = 0; d < k; ++d) {
                    double const bytes = double(plan.devices[d].total());
                    CHECK(object.at("peak_by_device").array[d].number == bytes);
                    most = std::max(most, bytes);
                }
                CHECK(value(object, "peak_bytes") == most);
                // 3 samples at 10^9 operations a second. All layers save, so all run again.
                auto const cost = [&](gpipe::Action const& a) {
                    double sum = 0;
                    for (std::size_t l = first[a.cell]; l < first[a.cell + 1]; ++l) {
                        bool const left_out = a.kind == gpipe::Kind::recompute &&
                                              l + 1 == first[a.cell + 1] && l + 1 < costs.size() &&
                                              l == 0; // the embedding saves nothing
                        sum += left_out ? 0 : costs[l];
                    }
                    return 3e-6 * sum * (a.kind == gpipe::Kind::backward ? 2 : 1);
                };
                CHECK(value(object, "step_milliseconds") ==
                      doctest::Approx(gpipe::simulate<double>(programs, cost).makespan)
                          .epsilon(1e-8));
            }
        }
}

TEST_CASE("the policies: families, extra forwards and what fits") {
    for (std::string const arguments :
         {"", "--cells 4 --micro-batches 3", "--layers 12 --cells 3 --schedule VHalf",
          "--layers 5 --cells 2 --schedule Interleaved1F1B --micro-batches 4",
          "--layers 9 --cells 1 --micro-batches 1 --budgets 30"}) {
        CAPTURE(arguments);
        auto const objects = program.objects(arguments);
        std::set<std::string> families;
        double const budget = value(objects[0], "budget_bytes");
        double const least = value(objects[0], "least_bytes");
        double const never = value(find(objects, "never"), "peak_bytes");
        CHECK(value(find(objects, "never"), "extra_forwards") == 0);
        CHECK(budget == doctest::Approx((least + never) / 2).epsilon(1e-6));
        double before = 0;
        for (std::size_t i = 0; i < objects.size(); ++i) {
            Json const& object = objects[i];
            std::string const family = object.at("family").string;
            CAPTURE(object.at("policy").string);
            families.insert(family);
            double most = 0;
            for (Json const& bytes : object.at("peak_by_device").array)
                most = std::max(most, bytes.number);
            CHECK(value(object, "peak_bytes") == most);
            // What does not reverse inside of cells runs halves, and these may take less.
            bool const whole = family != "never" && family != "except-last" && family != "always";
            if (whole && family != "offload") CHECK(most >= least);
            CHECK((value(object, "host_bytes") > 0) == (family == "offload"));
            CHECK(value(object, "fits") == double(most <= budget));
            CHECK(value(object, "extra_forwards") >= 0);
            CHECK(value(object, "step_milliseconds") > 0);
            if (family != "optimal") continue;
            // Within the budget that it is named for, in their order; the last is the budget.
            double const asked = std::stod(object.at("policy").string.substr(8));
            CHECK(most <= asked);
            if (i + 1 < objects.size()) CHECK(asked > before);
            before = asked;
        }
        CHECK(families.size() == 7 - (families.count("revolve") == 0) -
                                     (families.count("every-segment") == 0) +
                                     families.count("selective") + families.count("offload"));
        // With what never takes nothing runs again.
        Json const& all = find(objects, "optimal-" + std::to_string(std::size_t(never)));
        CHECK(value(all, "extra_forwards") == 0);
    }
}

TEST_CASE("what is offloaded takes time where the host is slow, and none where it is fast") {
    for (std::string const arguments : {"", "--cells 3 --micro-batches 16 --batch 48"}) {
        auto const time = [&](std::string const& name, std::string const& bandwidth) {
            auto const objects = program.objects(arguments + " --bandwidth " + bandwidth);
            return value(find(objects, name), "step_milliseconds");
        };
        CHECK(time("offload", "1000") == time("never", "1000"));
        CHECK(time("offload", "0.1") > time("never", "0.1"));
        auto const objects = program.objects(arguments);
        CHECK(value(find(objects, "offload"), "extra_forwards") == 0);
        CHECK(value(find(objects, "offload"), "peak_bytes") <
              value(find(objects, "never"), "peak_bytes") / 2);
    }
}

TEST_CASE("a budget is taken in bytes and in larger units") {
    auto const budget = [](std::string const& text) {
        return value(program.objects("--budget " + text)[0], "budget_bytes");
    };
    CHECK(budget("16MiB") == 16 * 1024.0 * 1024);
    CHECK(budget("20000KiB") == 20000.0 * 1024);
    CHECK(budget("16777217") == 16777217);
    // Too little for anything: then nothing fits, and optimal at the budget is left out.
    for (Json const& object : program.objects("--budget 1")) CHECK(value(object, "fits") == 0);
}

TEST_CASE("as text it is a table; the figure has a point for each policy and the memory below") {
    std::string const arguments = "--cells 2 --micro-batches 4";
    auto const objects = program.objects(arguments);
    auto const ran = program.out(arguments);
    CHECK(ran.status == 0);
    CHECK(ran.text.find("policy ") == 0);
    CHECK(ran.lines() == std::ptrdiff_t(objects.size()) + 3);
    toy::Xml const svg = toy::Xml::parse(program.file("--svg", arguments));
    std::set<std::string> families;
    for (Json const& object : objects) families.insert(object.at("family").string);
    std::size_t points = 0;
    for (toy::Xml const* circle : svg.all("circle")) {
        points += !circle->all("title").empty();
        CHECK(circle->number("cx") > 0);
        CHECK(circle->number("cx") < svg.number("width"));
        CHECK(circle->number("cy") > 0);
        CHECK(circle->number("cy") < svg.number("height"));
    }
    CHECK(points == objects.size());
    CHECK(svg.all("circle").size() == objects.size() + families.size()); // the legend's
    REQUIRE(svg.all("svg").size() == 2);
    toy::Xml const& below = *svg.all("svg")[1];
    CHECK(below.number("y") + below.number("height") <= svg.number("height") + 0.01);
    std::size_t curves = 0;
    for (toy::Xml const* path : below.all("path")) curves += !path->all("title").empty();
    CHECK(curves == 2 * 2); // never and the best that fits, two devices each
}

TEST_CASE("what it cannot do it refuses with one line") {
    for (char const* arguments :
         {"--layers x", "--cells 0", "--cells 11", "--layers 3 --cells 6", "--micro-batches 0",
          "--batch 0", "--schedule Gpipe", "--schedule DualPipeV --cells 4 --micro-batches 7",
          "--budget 0", "--budget much", "--budget 5MB", "--budget -1", "--budgets 1", "--gflops 0",
          "--svg", "--json=1", "surplus"})
        program.check_refused(arguments);
    auto const failed = program.errors("--svg /nonexistent/file");
    CHECK(failed.status == 1);
    CHECK(failed.text == "memory: cannot write '/nonexistent/file': No such file or directory\n");
}

#endif
