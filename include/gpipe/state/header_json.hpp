#pragma once

#include <gpipe/layer/dtype.hpp>
#include <gpipe/state/header_text.hpp>
#include <gpipe/state/state_error.hpp>
#include <gpipe/state/state_inline.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace gpipe::safetensors {

namespace detail {

// Events of the parser. Depth 1 is the file, 2 a tensor or the metadata, 3 a tensor's array.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
  public:
    HeaderText result;

    bool start_object(std::size_t) override {
        enter();
        if (depth_ == 2) {
            in_metadata_ = key_ == "__metadata__";
            seen_ = 0;
            if (!in_metadata_) {
                result.tensors.emplace_back();
                result.tensors.back().name = key_;
            }
        } else if (depth_ == 3) {
            wrong();
        }
        return true;
    }
    bool end_object() override {
        if (depth_ == 2 && !in_metadata_ && seen_ != 7)
            throw StateError("tensor " + in_quotes(entry().name) + " has no " +
                             (!(seen_ & 1)   ? "dtype"
                              : !(seen_ & 2) ? "shape"
                                             : "data_offsets"));
        --depth_;
        return true;
    }
    bool start_array(std::size_t) override {
        if (depth_ < 2 || in_metadata_ || member_ == 1) wrong();
        enter();
        numbers_.clear();
        return true;
    }
    bool end_array() override {
        --depth_;
        if (member_ == 2) {
            entry().shape = std::move(numbers_);
        } else if (numbers_.size() != 2) {
            throw StateError("tensor " + in_quotes(entry().name) + " has " +
                             std::to_string(numbers_.size()) + " data_offsets, not 2");
        } else {
            entry().begin = numbers_[0];
            entry().end = numbers_[1];
        }
        return true;
    }
    bool key(std::string& name) override {
        bool fresh = true;
        if (depth_ == 1) {
            fresh = names_.insert(name).second;
        } else if (in_metadata_) {
            fresh = result.metadata.try_emplace(name).second;
        } else {
            member_ = name == "dtype" ? 1u : name == "shape" ? 2u : name == "data_offsets" ? 4u : 0;
            if (!member_)
                throw StateError("tensor " + in_quotes(entry().name) + " has a member " +
                                 in_quotes(name) + ", which the format does not know");
            fresh = !(seen_ & member_);
            seen_ |= member_;
        }
        if (!fresh)
            throw StateError("the key " + in_quotes(name) + " is there twice" +
                             (depth_ == 1    ? ""
                              : in_metadata_ ? " in the metadata"
                                             : " in tensor " + in_quotes(entry().name)));
        key_ = std::move(name);
        return true;
    }
    bool string(std::string& value) override {
        if (depth_ != 2 || (!in_metadata_ && member_ != 1)) wrong();
        if (in_metadata_) {
            result.metadata[key_] = std::move(value);
            return true;
        }
        for (std::size_t d = 1; d < dtypes.size(); ++d)
            if (dtypes[d].name == value) entry().dtype = static_cast<Dtype>(d);
        if (entry().dtype == Dtype::other)
            throw StateError("tensor " + in_quotes(entry().name) + " has elements of type " +
                             in_quotes(value) + ", which this library does not know");
        return true;
    }
    bool number_unsigned(std::uint64_t value) override {
        if (depth_ != 3) wrong();
        numbers_.push_back(value);
        return true;
    }
    bool number_integer(std::int64_t) override { return wrong_number(); }
    bool number_float(double, std::string const&) override { return wrong_number(); }
    bool null() override { return wrong(); }
    bool boolean(bool) override { return wrong(); }
    bool binary(nlohmann::json::binary_t&) override { return wrong(); }
    bool parse_error(std::size_t position, std::string const&,
                     nlohmann::json::exception const&) override {
        throw StateError("the header is not JSON: byte " + std::to_string(position) +
                         " does not go on from those before");
    }

  private:
    Entry& entry() { return result.tensors.back(); }
    void enter() {
        if (++depth_ > 3) throw StateError("the header is nested more than 3 deep");
    }
    std::string place() {
        if (depth_ < 2 || result.tensors.empty() || in_metadata_) return in_quotes(key_);
        return in_quotes(key_) + " of tensor " + in_quotes(entry().name);
    }
    bool wrong_number() {
        if (depth_ != 3) wrong();
        throw StateError(place() + " holds a number that is not whole, or not from 0 to 2^64 - 1");
    }
    bool wrong() {
        throw StateError(depth_ == 0 ? "the header is not a JSON object"
                         : depth_ >= 2 && in_metadata_
                             ? "the metadata " + place() + " are no string"
                         : depth_ == 1 ? "the header's " + place() + " is no object"
                                       : place() + " is not of the type that the format has there");
    }

    std::size_t depth_ = 0;
    bool in_metadata_ = false;
    unsigned member_ = 0; // of a tensor: 1 dtype, 2 shape, 4 data_offsets
    unsigned seen_ = 0;
    std::string key_;
    std::vector<std::uint64_t> numbers_;
    std::unordered_set<std::string> names_;
};

} // namespace detail

GPIPE_STATE_INLINE HeaderText read_header_text(std::string_view text) {
    if (std::size_t const at = valid_text(text); at < text.size())
        throw StateError("byte " + std::to_string(at) + " of the header is not UTF-8 text");
    if (text.empty() || text.front() != '{')
        throw StateError("the header does not begin with a brace");
    detail::HeaderReader reader;
    nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
    return std::move(reader.result);
}

namespace detail {

// As JSON has it.
GPIPE_STATE_INLINE std::string quoted(std::string const& text) try {
    return nlohmann::json(text).dump();
} catch (nlohmann::json::type_error const&) {
    throw StateError("a name or the metadata are not UTF-8 text");
}

} // namespace detail

// Not as one value of the library, for objects and arrays of that allocate when they go, and so end
// the program where there is no memory.
GPIPE_STATE_INLINE std::string header_text(std::vector<Entry> const& tensors,
                                           std::map<std::string, std::string> const& metadata) {
    std::string text = "{", next;
    auto const member = [&](std::string const& name) -> std::string& {
        return text += std::exchange(next, ",") + detail::quoted(name) + ':';
    };
    if (!metadata.empty()) {
        member("__metadata__") += '{';
        next.clear();
        for (auto const& [key, value] : metadata) member(key) += detail::quoted(value);
        text += '}';
        next = ",";
    }
    for (Entry const& entry : tensors) {
        std::string shape;
        for (std::uint64_t const extent : entry.shape) // g++ 12 warns of "text" + a string
            (shape += shape.empty() ? "" : ",") += std::to_string(extent);
        ((member(entry.name) += "{\"dtype\":\"") += info(entry.dtype).name) += "\",\"shape\":[";
        ((text += shape) += "],\"data_offsets\":[") += std::to_string(entry.begin);
        ((text += ',') += std::to_string(entry.end)) += "]}";
    }
    return text += '}';
}

} // namespace gpipe::safetensors
