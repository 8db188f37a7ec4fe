// SPDX-License-Identifier: Apache-2.0
// What to change so that a job fits, and soonest: every way of splitting, keeping and recomputing
// that its shapes allow, planned and estimated.
#ifndef FL_JOB_FIT_H
#define FL_JOB_FIT_H

#include "job/estimate.h"

#define FIT_CHOICES 8
#define FIT_CHANGES 256

struct fit_request {
    const struct spec *spec;
    const struct model *model;
    int world;
    uint64_t cap_bytes;  // of the device, of a rank
    uint64_t host_bytes; // of a node; 0: any
    const struct gpu *gpu;
    struct fabric fabric;
};

// One way to run the job.
struct fit_choice {
    int world, ep, tp, micro_batch, rank;
    enum recompute recompute;
    enum recompute_part recompute_part;
    enum layer_inputs layer_inputs;
    bool shard_frozen, optimizer_offload;
    bool written;        // the network is written for it, whether or not several GPUs run it
    bool runs;           // this version's trainer takes it
    uint64_t need, host; // of a rank
    double step_s;
    int changes; // keys that differ from the job's
};

// The choices that fit, none of them worse than another in time, changes and in whether it runs:
// what runs, then what is written, then all else, soonest first of each; *count at most
// FIT_CHOICES. Where nothing fits, with a lower rank, where that does not either, with more GPUs
// (up to 64 times as many); *count is 0 where that does not help. Pure. The error is that of the
// job as it is, when no plan of it can be made.
int fit_search(const struct fit_request *request, struct fit_choice choices[FIT_CHOICES],
               int *count, struct fl_error *e);

// The job with the choice taken: a shallow copy, whose strings and lists stay the job's.
struct spec fit_apply(const struct spec *spec, const struct fit_choice *choice);

// "micro_batch_size 1, optimizer_offload true": what differs from the job, "nothing" without.
char *fit_changes(const struct spec *spec, int world, const struct fit_choice *choice,
                  char text[FIT_CHANGES]);

// What each change of one key alone saves and costs; bytes and seconds may be negative.
struct fit_single {
    char change[96];
    int64_t device_saved, host_saved; // bytes of a rank
    double step_more_s;
    bool runs;
};
#define FIT_SINGLES 16
int fit_singles(const struct fit_request *request, struct fit_single singles[FIT_SINGLES],
                int *count, struct fl_error *e);

#endif
