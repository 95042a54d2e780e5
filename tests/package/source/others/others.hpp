#pragma once

// Of others, who may warn.
static int nobody_calls() { return 0; }
