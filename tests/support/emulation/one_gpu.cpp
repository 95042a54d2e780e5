// For programs with a main of their own: a GPU whose kernels need not say what they touch.
#include "support/cuda_double/cuda_double.hpp"

static bool const there_is_one =
    (cuda_double::reset({.devices = 1, .seed = 2, .protects = false}), true);
