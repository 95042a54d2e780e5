// In place of libFuzzer: gives a target of fuzz/ each file of the folder that is named, once. Those
// called refused* it has to refuse, and to take the others: else fuzzing begins with nothing.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);
extern bool taken; // the input before

int main(int, char** arguments) {
    std::size_t count = 0;
    for (auto const& file : std::filesystem::directory_iterator(arguments[1])) {
        std::ifstream in(file.path(), std::ios::binary);
        std::string const input{std::istreambuf_iterator<char>(in), {}};
        std::printf("%s\n", file.path().c_str());
        std::fflush(stdout);
        LLVMFuzzerTestOneInput(reinterpret_cast<std::uint8_t const*>(input.data()), input.size());
        bool const refused = file.path().filename().string().rfind("refused", 0) == 0;
        if (taken == refused) return std::puts(taken ? "it was taken" : "it was refused"), 1;
        ++count;
    }
    std::printf("%zu inputs\n", count);
    return count == 0;
}
