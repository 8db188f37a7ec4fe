// SPDX-License-Identifier: Apache-2.0
// What the launcher tells a rank through its environment and its command line.
#ifndef FL_TRAIN_LAUNCH_H
#define FL_TRAIN_LAUNCH_H

#include "base/error.h"

#include <stdint.h>

#define LAUNCH_ARGV0_ENV       "FP8_LORA_ARGV0" // the command word the plugin put the core in place of
#define LAUNCH_WORLD_ENV       "FP8_LORA_WORLD"      // ranks of the step
#define LAUNCH_CAP_ENV         "FP8_LORA_CAP"        // bytes a rank may use
#define LAUNCH_CAP_SOURCE_ENV  "FP8_LORA_CAP_SOURCE" // where the cap comes from
#define LAUNCH_HOST_CAP_ENV    "FP8_LORA_HOST_CAP"   // bytes of host memory a rank may plan
#define LAUNCH_HOST_SOURCE_ENV "FP8_LORA_HOST_CAP_SOURCE"
#define LAUNCH_MODELS_ENV      "FP8_LORA_MODEL_ROOTS" // folders a model may be in: lists, one a line,
#define LAUNCH_OUTPUTS_ENV     "FP8_LORA_OUTPUT_ROOTS" // of paths with a colon between
#define LAUNCH_DEVICE_ENV      "FP8_LORA_DEVICE"       // which of the visible GPUs is this rank's

struct launch {
    int world;         // FP8_LORA_WORLD, else the tasks of srun or mpirun, else 1
    int rank;          // srun's or mpirun's number, for messages before the ranks know each other
    int local_rank;    // on this node
    int device;        // FP8_LORA_DEVICE, else local_rank
    uint64_t cap;      // bytes, 0: none
    uint64_t host_cap; // likewise, of host memory
    const char *cap_source, *host_source;   // of the environment; NULL: the user's own wish
    const char *model_roots, *output_roots; // of the environment; NULL: any
    int word_count;                         // of the job: job.yaml, or flags
    char **words; // array owned, the words are argv's or the environment's
};

// argc and argv are main's.
int launch_read(int argc, char **argv, struct launch *launch, struct fl_error *e);
void launch_clear(struct launch *launch);

#endif
