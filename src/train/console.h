// SPDX-License-Identifier: Apache-2.0
// What a person sees of the training: the iteration line, the validation line, a progress bar.
#ifndef FL_TRAIN_CONSOLE_H
#define FL_TRAIN_CONSOLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

// One logged iteration; means are over the iterations since the last logged one.
struct progress {
    time_t now;
    int64_t iteration, iterations; // iteration counts from 1
    int64_t consumed_samples;
    double iteration_ms; // mean
    double memory_gib;   // peak of the fullest rank
    double elapsed_s, remaining_s;
    double lr;
    int global_batch_size;
    double loss;                // per target token, mean
    double load_balancing_loss; // without its coefficient, mean
    double grad_norm;           // before clipping, of the last step
    int64_t skipped, nan;       // iterations so far: not applied; of those with a loss that is NaN
    double tokens_per_second;   // of all ranks
};

// "36s", "12h 39m 40s", "2d 0h 1m 5s": whole seconds, downwards.
void console_duration(double seconds, char *text, size_t bytes);

// The line Megatron's users know, field for field, without a newline.
void console_iteration_line(const struct progress *p, char *text, size_t bytes);

struct validation {
    time_t now;
    int64_t iteration, iterations;
    double loss; // per target token over the whole set
    int64_t targets;
    double elapsed_s;
};

void console_validation_line(const struct validation *v, char *text, size_t bytes);

// Lines go to standard output; the bar to standard error when that is a terminal.
struct console;
struct console *console_create(void);
void console_destroy(struct console *console); // NULL-safe; clears the bar

void console_print(struct console *console, const char *line);
void console_bar(struct console *console, int64_t iteration, int64_t iterations, double remaining_s,
                 double loss);

#endif
