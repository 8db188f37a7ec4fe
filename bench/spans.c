// SPDX-License-Identifier: Apache-2.0
// Time on a stream by what was queued, between pairs of events.
#include "spans.h"

#include "base/memory.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS 16384 // made beforehand, more than a step of the 30B model takes

// What has the same name in the same operation.
struct row {
    const char *name;
    int operation; // row of the operation it belongs to, -1: it is one
    long calls;
    double ms, floor_ms;
};

struct pair {
    int row;
    cudaEvent_t from, to;
};

struct spans {
    cudaStream_t stream;
    enum spans_level level;
    int steps[SPANS_LAUNCHES + 1]; // recorded at each level
    struct row *rows;
    int row_count;
    int operation; // row of the one that runs, -1: none
    struct pair *pairs;
    int pair_count, pair_room;
    bool open; // a step is being recorded
    cudaEvent_t step_from, step_to;
    double step_ms[SPANS_LAUNCHES + 1]; // of all recorded steps
    int failed;
};

static void check(struct spans *s, cudaError_t error)
{
    if (error != cudaSuccess && !s->failed)
        s->failed = (int)error;
}

static void pair_add(struct spans *s)
{
    struct pair pair = {0};

    check(s, cudaEventCreate(&pair.from));
    check(s, cudaEventCreate(&pair.to));
    s->pairs = memory_resize(s->pairs, (size_t)s->pair_room + 1, sizeof *s->pairs);
    s->pairs[s->pair_room++] = pair;
}

struct spans *spans_create(void *stream)
{
    struct spans *s = memory_zeroed(1, sizeof *s);

    s->stream = stream;
    s->operation = -1;
    check(s, cudaEventCreate(&s->step_from));
    check(s, cudaEventCreate(&s->step_to));
    while (s->pair_room < PAIRS)
        pair_add(s);
    return s;
}

void spans_destroy(struct spans *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->pair_room; i++) {
        cudaEventDestroy(s->pairs[i].from);
        cudaEventDestroy(s->pairs[i].to);
    }
    cudaEventDestroy(s->step_from);
    cudaEventDestroy(s->step_to);
    free(s->pairs);
    free(s->rows);
    free(s);
}

void spans_record(struct spans *s, enum spans_level level)
{
    s->level = level;
    s->open = false;
    s->pair_count = 0;
}

static int row_find(struct spans *s, const char *name, int operation)
{
    for (int i = 0; i < s->row_count; i++)
        if (s->rows[i].operation == operation && !strcmp(s->rows[i].name, name))
            return i;
    s->rows = memory_resize(s->rows, (size_t)s->row_count + 1, sizeof *s->rows);
    s->rows[s->row_count] = (struct row){.name = name, .operation = operation};
    return s->row_count++;
}

static struct pair *pair_take(struct spans *s)
{
    if (s->pair_count == s->pair_room)
        pair_add(s);
    return &s->pairs[s->pair_count++];
}

int spans_begin(struct spans *s, enum spans_level level, const char *name, struct work work)
{
    struct pair *pair;
    int row;

    if (!s || s->level == SPANS_NONE)
        return -1;
    row = row_find(s, name, level == SPANS_LAUNCHES ? s->operation : -1);
    if (level == SPANS_OPERATIONS)
        s->operation = row;
    if (s->level != level || !s->open)
        return -1;
    s->rows[row].calls++;
    s->rows[row].floor_ms += work_floor_s(work) * 1e3;
    pair = pair_take(s);
    pair->row = row;
    check(s, cudaEventRecord(pair->from, s->stream));
    return s->pair_count - 1;
}

void spans_end(struct spans *s, int span)
{
    if (span >= 0)
        check(s, cudaEventRecord(s->pairs[span].to, s->stream));
}

static double between_ms(struct spans *s, cudaEvent_t from, cudaEvent_t to)
{
    float ms = 0;

    check(s, cudaEventElapsedTime(&ms, from, to));
    return (double)ms;
}

int spans_step(struct spans *s)
{
    if (s->level == SPANS_NONE)
        return s->failed;
    if (s->open) {
        check(s, cudaEventRecord(s->step_to, s->stream));
        check(s, cudaStreamSynchronize(s->stream));
        s->step_ms[s->level] += between_ms(s, s->step_from, s->step_to);
        s->steps[s->level]++;
        for (struct pair *p = s->pairs; p < s->pairs + s->pair_count; p++)
            s->rows[p->row].ms += between_ms(s, p->from, p->to);
    }
    s->pair_count = 0;
    s->open = true;
    check(s, cudaStreamSynchronize(s->stream));
    check(s, cudaEventRecord(s->step_from, s->stream));
    return s->failed;
}

static const struct row *sorted_rows; // of the rows that qsort compares by number

static int compare(const void *a, const void *b)
{
    double x = sorted_rows[*(const int *)a].ms, y = sorted_rows[*(const int *)b].ms;

    return (x < y) - (x > y);
}

// Numbers of the rows that belong to an operation, or are operations, longest first; free().
static int *rows_of(const struct spans *s, int operation, int *count)
{
    int *order = memory_zeroed((size_t)s->row_count + 1, sizeof *order);

    *count = 0;
    for (int i = 0; i < s->row_count; i++)
        if (s->rows[i].operation == operation && s->rows[i].calls)
            order[(*count)++] = i;
    sorted_rows = s->rows;
    qsort(order, (size_t)*count, sizeof *order, compare);
    return order;
}

// operation_ms: of a step, of which its launches are a part; the GPU waits in the rest.
static void launches_print(const struct spans *s, int operation, double operation_ms, FILE *out)
{
    double steps = s->steps[SPANS_LAUNCHES], sum = 0;
    int count, *order = rows_of(s, operation, &count);

    for (int i = 0; i < count; i++) {
        const struct row *r = &s->rows[order[i]];
        sum += r->ms / steps;
        fprintf(out, "|    · %-25s | %6.0f | %8.3f |        | %8.3f | %8.3f |\n", r->name,
                (double)r->calls / steps, r->ms / steps, r->floor_ms / steps,
                (r->ms - r->floor_ms) / steps);
    }
    if (count)
        fprintf(out, "|    · %-25s |        | %8.3f |        |          |          |\n",
                "between launches", operation_ms - sum);
    free(order);
}

void spans_print(const struct spans *s, double step_ms, FILE *out)
{
    double steps = s->steps[SPANS_OPERATIONS], all = s->step_ms[SPANS_OPERATIONS] / steps;
    double sum = 0, floor = 0;
    int count, *order = rows_of(s, -1, &count);

    fprintf(
        out,
        "| operation · its launches       |  calls |       ms |  share | floor ms |   gap ms |\n"
        "|---|--:|--:|--:|--:|--:|\n");
    for (int i = 0; i < count; i++) {
        const struct row *r = &s->rows[order[i]];
        double ms = r->ms / steps;
        sum += ms;
        floor += r->floor_ms / steps;
        fprintf(out, "| %-30s | %6.0f | %8.3f | %5.1f%% | %8.3f | %8.3f |\n", r->name,
                (double)r->calls / steps, ms, 100 * ms / all, r->floor_ms / steps,
                ms - r->floor_ms / steps);
        if (s->steps[SPANS_LAUNCHES])
            launches_print(s, order[i], ms, out);
    }
    free(order);
    fprintf(out, "| %-30s | %6s | %8.3f | %5.1f%% | %8.3f | %8.3f |\n", "between operations", "",
            all - sum, 100 * (all - sum) / all, 0.0, all - sum);
    fprintf(out, "| %-30s | %6s | %8.3f | %5.1f%% | %8.3f | %8.3f |\n", "a step with events", "",
            all, 100.0, floor, all - floor);
    fprintf(out, "| %-30s | %6s | %8.3f | %6s | %8.3f | %8.3f |\n", "a step without", "", step_ms,
            "", floor, step_ms - floor);
}
