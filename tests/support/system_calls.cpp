#include "system_calls.hpp"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <map>
#include <mutex>

// The linker (--wrap) sends the calls of the program's own files here.
extern "C" {
int __real_open(char const* path, int flags, ...);
ssize_t __real_write(int file, void const* data, size_t size);
int __real_fsync(int file);
int __real_rename(char const* from, char const* to);
int __real_close(int file);
int __real_symlink(char const* target, char const* path);
}

namespace {

std::mutex mutex;
bool watching = false;
toy::CallFault fault;
std::size_t counted = 0;
std::vector<std::string> lines;
std::map<int, std::string> names;

std::string last_part(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path.substr(path.rfind('/') + 1);
}

// What is to happen in this call, if anything is.
bool strikes(std::string const& call, std::string const& what) {
    std::string line = call + ' ' + what;
    if (lines.empty() || lines.back() != line) lines.push_back(std::move(line));
    bool const counts =
        fault.call.empty() || (' ' + fault.call + ' ').find(' ' + call + ' ') != std::string::npos;
    return counts && (++counted == fault.at || (fault.lasts && counted > fault.at));
}

template <class Call, class... Arguments>
auto watched(std::string const& call, std::string const& what, Call real, Arguments... arguments)
    -> decltype(real(arguments...)) {
    bool struck = false;
    {
        std::lock_guard const lock(mutex);
        struck = watching && strikes(call, what);
    }
    if (struck && fault.kind == toy::CallFault::kills_before) ::raise(SIGKILL);
    if (struck &&
        (fault.kind == toy::CallFault::fails || fault.kind == toy::CallFault::interrupts)) {
        // A file that cannot be closed is closed all the same.
        if (call == "close") static_cast<void>(real(arguments...));
        errno = fault.kind == toy::CallFault::fails ? fault.error : EINTR;
        return -1;
    }
    auto const result = real(arguments...);
    if (struck && fault.kind == toy::CallFault::kills_after) ::raise(SIGKILL);
    return result;
}

std::string name_of(int file) {
    std::lock_guard const lock(mutex);
    auto const found = names.find(file);
    return found == names.end() ? "?" : found->second;
}

// Then calls go straight on: what is written down needs memory, which others may be without.
bool unwatched() {
    std::lock_guard const lock(mutex);
    return !watching;
}

} // namespace

extern "C" {
int __wrap_open(char const* path, int flags, ...) {
    std::va_list list;
    va_start(list, flags);
    mode_t const mode = (flags & O_CREAT) ? va_arg(list, mode_t) : 0;
    va_end(list);
    if (unwatched()) return __real_open(path, flags, mode);
    int const file = watched(
        "open", last_part(path),
        [](char const* p, int f, mode_t m) { return __real_open(p, f, m); }, path, flags, mode);
    std::lock_guard const lock(mutex);
    if (file >= 0 && watching) names[file] = last_part(path);
    return file;
}
ssize_t __wrap_write(int file, void const* data, size_t size) {
    if (unwatched()) return __real_write(file, data, size);
    bool halve = false;
    {
        std::lock_guard const lock(mutex);
        halve = watching && fault.kind == toy::CallFault::shortens && size > 1;
    }
    return watched("write", name_of(file), __real_write, file, data, halve ? size / 2 : size);
}
int __wrap_fsync(int file) {
    return unwatched() ? __real_fsync(file) : watched("fsync", name_of(file), __real_fsync, file);
}
int __wrap_rename(char const* from, char const* to) {
    if (unwatched()) return __real_rename(from, to);
    return watched("rename", last_part(from) + ' ' + last_part(to), __real_rename, from, to);
}
int __wrap_symlink(char const* target, char const* path) {
    if (unwatched()) return __real_symlink(target, path);
    return watched("symlink", last_part(path), __real_symlink, target, path);
}
int __wrap_close(int file) {
    return unwatched() ? __real_close(file) : watched("close", name_of(file), __real_close, file);
}
}

namespace toy {

SystemCalls::SystemCalls(CallFault what) {
    std::lock_guard const lock(mutex);
    fault = std::move(what);
    counted = 0;
    lines.clear();
    names.clear();
    watching = true;
}
SystemCalls::~SystemCalls() {
    std::lock_guard const lock(mutex);
    watching = false;
}
std::vector<std::string> SystemCalls::log() const {
    std::lock_guard const lock(mutex);
    return lines;
}
std::size_t SystemCalls::count() const {
    std::lock_guard const lock(mutex);
    return counted;
}

} // namespace toy
