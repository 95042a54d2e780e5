#pragma once

#include <gpipe/schedule/programs.hpp>
#include <gpipe/schedule/schedule.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpipe::schedule {

namespace detail {

// What a device does of one kind with one of its cells, micro-batch after micro-batch.
struct BlockStream {
    Action next;
    std::size_t first = 0;                ///< when micro-batch 0 is due
    std::uint32_t const* ready = nullptr; ///< the tick from which on `next` can run
    std::uint32_t* frees = nullptr;       ///< the same of what waits for it
};

// A device with cells `down` and `up`: six streams, each due every six ticks, no two at once; in
// the order of preference for when the first of them is over.
struct BlockDevice {
    static constexpr std::size_t period = 6;

    BlockStream streams[period];
    std::size_t due[period] = {}; ///< the stream, by tick modulo 6
    std::size_t tick = 0;         ///< of the building block, as far as this device is
    Action* end = nullptr;        ///< of its program so far

    constexpr BlockDevice() = default;
    // `ticks` of micro-batch 0's forwards (down, up) and input gradients (up, down); a weight
    // gradient is due at the first free tick behind its input gradient.
    constexpr BlockDevice(std::size_t down, std::size_t up, std::size_t const (&ticks)[4])
        : streams{{forward(down, 0), ticks[0]},       {forward(up, 0), ticks[1]},
                  {input_gradient(up, 0), ticks[2]},  {input_gradient(down, 0), ticks[3]},
                  {weight_gradient(up, 0), ticks[2]}, {weight_gradient(down, 0), ticks[3]}},
          tick(ticks[0]) {
        bool taken[period] = {};
        for (std::size_t s = 0; s < period; ++s) {
            std::size_t& first = streams[s].first;
            while (taken[first % period]) ++first;
            taken[first % period] = true;
            due[first % period] = s;
        }
    }

    // What the device does now, or null. As long as its first cell has forwards left, only what is
    // due next.
    constexpr BlockStream* choose(std::uint32_t now, std::uint32_t micro_batches) {
        if (streams[0].next.micro_batch < micro_batches) {
            BlockStream* const s = streams + due[tick % period];
            if (*s->ready > now) return nullptr;
            do ++tick;
            while (streams[due[tick % period]].first > tick);
            return s;
        }
        for (std::size_t s = 1; s < period; ++s)
            if (*streams[s].ready <= now) return streams + s;
        return nullptr;
    }
};

} // namespace detail

/// How much a device keeps, of what the first one does in 1F1B.
enum class Keep { half, third };

/// Building blocks of controllable memory (Qi et al., 2024): two cells per device in V order,
/// device k owns cells k and 2 K - 1 - k. The six actions of a micro-batch on a device are due
/// every six ticks, weight gradients in the two ticks that are left free. Then all of it runs as
/// early as it can in this order; when the forwards of its first cell are over, a device takes
/// whatever is ready, forwards first, then input gradients, then weight gradients. For VHalf, K = 3
/// and M = 3, time to the right, I and W for the two gradients, small letters for a device's second
/// cell:
///
///     device 0   F0 F1 .  .  .  f0 i0 w0 F2 .  f1 i1 I0 w1 W0 f2 i2 I1 w2 W1 .  I2 W2
///     device 1   .  F0 .  .  f0 F1 .  i0 w0 f1 F2 I0 i1 w1 f2 W0 I1 i2 w2 W1 I2 W2
///     device 2   .  .  F0 f0 .  .  F1 f1 i0 w0 I0 W0 F2 f2 i1 I1 w1 W1 i2 I2 w2 W2
///
/// A device never holds more than floor((K + 2) / 2) micro-batches (VHalf) or floor((K + 4) / 3)
/// (VMin), twice that of a cell; for M >= K one device does. At unit costs and for M >= K, 1F1B
/// loses 6 (K - 1) of the time of a cell's forward, VHalf at most 3 (K - 1) and VMin at most
/// 4 (K - 1). Where a forward or input gradient costs more than a weight gradient, VMin loses time
/// with every micro-batch.
template <Keep keep> struct BuildingBlocks {
    using policy_kind = policy::Schedule;
    static constexpr std::string_view name =
        keep == Keep::half ? "VHalf" : "VMin";         ///< what it is found by
    static constexpr std::size_t cells_per_device = 2; ///< one on the way down, one on the way up

    /// One for each of K devices.
    static constexpr Programs programs(std::size_t devices, std::size_t micro_batches) {
        std::size_t const of_device = detail::BlockDevice::period * micro_batches;
        std::size_t const cells = 2 * devices;
        Programs result(devices, cells, micro_batches, devices * of_device);
        result.place_in_v();

        // A micro-batch goes through `cells` forwards and as many input gradients: by the number of
        // these steps behind it and by micro-batch, the tick from which on the next one can run.
        // Nobody waits for the last two rows, and no micro-batch M ever comes.
        constexpr std::uint32_t never = 0xFFFFFFFF;
        std::size_t const row = micro_batches + 1;
        Array<std::uint32_t> ready((2 * cells + 2) * row, never);
        for (std::size_t m = 0; m < micro_batches; ++m) ready[m] = 0;

        Array<detail::BlockDevice> all(devices);
        for (std::size_t k = 0; k < devices; ++k) {
            all[k] = block(devices, k);
            all[k].end = result.append(of_device);
            result.next_device();
            for (detail::BlockStream& s : all[k].streams) {
                std::size_t const c = s.next.cell;
                std::size_t const steps = s.next.kind == Kind::forward          ? c
                                          : s.next.kind == Kind::input_gradient ? 2 * cells - 1 - c
                                                                                : 2 * cells - c;
                s.ready = ready.data() + steps * row;
                s.frees =
                    ready.data() + row * (ends_backward(s.next.kind) ? 2 * cells + 1 : steps + 1);
            }
        }
        auto const count = static_cast<std::uint32_t>(micro_batches);
        std::size_t left = result.size();
        for (std::uint32_t now = 0; left > 0; ++now)
            for (detail::BlockDevice& device : all) {
                detail::BlockStream* const s = device.choose(now, count);
                if (s == nullptr) continue;
                *device.end++ = s->next;
                ++s->next.micro_batch;
                ++s->ready;
                *s->frees++ = now + 1;
                --left;
            }
        return result;
    }

  private:
    static constexpr detail::BlockDevice block(std::size_t devices, std::size_t k) {
        std::size_t const last = devices - 1 - k;
        std::size_t const up = devices + last;
        // The gap keeps ticks apart, modulo 6.
        if constexpr (keep == Keep::half) {
            std::size_t const gap = devices % 2 ? 0 : 3;
            return {k,
                    up,
                    {2 * k, 2 * devices + last - 1, 3 * devices + gap + 2 * k - 1,
                     5 * devices + gap + last - 1}};
        } else {
            std::size_t const gap = devices % 3 ? 0 : 2;
            return {k, up, {k, devices + last, 2 * devices + gap + k, 3 * devices + gap + last}};
        }
    }
};

/// About half of the activations of 1F1B's first device, and half of its bubble.
using VHalf = BuildingBlocks<Keep::half>;
/// About a third of the activations, and two thirds of the bubble.
using VMin = BuildingBlocks<Keep::third>;

} // namespace gpipe::schedule
