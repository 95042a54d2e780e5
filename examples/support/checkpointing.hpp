#pragma once

#include "support/options.hpp"

#include <gpipe/checkpoint/catalogue.hpp>

#include <stdexcept>
#include <string>

namespace support {

/// What --help says of the names.
inline std::string checkpointing_help() {
    return "recompute activations in backward: " +
           std::string(gpipe::checkpoint::checkpointing_names);
}

/// The policy of that name. Throws UsageError if there is none.
inline gpipe::checkpoint::Dynamic checkpointing(std::string const& name) {
    try {
        return gpipe::checkpoint::find_checkpointing(name);
    } catch (std::invalid_argument const& error) {
        std::string const said = error.what();
        throw UsageError("--checkpointing:" + said.substr(said.find(' ')));
    }
}

} // namespace support
