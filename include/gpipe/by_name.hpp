#pragma once

/// Schedules, checkpointing policies and optimizers by their names, for programs that are told
/// them: apart from gpipe.hpp, as most are not.

#include <gpipe/checkpoint/checkpointing_catalogue.hpp>
#include <gpipe/optimizer/optimizer_catalogue.hpp>
#include <gpipe/schedule/schedule_catalogue.hpp>
