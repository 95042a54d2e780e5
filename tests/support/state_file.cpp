// The C++ side of tests/scripts/safetensors: writes files for the official Python package, and
// reads what that has made of them.
//   state_file write FOLDER    all.safetensors, a tensor of every type; training.safetensors
//   state_file check FOLDER    all.python.safetensors and training.python.safetensors are the same
#include "support/layers.hpp"
#include "support/losses.hpp"

#include <gpipe/gpipe.hpp>
#include <gpipe/state/state.hpp>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace {

using gpipe::safetensors::Entry;
using Net =
    gpipe::Pipeline<toy::Linear<float, 5, 6>, toy::Tanh<float, 6>, toy::Linear<float, 6, 3>>;
using Train =
    gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<2>,
                    gpipe::Loss<toy::MeanSquare<float, 3>>, gpipe::Optimizer<gpipe::AdamW>>;

gpipe::StateMetadata const metadata{{"position", "12 \"\xc3\xa9\""}};

std::vector<Entry> entries() {
    std::vector<Entry> all{{"empty", gpipe::Dtype::F32, {0, 3}}, {"one", gpipe::Dtype::F64, {}}};
    for (std::size_t d = 1; d < gpipe::dtypes.size(); ++d)
        all.push_back(
            {"of." + std::string(gpipe::dtypes[d].name), static_cast<gpipe::Dtype>(d), {2, 3}});
    gpipe::safetensors::arrange(all);
    return all;
}
// Bytes 0, 37, 74, ... of each tensor; booleans in turn.
std::string data(std::vector<Entry> const& all) {
    std::string bytes;
    for (Entry const& entry : all)
        for (std::uint64_t i = 0; i < entry.bytes(); ++i)
            bytes += static_cast<char>(entry.dtype == gpipe::Dtype::BOOL ? i % 2 : i * 37 % 256);
    return bytes;
}
std::string content(std::string const& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}
Train made(std::uint64_t seed) {
    return Train(Net{}, {}, gpipe::AdamW{}, {.samples = 4, .seed = seed});
}

int write(std::string const& folder) {
    auto const all = entries();
    std::ofstream(folder + "/all.safetensors", std::ios::binary)
        << gpipe::safetensors::file_begin(all, metadata) << data(all);
    Train train = made(1);
    std::vector<float> const inputs(20, 0.5f), targets(12, 0.25f);
    for (int i = 0; i < 3; ++i) train.step(inputs, targets);
    gpipe::save(train, folder + "/training.safetensors", metadata);
    return 0;
}
int check(std::string const& folder) {
    std::string const file = content(folder + "/all.python.safetensors");
    auto const header = gpipe::safetensors::parse_file(std::as_bytes(std::span(file)));
    std::map<std::string, Entry> read;
    for (Entry const& entry : header.tensors) read[entry.name] = entry;
    auto const all = entries();
    std::string const expected = data(all);
    bool same = header.metadata == metadata && read.size() == all.size();
    for (Entry const& entry : all) {
        Entry const& other = read[entry.name];
        same = same && other.dtype == entry.dtype && other.shape == entry.shape &&
               file.substr(header.data_at + other.begin, other.bytes()) ==
                   expected.substr(entry.begin, entry.bytes());
    }
    Train train = made(2);
    same = same && gpipe::load(train, folder + "/training.python.safetensors").metadata == metadata;
    gpipe::save(train, folder + "/again.safetensors", metadata);
    same =
        same && content(folder + "/again.safetensors") == content(folder + "/training.safetensors");
    std::puts(same ? "what Python wrote is what it read" : "what Python wrote is something else");
    return same ? 0 : 1;
}

} // namespace

int main(int count, char** arguments) {
    try {
        if (count == 3)
            return arguments[1] == std::string("write") ? write(arguments[2]) : check(arguments[2]);
    } catch (std::exception const& error) {
        std::fprintf(stderr, "%s\n", error.what());
    }
    return 1;
}
