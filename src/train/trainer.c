// SPDX-License-Identifier: Apache-2.0
// The training itself: steps, validation, reports, saved adapters.
#include "train/trainer.h"

#include "base/memory.h"
#include "comm/agree.h"
#include "train/evaluate.h"
#include "train/gate.h"
#include "train/metrics.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/stop.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BAD_IN_A_ROW 3

// Of one iteration; sums become those over all ranks.
struct step {
    uint64_t targets;
    struct {
        double loss, aux, tokens, stop_term, stop_int;
    } sums;
    double loss, aux; // per target; mean over micro-batches
    double norm, lr, seconds;
};

// Since the last report.
struct interval {
    double loss, aux, seconds, tokens;
    int64_t iterations, finite;
};

struct trainer {
    struct trainer_config config;
    bool first_rank;
    struct optimizer *optimizer;
    struct gate *gate; // until the first step is through it
    struct schedule schedule;
    struct console *console; // first rank's
    struct metrics *metrics; // first rank's
    struct batch *batch;

    int64_t iteration, iterations; // done; of the job
    int64_t validated, saved;      // at which iteration last; -1 never
    int64_t skipped, nan, bad_in_a_row;
    int64_t tokens; // of this rank
    int signal;
    bool agreed; // the error is every rank's
    struct interval interval;
    double start_s, steps_s; // monotonic; spent in steps
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// What only some ranks do, all must know the outcome of.
static int agree(struct trainer *t, int rc, struct fl_error *e)
{
    rc = comm_agree(t->config.world, rc, NULL, e);
    t->agreed = rc < 0;
    return rc;
}

int64_t trainer_iterations(const struct spec *spec, const struct loader *train)
{
    return spec->train_iters > 0 ? spec->train_iters : spec->epochs * loader_iterations(train);
}

static int trainer_open(struct trainer *t, struct fl_error *e)
{
    const struct trainer_config *c = &t->config;
    const struct optimizer_config optimizer = {
        .spec = c->spec,
        .adapters = c->adapters,
        .ops = c->ops,
        .arena = c->arena,
        .world = c->world,
        .replicas = c->replicas,
    };
    int rc;

    t->iterations = trainer_iterations(c->spec, c->train);
    t->validated = t->saved = -1;
    t->schedule = schedule_make(c->spec, t->iterations);
    t->batch = loader_batch_create(c->train);
    t->gate = gate_create(c->model, c->adapters);
    rc = optimizer_create(&optimizer, &t->optimizer, e);
    if (rc == 0 && t->first_rank) {
        t->console = console_create();
        rc = metrics_create(c->spec->output_dir, &t->metrics, e);
        if (rc == 0)
            rc = metrics_start(t->metrics, c->spec, c->plan,
                               loader_iterations(c->train) * c->spec->global_batch_size,
                               t->iterations, e);
    }
    rc = agree(t, rc, e);
    if (rc == 0) {
        slot_state(c->slot, RANK_TRAINING, NULL);
        stop_install();
        t->start_s = now_s();
    }
    return rc;
}

static void trainer_close(struct trainer *t)
{
    metrics_destroy(t->metrics);
    console_destroy(t->console);
    optimizer_destroy(t->optimizer);
    gate_destroy(t->gate);
    batch_destroy(t->batch);
}

// The loss is divided by the targets of the whole global batch, so they are counted first.
static int targets_count(struct trainer *t, struct step *step, struct fl_error *e)
{
    for (int round = 0; round < loader_rounds(t->config.train, t->iteration); round++) {
        loader_fill(t->config.train, t->iteration, round, t->batch);
        step->targets += (uint64_t)t->batch->target_count;
    }
    return comm_all_reduce(t->config.world, &step->targets, 1, COMM_U64, COMM_SUM, e);
}

static int forward_backward(struct trainer *t, struct step *step, struct fl_error *e)
{
    const struct trainer_config *c = &t->config;
    int rounds = loader_rounds(c->train, t->iteration);
    double micro_batches = (double)rounds * c->plan->layout.dp;
    int rc = 0;

    for (int round = 0; rc == 0 && round < rounds; round++) {
        struct net_loss loss;
        loader_fill(c->train, t->iteration, round, t->batch);
        if (t->gate)
            gate_batch(t->gate, c->net, t->batch);
        rc = net_train(c->net, t->batch, (uint64_t)t->iteration, 1 / (double)step->targets,
                       1 / micro_batches, &loss, e);
        if (rc < 0)
            return rc;
        step->sums.loss += loss.loss_sum;
        step->sums.aux += loss.aux_loss;
        step->sums.tokens += t->batch->tokens;
        t->tokens += t->batch->tokens;
    }
    step->sums.stop_term = stop_signal() == SIGTERM;
    step->sums.stop_int = stop_signal() == SIGINT;
    rc = comm_all_reduce(c->world, &step->sums, sizeof step->sums / sizeof(double), COMM_F64,
                         COMM_SUM, e);
    step->loss = step->sums.loss / (double)step->targets;
    step->aux = step->sums.aux / micro_batches;
    t->signal = step->sums.stop_term > 0 ? SIGTERM : step->sums.stop_int > 0 ? SIGINT : 0;
    return rc;
}

// The first step must show that the job trains at all.
static int gate_pass(struct trainer *t, const struct step *step, struct fl_error *e)
{
    int rc;

    if (!t->gate)
        return 0;
    rc = gate_check(t->gate, t->config.net, step->loss, step->norm, t->config.ops, t->config.world,
                    e);
    t->agreed = rc < 0;
    gate_destroy(t->gate);
    t->gate = NULL;
    return rc;
}

// Applies the gradients, or leaves the iteration out when they are not finite.
static int step_apply(struct trainer *t, const struct step *step, struct fl_error *e)
{
    if (isfinite(step->loss) && isfinite(step->norm)) {
        t->bad_in_a_row = 0;
        return optimizer_step(t->optimizer, step->lr, step->norm, e);
    }
    t->skipped++;
    t->nan += !isfinite(step->loss);
    if (++t->bad_in_a_row < BAD_IN_A_ROW)
        return 0;
    t->agreed = true;
    return error_set(e, -EDOM,
                     "iterations %lld to %lld: the loss or its gradient was not finite %d times in "
                     "a row: lower lr, or look at the data",
                     (long long)(t->iteration + 2 - BAD_IN_A_ROW), (long long)(t->iteration + 1),
                     BAD_IN_A_ROW);
}

static int iteration_run(struct trainer *t, struct step *step, struct fl_error *e)
{
    const struct spec *spec = t->config.spec;
    double start = now_s();
    int rc = targets_count(t, step, e);

    if (rc == 0)
        rc = optimizer_clear(t->optimizer, e);
    if (rc == 0)
        rc = forward_backward(t, step, e);
    if (rc == 0)
        rc = optimizer_reduce(t->optimizer, &step->norm, e);
    if (rc == 0)
        rc = gate_pass(t, step, e);
    step->lr = schedule_lr(&t->schedule, (t->iteration + 1) * spec->global_batch_size);
    if (rc == 0)
        rc = step_apply(t, step, e);
    step->seconds = now_s() - start;
    t->iteration++;
    return rc;
}

static double remaining_s(const struct trainer *t)
{
    return t->steps_s / (double)t->iteration * (double)(t->iterations - t->iteration);
}

static struct progress progress_make(const struct trainer *t, const struct step *step)
{
    const struct interval *i = &t->interval;

    return (struct progress){
        .now = time(NULL),
        .iteration = t->iteration,
        .iterations = t->iterations,
        .consumed_samples = t->iteration * t->config.spec->global_batch_size,
        .iteration_ms = i->seconds / (double)i->iterations * 1e3,
        .memory_gib = (double)slot_peak_most(t->config.slot) / 0x1p30,
        .elapsed_s = now_s() - t->start_s,
        .remaining_s = remaining_s(t),
        .lr = step->lr,
        .global_batch_size = t->config.spec->global_batch_size,
        .loss = i->finite ? i->loss / (double)i->finite : step->loss,
        .load_balancing_loss = i->finite ? i->aux / (double)i->finite : step->aux,
        .grad_norm = step->norm,
        .skipped = t->skipped,
        .nan = t->nan,
        .tokens_per_second = i->tokens / i->seconds,
    };
}

static bool due(const struct trainer *t, int64_t every)
{
    return every > 0 && t->iteration % every == 0;
}

static bool last(const struct trainer *t)
{
    return t->iteration == t->iterations || t->signal;
}

static int iteration_report(struct trainer *t, const struct step *step, struct fl_error *e)
{
    const struct trainer_config *c = &t->config;
    struct interval *i = &t->interval;
    struct progress progress;
    char line[1024];
    int rc;

    t->steps_s += step->seconds;
    i->seconds += step->seconds;
    i->tokens += step->sums.tokens;
    i->iterations++;
    if (isfinite(step->loss)) {
        i->loss += step->loss;
        i->aux += step->aux;
        i->finite++;
    }
    if (t->first_rank)
        console_bar(t->console, t->iteration, t->iterations, remaining_s(t), step->loss);
    if (t->iteration != 1 && !due(t, c->spec->log_interval) && !last(t))
        return 0;
    slot_memory(c->slot, c->arena);
    slot_progress(c->slot, t->iteration, t->tokens, (double)t->tokens / t->steps_s, step->loss);
    rc = slot_share(c->slot, c->world, e);
    if (rc < 0)
        return rc;
    progress = progress_make(t, step);
    *i = (struct interval){0};
    if (t->first_rank) {
        console_iteration_line(&progress, line, sizeof line);
        console_print(t->console, line);
        rc = metrics_train(t->metrics, &progress, e);
    }
    return agree(t, rc, e);
}

static int validate(struct trainer *t, struct fl_error *e)
{
    const struct trainer_config *c = &t->config;
    double start = now_s();
    struct evaluation result;
    struct validation validation;
    char line[512];
    int rc;

    if (!c->validation || t->validated == t->iteration || t->signal)
        return 0;
    rc = evaluate(c->net, c->validation, c->spec->eval_iters, c->world, &result, e);
    if (rc < 0)
        return rc;
    t->signal = result.signal;
    t->validated = t->iteration;
    if (t->first_rank && !t->signal) {
        validation = (struct validation){
            .now = time(NULL),
            .iteration = t->iteration,
            .iterations = t->iterations,
            .loss = result.loss,
            .targets = result.targets,
            .elapsed_s = now_s() - start,
        };
        console_validation_line(&validation, line, sizeof line);
        console_print(t->console, line);
        rc = metrics_validation(t->metrics, &validation, e);
    }
    return agree(t, rc, e);
}

static int save(struct trainer *t, struct fl_error *e)
{
    if (t->saved == t->iteration)
        return 0;
    t->saved = t->iteration;
    return agree(t, t->config.save(t->config.save_context, e), e);
}

// What the job took beside what was planned.
static int memory_report(struct trainer *t, struct fl_error *e)
{
    const struct trainer_config *c = &t->config;
    uint64_t peaks[MEMORY_CATEGORIES];
    int rc;

    slot_memory(c->slot, c->arena);
    rc = slot_share(c->slot, c->world, e);
    if (rc < 0 || !t->first_rank)
        return rc;
    slot_peaks(c->slot, peaks);
    return metrics_memory(t->metrics, c->plan, peaks, slot_peak_most(c->slot), e);
}

static int finish(struct trainer *t, struct fl_error *e)
{
    char reason[32] = "done";
    int rc = validate(t, e);

    if (rc == 0)
        rc = save(t, e);
    if (rc == 0)
        rc = memory_report(t, e);
    if (rc < 0)
        return rc;
    if (t->signal)
        snprintf(reason, sizeof reason, "signal %d", t->signal);
    if (t->first_rank)
        rc = metrics_end(t->metrics, t->iteration, reason, e);
    return agree(t, rc, e);
}

int trainer_run(const struct trainer_config *config, struct trainer_end *end, struct fl_error *e)
{
    struct trainer t = {.config = *config, .first_rank = comm_rank(config->world) == 0};
    int rc = trainer_open(&t, e);

    if (rc == 0)
        rc = validate(&t, e);
    while (rc == 0 && !last(&t)) {
        struct step step = {0};
        rc = iteration_run(&t, &step, e);
        if (rc == 0)
            rc = iteration_report(&t, &step, e);
        if (rc == 0 && due(&t, config->spec->eval_interval))
            rc = validate(&t, e);
        if (rc == 0 && due(&t, config->spec->save_interval))
            rc = save(&t, e);
    }
    if (rc == 0)
        rc = finish(&t, e);
    if (rc < 0 && !t.agreed)
        comm_abandon(config->world);
    *end = (struct trainer_end){.iterations = t.iteration, .signal = t.signal};
    trainer_close(&t);
    return rc;
}
