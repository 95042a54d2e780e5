// What is wrong is said in the sentence; where, in the template arguments: policy, problem, device,
// position, kind, cell, micro-batch.
// expect GPIPE_FORWARD_MISSING: gpipe: an action is missing from the programs of Policy
// expect GPIPE_FORWARD_MISSING: CheckPrograms<.*(, 1, 4, [^,]*, 1, 0>|device=1, position=4, .*cell=1, micro_batch=0)
// expect GPIPE_BACKWARD_MISSING: gpipe: an action is missing from the programs of Policy
// expect GPIPE_BACKWARD_MISSING: CheckPrograms<.*(, 0, 5, [^,]*, 0, 2>|device=0, position=5, .*cell=0, micro_batch=2)
// expect GPIPE_TWICE: gpipe: the programs of Policy hold the same action twice, the second time at
// expect GPIPE_TWICE: CheckPrograms<.*(, 1, 1, [^,]*, 1, 0>|device=1, position=1, .*cell=1, micro_batch=0)
// expect GPIPE_DEADLOCK: gpipe: the programs of Policy deadlock: at this device and position the action
// expect GPIPE_DEADLOCK: CheckPrograms<.*(, 0, 1, [^,]*, 0, 0>|device=0, position=1, .*cell=0, micro_batch=0)
// expect GPIPE_WRONG_DEVICE: gpipe: the programs of Policy hold, at this device and position, an action of a cell
// expect GPIPE_WRONG_DEVICE: CheckPrograms<.*(, 0, 0, [^,]*, 1, 0>|device=0, position=0, .*cell=1, micro_batch=0)
// expect GPIPE_TOO_EARLY: gpipe: the programs of Policy hold, at this device and position, an action before another
// expect GPIPE_TOO_EARLY: CheckPrograms<.*(, 1, 0, [^,]*, 1, 0>|device=1, position=0, .*cell=1, micro_batch=0)
// expect GPIPE_NO_SUCH_CELL: gpipe: the programs of Policy name a cell or micro-batch that does not exist
// expect GPIPE_NO_SUCH_MICRO_BATCH: gpipe: the programs of Policy name a cell or micro-batch that does
// expect GPIPE_UNSUPPORTED: gpipe: the programs of Policy hold, at this device and position, a kind of action
// expect GPIPE_ONE_DEVICE_LESS: gpipe: the programs of Policy are not for the devices, cells and micro-batches that
// expect GPIPE_ONE_MICRO_BATCH_LESS: gpipe: the programs of Policy are not for the devices, cells and micro-batches that
// expect GPIPE_OTHER_DEVICES: gpipe: the programs of Policy are not for the devices, cells and micro-batches that
// expect GPIPE_MORE_CELLS: gpipe: the programs of Policy are not for the devices, cells and micro-batches that
// expect GPIPE_NO_SUCH_DEVICE: gpipe: the programs of Policy put this cell on a device that does not
// expect GPIPE_IDLE_DEVICE: gpipe: the programs of Policy leave this device without a cell
// expect GPIPE_IDLE_DEVICE: CheckPrograms<.*(, 1, 0, [^,]*, 0, 0>|device=1, position=0,)
// expect GPIPE_TOO_FEW: gpipe: the schedule needs more micro-batches than there are: at least
// expect GPIPE_TOO_FEW: CheckMicroBatchesOf<.*(, 2, 3, 4>|devices=2, micro_batches=3, least=4)
// expect GPIPE_NO_PROGRAMS: gpipe: a schedule needs: static constexpr gpipe::Programs programs\(std::size_t
// expect GPIPE_RETURNS: gpipe: a schedule needs: static constexpr gpipe::Programs programs\(std::size_t
// expect GPIPE_NOT_STATIC: gpipe: a schedule needs: static constexpr gpipe::Programs programs\(std::size_t
// expect GPIPE_OBJECT: gpipe: a schedule whose numbers are dynamic is an object: among the policies stands
// expect GPIPE_LARGE_OBJECT: gpipe: the object of a schedule holds numbers only, of 32 bytes at most
// expect GPIPE_OBJECT_WITH_MEMORY: gpipe: the object of a schedule holds numbers only, of 32 bytes at most
// expect GPIPE_NOT_ENDED: gpipe: next_device\(\) has to stand behind the program of every device
// expect GPIPE_BEHIND_THE_LAST: gpipe: next_device\(\) has to stand behind the program of every device
// expect GPIPE_NOT_CONSTEXPR: gpipe: programs\(K, M\) of the schedule is no constant: it must be constexpr, may throw nothing
// expect GPIPE_THROWS: gpipe: programs\(K, M\) of the schedule is no constant
// expect GPIPE_THROWS: CheckConstantSchedule<.*(, 2, 3>|K=2, M=3)
// expect GPIPE_MORE_DEVICES: gpipe: programs\(K, M\) of the schedule is no constant
// expect GPIPE_MORE_DEVICES: CheckConstantSchedule<.*(, 2, 3>|K=2, M=3)
// expect GPIPE_PAST_THE_ROOM: gpipe: programs\(K, M\) of the schedule is no constant
// expect GPIPE_TOO_FEW_FOR_A_CONSTANT: gpipe: the schedule needs more micro-batches than there are: at least
// expect GPIPE_PASS_DROPS: gpipe: an action is missing from the programs of Policy
// expect GPIPE_PASS_DROPS: CheckPrograms<(Pass, |.*Policy=(Pass|Checkpointing))
// expect GPIPE_TOO_LATE: gpipe: the programs of Policy hold, at this device and position, a recompute behind
// expect GPIPE_TOO_LATE: CheckPrograms<.*(, 0, 6, [^,]*, 0, 0>|device=0, position=6, .*cell=0, micro_batch=0)
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
#elif defined(GPIPE_NOT_STATIC)
    constexpr Programs programs(std::size_t devices, std::size_t micro_batches) const {
        return gpipe::schedule::GPipe::programs(devices, micro_batches);
    }
#elif defined(GPIPE_OBJECT)
    std::size_t n = 0;
    constexpr Programs programs(std::size_t devices, std::size_t micro_batches) const {
        return gpipe::schedule::GPipe::programs(devices + n, micro_batches);
    }
#elif defined(GPIPE_NOT_CONSTEXPR)
    static Programs programs(std::size_t devices, std::size_t micro_batches) {
        return gpipe::schedule::GPipe::programs(devices, micro_batches);
    }
#elif defined(GPIPE_THROWS)
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        if (micro_batches % 2 == 1) throw "odd";
        return gpipe::schedule::GPipe::programs(devices, micro_batches);
    }
#elif defined(GPIPE_TOO_FEW_FOR_A_CONSTANT)
    static constexpr std::size_t least_micro_batches = 4;
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        return gpipe::schedule::GPipe::programs(devices, micro_batches);
    }
#elif defined(GPIPE_ONE_DEVICE_LESS)
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        return gpipe::schedule::GPipe::programs(devices - 1, micro_batches);
    }
#elif defined(GPIPE_ONE_MICRO_BATCH_LESS)
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        return gpipe::schedule::GPipe::programs(devices, micro_batches - 1);
    }
#elif defined(GPIPE_OTHER_DEVICES)
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        Programs result(devices - 1, devices, micro_batches, 12);
        for (std::size_t m = 0; m < micro_batches; ++m) {
            result.add(forward(0, m));
            result.add(forward(1, m));
            result.add(backward(1, m));
            result.add(backward(0, m));
        }
        result.next_device();
        return result;
    }
#else
#if defined(GPIPE_TOO_FEW)
    static constexpr std::size_t least_micro_batches(std::size_t devices) { return 2 * devices; }
#elif defined(GPIPE_MORE_CELLS)
    static constexpr std::size_t cells_per_device = 2;
#endif
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        Programs result(devices, devices, micro_batches, 5); // more make room for themselves
#if defined(GPIPE_IDLE_DEVICE)
        result.place(1, 0);
#elif defined(GPIPE_NO_SUCH_DEVICE)
        result.place(1, 77);
#endif
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
#if !defined(GPIPE_NOT_ENDED)
        result.next_device();
#endif
#if defined(GPIPE_MORE_DEVICES)
        result.next_device();
#elif defined(GPIPE_PAST_THE_ROOM)
        result[99] = backward(1, 0);
#endif
#if defined(GPIPE_BEHIND_THE_LAST)
        result.add(backward(1, 0));
#endif
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

// Recomputes what nobody needs any more.
struct LatePass {
    using policy_kind = gpipe::policy::Checkpointing;
    static constexpr Programs lower(Programs const& schedule) {
        Programs result(schedule.devices(), schedule.cells(), schedule.micro_batches(),
                        schedule.size() + schedule.devices());
        for (std::size_t d = 0; d < schedule.devices(); ++d) {
            for (std::size_t i = schedule.begin(d); i < schedule.end(d); ++i)
                result.add(schedule[i]);
            result.add(gpipe::recompute(d, 0));
            result.next_device();
        }
        return result;
    }
};

#if defined(GPIPE_PASS_DROPS)
using Checkpointing = Pass;
#elif defined(GPIPE_TOO_LATE)
using Checkpointing = LatePass;
#else
using Checkpointing = gpipe::checkpoint::Never;
#endif
using Layer = blank::Linear<4>;
using Net = gpipe::Pipeline<Layer, Layer, Layer, Layer>;
using Train = gpipe::Training<Net, gpipe::Cells<2>, gpipe::MicroBatches<3>, Schedule, Checkpointing,
                              gpipe::Loss<blank::Loss<4>>>;
static_assert(Train::cell_count == 2);

// One with numbers that are known at run time only, as schedule::Dynamic copies it.
struct Object {
#if defined(GPIPE_LARGE_OBJECT)
    std::size_t numbers[5] = {};
#elif defined(GPIPE_OBJECT_WITH_MEMORY)
    gpipe::Array<int> order;
#else
    std::size_t numbers[4] = {};
#endif
    constexpr Programs programs(std::size_t devices, std::size_t micro_batches) const {
        return gpipe::schedule::GPipe::programs(devices, micro_batches);
    }
};
gpipe::schedule::Dynamic chosen(Object const& object) { return object; }
