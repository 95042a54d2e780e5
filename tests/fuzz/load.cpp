// For libFuzzer: whatever files a saved state is, load() refuses them and leaves the training as it
// was in every bit, or loads what they say, and that training goes on. An input is: one character,
// how it is loaded, and the files, with 0xff between. A file is its header's text, 0xfe, one byte,
// how often what follows stands in its data, and that; or, where there is no 0xfe, the whole file
// as it is. The first is loaded; those behind it are called a, b, c beside it.
#include <gpipe/gpipe.hpp>
#include <gpipe/state/state.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace {

void require(bool holds) {
    if (!holds) __builtin_trap();
}

// What every kind of tensor of a state is of: parameters with names and without, tied ones,
// buffers.
struct Shared;
struct Scaled {
    using Input = gpipe::Tensor<float, 2>;
    using Output = Input;
    using Parameters = gpipe::Tensors<gpipe::Tensor<float>, gpipe::Tensor<double, 2>>;
    using Tied = gpipe::Tie<Shared, 0>;
    static constexpr std::string_view parameter_names[] = {"factor", "offset"};

    void initialize(auto& ctx) const { gpipe::get<0>(ctx.parameters())[0] = 0.5f; }
    void forward(auto& ctx, auto x, auto y) const {
        auto [factor, offset] = ctx.parameters();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 2; ++i)
                y(s, i) = factor[0] * x(s, i) + static_cast<float>(offset[i]);
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        auto [factor, offset] = ctx.gradients();
        for (std::size_t s = 0; s < x.samples(); ++s)
            for (std::size_t i = 0; i < 2; ++i) {
                factor[0] += dy(s, i) * x(s, i);
                offset[i] += static_cast<double>(dy(s, i));
                dx(s, i) = gpipe::get<0>(ctx.parameters())[0] * dy(s, i);
            }
    }
};
struct Counted {
    using Input = Scaled::Input;
    using Output = Input;
    using Parameters = gpipe::Tensor<float>;
    using Buffers = gpipe::Tensors<gpipe::Tensor<double>, gpipe::Tensor<std::int32_t, 3>>;
    using Tied = gpipe::Tie<Shared>;

    void initialize(auto&) const {}
    void forward(auto& ctx, auto x, auto y) const {
        for (std::size_t i = 0; i < x.size(); ++i) y.data()[i] = ctx.parameters()[0] * x.data()[i];
    }
    void backward(auto& ctx, auto x, auto dy, auto dx) const {
        for (std::size_t i = 0; i < x.size(); ++i) {
            ctx.gradients()[0] += dy.data()[i] * x.data()[i];
            dx.data()[i] = ctx.parameters()[0] * dy.data()[i];
        }
    }
    void update_buffers(auto&, auto, auto buffers) const { gpipe::get<0>(buffers)[0] += 1; }
};
struct Sum {
    using Target = gpipe::Tensor<float, 2>;
    gpipe::LossValue<> operator()(auto&, auto y, auto target, auto dy) const {
        double sum = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
            dy.data()[i] = y.data()[i] - target.data()[i];
            sum += static_cast<double>(dy.data()[i]);
        }
        return {sum, static_cast<double>(y.samples())};
    }
};
using Net = gpipe::Pipeline<Scaled, Counted>;
using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<2>, gpipe::Loss<Sum>,
                              gpipe::Optimizer<gpipe::Adam>>;
using Infer = gpipe::Inference<Net, gpipe::Cells<2>>;

// All that load() may change, byte for byte.
template <class T> std::string everything(T& of) {
    auto& machine = gpipe::detail::MachineAccess::of(of);
    gpipe::TrainingState const state = gpipe::detail::state_of(machine, of);
    std::string result = std::to_string(state.seed) + ' ' + std::to_string(state.steps);
    for (gpipe::LearnedTensor const& one : state.learned) result += ' ' + std::to_string(one.begun);
    result.append(reinterpret_cast<char const*>(&state.scale.factor), sizeof state.scale.factor);
    result += std::to_string(state.scale.good_steps);
    for (gpipe::OwnPart const& own : state.own)
        result.append(reinterpret_cast<char const*>(own.memory),
                      own.count * info(state.tensors[own.tensor].dtype).bytes);
    return result;
}

struct Folder {
    std::string path = (std::filesystem::temp_directory_path() / "gpipe-fuzz-XXXXXX").string();
    Folder() { require(::mkdtemp(path.data()) != nullptr); }
    Folder(Folder const&) = delete;
    ~Folder() { std::filesystem::remove_all(path); }
    std::string file(std::size_t i) const {
        return path + '/' + (i == 0 ? "state" : std::string(1, static_cast<char>('a' + i - 1)));
    }
};

std::string content(std::string_view text) {
    std::size_t const at = text.find('\xfe');
    if (at == text.npos) return std::string(text);
    std::string result;
    for (std::size_t byte = 0; byte < 8; ++byte)
        result += static_cast<char>(static_cast<std::uint64_t>(at) >> 8 * byte & 0xff);
    result += text.substr(0, at);
    if (text.size() < at + 2) return result;
    for (auto times = static_cast<unsigned char>(text[at + 1]); times > 0; --times)
        result += text.substr(at + 2);
    return result;
}

gpipe::LoadOptions options_of(char how) {
    gpipe::LoadOptions options;
    if (how & 1) options.only = {"layer.0000.", "optimizer.?.layer.0000.*"};
    if (how & 2) options.except = {"layer.0001.buffer.0"};
    if (how & 4) options.types = false;
    if (how & 8) options.steps = true;
    if (how & 16) options.state_steps = 3;
    if (how & 32)
        options.rename = [](std::string const& name) {
            return name.substr(0, 1) == "x" ? "layer.0000." + name.substr(1) : name;
        };
    return options;
}

float const inputs[] = {1, 2, 3, 4}, targets[] = {4, 3, 2, 1};

// Loads; where that is refused nothing has changed, and what was loaded twice is what it was once.
template <class T> bool loads(T& of, std::string const& path, gpipe::LoadOptions const& options) {
    std::string const before = everything(of);
    try {
        gpipe::load(of, path, options);
    } catch (std::exception const& error) {
        require(everything(of) == before);
        require(std::string_view(error.what()).substr(0, 7) == "gpipe: ");
        return false;
    }
    std::string const loaded = everything(of);
    gpipe::load(of, path, options);
    require(everything(of) == loaded);
    return true;
}

} // namespace

bool taken = false; // see support/replay_inputs.cpp

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
    static Folder const folder;
    static Infer infer({}, {.samples = 2});
    static std::string const begin = folder.path + "/begin";
    static Train train({}, {}, gpipe::Adam{}, [] {
        Train::Options options;
        options.samples = 2;
        options.seed = 7;
        options.loss_scale = gpipe::LossScale::dynamic(64, 2, 0.5, 2);
        return options;
    }());
    static bool const begun = [] {
        train.step(inputs, targets);
        gpipe::save(train, begin);
        return true;
    }();
    if (size == 0 || !begun) return 0;
    char const how = static_cast<char>(data[0]);
    std::string_view rest(reinterpret_cast<char const*>(data) + 1, size - 1);
    for (std::size_t i = 0; i < 4; ++i) {
        std::string_view const text = rest.substr(0, rest.find('\xff'));
        std::ofstream(folder.file(i), std::ios::binary) << content(text);
        rest.remove_prefix(std::min(text.size() + 1, rest.size()));
    }
    gpipe::LoadOptions const options = options_of(how);
    if (how & 64) {
        taken = loads(infer, folder.file(0), options);
        if (taken) gpipe::load(infer, begin);
    } else if ((taken = loads(train, folder.file(0), options))) {
        try {
            train.step(inputs, targets);
        } catch (std::exception const&) { // of numbers that are not finite
        }
        gpipe::load(train, begin);
    }
    return 0;
}
