#include "support/json.hpp"

#include <nlohmann/json.hpp>

namespace support {

namespace {

template <class T> void set(nlohmann::ordered_json& object, std::string_view name, T const& value) {
    object[std::string(name)] = value;
}

} // namespace

JsonObject::JsonObject()
    : object_(std::make_unique<nlohmann::ordered_json>(nlohmann::ordered_json::object())) {}
JsonObject::JsonObject(JsonObject const& other)
    : object_(std::make_unique<nlohmann::ordered_json>(*other.object_)) {}
JsonObject::JsonObject(JsonObject&&) noexcept = default;
JsonObject::~JsonObject() = default;

JsonObject& JsonObject::add(std::string_view name, std::string_view value) {
    set(*object_, name, std::string(value));
    return *this;
}
JsonObject& JsonObject::add(std::string_view name, bool value) {
    set(*object_, name, value);
    return *this;
}
JsonObject& JsonObject::add(std::string_view name, double value) {
    set(*object_, name, value);
    return *this;
}
JsonObject& JsonObject::add(std::string_view name, std::vector<std::size_t> const& list) {
    set(*object_, name, list);
    return *this;
}
JsonObject& JsonObject::add(std::string_view name, std::vector<double> const& list) {
    set(*object_, name, list);
    return *this;
}
JsonObject& JsonObject::add_signed(std::string_view name, std::int64_t value) {
    set(*object_, name, value);
    return *this;
}
JsonObject& JsonObject::add_unsigned(std::string_view name, std::uint64_t value) {
    set(*object_, name, value);
    return *this;
}

// A text from the command line may be anything: what is no UTF-8 is replaced.
std::string JsonObject::text() const {
    return object_->dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

} // namespace support
