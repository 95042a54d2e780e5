#pragma once

#include <cmath>
#include <concepts>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace support {

/// One JSON object on one line, made member by member.
class JsonObject {
  public:
    JsonObject& add(std::string_view name, std::string_view value) {
        return raw(name, quoted(value));
    }
    JsonObject& add(std::string_view name, char const* value) {
        return add(name, std::string_view(value));
    }
    template <std::integral T> JsonObject& add(std::string_view name, T value) {
        return raw(name, std::to_string(value));
    }
    JsonObject& add(std::string_view name, bool value) {
        return raw(name, value ? "true" : "false");
    }
    /// JSON has no infinities and nothing that is no number: they become null.
    JsonObject& add(std::string_view name, double value) {
        if (!std::isfinite(value)) return raw(name, "null");
        char buffer[32];
        std::snprintf(buffer, sizeof buffer, "%.9g", value);
        return raw(name, buffer);
    }
    template <std::integral T> JsonObject& add(std::string_view name, std::vector<T> const& list) {
        std::string values;
        for (T const value : list) values += (values.empty() ? "" : ", ") + std::to_string(value);
        return raw(name, '[' + values + ']');
    }

    std::string text() const { return '{' + members_ + '}'; }

  private:
    JsonObject& raw(std::string_view name, std::string_view value) {
        if (!members_.empty()) members_ += ", ";
        members_ += quoted(name);
        members_ += ": ";
        members_ += value;
        return *this;
    }
    static std::string quoted(std::string_view text) {
        std::string result = "\"";
        for (char const c : text) {
            if (c == '"' || c == '\\') {
                result += '\\';
                result += c;
            } else if (static_cast<unsigned char>(c) < 0x20) {
                char buffer[8];
                std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned>(c));
                result += buffer;
            } else {
                result += c;
            }
        }
        return result + '"';
    }

    std::string members_;
};

/// What a Training says of itself.
template <class Train> JsonObject& add_training(JsonObject& object, Train const& train) {
    return object.add("devices", train.devices())
        .add("cells", train.cells())
        .add("micro_batches", train.micro_batches())
        .add("threads", train.lanes())
        .add("seed", train.seed())
        .add("layers", Train::layer_count)
        .add("planned_bytes", train.planned_bytes())
        .add("used_bytes", train.used_bytes());
}

} // namespace support
