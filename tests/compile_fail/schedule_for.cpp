// Of whom best_schedule_for() cannot choose the schedule.
// expect GPIPE_HAS_SCHEDULE: gpipe: best_schedule_for<Train>\(\) chooses a schedule and a checkpointing policy
// expect GPIPE_HAS_CHECKPOINTING: gpipe: best_schedule_for<Train>\(\) chooses a schedule and a checkpointing policy
// expect GPIPE_HAS_RANKS: gpipe: schedules are chosen for the devices of one rank
#include <gpipe/replicas.hpp>
#include <gpipe/schedule_for.hpp>
#include <support/blank_layers.hpp>
#include <support/blank_loss.hpp>

#if defined(GPIPE_HAS_SCHEDULE)
using Schedule = gpipe::schedule::GPipe;
#else
using Schedule = gpipe::schedule::Dynamic;
#endif
#if defined(GPIPE_HAS_CHECKPOINTING)
using Checkpointing = gpipe::checkpoint::Never;
#else
using Checkpointing = gpipe::checkpoint::Dynamic;
#endif
#if defined(GPIPE_HAS_RANKS)
using Replicas = gpipe::Replicas<2>;
#else
using Replicas = gpipe::OneReplica;
#endif

using Layer = blank::Linear<4>;
using Net = gpipe::Pipeline<Layer, Layer>;
using Train = gpipe::Training<Net, gpipe::Cells<gpipe::dynamic>, gpipe::MicroBatches<4>, Schedule,
                              Checkpointing, Replicas, gpipe::Loss<blank::Loss<4>>>;

auto found() { return gpipe::best_schedule_for<Train>({.samples = 4, .cells = 2}).ranked.size(); }
