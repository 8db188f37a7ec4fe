// SPDX-License-Identifier: Apache-2.0
// In fp8-lora-watch: the process that sees the sampler die or hang, and does what the policy says.
#ifndef FL_PLUGIN_GUARDIAN_H
#define FL_PLUGIN_GUARDIAN_H

#include "watched.h"

#define GUARDIAN_PATIENCE_MS 20000 // without a sign of life

// Forks it; its pid, or a negative errno. It ends with slurmstepd, and when it is killed; the
// sampler starts another one then.
pid_t guardian_start(struct watched *watched);

#endif
