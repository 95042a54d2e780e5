// Hooks of gradients: what stands between the mean gradient and the optimizer.
#include <support/ways.hpp>

#include <gpipe/replicas.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace {

using gpipe::ClipByValue, gpipe::Grouped, gpipe::Hooked, gpipe::UpdateContext, gpipe::UpdateTensor;
using gpipe::device::Host, toy::Remote;

constexpr float limit = 0.02f;

/// Changes nothing.
struct LeavesTensors {
    template <class T> void operator()(UpdateContext, std::span<T>) const noexcept {}
};
/// What a user would write without hooks: the optimizer gets a clipped copy.
template <class O> struct ClipsFirst : O {
    static constexpr std::size_t states = O::states;
    template <class T>
    void operator()(UpdateContext context, UpdateTensor<T, states> tensor) const noexcept {
        std::vector<T> clipped(tensor.gradient, tensor.gradient + tensor.size);
        for (T& g : clipped) {
            if (g > T(limit)) g = T(limit);
            if (g < -T(limit)) g = -T(limit);
        }
        tensor.gradient = clipped.data();
        O::operator()(context, tensor);
    }
};
/// More with the context: every third tensor in odd steps, and only weights of a layer.
struct ByContext {
    static constexpr float factor(UpdateContext const& context) {
        return context.step % 2 == 1 && context.layer % 3 == 0 && context.tensor == 0 ? 0.5f : 1.0f;
    }
    template <class T> struct Rule {
        T factor;
        GPIPE_HOST_DEVICE T operator()(T gradient) const { return factor * gradient; }
    };
    template <class T> GPIPE_HOST_DEVICE Rule<T> rule(UpdateContext context) const {
        return {static_cast<T>(factor(context))};
    }
};
struct ByContextInTensors {
    template <class T> void operator()(UpdateContext context, std::span<T> all) const noexcept {
        for (T& g : all) g *= static_cast<T>(ByContext::factor(context));
    }
};
/// An own optimizer without a rule.
struct Own {
    static constexpr std::size_t states = 1;
    float learning_rate = 1e-2f;
    template <class T>
    void operator()(UpdateContext context, UpdateTensor<T, 1> tensor) const noexcept {
        for (std::size_t i = 0; i < tensor.size; ++i) {
            tensor.state[0][i] = T(0.5) * tensor.state[0][i] + tensor.gradient[i];
            tensor.parameter[i] -= T(learning_rate * context.rate) * tensor.state[0][i];
        }
    }
};

using Net = toy::Net<float>;
using Loss = toy::MeanSquare<float, 3>;
template <class O, class Device, class... More>
using Train =
    gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<4>, gpipe::Loss<Loss>,
                    gpipe::Optimizer<O>, gpipe::schedule::Dynamic, Device, More...>;

template <class O> void set(O& optimizer, std::size_t i) {
    float const rate = 1e-2f / static_cast<float>(i + 1);
    if constexpr (requires { optimizer.learning_rate; })
        optimizer.learning_rate = rate;
    else
        optimizer.visit([&](auto& chosen) { chosen.learning_rate = rate; });
    if constexpr (requires { optimizer.groups; })
        optimizer.groups[0] = {.last_layer = 4, .rate = i == 2 ? 0.0f : 0.5f};
}

/// Steps of a training with the one are those of the plain loop with the other, in every bit; where
/// the hook writes to gradients, also these.
template <class Device, class... More, class O, class P>
void check(O const& hooked, P const& otherwise, std::string const& name) {
    std::vector<std::size_t> const sizes{9, 3, 9, 7}; // of 3 samples one micro-batch stays empty
    for (auto const order : {toy::Backward::ascending, toy::Backward::descending}) {
        toy::Watch watch;
        toy::Reference<Net, Loss, P> plain(toy::make_net<float>(watch), {}, otherwise, 3, 4, order);
        std::vector<double> losses;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            set(plain.optimizer(), i);
            toy::Data<float> const data(sizes[i], static_cast<std::uint32_t>(i));
            losses.push_back(plain.step(data.inputs, data.targets));
        }
        std::size_t point = 0;
        for (toy::NamedSchedule const& schedule : toy::schedules)
            for (std::size_t cells = 1; cells <= 4; ++cells)
                for (auto const& run : toy::runs<Device>()) {
                    if (schedule.order != order || point++ % toy::one_of(7) != 0) continue;
                    typename Train<O, Device, More...>::Options options;
                    options.samples = 9;
                    options.seed = 3;
                    options.cells = cells;
                    options.schedule = schedule.policy;
                    options.device = run;
                    Train<O, Device, More...> train(toy::make_net<float>(watch), {}, hooked,
                                                    options);
                    std::vector<typename decltype(train)::Pending> pending;
                    for (std::size_t i = 0; i < sizes.size(); ++i) {
                        set(train.optimizer(), i);
                        toy::Data<float> const data(sizes[i], static_cast<std::uint32_t>(i));
                        pending.push_back(train.start(data.inputs, data.targets));
                    }
                    INFO(name, ", ", schedule.name, ", K = ", cells, ", ", toy::describe(run));
                    for (std::size_t i = 0; i < sizes.size(); ++i)
                        CHECK(pending[i].result().loss == losses[i]);
                    CHECK(toy::difference(train, plain) == "");
                }
    }
}

/// Calls f(optimizer, its name) with each: as one that is chosen, so that these are few types.
template <class F> void each_optimizer(F f) {
    f(gpipe::SGD{.momentum = 0.9f, .weight_decay = 0.1f}, "SGD");
    f(gpipe::RMSProp{.momentum = 0.5f}, "RMSProp");
    f(gpipe::Adam{.weight_decay = 0.1f}, "Adam");
    f(gpipe::AdamW{}, "AdamW");
}
using gpipe::optimizer::Dynamic;

} // namespace

TEST_CASE(
    "a hook of tensors that changes nothing changes no bit, with each optimizer, on every device") {
    each_optimizer([](auto const& plain, char const* name) {
        check<Host>(Hooked<Dynamic, LeavesTensors>{plain, {}}, plain, name);
    });
    gpipe::AdamW const plain{};
    Hooked<gpipe::AdamW, LeavesTensors> const hooked{plain, {}};
    check<Host, gpipe::update::Immediate>(hooked, plain, "AdamW at once");
    check<Remote>(hooked, plain, "AdamW");
    check<Host>(Hooked<Own, LeavesTensors>{}, Own{}, "an own one");
}

TEST_CASE(
    "gradients clipped by value are those of a plain loop, in every bit; gradients() are as they "
    "were") {
    each_optimizer([]<class O>(O const& plain, char const* name) {
        check<Host>(Hooked<Dynamic, ClipByValue>{plain, {limit}}, ClipsFirst<O>{plain}, name);
    });
    Hooked<gpipe::AdamW, ClipByValue> const hooked{{}, {limit}};
    ClipsFirst<gpipe::AdamW> const plain{};
    check<Host, gpipe::update::Immediate>(hooked, plain, "AdamW at once");
    check<Remote>(hooked, plain, "AdamW");
    using One = gpipe::optimizer::OneOf<gpipe::SGD, Hooked<gpipe::RMSProp, ClipByValue>>;
    check<Host>(One(Hooked<gpipe::RMSProp, ClipByValue>{{}, {limit}}), ClipsFirst<gpipe::RMSProp>{},
                "chosen as it is");
    // It does something.
    toy::Watch watch;
    toy::Data<float> const data(9);
    auto const loss = [&](auto const& optimizer) {
        using T = Train<std::remove_cvref_t<decltype(optimizer)>, Host>;
        T train(toy::make_net<float>(watch), {}, optimizer, {.samples = 9, .cells = 2});
        train.step(data.inputs, data.targets);
        return train.step(data.inputs, data.targets).loss;
    };
    CHECK(loss(Hooked<gpipe::SGD, ClipByValue>{{}, {limit}}) != loss(gpipe::SGD{}));
    CHECK(loss(Hooked<gpipe::SGD, ClipByValue>{{}, {1e9f}}) == loss(gpipe::SGD{}));
}

TEST_CASE_TEMPLATE("P1 hooks of elements and of tensors: every schedule, checkpointing, number of "
                   "devices and link trains as the plain loop",
                   Device, Host, Remote) {
    auto const sweep = []<class O, class P>(O const& hooked, P const& otherwise) {
        using T = toy::Training<Net, Loss, O, Device>;
        using Plain = toy::Reference<Net, Loss, P>;
        toy::Watch watch;
        auto const net = [&] { return toy::make_net<float>(watch); };
        Plain descending(net(), {}, otherwise, 3, 4, toy::Backward::descending),
            ascending(net(), {}, otherwise, 3, 4, toy::Backward::ascending);
        auto const losses_of = [](auto step) {
            std::vector<double> losses;
            for (std::size_t const size : {9, 3, 7}) { // of 3 samples one micro-batch stays empty
                toy::Data<float> const data(size, static_cast<std::uint32_t>(size));
                losses.push_back(step(data));
            }
            return losses;
        };
        auto const plainly = [&](Plain& plain) {
            return losses_of(
                [&](auto const& data) { return plain.step(data.inputs, data.targets); });
        };
        auto const down = plainly(descending), up = plainly(ascending);
        toy::each_training<Device>(4, Net::size, 4, 157, [&](toy::Way<Device> const& way) {
            typename T::Options o{.samples = 9, .seed = 3, .cells = way.cells, .micro_batches = 4};
            T train(net(), {}, hooked, way.chosen(o));
            CHECK(losses_of([&](auto const& data) {
                      return train.step(data.inputs, data.targets).loss;
                  }) == (way.descends() ? down : up));
            CHECK(toy::difference(train, way.descends() ? descending : ascending) == "");
            CHECK(train.used_bytes() == train.planned_bytes());
        });
    };
    sweep(Hooked<gpipe::AdamW, ClipByValue>{{}, {limit}}, ClipsFirst<gpipe::AdamW>{});
    Hooked<gpipe::AdamW, ByContextInTensors> const in_tensors{};
    sweep(in_tensors, in_tensors);
}

TEST_CASE("a hook is told step, layer and tensor; with groups in either order") {
    gpipe::SGD const sgd{.momentum = 0.9f, .weight_decay = 0.1f};
    // By tensor it writes to the gradients: the plain loop's are written likewise.
    check<Host>(Hooked<gpipe::SGD, ByContextInTensors>{sgd, {}},
                Hooked<gpipe::SGD, ByContextInTensors>{sgd, {}}, "by tensor");
    check<Host>(Grouped<Hooked<gpipe::SGD, ClipByValue>>{{sgd, {limit}}},
                Grouped<ClipsFirst<gpipe::SGD>>{{sgd}}, "groups of hooked ones");
    check<Host>(Hooked<Grouped<gpipe::SGD>, ClipByValue>{{sgd}, {limit}},
                ClipsFirst<Grouped<gpipe::SGD>>{{sgd}}, "hooked groups");
    check<Remote>(Hooked<Grouped<gpipe::SGD>, ByContext>{{sgd}, {}},
                  Hooked<Grouped<gpipe::SGD>, ByContext>{{sgd}, {}}, "on a device");
    // Both forms give the optimizer the same.
    toy::Watch watch;
    auto const parameters = [&](auto const& optimizer) {
        using T = Train<std::remove_cvref_t<decltype(optimizer)>, Host>;
        T train(toy::make_net<float>(watch), {}, optimizer, {.samples = 9, .cells = 3});
        for (std::uint32_t step = 0; step < 4; ++step) {
            toy::Data<float> const data(9, step);
            train.step(data.inputs, data.targets);
        }
        auto const all = train.template parameter<float>(0, 0);
        return std::vector<float>(all.begin(), all.end());
    };
    CHECK(parameters(Hooked<gpipe::SGD, ByContext>{sgd, {}}) ==
          parameters(Hooked<gpipe::SGD, ByContextInTensors>{sgd, {}}));
    CHECK(parameters(Hooked<gpipe::SGD, ByContext>{sgd, {}}) != parameters(sgd));
}

namespace {

/// What a hook has been told, by layer and tensor.
struct Told {
    std::mutex mutex;
    std::map<std::tuple<std::uint32_t, std::uint32_t>, std::vector<std::uint64_t>> steps;
    std::map<std::tuple<std::uint32_t, std::uint32_t>, std::size_t> elements;
    std::map<std::uint32_t, std::uint64_t> types;
};
struct Tells {
    Told* told;
    template <class T>
    void operator()(UpdateContext context, std::span<T> gradient) const noexcept {
        std::lock_guard const lock(told->mutex);
        told->steps[{context.layer, context.tensor}].push_back(context.step);
        told->elements[{context.layer, context.tensor}] += gradient.size();
        told->types[context.layer] = context.type;
    }
};

} // namespace

TEST_CASE("a hook is called once for each tensor that learns in each step that counts, and nowhere "
          "else") {
    using O = Hooked<gpipe::SGD, Tells>;
    for (std::size_t cells : {1u, 3u}) {
        Told told;
        toy::Watch watch;
        typename Train<O, Host>::Options options;
        options.samples = 9;
        options.cells = cells;
        options.frozen = {0};
        options.device.threads = 2;
        Train<O, Host> train(toy::make_net<float>(watch), {}, O{{}, {&told}}, options);
        toy::Data<float> const data(9);
        train.accumulate(data.inputs, data.targets); // a step is one, in however many parts
        train.step(data.inputs, data.targets);
        train.compute_gradients(data.inputs, data.targets);
        train.evaluate(data.inputs, data.targets);
        watch.faults = {{4, 0, gpipe::Phase::backward}};
        CHECK_THROWS(train.step(data.inputs, data.targets));
        watch.faults.clear();
        train.step(data.inputs, data.targets);
        std::size_t tensors = 0;
        for (std::uint32_t layer = 1; layer < Net::size; ++layer)
            for (std::uint32_t t = 0; t < train.tensors(layer); ++t) {
                ++tensors;
                CHECK(told.steps[{layer, t}] == std::vector<std::uint64_t>{1, 2});
                CHECK(told.elements[{layer, t}] == 2 * train.parameter<float>(layer, t).size());
                CHECK(told.types[layer] == gpipe::type_number(Net::leaf_info[layer].name));
            }
        CHECK(told.steps.size() == tensors);
    }
}

TEST_CASE("replicas with parts of the state are hooked by parts, and train as a plain loop") {
    using gpipe::Replicas;
    toy::Watch watch;
    auto const run = [&]<class Shard, class O>(Shard, O const& optimizer, std::size_t replicas) {
        using T = Train<O, Host, Replicas<gpipe::dynamic, Shard>>;
        typename T::Options options;
        options.samples = 9;
        options.seed = 3;
        options.cells = 2;
        options.replicas = replicas;
        T train(toy::make_net<float>(watch), {}, optimizer, options);
        std::vector<std::vector<float>> all;
        for (std::uint32_t step = 0; step < 3; ++step) {
            toy::Data<float> const data(9 * replicas - step, step);
            train.step(data.inputs, data.targets);
        }
        for (std::size_t layer = 0; layer < Net::size; ++layer)
            for (std::size_t t = 0; t < train.tensors(layer); ++t) {
                auto const values = train.template parameter<float>(layer, t);
                all.emplace_back(values.begin(), values.end());
            }
        return all;
    };
    using Parts = gpipe::shard::OptimizerState;
    using Whole = gpipe::shard::Nothing;
    for (std::size_t const replicas : {1u, 2u, 3u}) {
        auto const expected = run(Whole{}, ClipsFirst<gpipe::Adam>{}, replicas);
        Hooked<gpipe::Adam, ClipByValue> const clips{{}, {limit}};
        CHECK(run(Whole{}, clips, replicas) == expected);
        CHECK(run(Parts{}, clips, replicas) == expected);
        CHECK(run(Parts{}, Hooked<gpipe::Adam, LeavesTensors>{}, replicas) ==
              run(Whole{}, gpipe::Adam{}, replicas));
        Told told;
        run(Parts{}, Hooked<gpipe::Adam, Tells>{{}, {&told}}, replicas);
        std::size_t at = 0;
        for (std::uint32_t layer = 0; layer < Net::size; ++layer)
            for (std::uint32_t t = 0; t < Net::leaf_info[layer].parameters.count; ++t)
                CHECK(told.elements[{layer, t}] == 3 * expected[at++].size());
    }
}

TEST_CASE("a saved state has the name of the optimizer that is hooked") {
    CHECK(gpipe::detail::chosen_name(Hooked<gpipe::AdamW, LeavesTensors>{}) ==
          gpipe::type_name<gpipe::AdamW>);
    CHECK(gpipe::detail::chosen_name(Hooked<Hooked<gpipe::SGD, ClipByValue>, LeavesTensors>{}) ==
          gpipe::type_name<gpipe::SGD>);
    CHECK(gpipe::detail::chosen_name(Hooked<gpipe::optimizer::Dynamic, LeavesTensors>{
              gpipe::RMSProp{}, {}}) == gpipe::type_name<gpipe::RMSProp>);
}
