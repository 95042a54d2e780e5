// The format safetensors: what is written is read, and everything that is not sound is refused with
// a sentence of its own.
#include "support/long_tests.hpp"

#include <gpipe/state/safetensors.hpp>
#include <gpipe/state/tensor_names.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using gpipe::Dtype;
using gpipe::StateError;
using gpipe::safetensors::Entry;
using gpipe::safetensors::Header;

std::string length(std::uint64_t n) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &n, 8);
    return bytes;
}
Header parsed(std::string const& file) {
    return gpipe::safetensors::parse_file(std::as_bytes(std::span(file)));
}
// What is said of a file; empty if it is taken.
std::string said(std::string const& file) {
    try {
        parsed(file);
        return {};
    } catch (StateError const& error) {
        return error.what();
    }
}
// A file with this header and so many bytes of data.
std::string with_header(std::string const& text, std::size_t data = 0) {
    return length(text.size()) + text + std::string(data, 'x');
}
std::string tensor(std::string const& name, std::string const& dtype, std::string const& shape,
                   std::string const& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
           ",\"data_offsets\":" + offsets + "}";
}
// Whether a sentence has these words in it; else both.
std::string lacks(std::string const& sentence, std::string const& words) {
    return sentence.find(words) != std::string::npos ? "" : sentence + " | " + words;
}

std::string small_file() {
    std::vector<Entry> entries{
        {"w", Dtype::F32, {2}}, {"b", Dtype::I8, {3}}, {"e", Dtype::U8, {0}}};
    gpipe::safetensors::arrange(entries);
    return gpipe::safetensors::file_begin(entries, {{"step", "7"}}) + "aaaabbbbccc";
}

} // namespace

TEST_CASE("what is written is read: names, types, shapes, places, metadata") {
    std::mt19937 random(1);
    for (int round = 0; round < 200; ++round) {
        std::vector<Entry> entries;
        for (std::size_t i = 0; i < random() % 20; ++i) {
            Entry entry{"layer." + std::to_string(i) + (random() % 2 ? ".\"\\\n\xc3\xa9" : ".w"),
                        static_cast<Dtype>(1 + random() % (gpipe::dtypes.size() - 1)),
                        {}};
            for (std::size_t d = 0; d < random() % 4; ++d) entry.shape.push_back(random() % 5);
            entries.push_back(entry);
        }
        std::map<std::string, std::string> const metadata{{"a", "\"quoted\"\t"}, {"", ""}};
        gpipe::safetensors::arrange(entries);
        std::string const begin = gpipe::safetensors::file_begin(entries, metadata);
        CHECK(begin.size() % gpipe::safetensors::data_alignment == 0);
        std::size_t const bytes = entries.empty() ? 0 : entries.back().end;
        Header const header = parsed(begin + std::string(bytes, 'x'));
        CHECK(header.data_at == begin.size());
        CHECK(header.metadata == metadata);
        // Empty tensors may lie at the same place as others.
        std::map<std::string, Entry> read;
        for (Entry const& entry : header.tensors) read[entry.name] = entry;
        REQUIRE(read.size() == entries.size());
        for (Entry const& entry : entries) {
            Entry const& other = read.at(entry.name);
            CHECK(other.dtype == entry.dtype);
            CHECK(other.shape == entry.shape);
            CHECK(other.begin == entry.begin);
            CHECK(other.end == entry.end);
            CHECK(entry.begin % gpipe::info(entry.dtype).bytes == 0);
        }
    }
}

TEST_CASE("the text of a header is what nlohmann-json has of it, control characters as well") {
    std::string every;
    for (int c = 1; c < 0x80; ++c) every += static_cast<char>(c);
    every += "\xc3\xa9\xf0\x9f\x98\x80";
    every += '\0';
    std::map<std::string, std::string> const metadata{{"a", every}, {every, ""}};
    std::vector<Entry> const entries{{"w", Dtype::F32, {2, 3}, 0, 24},
                                     {every, Dtype::BF16, {}, 24, 26}};
    nlohmann::ordered_json expected;
    expected["__metadata__"] = metadata;
    expected["w"] = {{"dtype", "F32"}, {"shape", {2, 3}}, {"data_offsets", {0, 24}}};
    expected[every] = {
        {"dtype", "BF16"}, {"shape", nlohmann::ordered_json::array()}, {"data_offsets", {24, 26}}};
    CHECK(gpipe::safetensors::header_text(entries, metadata) == expected.dump());
    CHECK(gpipe::safetensors::header_text({}, {}) == "{}");
    CHECK(gpipe::safetensors::header_text({entries[0]}, {}) ==
          "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}");
}

TEST_CASE("every way not to be sound has its sentence") {
    struct Case {
        std::string file, words;
    };
    std::string const a = tensor("a", "F32", "[2]", "[0,8]");
    auto const one = [](std::string const& inside, std::size_t data = 0) {
        return with_header("{" + inside + "}", data);
    };
    std::vector<Case> const cases{
        {"", "0 bytes; a header alone takes 8"},
        {"1234567", "7 bytes; a header alone takes 8"},
        {length(100'000'001) + "{}", "100000001 bytes; the format ends at 100000000"},
        {length(~std::uint64_t{0}) + "{}", "18446744073709551615 bytes; the format ends"},
        {"text, and no state", "no safetensors file begins as this one: the header is said to"},
        {length(3) + "{}", "said to have 3 bytes, but the file ends 2 bytes behind"},
        {length(0), "does not begin with a brace"},
        {with_header(" {}"), "does not begin with a brace"},
        {with_header("\xef\xbb\xbf{}"), "does not begin with a brace"},
        {with_header("[]"), "does not begin with a brace"},
        {with_header("{\"\xff\":1}"), "byte 2 of the header is not UTF-8"},
        {with_header("{\"\xc0\x80\":1}"), "byte 2 of the header is not UTF-8"},
        {with_header("{\"\xed\xa0\x80\":1}"), "byte 2 of the header is not UTF-8"},
        {with_header("{\"\xf4\x90\x80\x80\":1}"), "byte 2 of the header is not UTF-8"},
        {with_header("{\"\xe2\x82\":1}"), "byte 2 of the header is not UTF-8"},
        {with_header("{\"\xe2\x82"), "byte 2 of the header is not UTF-8"},
        {with_header(std::string("{}\0{", 4)), "byte 2 of the header is not UTF-8"},
        {with_header("{"), "is not JSON"},
        {with_header("{}}"), "is not JSON"},
        {with_header("{} x"), "is not JSON"},
        {with_header("{\"a\"}"), "is not JSON"},
        {with_header("{'a':1}"), "is not JSON"},
        {with_header("{/**/}"), "is not JSON"},
        {with_header("{\"\\ud800\":{}}"), "is not JSON"},
        {one("\"a\":1"), "the header's \"a\" is no object"},
        {one("\"a\":[]"), "the header's \"a\" is no object"},
        {one(a + ",\"b\":[]", 8), "the header's \"b\" is no object"}, // nor a's
        {one("\"__metadata__\":{},\"b\":[]"), "the header's \"b\" is no object"},
        {one("\"a\":null"), "the header's \"a\" is no object"},
        {one("\"a\":true"), "the header's \"a\" is no object"},
        {one("\"a\":\"F32\""), "the header's \"a\" is no object"},
        {one("\"a\":{}"), "tensor \"a\" has no dtype"},
        {one("\"a\":{\"dtype\":\"F32\"}"), "tensor \"a\" has no shape"},
        {one("\"a\":{\"dtype\":\"F32\",\"shape\":[]}"), "tensor \"a\" has no data_offsets"},
        {one("\"a\":{\"colour\":1}"), "a member \"colour\", which the format does not know"},
        {one("\"a\":{\"dtype\":4}"), "\"dtype\" of tensor \"a\" is not of the type"},
        {one("\"a\":{\"dtype\":[]}"), "\"dtype\" of tensor \"a\" is not of the type"},
        {one("\"a\":{\"shape\":3}"), "\"shape\" of tensor \"a\" is not of the type"},
        {one("\"a\":{\"shape\":{}}"), "\"shape\" of tensor \"a\" is not of the type"},
        {one("\"a\":{\"shape\":[\"2\"]}"), "\"shape\" of tensor \"a\" is not of the type"},
        {one("\"a\":{\"shape\":[[2]]}"), "nested more than 3 deep"},
        {one("\"a\":{\"shape\":" + std::string(1'000'000, '[')), "nested more than 3 deep"},
        {one("\"__metadata__\":{\"a\":{\"b\":{\"c\":\"d\"}}}"), "\"a\" are no string"},
        {one("\"__metadata__\":{\"a\":[]}"), "the metadata \"a\" are no string"},
        {one("\"__metadata__\":{\"a\":1}"), "the metadata \"a\" are no string"},
        {one("\"__metadata__\":1"), "\"__metadata__\" is no object"},
        {one("\"__metadata__\":{\"k\":\"1\",\"k\":\"1\"}"),
         "the key \"k\" is there twice in the metadata"},
        {one("\"__metadata__\":{},\"__metadata__\":{}"), "the key \"__metadata__\" is there twice"},
        {one(a + "," + a, 8), "the key \"a\" is there twice"},
        {one("\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}"), "\"dtype\" is there twice in tensor"},
        {one(a + "," + tensor("\\u0061", "F32", "[0]", "[8,8]"), 8), "\"a\" is there twice"},
        {one(tensor("a", "F33", "[2]", "[0,8]"), 8), "elements of type \"F33\""},
        {one(tensor("a", "other", "[2]", "[0,8]"), 8), "elements of type \"other\""},
        {one(tensor("a", "F32", "[-2]", "[0,8]"), 8), "a number that is not whole"},
        {one(tensor("a", "F32", "[2.0]", "[0,8]"), 8), "a number that is not whole"},
        {one(tensor("a", "F32", "[-0]", "[0,8]"), 8), "a number that is not whole"},
        {one(tensor("a", "F32", "[18446744073709551616]", "[0,8]"), 8), "not from 0 to 2^64 - 1"},
        {one(tensor("a", "F32", "[4294967296,4294967296]", "[0,8]"), 8), "too large for any file"},
        {one(tensor("a", "F32", "[4611686018427387905]", "[0,4]"), 4), "too large for any file"},
        {one(tensor("a", "U8", "[4294967296,4294967296,0]", "[0,0]")), "too large for any file"},
        {one(tensor("a", "F32", "[2]", "[0]"), 8), "has 1 data_offsets, not 2"},
        {one(tensor("a", "F32", "[2]", "[0,8,8]"), 8), "has 3 data_offsets, not 2"},
        {one(tensor("a", "F32", "[2]", "[8,0]"), 8), "takes 8 bytes, but its data_offsets"},
        {one(tensor("a", "F32", "[2]", "[0,7]"), 7), "takes 8 bytes, but its data_offsets"},
        {one(tensor("a", "F32", "[2]", "[0,9]"), 9), "takes 8 bytes, but its data_offsets"},
        {one(tensor("a", "F32", "[2]", "[4,12]"), 12), "begin at 4, behind a hole"},
        {one(a + "," + tensor("b", "F32", "[1]", "[12,16]"), 16), "begin at 12, behind a hole"},
        {one(a + "," + tensor("b", "F32", "[1]", "[4,8]"), 8), "begin at 4, within"},
        {one(a + "," + tensor("b", "F32", "[2]", "[0,8]"), 8), "begin at 0, within"},
        {one(a, 7), "take 8 bytes, but behind the header the file has 7"},
        {one(a, 9), "take 8 bytes, but behind the header the file has 9"},
        {one("", 1), "take 0 bytes, but behind the header the file has 1"}};
    for (Case const& c : cases) {
        CHECK(lacks(said(c.file), c.words) == "");
    }
    CHECK(said(one("")) == "");
    CHECK(said(one(a, 8)) == "");
    CHECK(said(with_header("{" + a + "}   ", 8)) == "");
    CHECK(said(one(tensor("a", "F32", "[]", "[0,4]"), 4)) == "");
    CHECK(said(one(tensor("\xf0\x9f\x98\x80", "BOOL", "[0,3]", "[0,0]"))) == "");
    CHECK(said(one(tensor("b", "F32", "[2]", "[8,16]") + "," + a, 16)) == ""); // in any order
    CHECK(said(one("\"__metadata__\":{\"k\":\"\"}," + a, 8)) == "");
}

TEST_CASE("what is cut off anywhere is refused") {
    std::string const file = small_file();
    REQUIRE(said(file) == "");
    for (std::size_t size = 0; size < file.size(); ++size) {
        INFO(size, " bytes of ", file.size());
        CHECK(said(file.substr(0, size)) != "");
        CHECK(said(file + file.substr(0, size + 1)) != "");
    }
}

TEST_CASE("with any bit of it turned over a file is refused, or says what it says in sound form") {
    std::string const file = small_file();
    std::size_t const begin = file.size() - 11;
    std::size_t refused = 0;
    for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
        std::string other = file;
        other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << bit % 8));
        try {
            Header const header = parsed(other);
            // Whatever it is called now: three tensors without a gap, up to the end.
            std::uint64_t end = 0;
            for (Entry const& entry : header.tensors) {
                CHECK(entry.begin == end);
                end = entry.end;
            }
            CHECK(header.data_at + end == file.size());
            CHECK(header.tensors.size() == 3);
        } catch (StateError const&) {
            ++refused;
            CHECK(bit / 8 < begin);
        }
    }
    CHECK(refused > 4 * begin); // most of a header's bits
}

TEST_CASE("what cannot be written is refused") {
    std::vector<Entry> large{{"a", Dtype::F64, {std::uint64_t{1} << 61}}};
    CHECK_THROWS_AS(gpipe::safetensors::arrange(large), StateError);
    std::vector<Entry> many{{"a", Dtype::U8, {~std::uint64_t{0}}}, {"b", Dtype::U8, {1}}};
    CHECK_THROWS_AS(gpipe::safetensors::arrange(many), StateError);
    CHECK_THROWS_AS(gpipe::safetensors::file_begin({}, {{"k", "\xff"}}), StateError);
    CHECK_THROWS_AS(gpipe::safetensors::file_begin({}, {{"\xff", "v"}}), StateError);
    if (!toy::sanitized) // where that takes half a minute
        CHECK_THROWS_AS(gpipe::safetensors::file_begin({}, {{"k", std::string(100'000'000, 'x')}}),
                        StateError);
}

TEST_CASE("a pattern is the begin of a name or, with * and ?, a whole one") {
    using gpipe::matches;
    CHECK(matches("layer.0001.", "layer.0001.weight"));
    CHECK(matches("", "layer"));
    CHECK(!matches("weight", "layer.0001.weight"));
    CHECK(matches("*weight", "layer.0001.weight"));
    CHECK(!matches("*weigh", "layer.0001.weight"));
    CHECK(matches("*.000?.*", "optimizer.0.layer.0007.bias"));
    CHECK(!matches("layer.?.*", "layer.0001.weight"));
    CHECK(matches("*", ""));
    CHECK(!matches("?", ""));
    CHECK(matches("a*b*c", "a.b.b.c"));
    CHECK(!matches("a*b*c", "a.b.b.d"));
    // Against all words of two letters, by the definition.
    auto const slow = [](auto const& self, std::string_view p, std::string_view n) -> bool {
        if (p.empty()) return n.empty();
        if (p[0] == '*')
            return self(self, p.substr(1), n) || (!n.empty() && self(self, p, n.substr(1)));
        return !n.empty() && (p[0] == '?' || p[0] == n[0]) && self(self, p.substr(1), n.substr(1));
    };
    std::mt19937 random(2);
    for (int round = 0; round < 20'000; ++round) {
        std::string pattern = "*", name;
        for (std::size_t i = random() % 7; i > 0; --i) pattern += "ab*?"[random() % 4];
        for (std::size_t i = random() % 9; i > 0; --i) name += "ab"[random() % 2];
        std::rotate(pattern.begin(),
                    pattern.begin() + static_cast<std::ptrdiff_t>(random() % pattern.size()),
                    pattern.end());
        INFO(pattern, " ", name);
        CHECK(matches(pattern, name) == slow(slow, pattern, name));
    }
}
