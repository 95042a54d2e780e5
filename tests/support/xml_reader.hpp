#pragma once

// A reader of XML, strict and small, that knows nothing of what writes it.

#include <cctype>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace toy {

/// An element of XML with its attributes, its own text and the elements within. Knows elements,
/// attributes, text and the five entities; throws std::runtime_error for anything else, so for
/// scripts in disguise, too (comments, CDATA, processing instructions, declarations).
struct Xml {
    std::string name;
    std::map<std::string, std::string> attributes;
    std::string text;
    std::vector<Xml> children;

    double number(std::string const& attribute) const {
        auto const found = attributes.find(attribute);
        if (found == attributes.end()) throw std::runtime_error(name + " has no " + attribute);
        char* end = nullptr;
        double const value = std::strtod(found->second.c_str(), &end);
        if (end == found->second.c_str() || *end != '\0')
            throw std::runtime_error(attribute + " is no number: " + found->second);
        return value;
    }
    /// All elements of a name, itself included, in the order of the text.
    std::vector<Xml const*> all(std::string const& wanted) const {
        std::vector<Xml const*> found;
        if (name == wanted) found.push_back(this);
        for (Xml const& child : children)
            for (Xml const* element : child.all(wanted)) found.push_back(element);
        return found;
    }

    static Xml parse(std::string const& text) {
        std::size_t at = 0;
        Xml const root = element(text, at);
        if (text.find_first_not_of(" \n", at) != std::string::npos)
            throw std::runtime_error("text behind the root");
        return root;
    }

  private:
    static char next(std::string const& text, std::size_t& at) {
        if (at >= text.size()) throw std::runtime_error("the text ends too early");
        return text[at++];
    }
    static void expect(std::string const& text, std::size_t& at, char c) {
        if (next(text, at) != c)
            throw std::runtime_error(std::string("no ") + c + " at " + std::to_string(at - 1));
    }
    static std::string word(std::string const& text, std::size_t& at) {
        std::string result;
        while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) ||
                                    text[at] == '-' || text[at] == ':'))
            result += text[at++];
        if (result.empty()) throw std::runtime_error("no name at " + std::to_string(at));
        return result;
    }
    // One character of text or of a value, entities resolved.
    static char character(std::string const& text, std::size_t& at) {
        char const c = next(text, at);
        if (static_cast<unsigned char>(c) < 0x20 && c != '\n')
            throw std::runtime_error("a control character");
        if (c == '<') throw std::runtime_error("a < where it may not be");
        if (c != '&') return c;
        static std::map<std::string, char> const entities = {
            {"amp;", '&'}, {"lt;", '<'}, {"gt;", '>'}, {"quot;", '"'}, {"apos;", '\''}};
        for (auto const& [entity, meant] : entities)
            if (text.compare(at, entity.size(), entity) == 0) {
                at += entity.size();
                return meant;
            }
        throw std::runtime_error("an unknown entity at " + std::to_string(at));
    }
    static Xml element(std::string const& text, std::size_t& at) {
        Xml result;
        expect(text, at, '<');
        result.name = word(text, at);
        while (next(text, at) == ' ') {
            std::string const attribute = word(text, at);
            expect(text, at, '=');
            char const quote = next(text, at);
            if (quote != '"' && quote != '\'') throw std::runtime_error("a value has no quotes");
            std::string value;
            while (at < text.size() && text[at] != quote) value += character(text, at);
            expect(text, at, quote);
            if (!result.attributes.emplace(attribute, value).second)
                throw std::runtime_error("the attribute " + attribute + " comes twice");
        }
        --at;
        if (text.compare(at, 2, "/>") == 0) {
            at += 2;
            return result;
        }
        expect(text, at, '>');
        while (text.compare(at, 2, "</") != 0) {
            if (at < text.size() && text[at] == '<')
                result.children.push_back(element(text, at));
            else
                result.text += character(text, at);
        }
        at += 2;
        if (word(text, at) != result.name) throw std::runtime_error("tags overlap");
        expect(text, at, '>');
        return result;
    }
};

} // namespace toy
