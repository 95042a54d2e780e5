// Backwards in two halves: every kind of layer in every place, in any mixture of programs.
#include "support/net.hpp"

#include <doctest/doctest.h>
#include <string>
#include <vector>

namespace {

using gpipe::Adam;
using gpipe::device::Host;
using toy::Backward;
using toy::Phase;
using toy::Remote;
using Real = float;

// Of nets that take and give four numbers.
template <class Net, class Device>
using Train = toy::Training<Net, toy::MeanSquare<Real, 4>, Adam, Device>;
template <class Net> using Plain = toy::Reference<Net, toy::MeanSquare<Real, 4>, Adam>;

using Whole = toy::Carry<Real, 4>; // has parameters, and no halves
using WholeNet = gpipe::Pipeline<toy::Tag<Real, 4>, Whole, Whole, toy::Untag<Real, 4>>;
using Squares = gpipe::Pipeline<toy::Square<Real, 4>, toy::Square<Real, 4>, toy::Square<Real, 4>>;
using Stricts = gpipe::Pipeline<toy::Scale<Real, 4>, toy::StrictLinear<Real, 4, 4>,
                                toy::Tanh<Real, 4>, toy::StrictLinear<Real, 4, 4>>;
using Lines = gpipe::Pipeline<toy::Linear<Real, 4, 4>, toy::Saver<Real, 4>, toy::Linear<Real, 4, 4>,
                              toy::Scale<Real, 4>>;
// The halves of the lowest learner are in the second cell, or the first, as it is cut.
using Late = gpipe::Pipeline<toy::Saver<Real, 4>, toy::Tanh<Real, 4>, toy::Square<Real, 4>,
                             toy::Linear<Real, 4, 4>>;

/// Micro-batches in turns with the halves apart and together, and weight gradients late.
struct Mixed {
    using policy_kind = gpipe::policy::Schedule;
    static constexpr gpipe::Programs programs(std::size_t devices, std::size_t micro_batches) {
        gpipe::Programs result(devices, devices, micro_batches, 3 * devices * micro_batches);
        for (std::size_t k = 0; k < devices; ++k) {
            for (std::size_t m = 0; m < micro_batches; ++m) result.add(gpipe::forward(k, m));
            // Sums of gradients are in ascending order: what is late holds up those behind it.
            std::size_t late = micro_batches;
            for (std::size_t m = 0; m < micro_batches; ++m) {
                if ((m + k) % 2 == 0) {
                    result.add(gpipe::input_gradient(k, m));
                    if (late < micro_batches) result.add(gpipe::weight_gradient(k, late));
                    late = m;
                } else {
                    if (late < micro_batches) result.add(gpipe::weight_gradient(k, late));
                    late = micro_batches;
                    result.add(gpipe::backward(k, m));
                }
            }
            if (late < micro_batches) result.add(gpipe::weight_gradient(k, late));
            result.next_device();
        }
        return result;
    }
};

} // namespace

TEST_CASE_TEMPLATE("layers with and without halves train the same wherever they stand", Net,
                   WholeNet, Squares, Stricts, Lines, Late) {
    auto const check = [&]<class Device>(Device const*) {
        std::size_t point = 0;
        for (std::size_t micro_batches : {1, 2, 3, 5})
            for (gpipe::schedule::Dynamic const& schedule :
                 {gpipe::schedule::Dynamic(gpipe::schedule::ZeroBubbleH1{}),
                  gpipe::schedule::Dynamic(gpipe::schedule::ZeroBubbleH2{}),
                  gpipe::schedule::Dynamic(gpipe::schedule::ZeroBubbleV{}),
                  gpipe::schedule::Dynamic(Mixed{})})
                for (std::size_t k = 1; k * schedule.cells_per_device() <= Net::size; ++k)
                    for (toy::NamedCheckpointing const& checkpointing : toy::every_checkpointing())
                        for (auto const& run : toy::runs<Device>()) {
                            if (point++ % toy::one_of(29) != 0) continue;
                            typename Train<Net, Device>::Options o;
                            o.samples = 6;
                            o.seed = 7;
                            o.cells = k;
                            o.micro_batches = micro_batches;
                            o.schedule = schedule;
                            o.checkpointing = checkpointing.policy;
                            o.device = run;
                            Train<Net, Device> train(Net{}, {}, Adam{1e-2f}, o);
                            Plain<Net> plain(Net{}, {}, Adam{1e-2f}, 7, micro_batches,
                                             Backward::ascending);
                            INFO(schedule.name(), ", ", checkpointing.name, ", K = ", k,
                                 ", M = ", micro_batches, ", ", toy::describe(run));
                            std::vector<Real> const data = toy::numbers<Real>(6 * 4, 3);
                            for (int step = 0; step < 3; ++step)
                                CHECK(train.step(data, data).loss == plain.step(data, data));
                            CHECK(toy::difference(train, plain) == "");
                        }
    };
    check(static_cast<Host const*>(nullptr));
    check(static_cast<Remote const*>(nullptr));
}

namespace {

template <class Net, class Schedule>
using Constant = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<4>,
                                 gpipe::Loss<toy::MeanSquare<Real, 4>>, Schedule>;
using gpipe::schedule::ZeroBubbleH1;

// Without halves a zero-bubble schedule has the bubble of its order with whole backwards.
static_assert(Constant<Lines, ZeroBubbleH1>::bubble() == gpipe::ratio(1, 13));
static_assert(Constant<WholeNet, ZeroBubbleH1>::bubble() == gpipe::ratio(1, 5));
static_assert(Constant<Lines, ZeroBubbleH1>::bubble(gpipe::CellCosts<double>{
                  .forward = 1, .input_gradient = 1, .weight_gradient = 1}) > 0.0769);

} // namespace

TEST_CASE("where no layer of a cell has halves its backwards are whole, and programs() says so") {
    auto const kinds = []<class Net>(Net const&) {
        Constant<Net, ZeroBubbleH1> train(Net{}, {}, gpipe::SGD{}, {.samples = 4});
        std::size_t whole = 0;
        std::size_t apart = 0;
        for (std::size_t i = 0; i < train.programs().size(); ++i) {
            whole += train.programs()[i].kind == gpipe::Kind::backward;
            apart += train.programs()[i].kind == gpipe::Kind::weight_gradient;
        }
        return std::pair(whole, apart);
    };
    CHECK(kinds(WholeNet{}) == std::pair<std::size_t, std::size_t>(8, 0));
    CHECK(kinds(Lines{}) == std::pair<std::size_t, std::size_t>(0, 8));
    // Nothing learns in the first of these two cells.
    using Half = gpipe::Pipeline<toy::Saver<Real, 4>, toy::Linear<Real, 4, 4>>;
    CHECK(kinds(Half{}) == std::pair<std::size_t, std::size_t>(4, 4));
}
