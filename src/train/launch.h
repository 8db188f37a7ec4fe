// SPDX-License-Identifier: Apache-2.0
// What the launcher tells a rank: through its environment and its command line what the user may
// change, through a sealed file what the site limits.
#ifndef FL_TRAIN_LAUNCH_H
#define FL_TRAIN_LAUNCH_H

#include "base/error.h"
#include "job/limits.h"

#include <stdint.h>

#define LAUNCH_ARGV0_ENV  "FP8_LORA_ARGV0"  // the command word the plugin put the core in place of
#define LAUNCH_WORLD_ENV  "FP8_LORA_WORLD"  // ranks of the step
#define LAUNCH_CAP_ENV    "FP8_LORA_CAP"    // bytes a rank may use: the user's own wish
#define LAUNCH_DEVICE_ENV "FP8_LORA_DEVICE" // which of the visible GPUs is this rank's

struct launch {
    int world;      // FP8_LORA_WORLD, else the tasks of srun or mpirun, else 1
    int rank;       // srun's or mpirun's number, for messages before the ranks know each other
    int local_rank; // on this node
    int device;     // FP8_LORA_DEVICE, else local_rank
    uint64_t cap;   // bytes of device memory, 0: none: the smaller of the user's and the site's
    const char *cap_source; // where the site says it; NULL: the user's own wish
    struct limits limits;   // the site's, from LIMITS_FD and never from the environment
    int word_count;         // of the job: job.yaml, or flags
    char **words;           // array owned, the words are argv's or the environment's
};

// argc and argv are main's. Closes LIMITS_FD, of which the core's children have no use.
int launch_read(int argc, char **argv, struct launch *launch, struct fl_error *e);
void launch_clear(struct launch *launch);

#endif
