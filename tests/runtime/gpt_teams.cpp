// The rows of the GPT's layers when several threads share one, as they do on a GPU: what a team of
// real threads gives is what one thread gives. Under ThreadSanitizer, what a thread reads although
// another one may have written it is a failure.

#include <gpt/causal_softmax.hpp>
#include <gpt/cross_entropy.hpp>
#include <gpt/dropout.hpp>
#include <gpt/embedding.hpp>
#include <gpt/head.hpp>
#include <gpt/host_operations.hpp>
#include <gpt/layer_norm.hpp>
#include <gpt/scatter.hpp>

#include <doctest/doctest.h>

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t threads = 4;

struct Exchange {
    std::barrier<> barrier{threads};
    double slots[threads] = {};
};

// One thread's part of a team, with the promises of gpt::CudaTeam and no more.
class ThreadTeam {
  public:
    static constexpr bool alone = false;

    ThreadTeam(Exchange& exchange, std::size_t rank) : exchange_(exchange), rank_(rank) {}

    template <class F> void each(std::size_t n, F f) const {
        for (std::size_t i = rank_; i < n; i += threads) f(i);
    }
    template <class F> void at(std::size_t i, F f) const {
        if (i % threads == rank_) f();
    }
    template <class F> auto sum(std::size_t n, F f) const {
        decltype(f(n)) own{};
        for (std::size_t i = rank_; i < n; i += threads) own += f(i);
        return together(own, [](auto a, auto b) { return a + b; });
    }
    template <class T> T most(T const* values, std::size_t n) const {
        T own = values[0];
        for (std::size_t i = rank_; i < n; i += threads) own = values[i] > own ? values[i] : own;
        return together(own, [](T a, T b) { return a > b ? a : b; });
    }

  private:
    template <class T, class Combine> T together(T own, Combine combine) const {
        exchange_.slots[rank_] = static_cast<double>(own);
        exchange_.barrier.arrive_and_wait();
        auto result = static_cast<T>(exchange_.slots[0]);
        for (std::size_t i = 1; i < threads; ++i)
            result = combine(result, static_cast<T>(exchange_.slots[i]));
        exchange_.barrier.arrive_and_wait();
        return result;
    }

    Exchange& exchange_;
    std::size_t rank_;
};

constexpr std::size_t width = 24;
constexpr std::size_t rows = 18; // of samples of 6

// What a row may read and write.
struct Arrays {
    std::vector<double> a, b, c;
    std::vector<std::int32_t> indices;

    Arrays() : a(rows * width), b(a), c(a), indices(rows) {
        std::mt19937 random{1};
        std::normal_distribution<double> normal;
        for (auto* array : {&a, &b, &c})
            for (double& element : *array) element = normal(random);
        for (auto& index : indices) index = static_cast<std::int32_t>(random() % 7) - 1;
    }
};

// make(arrays) is the functor for a row.
template <class Make> void check(Make make) {
    Arrays alone;
    auto const row = make(alone);
    for (std::size_t r = 0; r < rows; ++r) row(gpt::HostTeam{}, r);

    Arrays shared;
    auto const shared_row = make(shared);
    Exchange exchange;
    std::vector<std::thread> team;
    for (std::size_t rank = 0; rank < threads; ++rank)
        team.emplace_back([&, rank] {
            for (std::size_t r = 0; r < rows; ++r) shared_row(ThreadTeam{exchange, rank}, r);
        });
    for (std::thread& thread : team) thread.join();

    Arrays const before;
    bool changed = false;
    for (auto member : {&Arrays::a, &Arrays::b, &Arrays::c})
        for (std::size_t i = 0; i < before.a.size(); ++i) {
            CAPTURE(i);
            CHECK((alone.*member)[i] == doctest::Approx((shared.*member)[i]).epsilon(1e-12));
            changed = changed || (alone.*member)[i] != (before.*member)[i];
        }
    CHECK(changed);
}

TEST_CASE("a norm's rows may be shared") {
    check([](Arrays& x) {
        return gpt::detail::NormForward<width, double>{
            {x.a.data(), x.a.data() + width, x.b.data(), x.a.data() + 4 * width, x.c.data()},
            x.a.data() + 4 * width};
    });
    check([](Arrays& x) {
        return gpt::detail::NormApply<width, double>{x.a.data(), x.a.data() + width, x.b.data(),
                                                     x.a.data() + 4 * width, x.c.data()};
    });
    for (bool const residual : {true, false})
        check([&](Arrays& x) {
            return gpt::detail::NormBackward<width, double>{
                x.a.data(), x.b.data(), x.a.data() + 4 * width, residual ? x.a.data() : nullptr,
                x.c.data()};
        });
}

TEST_CASE("rows with dropout may be shared") {
    gpipe::SampleRandom const random{1, 2, 3, 4};
    for (float const rate : {0.0f, 0.5f})
        check([&](Arrays& x) {
            return gpt::detail::AddResidual<6, width, double, gpipe::SampleRandom>{
                {rate}, random, x.a.data(), x.b.data(), x.c.data()};
        });
    check([&](Arrays& x) {
        return gpt::detail::DropGradient<6, width, double, gpipe::SampleRandom>{
            {0.5f}, random, x.a.data(), x.b.data()};
    });
}

TEST_CASE("rows of logits may be shared") {
    check([](Arrays& x) { return gpt::detail::Clip<double>{17, width, 0.5, x.a.data()}; });
    check([](Arrays& x) {
        return gpt::detail::ClipBackward<double>{17,         width,      0.5,
                                                 x.a.data(), x.b.data(), x.c.data()};
    });
    for (bool const training : {true, false})
        check([&](Arrays& x) {
            for (auto& target : x.indices)
                if (target > 2) target += 10;
            return gpt::detail::CrossEntropyRow<width, double>{
                17, x.a.data(), x.indices.data(), training ? x.b.data() : nullptr, x.c.data()};
        });
}

TEST_CASE("rows of scores may be shared") {
    // Three samples with one head of two in the group, six positions of the 24 columns' first six.
    gpt::HeadGroup const group{1, 1, 2};
    check([&](Arrays& x) { return gpt::CausalSoftmax<6, double>{group, x.a.data(), x.b.data()}; });
    check([&](Arrays& x) {
        return gpt::CausalSoftmaxBackward<6, 8, double>{
            group, 0.5, x.a.data(), x.b.data(), x.b.data(), x.c.data(), x.c.data() + 200};
    });
}

TEST_CASE("rows of tokens may be shared") {
    check([](Arrays& x) {
        for (auto& token : x.indices) token = token < 0 ? 0 : token;
        return gpt::detail::Gather<7, 6, width, double>{x.indices.data(), x.a.data(), x.b.data(),
                                                        x.c.data()};
    });
    check([](Arrays& x) {
        return gpt::ScatterRow<double>{rows, 7, width, x.indices.data(), x.a.data(), x.b.data()};
    });
}

} // namespace
