#pragma once

#include <gpipe/core/compiled.hpp>
#include <gpipe/core/version.hpp>

#include <cstdarg>
#include <cstdio>
#include <exception>
#include <stdexcept>

namespace gpipe::detail {

/// A message in the form of printf, of up to 500 characters: for exceptions that carry more.
struct Message {
    /// Writes it.
    [[gnu::cold, gnu::noinline, gnu::format(printf, 2, 3)]] explicit Message(char const* format,
                                                                             ...) {
        std::va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
    }
    char text[512]; ///< with a zero behind it
};

/// What was asked for is not begun, for another replica refuses it: what that throws says why.
class RefusedElsewhere : public std::runtime_error {
  public:
    RefusedElsewhere() : std::runtime_error("gpipe: another replica refuses what all are told") {}
};

/// The exception that make() makes, for who tells it elsewhere and must not throw; or that there
/// was no memory for it.
template <class Make> std::exception_ptr made_error(Make make) noexcept {
    try {
        return std::make_exception_ptr(make());
    } catch (...) {
        return std::current_exception();
    }
}

/// Throws Exception with a message in the form of printf, of up to 500 characters. One call and a
/// constant per message: composing strings in place costs every translation unit compile time.
template <class Exception>
[[noreturn, gnu::cold, gnu::noinline, gnu::format(printf, 1, 2)]] void
throw_error(char const* format, ...) {
    char message[512];
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    throw Exception(message);
}
GPIPE_INSTANTIATE(void throw_error<std::invalid_argument>(char const*, ...));
GPIPE_INSTANTIATE(void throw_error<std::logic_error>(char const*, ...));
GPIPE_INSTANTIATE(void throw_error<std::out_of_range>(char const*, ...));
GPIPE_INSTANTIATE(void throw_error<std::domain_error>(char const*, ...));

} // namespace gpipe::detail
