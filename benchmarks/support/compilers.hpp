#pragma once

#include "quiet.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace benchmark {

struct Compiler {
    std::string name;
    std::filesystem::path path;
    std::vector<std::string> options;
    std::string suffix; ///< of its sources
};

/// The file that a command would run, if there is one.
inline std::optional<std::filesystem::path> find_program(std::string const& name) {
    char const* const variable = std::getenv("PATH");
    std::stringstream paths(variable ? variable : "");
    for (std::string directory; std::getline(paths, directory, ':');) {
        std::filesystem::path const path = std::filesystem::path(directory) / name;
        if (access(path.c_str(), X_OK) == 0 && !std::filesystem::is_directory(path)) return path;
    }
    return std::nullopt;
}

/// g++, clang++ or nvcc, which may also be where CUDA is installed by default.
inline std::optional<Compiler> find_compiler(std::string const& name) {
    auto path = find_program(name);
    if (!path && name == "nvcc" && access("/usr/local/cuda/bin/nvcc", X_OK) == 0)
        path = "/usr/local/cuda/bin/nvcc";
    if (!path) return std::nullopt;
    if (name == "nvcc") return Compiler{name, *path, {"-std=c++20", "-O2", "-arch=sm_90"}, ".cu"};
    return Compiler{name, *path, {"-std=c++20", "-O2"}, ".cpp"};
}

/// What one compilation took.
struct Used {
    int status = 0;
    double processor_seconds = 0; ///< user and system, the compiler's own children included
    double wall_seconds = 0;
    double megabytes = 0; ///< MiB, resident, of the largest process
};

/// Compiles one source to an object file. What the compiler says goes to stderr.
inline Used compile(Compiler const& compiler, std::string const& include,
                    std::string const& options, std::filesystem::path const& source,
                    std::filesystem::path const& object) {
    std::vector<std::string> words{compiler.path.string()};
    words.insert(words.end(), compiler.options.begin(), compiler.options.end());
    std::stringstream further(options);
    for (std::string word; further >> word;) words.push_back(word);
    for (std::string const& word :
         {"-I" + include, std::string("-c"), source.string(), std::string("-o"), object.string()})
        words.push_back(word);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);

    double const begin = seconds();
    pid_t const child = fork();
    if (child == 0) {
        dup2(STDERR_FILENO, STDOUT_FILENO);
        execv(arguments[0], arguments.data());
        _exit(127);
    }
    Used used;
    if (child < 0) {
        used.status = -1;
        return used;
    }
    rusage usage{};
    wait4(child, &used.status, 0, &usage);
    used.wall_seconds = seconds() - begin;
    auto const in_seconds = [](timeval const& time) {
        return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    used.processor_seconds = in_seconds(usage.ru_utime) + in_seconds(usage.ru_stime);
    used.megabytes = static_cast<double>(usage.ru_maxrss) / 1024;
    return used;
}

} // namespace benchmark
