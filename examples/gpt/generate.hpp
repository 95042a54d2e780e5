#pragma once

#include "gpt/text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace gpt {

/// Continues `prompt`, which must be in the text's characters and not empty, by `length`
/// characters, each drawn from what the network thinks of the last context of characters. Low
/// temperatures take the likelier ones. told(choice): what was chosen where the outputs are, if
/// there are several ranks.
template <class Model, class Train, class Told>
std::string generate(Train& train, Text const& text, std::string const& prompt, std::size_t length,
                     double temperature, std::uint64_t seed, Told const& told) {
    std::vector<std::int32_t> tokens;
    for (char const c : prompt) tokens.push_back(text.id(c));
    std::vector<std::int32_t> window(Model::context);
    std::vector<typename Model::Element> logits(Model::context * Model::vocabulary);
    std::vector<double> weights(text.classes());
    std::mt19937_64 random(seed);
    std::string written;
    while (written.size() < length) {
        // A position sees none after it, so what is behind the last token does not matter.
        std::size_t const seen = std::min(tokens.size(), window.size());
        std::copy(tokens.end() - static_cast<std::ptrdiff_t>(seen), tokens.end(), window.begin());
        train.predict(window, logits);
        auto const* const last = logits.data() + (seen - 1) * Model::vocabulary;
        double const most = *std::max_element(last, last + weights.size());
        double sum = 0;
        for (std::size_t i = 0; i < weights.size(); ++i)
            sum += weights[i] = std::exp((static_cast<double>(last[i]) - most) / temperature);
        double left = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
        std::size_t choice = 0;
        while (choice + 1 < weights.size() && left >= weights[choice]) left -= weights[choice++];
        tokens.push_back(static_cast<std::int32_t>(told(choice)));
        written += text.character(tokens.back());
    }
    return written;
}

} // namespace gpt
