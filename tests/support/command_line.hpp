#pragma once

// Runs a program as a user would, and reads what it prints.

#include "json_reader.hpp"

#include <doctest/doctest.h>

#include <sys/wait.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace toy {

class CommandLine {
  public:
    struct Ran {
        int status = -1;
        std::string text;
        std::ptrdiff_t lines() const { return std::count(text.begin(), text.end(), '\n'); }
    };

    explicit CommandLine(std::string program) : program_(std::move(program)) {}

    Ran out(std::string const& arguments) const { return shell(arguments + " 2>/dev/null"); }
    Ran errors(std::string const& arguments) const { return shell(arguments + " 2>&1 >/dev/null"); }
    /// What an option with a file writes there.
    std::string file(std::string const& option, std::string const& arguments) const {
        Ran const ran = shell(arguments + ' ' + option + " /dev/fd/3 3>&1 >/dev/null 2>&1");
        CHECK(ran.status == 0);
        return ran.text;
    }
    /// The objects that it prints with --json.
    std::vector<Json> objects(std::string const& arguments) const {
        Ran const ran = out("--json " + arguments);
        CHECK(ran.status == 0);
        std::vector<Json> result;
        std::istringstream in(ran.text);
        for (std::string line; std::getline(in, line);) result.push_back(Json::parse(line));
        return result;
    }
    /// That arguments are refused with one line and exit status 2.
    void check_refused(std::string const& arguments) const {
        CAPTURE(arguments);
        Ran const refused = errors(arguments);
        std::string const name = program_.substr(program_.rfind('/') + 1);
        CHECK(refused.status == 2);
        CHECK(refused.lines() == 1);
        CHECK(refused.text.find(name + ": ") == 0);
        CHECK(out(arguments).text.empty());
    }

  private:
    // What the shell's words behind the program's name bring to stdout.
    Ran shell(std::string const& words) const {
        Ran ran;
        std::FILE* const pipe = popen((program_ + ' ' + words).c_str(), "r");
        REQUIRE(pipe != nullptr);
        char buffer[4096];
        while (std::size_t const read = std::fread(buffer, 1, sizeof buffer, pipe))
            ran.text.append(buffer, read);
        int const status = pclose(pipe);
        if (WIFEXITED(status)) ran.status = WEXITSTATUS(status);
        return ran;
    }

    std::string program_;
};

} // namespace toy
