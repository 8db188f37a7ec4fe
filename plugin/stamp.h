// SPDX-License-Identifier: Apache-2.0
// The mark by which a node knows that the srun of this very step carried the option.
//
// Slurm hands a spank option on through the environment, so that a plain srun inside an allocation
// inherits it. The client therefore stamps the step it starts, by job and step number, and the node
// acts on that stamp alone: an inherited one names another step.
#ifndef FL_PLUGIN_STAMP_H
#define FL_PLUGIN_STAMP_H

#include <stddef.h>
#include <stdint.h>

// SLURM_: such names reach the node under --export=NONE as well.
#define STAMP_ENV "SLURM_FP8_LORA_STEP"
#define STAMP_MAX 64

#define STAMP_SHOW_PLACEMENT 1u
#define STAMP_CPU_BIND       2u // the user bound the tasks

struct stamp {
    uint32_t job, step;
    uint32_t ep, dp; // sizes of the expert-parallel group and of data parallelism
    uint32_t flags;  // STAMP_*
};

void stamp_format(const struct stamp *stamp, char text[STAMP_MAX]);
// 0, or -EINVAL for anything that stamp_format does not write.
int stamp_parse(const char *text, struct stamp *stamp);

#endif
