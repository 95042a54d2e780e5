// The command line of train_gpt: its parts, and, where the build has the program (TRAIN_GPT_PATH),
// the program itself.

#include <gpt/generate.hpp>
#include <gpt/host_operations.hpp>
#include <gpt/model.hpp>
#include <gpt/text.hpp>
#include <support/gpus.hpp>
#include <support/json.hpp>
#include <support/json_reader.hpp>
#include <support/options.hpp>
#include <support/trace.hpp>
#include <support/xml_reader.hpp>

#include <gpipe/core/registry.hpp>
#include <gpipe/core/thread.hpp>
#include <gpipe/optimizer/optimizer_catalogue.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>

#include <doctest/doctest.h>

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

// A folder of its own for each test, removed with what was written there.
class Folder {
  public:
    Folder() { REQUIRE(mkdtemp(path_) != nullptr); }
    Folder(Folder const&) = delete;
    ~Folder() {
        for (std::string const& file : files_) std::remove(file.c_str());
        rmdir(path_);
    }
    std::string file(std::string const& name, std::string const& content) {
        files_.push_back(std::string(path_) + '/' + name);
        std::ofstream(files_.back(), std::ios::binary) << content;
        return files_.back();
    }
    std::string path() const { return path_; }

  private:
    char path_[32] = "/tmp/gpipe_cli_XXXXXX";
    std::vector<std::string> files_;
};

struct Parsed {
    bool flag = false;
    std::string text = "none";
    std::uint64_t whole = 3;
    double real = 0.5;
    std::string choice = "a";
    std::string name = "first";
    std::string names = "first,second-2";
};

gpipe::Registry<int> names() {
    constexpr gpipe::Named<int> all[] = {
        {"first", "one", [](gpipe::Numbers const&) { return 1; }},
        {"second", "a number", [](gpipe::Numbers const&) { return 2; }, {{"N"}}}};
    return {"name", all, [](gpipe::Array<int>) { return 0; }, "or several as one"};
}

support::Options options_for(Parsed& parsed) {
    support::Options options("program", "Does something.");
    options.flag("flag", "set", parsed.flag);
    options.text("text", "FILE", "read", parsed.text);
    options.number("whole", "count", parsed.whole, 1, 100);
    options.number("real", "measure", parsed.real, 0.25, 10);
    options.choice("choice", "choose", parsed.choice, {"a", "b-c"});
    options.name("name", "choose by name", names(), parsed.name, "any");
    options.names("names", "choose some", names(), parsed.names, "all");
    return options;
}

Parsed parse(std::vector<char const*> arguments) {
    Parsed parsed;
    support::Options options = options_for(parsed);
    arguments.insert(arguments.begin(), "program");
    options.read(static_cast<int>(arguments.size()), arguments.data());
    return parsed;
}

std::string complaint(std::vector<char const*> arguments) {
    try {
        parse(std::move(arguments));
    } catch (support::UsageError const& error) {
        return error.what();
    }
    return {};
}

TEST_CASE("options are read with a blank or with an equals sign, and keep their defaults") {
    Parsed const none = parse({});
    CHECK(!none.flag);
    CHECK(none.text == "none");
    CHECK(none.whole == 3);
    Parsed const some =
        parse({"--flag", "--whole", "100", "--real=0.25", "--text", "--real", "--choice", "b-c"});
    CHECK(some.flag);
    CHECK(some.whole == 100);
    CHECK(some.real == 0.25);
    CHECK(some.text == "--real");
    CHECK(some.choice == "b-c");
    CHECK(some.name == "first");
    CHECK(parse({"--name", "second-5"}).name == "second-5");
    CHECK(parse({"--name", "any"}).name == "any");
    CHECK(some.names == "first,second-2");
    CHECK(parse({"--names", "second-7,first,first"}).names == "second-7,first,first");
    CHECK(parse({"--names", "all"}).names == "all");
    CHECK(parse({"--whole", "5", "--whole", "6"}).whole == 6);
}

TEST_CASE("a mistake on the command line is told by name, value and range") {
    for (std::string const unknown : {"--nothing", "--whol", "file", "-flag", ""})
        CHECK(complaint({unknown.c_str()}) ==
              "The following argument was not expected: " + unknown);
    CHECK(complaint({"--whole"}) == "--whole: 1 required n missing");
    CHECK(complaint({"--text", ""}) == "--text takes a name, not an empty one");
    CHECK(complaint({"--flag=1"}) == "flag was given a disallowed flag override");
    CHECK(complaint({"--choice", "b"}) == "--choice takes one of a, b-c, not 'b'");
    CHECK(complaint({"--name", "First"}) ==
          "--name: there is no name 'First'; there are first, second-N, or several as one");
    for (std::string const bad : {"second", "", "all"})
        CHECK(complaint({"--names", ("first," + bad).c_str()}) ==
              "--names: there is no name '" + bad + "'; there are first, second-N");
    for (char const* bad : {"0", "101", "-1", "x", "3x", "3.5", "", " 3", "99999999999999999999"})
        CHECK(complaint({"--whole", bad}) ==
              "--whole takes a whole number from 1 to 100, not '" + std::string(bad) + "'");
    for (char const* bad : {"0.2", "10.1", "nan", "inf", "1e999", "x", "1.5.", "", "-0.5"})
        CHECK(complaint({"--real", bad}) ==
              "--real takes a number from 0.25 to 10, not '" + std::string(bad) + "'");
}

TEST_CASE("help tells of every option and its default") {
    Parsed parsed;
    std::string const help = options_for(parsed).help();
    for (char const* words :
         {"--flag", "--text FILE=none", "--whole n=3", "--real x=0.5", "--choice a|b-c=a",
          "--name NAME=first", "choose by name", "--names NAME,...=first,second-2",
          "--names first, second-N\n", "first: one\n", "second-N: a number\n", "--help"})
        CHECK(help.find(words) != std::string::npos);
}

TEST_CASE("a JSON object escapes its texts, and its numbers are as short as read back the same") {
    support::JsonObject object;
    object.add("a", 1).add("b", 0.5).add("c", "x\"\\\n").add("d", true);
    object.add("e", std::numeric_limits<double>::quiet_NaN());
    object.add("f", 0.1).add("g", 1e300).add("h", 33.0).add("i", ~std::uint64_t{0}).add("j", -3);
    object.add("k", "\xff").add("l", std::vector<std::size_t>{1, 2});
    CHECK(object.text() ==
          "{\"a\":1,\"b\":0.5,\"c\":\"x\\\"\\\\\\n\",\"d\":true,\"e\":null,\"f\":0.1,"
          "\"g\":1e+300,\"h\":33.0,\"i\":18446744073709551615,\"j\":-3,"
          "\"k\":\"\xef\xbf\xbd\",\"l\":[1,2]}");
}

TEST_CASE("a text numbers its characters in order and holds a tenth out") {
    gpt::Text const text(std::string(80, 'b') + "\xff" + std::string(9, 'a') + std::string(10, 'c'),
                         "name", 4);
    CHECK(text.size() == 100);
    CHECK(text.classes() == 4);
    CHECK(text.id('a') == 0);
    CHECK(text.id('\xff') == 3);
    CHECK(text.id('z') == -1);
    CHECK(text.character(1) == 'b');
    CHECK(text.training().size() == 90);
    CHECK(text.held_out().size() == 10);
    CHECK(text.held_out()[0] == 2);
    // Of a short one, a context and its last target.
    CHECK(gpt::Text("0123456789", "name", 4).held_out().size() == 5);
    CHECK_THROWS_AS(gpt::Text("012345678", "name", 4), gpt::BadText);
}

TEST_CASE("targets are the next characters, and samples that are spread do not overlap") {
    std::vector<std::int32_t> tokens(100);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
    gpt::Windows windows{tokens, 7};
    CHECK(windows.size() == 93);
    for (std::uint64_t const first : {0u, 40u, 92u}) {
        std::vector<std::int32_t> inputs(7), targets(7);
        windows.inputs(first, inputs);
        windows.targets(first, targets);
        for (std::size_t i = 0; i < 7; ++i) {
            CHECK(inputs[i] == static_cast<std::int32_t>(first + i));
            CHECK(targets[i] == inputs[i] + 1);
        }
    }
    CHECK(gpt::spread(tokens, 7, 1000).size() == 14);
    gpt::Samples const few = gpt::spread(tokens, 7, 5);
    CHECK(few.size() == 5);
    for (std::size_t i = 1; i < 5; ++i) CHECK(few.inputs[i * 7] >= few.inputs[(i - 1) * 7] + 7);
    CHECK(gpt::spread(std::span(tokens).first(8), 7, 5).size() == 1);
}

// A stand-in for a Training that wants the character after the last one it sees, most of the time.
struct SmallModel {
    using Element = float;
    static constexpr std::size_t context = 4;
    static constexpr std::size_t vocabulary = 8;
};
auto const same = [](std::uint64_t choice) { return choice; };
struct Counting {
    std::size_t seen_most = 0;
    void predict(std::vector<std::int32_t> const& window, std::vector<float>& logits) {
        for (std::size_t t = 0; t < 4; ++t)
            for (std::size_t i = 0; i < 8; ++i)
                logits[t * 8 + i] = i == static_cast<std::size_t>(window[t] + 1) % 5 ? 20.0f : 0.0f;
        logits[5] = 1000; // no character of the text
    }
};

TEST_CASE("generated text continues the prompt, beyond one context, in the text's characters") {
    gpt::Text const text("abcdeabcdeabcde", "name", 4);
    Counting model;
    CHECK(gpt::generate<SmallModel>(model, text, "a", 11, 1.0, 1, same) == "bcdeabcdeab");
    CHECK(gpt::generate<SmallModel>(model, text, "cde", 3, 0.1, 2, same) == "abc");
    std::string const hot = gpt::generate<SmallModel>(model, text, "a", 200, 100.0, 3, same);
    CHECK(hot.find_first_not_of("abcde") == std::string::npos);
    CHECK(hot != gpt::generate<SmallModel>(model, text, "a", 200, 100.0, 4, same));
    CHECK(hot == gpt::generate<SmallModel>(model, text, "a", 200, 100.0, 3, same));
}

TEST_CASE("a file that cannot be trained on is refused with its name and why") {
    Folder folder;
    auto const why = [](std::string const& path) -> std::string {
        try {
            gpt::Text(path, 64);
        } catch (gpt::BadText const& error) {
            return error.what();
        }
        return {};
    };
    CHECK(why(folder.path() + "/none") ==
          "cannot read '" + folder.path() + "/none': No such file or directory");
    CHECK(why(folder.path()) == "cannot read '" + folder.path() + "': Is a directory");
    std::string const empty = folder.file("empty", "");
    CHECK(why(empty) == "'" + empty + "' is empty");
    std::string const brief = folder.file("brief", std::string(129, 'a'));
    CHECK(why(brief) == "'" + brief +
                            "' has 129 characters; a context of 64 to train on and one to hold out "
                            "take 130");
    CHECK(why(folder.file("enough", std::string(130, 'a'))).empty());
    std::string const secret = folder.file("secret", std::string(500, 'a'));
    REQUIRE(chmod(secret.c_str(), 0) == 0);
    if (access(secret.c_str(), R_OK) != 0) // not so for root
        CHECK(why(secret) == "cannot read '" + secret + "': Permission denied");
}

TEST_CASE("a list of GPUs has a number for each device") {
    CHECK(support::gpu_list("0,0,12", 3) == std::vector<int>{0, 0, 12});
    CHECK(support::gpu_list("3", 1) == std::vector<int>{3});
    for (char const* text :
         {"", ",", "0,", ",0", "a", "0 1", "-1,0", "0,0,0", "1.5", "99999999999"})
        CHECK_THROWS_AS(support::gpu_list(text, 2), support::UsageError);
}

#ifdef TRAIN_GPT_PATH

struct Ran {
    int status;
    std::string out, err;
    std::size_t lines(std::string const& text) const {
        return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
    }
    // The value of a member of the JSON object, as it was printed.
    std::string member(std::string const& name) const {
        std::string const key = "\"" + name + "\":";
        auto const at = out.find(key);
        if (at == std::string::npos) return "missing";
        auto const begin = at + key.size();
        return out.substr(begin, out.find_first_of(",}", begin) - begin);
    }
};

std::string content(std::string const& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

// `launcher`: words of the shell that stand before the program's name.
Ran train_gpt(Folder& folder, std::string const& arguments, std::string const& launcher = "") {
    std::string const out = folder.file("out", "");
    std::string const err = folder.file("err", "");
    std::string const command =
        launcher + TRAIN_GPT_PATH " " + arguments + " </dev/null >" + out + " 2>" + err;
    int const status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(out), content(err)};
}

std::string const counting = [] {
    std::string text;
    for (int i = 0; i < 300; ++i) text += std::to_string(i) + ' ';
    return text;
}();

TEST_CASE("train_gpt refuses what it cannot do with one line and exit status 2") {
    Folder folder;
    std::string const text = folder.file("text", counting);
    std::string const with_text = "--text " + text + ' ';
    std::vector<std::string> const mistakes = {
        "",
        "--text",
        "--text /nonexistent/file",
        "--text " + folder.path(),
        "--text " + folder.file("empty", ""),
        "--text " + folder.file("brief", "to be or not to be"),
        text,
        with_text + "--unknown",
        with_text + "surplus",
        with_text + "--steps",
        with_text + "--steps 0",
        with_text + "--steps -1",
        with_text + "--steps many",
        with_text + "--steps 1e3",
        with_text + "--steps 10x",
        with_text + "--resume",
        with_text + "--save-every 2",
        with_text + "--rate-steps -1",
        with_text + "--batch 0",
        with_text + "--batch 100000",
        with_text + "--cells 0",
        with_text + "--cells 3",
        with_text + "--cells 16",
        with_text + "--micro-batches 0",
        with_text + "--micro-batches 1.5",
        with_text + "--checkpointing sometimes",
        with_text + "--checkpointing revolve",
        with_text + "--checkpointing never,always",
        with_text + "--optimizer lion",
        with_text + "--optimizer SGD",
        with_text + "--schedule BreadthFirst-9",
        with_text + "--schedule BreadthFirst-4 --per-device 3",
        with_text + "--schedule none",
        with_text + "--schedule gpipe",
        with_text + "--schedule",
        with_text + "--per-device 9",
        with_text + "--per-device 3",
        with_text + "--schedule ZeroBubbleV --per-device 3",
        with_text + "--schedule VMin --cells 8",
        with_text + "--trace picture",
        with_text + "--trace picture.png",
        with_text + "--device cuda --trace picture.svg",
        with_text + "--seed -1",
        with_text + "--seed x",
        with_text + "--learning-rate 0",
        with_text + "--learning-rate nan",
        with_text + "--learning-rate fast",
        with_text + "--dropout 1",
        with_text + "--temperature 0",
        with_text + "--prompt xyz",
        with_text + "--replicas 0",
        with_text + "--replicas 2 --ranks 3 --cells 4",
        with_text + "--ranks 0",
        with_text + "--ranks 9",
        with_text + "--cells 2 --ranks 4",
        with_text + "--ranks 2 --trace picture.png",
        with_text + "--ranks 2 --schedule GPipe --cells 8 --micro-batches 0",
        with_text + "--device tpu",
        with_text + "--gpus 0",
        with_text + "--device cuda --gpus 0,x",
        with_text + "--json=yes"};
    for (std::string const& arguments : mistakes) {
        CAPTURE(arguments);
        Ran const ran = train_gpt(folder, arguments);
        CHECK(ran.status == 2);
        CHECK(ran.out.empty());
        CHECK(ran.lines(ran.err) == 1);
        CHECK(ran.err.find("train_gpt: ") == 0);
    }
    // A name that there is not lists those that there are.
    std::vector<std::vector<std::string>> const names = {
        {"--schedule none", "GPipe", "DualPipeV", "BreadthFirst"},
        {"--checkpointing sometimes", "never", "except-last", "every-segment-"},
        {"--optimizer lion", "sgd", "adamw"}};
    for (auto const& each : names) {
        std::string const said = train_gpt(folder, with_text + each[0]).err;
        CAPTURE(said);
        std::size_t const list = said.find("'; there are ");
        REQUIRE(list != std::string::npos);
        for (std::size_t i = 1; i < each.size(); ++i)
            CHECK(said.find(each[i], list) != std::string::npos);
    }
}

TEST_CASE("train_gpt says of a picture that cannot be written why, before it trains or after") {
    Folder folder;
    std::string const text = folder.file("text", counting);
    std::string const full = folder.file("full.svg", "");
    CHECK(unlink(full.c_str()) == 0);
    CHECK(symlink("/dev/full", full.c_str()) == 0);
    for (auto const& wrong :
         std::map<std::string, std::string>{{"/nonexistent/a.svg", "No such file or directory"},
                                            {full, "No space left on device"}}) {
        Ran const ran = train_gpt(folder, "--text " + text + " --steps 1 --trace " + wrong.first);
        CHECK(ran.status == 1);
        CHECK(ran.out.empty());
        CHECK(ran.err.find("train_gpt: cannot write '" + wrong.first + "': " + wrong.second +
                           '\n') != std::string::npos);
    }
}

TEST_CASE("train_gpt says which schedule does not go with which cells and micro-batches") {
    Folder folder;
    std::string const text = folder.file("text", counting);
    for (auto const& mistake : std::map<std::string, std::string>{
             {"--cells 8 --schedule ZeroBubbleV",
              "--cells 8 and 2 per device make 16 cells, but there are 10 layers"},
             {"--cells 4 --schedule BreadthFirst --per-device 3",
              "--cells 4 and 3 per device make 12 cells, but there are 10 layers"},
             {"--cells 4 --schedule DualPipeV --micro-batches 7",
              "DualPipeV needs at least 8 micro-batches for --cells 4"},
             {"--schedule ZeroBubbleH1 --per-device 2",
              "--per-device 2 is for schedules in loops; ZeroBubbleH1 has 1"}}) {
        CAPTURE(mistake.first);
        Ran const ran =
            train_gpt(folder, "--text " + text + " --steps 1 --sample 0 " + mistake.first);
        CHECK(ran.status == 2);
        CHECK(ran.out.empty());
        CHECK(ran.err == "train_gpt: " + mistake.second + '\n');
    }
}

TEST_CASE("train_gpt with replicas trains what it does with one, but for rounding") {
    Folder folder;
    std::string const text = folder.file("text", counting);
    std::string const arguments = "--json --steps 3 --sample 0 --dropout 0.1 --text " + text + ' ';
    Ran const one = train_gpt(folder, arguments + "--cells 1 --micro-batches 8");
    Ran const two = train_gpt(folder, arguments + "--cells 1 --micro-batches 4 --replicas 2");
    Ran const three = train_gpt(folder, arguments + "--cells 2 --micro-batches 2 --replicas 3");
    CHECK(one.member("replicas") == "1");
    for (Ran const* const other : {&two, &three}) {
        CHECK(other->status == 0);
        CHECK(other->member("final_loss") != one.member("final_loss"));
        for (char const* name : {"final_loss", "held_out_loss"})
            CHECK(std::stod(other->member(name)) ==
                  doctest::Approx(std::stod(one.member(name))).epsilon(1e-5));
    }
}

#if TRAIN_GPT_RANKS
TEST_CASE("train_gpt as replicas that are processes trains what it does in one, to the last "
          "digit") {
    Folder folder;
    std::string const arguments = "--json --steps 3 --sample 5 --cells 2 --replicas 2 --text " +
                                  folder.file("text", counting) + ' ';
    Ran const one = train_gpt(folder, arguments);
    for (char const* how : {"--ranks 2", "--ranks 4"}) {
        CAPTURE(how);
        Ran const processes = train_gpt(folder, arguments + how);
        CHECK(processes.status == 0);
        for (char const* name : {"final_loss", "held_out_loss", "held_out_accuracy"})
            CHECK(processes.member(name) == one.member(name));
        auto const sample = [](Ran const& ran) {
            return ran.err.substr(ran.err.find("a sample:"));
        };
        CHECK(sample(processes) == sample(one));
    }
}

TEST_CASE("train_gpt has a device for each process, if nobody says how many") {
    Folder folder;
    std::string const arguments = "--json --sample 0 --text " + folder.file("text", counting) + ' ';
    for (std::string const ranks : {"--ranks 4", "--ranks 2", "--ranks 2 --replicas 2",
                                    "--ranks 3 --schedule OneForwardOneBackward"}) {
        CAPTURE(ranks);
        Ran const one = train_gpt(folder, arguments + "--steps 2 --cells 2" + ranks.substr(9));
        Ran const processes = train_gpt(folder, arguments + "--steps 2 " + ranks);
        CHECK(one.status == 0);
        CHECK(processes.status == 0);
        bool const has_two = ranks.substr(0, 9) == "--ranks 2";
        CHECK(processes.member("devices") == (has_two ? "2" : ranks.substr(8, 1)));
        CHECK(processes.member("final_loss") == one.member("final_loss")); // whatever K is
    }
    std::string const go_on = arguments + "--ranks 4 --resume --save " + folder.path() + "/state ";
    Ran const first = train_gpt(folder, go_on + "--steps 1");
    CHECK(first.status == 0);
    CHECK(train_gpt(folder, go_on + "--steps 2").member("held_out_loss") ==
          train_gpt(folder, arguments + "--steps 2 --cells 4").member("held_out_loss"));
}

TEST_CASE("train_gpt as processes goes on from what others have saved, to the last digit") {
    Folder folder;
    std::string const arguments = "--json --sample 0 --schedule GPipeAscending --replicas 2 "
                                  "--rate-steps 6 --text " +
                                  folder.file("text", counting) + ' ';
    Ran const whole = train_gpt(folder, arguments + "--steps 6 --cells 2");
    std::string const parts = arguments + "--resume --save " + folder.path() + "/parts ";
    Ran const first = train_gpt(folder, parts + "--steps 3 --cells 2 --ranks 4 --save-every 2");
    CHECK(first.status == 0);
    CHECK(first.lines(first.err.substr(0, first.err.find("there is no"))) <= 2); // one says it
    Ran const second = train_gpt(folder, parts + "--steps 4 --cells 1 --ranks 2");
    Ran const third = train_gpt(folder, parts + "--steps 6 --cells 4");
    CHECK(second.err.find("goes on behind the 3 steps") != std::string::npos);
    CHECK(third.err.find("goes on behind the 4 steps") != std::string::npos);
    for (char const* name : {"held_out_loss", "held_out_accuracy"})
        CHECK(third.member(name) == whole.member(name));
}

TEST_CASE("train_gpt as processes trains what it does as one, to the last digit, and writes it") {
    Folder folder;
    std::string const text = folder.file("text", counting);
    for (char const* how :
         {"--cells 2 --ranks 2", "--cells 4 --ranks 2 --tie",
          "--cells 2 --ranks 2 --schedule ZeroBubbleV", "--cells 4 --ranks 2 --balance time"}) {
        CAPTURE(how);
        std::string const one = how;
        std::string const arguments = "--json --steps 3 --sample 5 --text " + text + ' ';
        Ran const processes = train_gpt(folder, arguments + one);
        Ran const threads =
            train_gpt(folder, arguments + one.substr(0, 9) + one.substr(one.find("--ranks 2") + 9));
        CHECK(processes.status == 0);
        CHECK(threads.status == 0);
        CHECK(processes.lines(processes.out) == 1);
        CHECK(processes.member("ranks") == "2");
        CHECK(threads.member("ranks") == "1");
        // Of a process with two devices as many as of one that mpirun has not started.
        auto const devices = static_cast<std::size_t>(one[8] - '0');
        CHECK(processes.member("threads") ==
              std::to_string(std::min(devices / 2, gpipe::detail::processors())));
        for (char const* name : {"final_loss", "held_out_loss", "held_out_accuracy"})
            CHECK(processes.member(name) == threads.member(name));
        auto const sample = [](Ran const& ran) {
            return ran.err.substr(ran.err.find("a sample:"));
        };
        CHECK(sample(processes) == sample(threads));
    }
}

TEST_CASE("train_gpt that a launcher has started is one of its processes, and refuses to be one of "
          "more or fewer than it was told") {
    Folder folder;
    std::string const text = "--json --steps 2 --sample 0 --text " + folder.file("text", counting);
    auto const mpirun = [](char const* ranks) {
        return std::string("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                           "OMPI_MCA_rmaps_base_oversubscribe=1 "
                           "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe mpirun -n ") +
               ranks + ' ';
    };
    std::string const two = text + " --cells 2 --ranks 2", four = text + " --cells 4 --ranks 4";
    Ran const launched = train_gpt(folder, two, mpirun("2"));
    CHECK(launched.status == 0);
    CHECK(launched.lines(launched.out) == 1); // of one of them
    CHECK(launched.member("final_loss") == train_gpt(folder, two).member("final_loss"));
    // A process that has been told that there are others, and finds none.
    Ran const single = train_gpt(folder, two, "PMI_SIZE=2 ");
    CHECK(single.status == 2);
    CHECK(single.out.empty());
    CHECK(single.lines(single.err) == 1);
    CHECK(single.err.find("--ranks 2, but 1 processes were started") != std::string::npos);
    for (std::string const ranks : {"2", "3"}) {
        bool const fewer = ranks == "2";
        Ran const other = train_gpt(folder, fewer ? four : two, mpirun(ranks.c_str()));
        CHECK(other.status == 2);
        CHECK(other.out.find("final_loss") == std::string::npos);
        CHECK(other.err.find((fewer ? "--ranks 4, but " : "--ranks 2, but ") + ranks +
                             " processes were started") != std::string::npos);
    }
}
#else
TEST_CASE("train_gpt without MPI says so in one line") {
    Folder folder;
    Ran const ran = train_gpt(folder, "--ranks 2 --text " + folder.file("text", counting));
    CHECK(ran.status == 2);
    CHECK(ran.err.find("built without MPI") != std::string::npos);
}
#endif

#if !TRAIN_GPT_CUDA
TEST_CASE("train_gpt without CUDA says so in one line") {
    Folder folder;
    Ran const ran = train_gpt(folder, "--device cuda --text " + folder.file("text", counting));
    CHECK(ran.status == 2);
    CHECK(ran.out.empty());
    CHECK(ran.lines(ran.err) == 1);
    CHECK(ran.err.find("built without CUDA") != std::string::npos);
}
#endif

TEST_CASE("train_gpt's help tells of its options") {
    Folder folder;
    Ran const ran = train_gpt(folder, "--help");
    CHECK(ran.status == 0);
    CHECK(ran.err.empty());
    for (char const* option :
         {"--text", "--steps", "--batch", "--cells", "--micro-batches", "--checkpointing", "--seed",
          "--learning-rate", "--device", "--gpus", "--json", "--schedule", "--per-device",
          "--trace", "--save", "--save-every", "--resume", "--rate-steps"})
        CHECK(ran.out.find(option) != std::string::npos);
    for (auto const& schedule : gpipe::schedule::catalogue(1))
        CHECK(ran.out.find(schedule.name()) != std::string::npos);
}

TEST_CASE("train_gpt says the same of every cut, checkpointing and number of threads") {
    Folder folder;
    std::string const text = folder.file("text", counting);
    auto const run = [&](std::string const& arguments) {
        Ran const ran =
            train_gpt(folder, "--text " + text +
                                  " --steps 3 --batch 5 --micro-batches 3 --dropout 0.1 "
                                  "--sample 3 --json " +
                                  arguments);
        CAPTURE(ran.err);
        CHECK(ran.status == 0);
        CHECK(ran.lines(ran.out) == 1);
        return ran;
    };
    Ran const first = run("--cells 1");
    CHECK(first.member("steps") == "3");
    CHECK(first.member("cells") == "1");
    CHECK(first.member("micro_batches") == "3");
    CHECK(first.member("checkpointing") == "\"never\"");
    CHECK(first.member("planned_bytes") == first.member("used_bytes"));
    for (char const* name : {"parameters", "tokens_per_second", "planned_bytes"})
        CHECK(std::stod(first.member(name)) > 0);
    for (char const* arguments :
         {"--cells 2", "--cells 4 --threads 2 --checkpointing always", "--cells 8 --threads 1",
          "--cells 2 --checkpointing except-last", "--cells 2 --checkpointing every-segment-2",
          "--cells 4 --checkpointing square-root", "--cells 2 --checkpointing revolve-1,never",
          "--cells 1 --checkpointing selective", "--cells 2 --checkpointing optimal-64MiB",
          "--cells 4 --balance time", "--cells 2 --balance size"}) {
        CAPTURE(arguments);
        Ran const other = run(arguments);
        for (char const* name : {"first_loss", "final_loss", "held_out_loss"})
            CHECK(other.member(name) == first.member(name));
    }
    CHECK(run("--cells 1 --seed 2").member("first_loss") != first.member("first_loss"));
    Ran const tied = run("--cells 1 --tie");
    CHECK(tied.member("first_loss") != first.member("first_loss"));
    CHECK(std::stoul(tied.member("parameters")) ==
          std::stoul(first.member("parameters")) - 256 * 128);
    for (char const* arguments : {"--cells 2", "--cells 8 --threads 2 --checkpointing always"}) {
        Ran const other = run(std::string("--tie ") + arguments);
        for (char const* name : {"first_loss", "final_loss", "held_out_loss", "parameters"})
            CHECK(other.member(name) == tied.member(name));
    }
}

TEST_CASE("train_gpt says the same of every schedule that runs backwards in ascending order") {
    Folder folder;
    std::string const text = folder.file("text", counting);
    auto const run = [&](std::string const& arguments) {
        Ran const ran =
            train_gpt(folder, "--text " + text +
                                  " --steps 4 --batch 5 --micro-batches 5 --dropout 0.1 "
                                  "--sample 0 --json --schedule " +
                                  arguments);
        CAPTURE(ran.err);
        CHECK(ran.status == 0);
        return ran;
    };
    Ran const expected = run("GPipeAscending --cells 1");
    auto const check = [&](std::string const& name, std::size_t devices, std::size_t cells,
                           std::string const& arguments) {
        CAPTURE(name);
        Ran const ran = run(name + " --cells " + std::to_string(devices) + arguments);
        CHECK(ran.member("schedule") == '"' + name + '"');
        CHECK(ran.member("devices") == std::to_string(devices));
        CHECK(ran.member("cells") == std::to_string(cells));
        for (char const* member : {"first_loss", "final_loss", "held_out_loss"})
            CHECK(ran.member(member) == expected.member(member));
    };
    for (auto const& schedule : gpipe::schedule::catalogue(2))
        if (schedule.name() != gpipe::schedule::GPipe::name)
            check(std::string(schedule.name()), 2, 2 * schedule.cells_per_device(), "");
    check("Interleaved1F1B", 2, 10, " --per-device 5 --checkpointing always");
    check("BreadthFirst-8", 1, 8, " --threads 1");
    check("ZeroBubbleH1", 4, 4, " --checkpointing always --threads 2");
}

// The events of one process of a trace, by name and cell: their durations.
std::map<std::string, std::vector<double>> durations(toy::Json const& trace, double process) {
    std::map<std::string, std::vector<double>> result;
    for (toy::Json const& event : trace.at("traceEvents").array) {
        if (event.at("ph").string != "X" || event.at("pid").number != process) continue;
        std::string const cell =
            std::to_string(static_cast<int>(event.at("args").at("cell").number));
        result[event.at("cat").string + " of cell " + cell].push_back(event.at("dur").number);
    }
    return result;
}

TEST_CASE("train_gpt draws its last step below a simulation with the same mean durations") {
    Folder folder;
    std::string const text = folder.file("text", counting);
    auto const picture = [&](std::string const& name, std::string const& arguments) {
        std::string const path = folder.file(name, "");
        Ran const ran = train_gpt(folder, "--text " + text + " --steps 2 --sample 0 --trace " +
                                              path + ' ' + arguments);
        CAPTURE(ran.err);
        CHECK(ran.status == 0);
        return content(path);
    };

    // Three of five micro-batches have samples. Processes show what all of them have run.
    for (std::string const ranks : {"", TRAIN_GPT_RANKS ? " --ranks 2" : ""}) {
        toy::Json const trace = toy::Json::parse(
            picture("last.json", "--schedule ZeroBubbleH1 --batch 3 --micro-batches 5" + ranks));
        auto const simulated = durations(trace, 0);
        auto const measured = durations(trace, 1);
        std::size_t ends = 0; // of the step: a commit of each process, an update of each device
        for (auto const& entry : measured) {
            std::string const& name = entry.first;
            std::vector<double> const& times = entry.second;
            CAPTURE(name);
            if (name.starts_with("commit ") || name.starts_with("update ")) {
                ++ends;
                CHECK(times.size() == 1);
                continue;
            }
            CHECK(times.size() == 3);
            double sum = 0;
            for (double const time : times) sum += time;
            CHECK(sum > 0);
            REQUIRE(simulated.count(name) == 1);
            std::size_t ran = 0;
            for (double const time : simulated.at(name)) {
                ran += time > 0;
                if (time > 0) CHECK(time == doctest::Approx(sum / 3).epsilon(0.01));
            }
            CHECK(ran == 3);
        }
        CHECK(ends == (ranks.empty() ? 3 : 4));
        // Forwards and the halves of backwards, in two cells.
        CHECK(measured.size() - ends == 3 * 2);
    }

    auto const figure = toy::Xml::parse(
        picture("last.svg", "--schedule Interleaved1F1B --per-device 3 --micro-batches 4"));
    CHECK(figure.name == "svg");
    std::size_t forwards = 0;
    for (toy::Xml const* title : figure.all("title"))
        forwards += title->text.find("forward cell") == 0;
    CHECK(forwards == 2 * 6 * 4); // both timelines, six cells, four micro-batches

    std::istringstream lines(picture("last.txt", "--schedule VHalf --cells 4 --threads 1"));
    std::vector<std::string> rows;
    for (std::string line; std::getline(lines, line);) rows.push_back(line);
    REQUIRE(rows.size() == 2 * (1 + 2 * 4)); // each device with a line for its memory
    CHECK(rows[0].find("VHalf, simulated with its mean durations: makespan ") == 0);
    CHECK(rows[9].find("VHalf, as its last step ran: makespan ") == 0);
    CHECK(rows[16].find("device 3 ") == 0);
    CHECK(rows[17].find("memory ") == 0);
    CHECK(rows[17].find(" MiB of ") != std::string::npos);
}

TEST_CASE("train_gpt writes its last step in every format, and says which there are") {
    Folder folder;
    std::string const text = "--text " + folder.file("text", counting) + " --steps 1 --sample 0";
    std::string const none = folder.file("last.png", "");
    std::string const refusal = train_gpt(folder, text + " --trace " + none).err;
    std::string const help = train_gpt(folder, "--help").out;
    for (auto const& format : support::trace_formats) {
        CAPTURE(format.ending);
        std::string const path = folder.file("last" + std::string(format.ending), "");
        CHECK(train_gpt(folder, text + " --trace " + path).status == 0);
        CHECK(content(path).size() > 100);
        CHECK(refusal.find(format.ending) < refusal.find(", not '" + none));
        CHECK(help.find(format.ending) != std::string::npos);
    }
}

TEST_CASE("train_gpt trains with every optimizer, and plans the state of that one only") {
    Folder folder;
    std::string const text = folder.file("text", counting);
    auto const run = [&](std::string const& name, std::string const& arguments) {
        Ran const ran = train_gpt(folder, "--text " + text + " --steps 4 --sample 0 --json " +
                                              "--optimizer " + name + arguments);
        CAPTURE(ran.err);
        CHECK(ran.status == 0);
        CHECK(ran.member("optimizer") == '"' + name + '"');
        CHECK(ran.member("planned_bytes") == ran.member("used_bytes"));
        return ran;
    };
    std::map<std::string, std::string> losses; // of those there are already
    std::size_t const state = 4 * gpt::Standard::Net::parameters();
    double const two = std::stod(run("adamw", "").member("planned_bytes"));
    for (auto const& entry : gpipe::optimizer::optimizers().entries()) {
        std::string const name(entry.name);
        CAPTURE(name);
        Ran const ran = run(name, " --cells 2");
        CHECK(losses.emplace(ran.member("held_out_loss"), name).second);
        CHECK(run(name, " --cells 4").member("held_out_loss") == ran.member("held_out_loss"));
        double const bytes = std::stod(ran.member("planned_bytes"));
        CHECK(bytes <= two - (name == "sgd") * static_cast<double>(state));
    }
    CHECK(train_gpt(folder, "--help").out.find("sgd: stochastic") != std::string::npos);
}

TEST_CASE("train_gpt that is stopped and goes on elsewhere ends as if it had not been stopped") {
    Folder folder;
    std::string const text = folder.file("text", counting);
    auto const run = [&](std::string const& arguments) {
        Ran const ran = train_gpt(folder, "--text " + text +
                                              " --batch 4 --micro-batches 2 --dropout 0.1 "
                                              "--rate-steps 7 --schedule OneForwardOneBackward "
                                              "--sample 0 --json " +
                                              arguments);
        CAPTURE(ran.err);
        CHECK(ran.status == 0);
        return ran;
    };
    auto const saved = [&](std::string const& name) {
        std::string const path = folder.path() + '/' + name + "/state.safetensors";
        std::ifstream file(path, std::ios::binary);
        return std::string{std::istreambuf_iterator<char>(file), {}};
    };
    Ran const whole = run("--steps 6 --save " + folder.path() + "/whole");
    Ran const first = run("--steps 3 --resume --save " + folder.path() + "/parts");
    CHECK(first.err.find("begins anew") != std::string::npos);
    Ran const second = run("--steps 6 --resume --cells 4 --checkpointing always --save-every 1 "
                           "--seed 99 --save " +
                           folder.path() + "/parts");
    CHECK(second.err.find("goes on behind the 3 steps") != std::string::npos);
    CHECK(!saved("whole").empty());
    CHECK(saved("whole").find("\"layer.0001.qkv\"") != std::string::npos);
    CHECK(saved("parts") == saved("whole"));
    CHECK(second.member("held_out_loss") == whole.member("held_out_loss"));
    CHECK(second.member("seed") == whole.member("seed"));
    // Nothing is left to do: it says what it said.
    std::string const picture = folder.file("picture.svg", "of the last step");
    Ran const third =
        run("--steps 6 --resume --save " + folder.path() + "/parts --trace " + picture);
    CHECK(std::filesystem::file_size(picture) == 16);
    CHECK(third.member("held_out_loss") == whole.member("held_out_loss"));
    CHECK(third.member("first_loss") == "null");
    CHECK(saved("parts") == saved("whole"));

    // What does not fit is one line, and changes nothing.
    std::string const resume = " --steps 8 --sample 0 --resume --save " + folder.path() + "/parts ";
    std::string const other = folder.file("other", "other characters " + std::string(counting));
    for (std::string const& arguments :
         {"--text " + text + resume + "--rate-steps 8", "--text " + other + resume,
          "--text " + text + resume + "--optimizer sgd",
          "--text " + text + " --steps 1 --save " + text}) {
        CAPTURE(arguments);
        Ran const ran = train_gpt(folder, arguments);
        CHECK(ran.status == 1);
        CHECK(ran.err.find("train_gpt: ") != std::string::npos);
    }
    CHECK(saved("parts") == saved("whole"));
    CHECK(third.err.find("nothing to train: --steps 6, and 6 are trained") != std::string::npos);

    // Where nothing could be saved nothing is trained; nor is what is no number written over what
    // is.
    CHECK(train_gpt(folder, "--text " + text + " --steps 1 --save ''").status == 2);
    Ran const nowhere = train_gpt(folder, "--text " + text + " --steps 1 --save " + text);
    CHECK(nowhere.err.find("--save: nothing can be written in ") != std::string::npos);
    CHECK(nowhere.err.find("1/1") == std::string::npos);
    std::string broken = saved("parts");
    for (std::size_t i = 0; i < 4; ++i) broken[broken.size() / 2 / 4 * 4 + i] = '\xff'; // a NaN
    std::ofstream(folder.path() + "/parts/state.safetensors", std::ios::binary) << broken;
    Ran const lost = train_gpt(folder, "--text " + text + resume);
    CHECK(lost.status == 1);
    CHECK(lost.err.find("nan") != std::string::npos);
    CHECK(saved("parts") == broken);
    std::filesystem::remove_all(folder.path() + "/parts");
    std::filesystem::remove_all(folder.path() + "/whole");
}

TEST_CASE("train_gpt with mini-batches in parts ends as with whole ones, and goes on in parts") {
    Folder folder;
    std::string const text = folder.file("text", counting);
    auto const run = [&](std::string const& arguments) {
        Ran const ran = train_gpt(folder, "--text " + text +
                                              " --dropout 0.1 --rate-steps 7 --schedule "
                                              "OneForwardOneBackward --sample 0 --json " +
                                              arguments);
        CAPTURE(ran.err);
        CHECK(ran.status == 0);
        return ran;
    };
    Ran const whole = run("--steps 4 --batch 12 --micro-batches 6");
    std::string const parts =
        "--batch 4 --micro-batches 2 --parts 3 --save " + folder.path() + "/s ";
    run("--steps 1 " + parts);
    Ran const resumed = run("--steps 4 --resume --cells 4 " + parts);
    CHECK(resumed.member("parts") == "3");
    for (char const* member : {"final_loss", "held_out_loss"})
        CHECK(resumed.member(member) == whole.member(member));
    std::filesystem::remove_all(folder.path() + "/s");
}

TEST_CASE("train_gpt learns, and writes what it learnt") {
    Folder folder;
    std::string words;
    for (int i = 0; i < 200; ++i) words += "abcdefgh\n";
    std::string const text = folder.file("text", words);
    Ran const ran = train_gpt(folder, "--text " + text +
                                          " --steps 60 --rate-steps 60 --batch 8 --sample 30 "
                                          "--prompt fgh");
    CHECK(ran.status == 0);
    CHECK(ran.out.find("held-out loss 0.") == 0);
    CHECK(ran.out.find("fgh\nabcdefgh\nabcdefgh\n") != std::string::npos);
    CHECK(ran.err.find("60/60") != std::string::npos);
    CHECK(ran.err.find("oneDNN") != std::string::npos);
}

#endif

} // namespace
