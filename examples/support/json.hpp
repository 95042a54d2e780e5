#pragma once

#include <nlohmann/json_fwd.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace support {

/// One JSON object on one line, made member by member, by nlohmann-json (in json.cpp, for it takes
/// seconds to compile). Numbers are as short as read back the same; infinities and what is no
/// number become null.
class JsonObject {
  public:
    JsonObject();
    JsonObject(JsonObject const&);
    JsonObject(JsonObject&&) noexcept;
    ~JsonObject();

    JsonObject& add(std::string_view name, std::string_view value);
    JsonObject& add(std::string_view name, char const* value) {
        return add(name, std::string_view(value));
    }
    JsonObject& add(std::string_view name, bool value);
    JsonObject& add(std::string_view name, double value);
    template <std::integral T> JsonObject& add(std::string_view name, T value) {
        if constexpr (std::signed_integral<T>)
            return add_signed(name, value);
        else
            return add_unsigned(name, value);
    }
    JsonObject& add(std::string_view name, std::vector<std::size_t> const& list);
    JsonObject& add(std::string_view name, std::vector<double> const& list);

    std::string text() const;

  private:
    JsonObject& add_signed(std::string_view name, std::int64_t value);
    JsonObject& add_unsigned(std::string_view name, std::uint64_t value);

    std::unique_ptr<nlohmann::ordered_json> object_;
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
