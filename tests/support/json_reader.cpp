#include "json_reader.hpp"

#include <nlohmann/json.hpp>

#include <utility>

namespace toy {

namespace {

// Builds the value in the order of the text, keys that come twice included.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
  public:
    Json result;

    bool null() override { return add({}); }
    bool boolean(bool value) override { return add_number(value, Json::Type::boolean); }
    bool number_integer(number_integer_t value) override {
        return add_number(static_cast<double>(value));
    }
    bool number_unsigned(number_unsigned_t value) override {
        return add_number(static_cast<double>(value));
    }
    bool number_float(number_float_t value, string_t const&) override { return add_number(value); }
    bool string(string_t& value) override {
        Json json;
        json.type = Json::Type::string;
        json.string = std::move(value);
        return add(std::move(json));
    }
    bool binary(binary_t&) override { return false; }
    bool start_object(std::size_t) override { return start(Json::Type::object); }
    bool start_array(std::size_t) override { return start(Json::Type::array); }
    bool end_object() override { return end(); }
    bool end_array() override { return end(); }
    bool key(string_t& value) override {
        open_.back().keys.push_back(std::move(value));
        return true;
    }
    bool parse_error(std::size_t, std::string const&,
                     nlohmann::detail::exception const& error) override {
        throw std::runtime_error(error.what());
    }

  private:
    bool add(Json json) {
        if (open_.empty())
            result = std::move(json);
        else
            open_.back().array.push_back(std::move(json));
        return true;
    }
    bool add_number(double value, Json::Type type = Json::Type::number) {
        Json json;
        json.type = type;
        json.number = value;
        return add(std::move(json));
    }
    bool start(Json::Type type) {
        open_.emplace_back().type = type;
        return true;
    }
    bool end() {
        Json json = std::move(open_.back());
        open_.pop_back();
        return add(std::move(json));
    }

    std::vector<Json> open_;
};

} // namespace

Json Json::parse(std::string const& text) {
    Builder builder;
    nlohmann::json::sax_parse(text, &builder);
    return std::move(builder.result);
}

} // namespace toy
