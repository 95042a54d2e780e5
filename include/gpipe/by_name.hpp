#pragma once

/// Schedules, checkpointing policies and optimizers by their names, for programs that are told
/// them: apart from gpipe.hpp, as most are not.

#include <gpipe/checkpoint/catalogue.hpp>
#include <gpipe/optimizer/catalogue.hpp>
#include <gpipe/schedule/catalogue.hpp>
