// The layers and the loss of the GPT under check_gradients(): right as they are, and every fault in
// any of them is found where it is.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O2") // the loops of double, for which this is all the time
#endif

#include <gpt/cross_entropy.hpp>
#include <gpt/host_operations.hpp>
#include <gpt/model.hpp>

#include <gpipe/check_gradients.hpp>
#include <gpipe/optimizer/adam.hpp>

#include <support/faulty.hpp>
#include <support/long_tests.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using toy::Faulty, toy::GradientFault;

constexpr std::size_t context = 6, width = 16, heads = 2, vocabulary = 32, samples = 4;

template <class T>
using Net = gpipe::Pipeline<Faulty<gpt::Embedding<T, vocabulary, context, width>>,
                            Faulty<gpt::Attention<T, context, width, heads>>,
                            Faulty<gpt::Mlp<T, context, width>>,
                            Faulty<gpt::Head<T, context, width, vocabulary>>>;
template <class T> using Loss = toy::FaultyLoss<gpt::CrossEntropy<T, context, vocabulary>>;
template <class T>
using Train = gpipe::Training<Net<T>, gpipe::Cells<2>, gpipe::MicroBatches<2>, gpipe::Loss<Loss<T>>,
                              gpipe::Optimizer<gpipe::AdamW>>;

// The last token is used: of the others no gradient is to be seen.
std::vector<std::int32_t> tokens(std::uint32_t seed) {
    std::vector<std::int32_t> values(samples * context);
    for (std::int32_t& v : values) v = static_cast<std::int32_t>((seed = seed * 69069 + 1) >> 27);
    values[3] = vocabulary - 1;
    return values;
}

template <class T>
gpipe::GradientReport report(std::uint32_t seed, std::size_t classes, float dropout,
                             std::size_t entries, std::size_t faulty = 99,
                             GradientFault fault = GradientFault::none) {
    Faulty<gpt::Attention<T, context, width, heads>> attention;
    Faulty<gpt::Mlp<T, context, width>> mlp;
    Faulty<gpt::Head<T, context, width, vocabulary>> head;
    Faulty<gpt::Embedding<T, vocabulary, context, width>> embedding;
    Loss<T> loss;
    attention.dropout.rate = mlp.dropout.rate = dropout;
    head.classes = loss.classes = classes;
    GradientFault* const faults[] = {&embedding.fault, &attention.fault, &mlp.fault, &head.fault,
                                     &loss.fault};
    if (faulty < std::size(faults)) *faults[faulty] = fault;
    Train<T> train(Net<T>(embedding, attention, mlp, head), loss, {.learning_rate = 0.01f},
                   {.samples = samples, .seed = seed});
    auto const targets = [&] {
        std::vector<std::int32_t> values = tokens(seed + 1);
        for (std::int32_t& v : values) v %= static_cast<std::int32_t>(classes);
        values[1] = -1;
        return values;
    }();
    for (int i = 0; i < 5; ++i)
        if (fault == GradientFault::none) train.step(tokens(seed), targets);
    return gpipe::check_gradients(train, tokens(seed), targets, {.entries = entries, .seed = seed});
}

} // namespace

TEST_CASE_TEMPLATE("no gradient of the GPT's layers is called wrong", T, float, double) {
    std::size_t checked = 0, left_out = 0;
    for (std::uint32_t seed = 1; seed <= 1 + 60 / toy::one_of(60); ++seed)
        for (float const dropout : {0.0f, 0.25f})
            for (std::size_t const classes : {vocabulary, std::size_t{16}}) {
                // Each once under sanitizers, not with each.
                if (toy::one_of(1) > 1 && (dropout > 0) != (classes == 16)) continue;
                auto const found = report<T>(seed, classes, dropout, toy::sanitized ? 2 : 16);
                INFO(found);
                CHECK(found.passed());
                for (gpipe::GradientRow const& row : found.rows) {
                    CHECK(row.checked > 0);
                    checked += row.checked;
                    left_out += row.left_out;
                }
            }
    MESSAGE(checked, " checked, ", left_out, " left out");
    CHECK(left_out * 20 < checked);
}

TEST_CASE_TEMPLATE("every fault in the gradients of the GPT is found in the layer that has it", T,
                   float, double) {
    std::size_t tried = 0;
    for (std::size_t layer = 0; layer <= Net<T>::size; ++layer)
        for (std::size_t f = 1; f < toy::fault_count; ++f) {
            std::size_t const share = toy::long_tests()          ? 1
                                      : toy::sanitized           ? 23
                                      : std::is_same_v<T, float> ? 3
                                                                 : 1;
            if ((layer * toy::fault_count + f) % share != 0) continue;
            ++tried;
            auto const fault = static_cast<GradientFault>(f);
            auto const found = report<T>(7, vocabulary, 0, 2, layer, fault);
            INFO(std::string(toy::fault_names[f]), " in layer ", layer, "\n", found);
            for (gpipe::GradientRow const& row : found.rows) {
                CAPTURE(row.layer);
                CAPTURE(row.tensor);
                bool const can_have =
                    row.layer == layer && (fault != GradientFault::set || row.tensor[0] == 'p');
                CHECK(row.fault.empty() != can_have);
            }
        }
    CHECK(tried > 0);
}
