#pragma once

// JSON as a value that tests look into, read by nlohmann-json (in json_reader.cpp).

#include <stdexcept>
#include <string>
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

    static Json parse(std::string const& text);
};

} // namespace toy
