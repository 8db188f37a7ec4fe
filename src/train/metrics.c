// SPDX-License-Identifier: Apache-2.0
// OUTPUT_DIR/metrics.jsonl.
#include "train/metrics.h"

#include "base/memory.h"

#include <jansson.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

struct metrics {
    char *path;
    int fd;
};

int metrics_create(const char *output_dir, struct metrics **out, struct fl_error *e)
{
    struct metrics *m = memory_zeroed(1, sizeof *m);
    int rc = 0;

    *out = NULL;
    m->path = memory_format("%s/metrics.jsonl", output_dir);
    m->fd = open(m->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (m->fd < 0)
        rc = error_set(e, -errno, "%s: cannot create: %s", m->path, strerror(errno));
    else if (flock(m->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        rc = error_set(e, -EBUSY,
                       "%s: another job writes into this folder: choose another output_dir",
                       m->path);
    else if (ftruncate(m->fd, 0) < 0) // a file system without locks goes without one
        rc = error_set(e, -errno, "%s: cannot empty: %s", m->path, strerror(errno));
    if (rc < 0)
        metrics_destroy(m);
    else
        *out = m;
    return rc;
}

void metrics_destroy(struct metrics *m)
{
    if (!m)
        return;
    if (m->fd >= 0)
        close(m->fd);
    free(m->path);
    free(m);
}

// Appends the object as one line and drops the reference.
static int line_write(struct metrics *m, json_t *object, struct fl_error *e)
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)), *line;
    size_t bytes;
    ssize_t n;

    line = memory_format("%s\n", text);
    bytes = strlen(line);
    n = write(m->fd, line, bytes);
    free(line);
    free(text);
    json_decref(object);
    if (n < 0)
        return error_set(e, -errno, "%s: cannot write: %s", m->path, strerror(errno));
    if ((size_t)n != bytes)
        return error_set(e, -ENOSPC, "%s: cannot write: disk full; free some space there", m->path);
    return 0;
}

static json_t *event(const char *name)
{
    json_t *object = json_object();

    json_object_set_new(object, "event", json_string(name));
    return object;
}

static void put_integer(json_t *object, const char *key, int64_t value)
{
    json_object_set_new(object, key, json_integer(value));
}

static void put_real(json_t *object, const char *key, double value)
{
    json_object_set_new(object, key, isfinite(value) ? json_real(value) : json_null());
}

static void put_time(json_t *object, time_t now)
{
    char text[32];
    struct tm tm;

    gmtime_r(&now, &tm);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    json_object_set_new(object, "time", json_string(text));
}

int metrics_start(struct metrics *m, const struct spec *spec, const struct plan *plan,
                  int64_t samples, int64_t iterations, struct fl_error *e)
{
    json_t *o = event("start");

    put_time(o, time(NULL));
    json_object_set_new(o, "model", json_string(spec->model));
    json_object_set_new(o, "numerics",
                        json_string(spec->numerics == NUMERICS_EXACT ? "exact" : "fp8"));
    put_integer(o, "world", plan->layout.world);
    put_integer(o, "expert_parallel", plan->layout.ep);
    put_integer(o, "samples", samples);
    put_integer(o, "iterations", iterations);
    put_integer(o, "global_batch_size", spec->global_batch_size);
    put_integer(o, "trainable_params", (int64_t)plan->trainable_params_total);
    put_integer(o, "planned_bytes", (int64_t)plan->total_bytes);
    return line_write(m, o, e);
}

int metrics_train(struct metrics *m, const struct progress *p, struct fl_error *e)
{
    json_t *o = event("train");

    put_time(o, p->now);
    put_integer(o, "iteration", p->iteration);
    put_integer(o, "iterations", p->iterations);
    put_integer(o, "consumed_samples", p->consumed_samples);
    put_real(o, "lm_loss", p->loss);
    put_real(o, "load_balancing_loss", p->load_balancing_loss);
    put_real(o, "learning_rate", p->lr);
    put_real(o, "grad_norm", p->grad_norm);
    put_real(o, "iteration_ms", p->iteration_ms);
    put_real(o, "tokens_per_second", p->tokens_per_second);
    put_real(o, "memory_gib", p->memory_gib);
    put_real(o, "elapsed_s", p->elapsed_s);
    put_real(o, "remaining_s", p->remaining_s);
    put_integer(o, "skipped_iterations", p->skipped);
    put_integer(o, "nan_iterations", p->nan);
    return line_write(m, o, e);
}

int metrics_validation(struct metrics *m, const struct validation *v, struct fl_error *e)
{
    json_t *o = event("validation");

    put_time(o, v->now);
    put_integer(o, "iteration", v->iteration);
    put_real(o, "lm_loss", v->loss);
    put_integer(o, "tokens", v->targets);
    put_real(o, "elapsed_s", v->elapsed_s);
    return line_write(m, o, e);
}

int metrics_memory(struct metrics *m, const struct plan *plan, const uint64_t *peaks,
                   uint64_t peak_total, struct fl_error *e)
{
    json_t *o = event("memory"), *planned = json_object(), *measured = json_object();

    for (int i = 0; i < MEMORY_CATEGORIES; i++) {
        put_integer(planned, memory_category_name(i), (int64_t)plan->bytes[i]);
        put_integer(measured, memory_category_name(i), (int64_t)peaks[i]);
    }
    put_integer(planned, "total", (int64_t)plan->total_bytes);
    put_integer(measured, "total", (int64_t)peak_total);
    json_object_set_new(o, "planned_bytes", planned);
    json_object_set_new(o, "peak_bytes", measured);
    return line_write(m, o, e);
}

int metrics_end(struct metrics *m, int64_t iteration, const char *reason, struct fl_error *e)
{
    json_t *o = event("end");

    put_time(o, time(NULL));
    put_integer(o, "iteration", iteration);
    json_object_set_new(o, "reason", json_string(reason));
    return line_write(m, o, e);
}
