// SPDX-License-Identifier: Apache-2.0
// Bytes of a rank by category, known from spec and config.json alone.
#ifndef FL_JOB_PLAN_H
#define FL_JOB_PLAN_H

#include "base/category.h"
#include "job/layout.h"

#define PLAN_TERMS   32
#define PLAN_BESIDE  8
#define PLAN_FORMULA 112
#define PLAN_WHERE   64

// One line of the plan's arithmetic.
struct plan_term {
    enum memory_category category;
    const char *name;
    char formula[PLAN_FORMULA]; // with this job's numbers
    uint64_t bytes;
};

struct plan {
    struct layout layout;
    bool cpu; // of the CPU backend: fp32 activations, parameters that are their own main parameters
    uint64_t base_params, trainable_params;             // of one rank
    uint64_t base_params_total, trainable_params_total; // of the model
    uint64_t bytes[MEMORY_CATEGORIES], total_bytes;     // of one rank, at its peak
    struct plan_term terms[PLAN_TERMS];                 // sum to bytes; ordered by category
    int term_count;
    // Of one rank too: in host memory, and on the device outside the arena (context, modules,
    // collectives), which its cap holds as well.
    struct plan_term host[PLAN_BESIDE], outside[PLAN_BESIDE];
    int host_count, outside_count;
    uint64_t host_bytes, outside_bytes;
    // Of the whole job: the adapters that a save writes, and the moments to resume with.
    uint64_t disk_bytes, states_bytes;
    enum recompute recompute; // what AUTO stands for, else the job's
    // Of a dry run (train/planned.h), which then also gave bytes and, at its peak, total_bytes.
    bool dry;
    uint64_t at_peak[MEMORY_CATEGORIES]; // sum to total_bytes
    uint64_t mapped_bytes;               // granules included
    char peak_where[PLAN_WHERE];         // "layer 47 backward: fc1_backward"
    uint64_t largest_bytes;              // of the largest transient allocation
    enum memory_category largest_category;
    char largest_where[PLAN_WHERE];
};

// Pure. All ranks have equal plans. The peak is that of full micro-batches of samples of
// max_length, with every token of the group routed to this rank's experts unless a capacity factor
// limits them: never in the evaluation of a job with validation data. backend cpu or numerics exact
// gives the CPU backend's plan, all else the GPU's. The CPU backend's scratch is that of one
// thread. cap_bytes 0: no cap; else a plan that is above it with the 4 MiB the arena may round up
// is -ENOSPC with the largest categories in the message, and *plan is filled all the same. What
// this version cannot run is planned too: job/runnable.h tells.
int plan_make(const struct spec *spec, const struct model *model, int world, uint64_t cap_bytes,
              struct plan *plan, struct fl_error *e);

// The same for ranks of several threads, each of which has its own scratch on the CPU.
int plan_make_threads(const struct spec *spec, const struct model *model, int world, int threads,
                      uint64_t cap_bytes, struct plan *plan, struct fl_error *e);

// Bytes of the device that a rank takes: what the arena maps, and what is outside it. This is what
// a cap is held against.
uint64_t plan_need(const struct plan *plan);

// Whether a finished plan is within the cap, as above.
int plan_cap_check(const struct spec *spec, const struct plan *plan, uint64_t cap_bytes,
                   struct fl_error *e);

#endif
