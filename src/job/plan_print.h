// SPDX-License-Identifier: Apache-2.0
// A plan for a person and for a program.
#ifndef FL_JOB_PLAN_PRINT_H
#define FL_JOB_PLAN_PRINT_H

#include "job/fit.h"
#include "job/index.h"
#include "job/runnable.h"

#include <stdio.h>

// All that was found out about one job.
struct plan_view {
    const struct spec *spec;
    const struct model *model;
    const struct plan *plan;
    int threads;             // of a rank of the CPU backend
    struct runnable_gap gap; // what: NULL if this version's trainer runs the job as planned
    uint64_t cap_bytes, host_cap_bytes; // 0: none
    struct index_size index;            // of the checkpoint, where it has one
    int64_t iterations;                 // of the run; 0: not known until the data are read
    double first_lr;                    // of iteration 1, with iterations
    const struct gpu *gpu;              // NULL: the CPU backend, no estimate
    struct fabric fabric;
    struct estimate estimate;
    struct fit_choice choices[FIT_CHOICES];
    int choice_count; // -1: not looked for
    struct fit_single singles[FIT_SINGLES];
    int single_count;
};

void plan_print(FILE *out, const struct plan_view *view);
// Answers: how the count arises, where the memory goes, what to change.
void plan_explain(FILE *out, const struct plan_view *view);
// The choices of a fit.
void plan_print_fit(FILE *out, const struct plan_view *view);
void plan_print_json(FILE *out, const struct plan_view *view);

#endif
