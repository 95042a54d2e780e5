#pragma once

// A reader of JSON, strict and small, that knows nothing of what writes it.

#include <cctype>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace toy {

/// A value of JSON (RFC 8259). Throws std::runtime_error for what is none.
struct Json {
    enum class Type { null, boolean, number, string, array, object };
    Type type = Type::null;
    double number = 0; ///< of a boolean 0 or 1
    std::string string;
    std::vector<Json> array;       ///< of an object its values
    std::vector<std::string> keys; ///< of an object, in the order of the text

    Json const& at(std::string const& key) const {
        Json const* found = nullptr;
        for (std::size_t i = 0; i < keys.size(); ++i)
            if (keys[i] == key) {
                if (found) throw std::runtime_error("the key " + key + " comes twice");
                found = &array[i];
            }
        if (!found) throw std::runtime_error("no key " + key);
        return *found;
    }

    static Json parse(std::string const& text) {
        Reader reader{text};
        Json const value = reader.value();
        reader.space();
        if (reader.at != text.size()) throw std::runtime_error("text behind the value");
        return value;
    }

  private:
    struct Reader {
        std::string const& text;
        std::size_t at = 0;

        [[noreturn]] void fail(char const* what) const {
            throw std::runtime_error(std::string(what) + " at " + std::to_string(at));
        }
        char peek() const { return at < text.size() ? text[at] : '\0'; }
        void space() {
            while (at < text.size() &&
                   (text[at] == ' ' || text[at] == '\n' || text[at] == '\t' || text[at] == '\r'))
                ++at;
        }
        bool take(char c) {
            if (peek() != c || at >= text.size()) return false;
            ++at;
            return true;
        }
        void expect(char c) {
            if (!take(c)) fail("another character is wanted");
        }
        bool word(std::string const& w) {
            if (text.compare(at, w.size(), w) != 0) return false;
            at += w.size();
            return true;
        }
        Json value() {
            space();
            Json result;
            if (peek() == '{') {
                result.type = Type::object;
                ++at;
                space();
                if (take('}')) return result;
                do {
                    space();
                    result.keys.push_back(quoted());
                    space();
                    expect(':');
                    result.array.push_back(value());
                    space();
                } while (take(','));
                expect('}');
            } else if (peek() == '[') {
                result.type = Type::array;
                ++at;
                space();
                if (take(']')) return result;
                do {
                    result.array.push_back(value());
                    space();
                } while (take(','));
                expect(']');
            } else if (peek() == '"') {
                result.type = Type::string;
                result.string = quoted();
            } else if (word("true") || word("false")) {
                result.type = Type::boolean;
                result.number = text[at - 2] == 'u';
            } else if (!word("null")) {
                result.type = Type::number;
                result.number = digits();
            }
            return result;
        }
        double digits() {
            std::size_t const begin = at;
            auto const run = [&] {
                std::size_t const from = at;
                while (std::isdigit(static_cast<unsigned char>(peek()))) ++at;
                if (at == from) fail("a digit is wanted");
                return at - from;
            };
            take('-');
            bool const zero = peek() == '0';
            if (run() > 1 && zero) fail("a number begins with 0");
            if (take('.')) run();
            if (take('e') || take('E')) {
                if (!take('-')) take('+');
                run();
            }
            return std::strtod(text.substr(begin, at - begin).c_str(), nullptr);
        }
        std::string quoted() {
            std::string result;
            expect('"');
            while (!take('"')) {
                if (at >= text.size()) fail("a text has no end");
                char const c = text[at++];
                if (static_cast<unsigned char>(c) < 0x20) fail("a control character");
                if (c != '\\') {
                    result += c;
                    continue;
                }
                char const escape = peek();
                ++at;
                std::string const known = "\"\\/bfnrt";
                std::string const meant = "\"\\/\b\f\n\r\t";
                if (auto const which = known.find(escape);
                    which != std::string::npos && escape != '\0')
                    result += meant[which];
                else if (escape == 'u' && text.compare(at, 2, "00") == 0 && at + 4 <= text.size())
                    result += static_cast<char>(std::strtol(
                        text.substr(std::exchange(at, at + 4), 4).c_str(), nullptr, 16));
                else
                    fail("an escape that this reader does not know");
            }
            return result;
        }
    };
};

} // namespace toy
