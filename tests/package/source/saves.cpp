#include <gpipe/state/safetensors.hpp>

int main() { return gpipe::safetensors::file_begin({}, {}).size() == 64 ? 0 : 1; }
