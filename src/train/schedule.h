// SPDX-License-Identifier: Apache-2.0
// The learning rate as a function of the samples consumed.
#ifndef FL_TRAIN_SCHEDULE_H
#define FL_TRAIN_SCHEDULE_H

#include "job/spec.h"

// With n consumed samples, D = iterations * global batch and W = warm-up fraction * D:
//   n <= W            lr * n / W
//   cosine            min + (lr - min) * (1 + cos(pi (n - W) / (D - W))) / 2
//   linear            min + (lr - min) * (1 - (n - W) / (D - W))
//   constant          lr
struct schedule {
    enum decay decay;
    double lr, min_lr;
    double warmup, end; // W and D, samples
};

struct schedule schedule_make(const struct spec *spec, int64_t iterations);

// The rate of the step that brings the consumed samples to n.
double schedule_lr(const struct schedule *schedule, int64_t consumed_samples);

#endif
