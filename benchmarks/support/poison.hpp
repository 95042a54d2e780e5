#pragma once

#include <gpipe/core/bytes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace benchmark {

/// A byte of which four make a harmless float.
inline constexpr unsigned char poison = 0x3C;

/// Overwrites everything on a Training's devices but the parameters, which move to where they were.
template <class Train> void poison_arenas(Train& train, std::size_t layers) {
    std::vector<std::vector<float>> parameters;
    auto const each_tensor = [&](auto f) {
        for (std::size_t layer = 0; layer < layers; ++layer)
            for (std::size_t t = 0; t < train.tensors(layer); ++t)
                f(train.template parameter<float>(layer, t));
    };
    each_tensor([&](auto values) { parameters.emplace_back(values.begin(), values.end()); });
    for (std::size_t d = 0; d < train.devices(); ++d)
        std::memset(train.arena(d).data(), poison, train.arena(d).size());
    std::size_t next = 0;
    each_tensor([&](auto values) {
        std::copy(parameters[next].begin(), parameters[next].end(), values.begin());
        ++next;
    });
}

/// Bytes of the 256-byte lines of an arena in which anything differs from the poison.
inline std::size_t overwritten(std::span<std::byte const> arena) {
    constexpr std::size_t line = gpipe::slot_alignment;
    std::size_t used = 0;
    for (std::size_t at = 0; at < arena.size(); at += line)
        for (std::size_t i = at; i < std::min(at + line, arena.size()); ++i)
            if (arena[i] != std::byte{poison}) {
                used += std::min(line, arena.size() - at);
                break;
            }
    return used;
}

} // namespace benchmark
