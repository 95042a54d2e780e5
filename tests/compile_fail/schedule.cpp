// What is wrong is said in the sentence; where, in the template arguments: policy, problem, device,
// position, kind, cell, micro-batch.
// expect GPIPE_FORWARD_MISSING: gpipe: an action is missing from the programs of Policy
// expect GPIPE_FORWARD_MISSING: CheckPrograms<.*(, 1, 4, [^,]*, 1, 0>|device=1UL?, position=4UL?, .*cell=1UL?, micro_batch=0UL?)
// expect GPIPE_BACKWARD_MISSING: gpipe: an action is missing from the programs of Policy
// expect GPIPE_BACKWARD_MISSING: CheckPrograms<.*(, 0, 5, [^,]*, 0, 2>|device=0UL?, position=5UL?, .*cell=0UL?, micro_batch=2UL?)
// expect GPIPE_TWICE: gpipe: the programs of Policy hold the same action twice, the second time at
// expect GPIPE_TWICE: CheckPrograms<.*(, 1, 1, [^,]*, 1, 0>|device=1UL?, position=1UL?, .*cell=1UL?, micro_batch=0UL?)
// expect GPIPE_DEADLOCK: gpipe: the programs of Policy deadlock: at this device and position the action
// expect GPIPE_DEADLOCK: CheckPrograms<.*(, 0, 1, [^,]*, 0, 0>|device=0UL?, position=1UL?, .*cell=0UL?, micro_batch=0UL?)
// expect GPIPE_WRONG_DEVICE: gpipe: the programs of Policy hold, at this device and position, an action of a cell
// expect GPIPE_WRONG_DEVICE: CheckPrograms<.*(, 0, 0, [^,]*, 1, 0>|device=0UL?, position=0UL?, .*cell=1UL?, micro_batch=0UL?)
// expect GPIPE_TOO_EARLY: gpipe: the programs of Policy hold, at this device and position, an action before
// expect GPIPE_TOO_EARLY: CheckPrograms<.*(, 1, 0, [^,]*, 1, 0>|device=1UL?, position=0UL?, .*cell=1UL?, micro_batch=0UL?)
// expect GPIPE_NO_SUCH_CELL: gpipe: the programs of Policy name a cell or micro-batch that does not exist
// expect GPIPE_NO_SUCH_MICRO_BATCH: gpipe: the programs of Policy name a cell or micro-batch that does
// expect GPIPE_UNSUPPORTED: gpipe: the programs of Policy hold, at this device and position, a kind of action
// expect GPIPE_ONE_DEVICE_LESS: gpipe: the programs of Policy are not for the cells and micro-batches that were
// expect GPIPE_ONE_MICRO_BATCH_LESS: gpipe: the programs of Policy are not for the cells and micro-batches that were
// expect GPIPE_NO_PROGRAMS: gpipe: a schedule needs: static constexpr gpipe::Programs programs\(std::size_t
// expect GPIPE_RETURNS: gpipe: a schedule needs: static constexpr gpipe::Programs programs\(std::size_t
// expect GPIPE_PASS_DROPS: gpipe: an action is missing from the programs of Policy
// expect GPIPE_PASS_DROPS: CheckPrograms<(Pass, |.*Policy=(Pass|Checkpointing))
#include <gpipe/training.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

using gpipe::backward;
using gpipe::forward;
using gpipe::Programs;

// GPipe for two devices and three micro-batches, written out by hand.
struct Schedule {
    using policy_kind = gpipe::policy::Schedule;
#if defined(GPIPE_NO_PROGRAMS)
    static constexpr Programs schedule(std::size_t, std::size_t) { return {}; }
#elif defined(GPIPE_RETURNS)
    static constexpr int programs(std::size_t, std::size_t) { return 0; }
#elif defined(GPIPE_ONE_DEVICE_LESS)
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        return gpipe::schedule::GPipe::programs(devices - 1, micro_batches);
    }
#elif defined(GPIPE_ONE_MICRO_BATCH_LESS)
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        return gpipe::schedule::GPipe::programs(devices, micro_batches - 1);
    }
#else
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        Programs result(devices, devices, micro_batches, 13);
        result.add(forward(0, 0));
#if defined(GPIPE_DEADLOCK)
        result.add(backward(0, 0));
#endif
#if defined(GPIPE_WRONG_DEVICE)
        result[0] = forward(1, 0);
#endif
        result.add(forward(0, 1));
        result.add(forward(0, 2));
#if !defined(GPIPE_BACKWARD_MISSING)
        result.add(backward(0, 2));
#endif
        result.add(backward(0, 1));
#if !defined(GPIPE_DEADLOCK)
        result.add(backward(0, 0));
#endif
        result.next_device();
#if defined(GPIPE_TOO_EARLY)
        result.add(backward(1, 0));
#elif defined(GPIPE_NO_SUCH_CELL)
        result.add(forward(2, 0));
#elif defined(GPIPE_NO_SUCH_MICRO_BATCH)
        result.add(forward(1, 3));
#elif defined(GPIPE_UNSUPPORTED)
        result.add({gpipe::Kind::send_output, 1, 0});
#endif
#if !defined(GPIPE_FORWARD_MISSING)
        result.add(forward(1, 0));
#endif
#if defined(GPIPE_TWICE)
        result.add(forward(1, 0));
#endif
        result.add(forward(1, 1));
        result.add(forward(1, 2));
        result.add(backward(1, 2));
        result.add(backward(1, 1));
#if !defined(GPIPE_TOO_EARLY) && !defined(GPIPE_FORWARD_MISSING)
        result.add(backward(1, 0));
#endif
        result.next_device();
        return result;
    }
#endif
};

// Drops the last backward of every device.
struct Pass {
    using policy_kind = gpipe::policy::Checkpointing;
    static constexpr Programs lower(Programs const& schedule) {
        Programs result(schedule.devices(), schedule.cells(), schedule.micro_batches(),
                        schedule.size());
        for (std::size_t d = 0; d < schedule.devices(); ++d) {
            for (std::size_t i = schedule.begin(d); i + 1 < schedule.end(d); ++i)
                result.add(schedule[i]);
            result.next_device();
        }
        return result;
    }
};

#if defined(GPIPE_PASS_DROPS)
using Checkpointing = Pass;
#else
using Checkpointing = gpipe::checkpoint::Never;
#endif
using Net = gpipe::Pipeline<blank::Linear<4>, blank::Linear<4>>;
using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<3>, Schedule, Checkpointing,
                              gpipe::Loss<blank::Loss<4>>>;
static_assert(Train::cell_count == 2);
