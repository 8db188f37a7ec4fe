// SPDX-License-Identifier: Apache-2.0
// Dataset files to token ids, on several threads.
#include "data/dataset.h"

#include "base/file.h"
#include "base/memory.h"
#include "data/formats.h"
#include "data/records.h"
#include "data/shuffle.h"
#include "data/template.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_LIMIT   ((size_t)64 << 30) // bytes of a file, all of it in memory for a while
#define BLOCK        32                 // records a thread takes at a time
#define ALL          UINT64_MAX         // samples of a file
#define SAMPLES_MOST (1u << 30)

enum verdict { KEPT, TOO_LONG, NO_TARGET };

// Where a record's tokens are.
struct placed {
    uint32_t worker;
    enum verdict verdict;
    size_t start, count; // in the worker's list
};

struct job {
    const struct dataset_options *options;
    size_t max_length;
    const struct record *records;
    size_t count;
    struct placed *placed;    // [count]
    atomic_size_t next;       // first record of the next block
    atomic_size_t failed;     // first record known to be bad, else SIZE_MAX
    size_t shortest_too_long; // tokens; SIZE_MAX: none
};

struct worker {
    struct job *job;
    uint32_t number;
    struct template *template;
    struct message_list list;
    struct sample_list samples;
    struct fl_error error; // of record `failed`
    size_t failed, failed_line, shortest_too_long;
};

static int record_tokenise(struct worker *w, const struct record *record, struct fl_error *e)
{
    json_error_t reason;
    json_t *json = json_loadb(record->text, record->bytes,
                              JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &reason);
    int rc;

    w->failed_line = record->line;
    if (!json) {
        w->failed_line += (size_t)(reason.line > 1 ? reason.line - 1 : 0);
        return error_set(e, -EINVAL,
                         "not JSON (column %d: %s): write UTF-8, one object a line or one array",
                         reason.column, reason.text);
    }
    rc = format_messages(json, &w->list, e);
    if (rc == 0)
        rc = template_append(w->template,
                             &(struct conversation){w->list.messages, w->list.count, w->list.tools},
                             &w->samples, e);
    json_decref(json);
    return rc;
}

static enum verdict sample_judge(struct worker *w, size_t start, size_t count)
{
    if (count > w->job->max_length) {
        if (count < w->shortest_too_long)
            w->shortest_too_long = count;
        return TOO_LONG;
    }
    for (size_t i = 1; i < count; i++)
        if (w->samples.loss[start + i])
            return KEPT;
    return NO_TARGET;
}

static void failed_lower(atomic_size_t *failed, size_t record)
{
    size_t seen = atomic_load(failed);
    while (record < seen && !atomic_compare_exchange_weak(failed, &seen, record))
        ;
}

// Takes blocks of records in order. After a bad record only earlier ones are looked at, so that the
// error told is the first one of the file.
static void *worker_run(void *argument)
{
    struct worker *w = argument;
    struct job *job = w->job;

    for (;;) {
        size_t i = atomic_fetch_add(&job->next, BLOCK), end = i + BLOCK;
        if (end > job->count)
            end = job->count;
        for (; i < end; i++) {
            size_t start = w->samples.tokens.count;
            struct placed *placed = &job->placed[i];

            if (i > atomic_load(&job->failed))
                return NULL;
            if (record_tokenise(w, &job->records[i], &w->error) < 0) {
                w->failed = i;
                failed_lower(&job->failed, i);
                return NULL;
            }
            *placed = (struct placed){
                .worker = w->number, .start = start, .count = w->samples.tokens.count - start};
            placed->verdict = sample_judge(w, start, placed->count);
            if (placed->verdict != KEPT)
                w->samples.tokens.count = start;
        }
        if (end == job->count)
            return NULL;
    }
}

static void worker_clear(struct worker *w)
{
    template_destroy(w->template);
    message_list_clear(&w->list);
    free(w->samples.tokens.ids);
    free(w->samples.loss);
}

// The calling thread is worker 0; a thread that cannot be started leaves its work to the others.
static int workers_run(struct job *job, struct worker *workers, int count, size_t *line,
                       struct fl_error *e)
{
    pthread_t *threads = memory_zeroed((size_t)count, sizeof *threads);
    int started = 1, rc = 0;

    for (int i = 0; i < count && rc == 0; i++) {
        workers[i] = (struct worker){
            .job = job, .number = (uint32_t)i, .failed = SIZE_MAX, .shortest_too_long = SIZE_MAX};
        rc = template_create(job->options->tokenizer, job->options->template, &workers[i].template,
                             e);
    }
    if (rc == 0) {
        while (started < count &&
               pthread_create(&threads[started], NULL, worker_run, &workers[started]) == 0)
            started++;
        worker_run(&workers[0]);
        for (int i = 1; i < started; i++)
            pthread_join(threads[i], NULL);
        for (int i = 0; i < started; i++) {
            if (workers[i].failed == atomic_load(&job->failed) && workers[i].failed != SIZE_MAX) {
                *line = workers[i].failed_line;
                rc = error_set(e, workers[i].error.code, "%s", workers[i].error.text);
            }
            if (workers[i].shortest_too_long < job->shortest_too_long)
                job->shortest_too_long = workers[i].shortest_too_long;
        }
    }
    free(threads);
    return rc;
}

// Appends the kept samples in the order of their records.
static void samples_append(struct dataset *d, const struct job *job, const struct worker *workers)
{
    size_t samples = d->samples, tokens = d->offsets[d->samples];

    for (size_t i = 0; i < job->count; i++)
        if (job->placed[i].verdict == KEPT) {
            samples++;
            tokens += job->placed[i].count;
        }
    d->offsets = memory_resize(d->offsets, samples + 1, sizeof *d->offsets);
    d->ids = memory_resize(d->ids, tokens, sizeof *d->ids);
    d->loss = memory_resize(d->loss, tokens, 1);
    for (size_t i = 0; i < job->count; i++) {
        const struct placed *p = &job->placed[i];
        const struct sample_list *from = &workers[p->worker].samples;
        size_t start = d->offsets[d->samples];

        d->too_long += p->verdict == TOO_LONG;
        d->no_target += p->verdict == NO_TARGET;
        if (p->verdict != KEPT)
            continue;
        memcpy(d->ids + start, from->tokens.ids + p->start, p->count * sizeof *d->ids);
        memcpy(d->loss + start, from->loss + p->start, p->count);
        for (size_t k = 1; k < p->count; k++)
            d->targets += d->loss[start + k];
        if (p->count > d->longest)
            d->longest = p->count;
        d->offsets[++d->samples] = start + p->count;
    }
    d->records += job->count;
}

static int file_read_all(struct dataset *d, const char *path, struct job *job, int threads,
                         struct fl_error *e)
{
    struct record *records = NULL;
    struct worker *workers = memory_zeroed((size_t)threads, sizeof *workers);
    char *text = NULL;
    size_t bytes, line = 0;
    int rc = file_read(path, FILE_LIMIT, &text, &bytes, e);

    if (rc < 0)
        goto out;
    rc = records_find(text, bytes, &records, &job->count, &line, e);
    if (rc == 0) {
        line = 0;
        job->records = records;
        job->placed = memory_zeroed(job->count, sizeof *job->placed);
        atomic_store(&job->next, 0);
        atomic_store(&job->failed, SIZE_MAX);
        rc = workers_run(job, workers, threads, &line, e);
    }
    if (rc == 0)
        samples_append(d, job, workers);
    else if (line)
        error_prefix(e, "%s:%zu", path, line);
out:
    for (int i = 0; i < threads; i++)
        worker_clear(&workers[i]);
    free(workers);
    free(job->placed);
    job->placed = NULL;
    free(records);
    free(text);
    return rc;
}

// The file of "FILE#N", free(), and N; of any other word itself and ALL. A file may have such a
// name.
static char *path_split(const char *word, uint64_t *wanted)
{
    const char *mark = strrchr(word, '#');
    char *end;

    *wanted = ALL;
    if (!mark || mark[1] < '0' || mark[1] > '9' || access(word, F_OK) == 0)
        return memory_string(word);
    *wanted = strtoull(mark + 1, &end, 10);
    if (*wanted == ALL) // a number above all: refused as well
        --*wanted;
    if (!*end)
        return memory_format("%.*s", (int)(mark - word), word);
    *wanted = ALL;
    return memory_string(word);
}

// Of the samples from first on: the first ones of an order that is drawn from the seed, put back
// into the order of the file, after as many whole copies as fit.
static void samples_take(struct dataset *d, size_t first, uint64_t wanted, uint64_t seed)
{
    size_t count = d->samples - first, total = first + wanted, done = 0;
    size_t *chosen = memory_zeroed(total, sizeof *chosen);
    uint32_t *order = memory_zeroed(count, sizeof *order);
    uint8_t *taken = memory_zeroed(count, 1);

    shuffle_order(seed, first, order, count);
    for (size_t i = 0; i < wanted % count; i++)
        taken[order[i]] = 1;
    for (; done < first; done++)
        chosen[done] = done;
    for (size_t i = 0; i < wanted / count * count; i++)
        chosen[done++] = first + i % count;
    for (size_t i = 0; i < count; i++)
        if (taken[i])
            chosen[done++] = first + i;
    dataset_choose(d, chosen, total);
    free(taken);
    free(order);
    free(chosen);
}

static int file_load(struct dataset *d, const char *word, struct job *job, struct fl_error *e)
{
    int threads = job->options->threads > 1 ? job->options->threads : 1;
    size_t first = d->samples;
    uint64_t wanted;
    char *path = path_split(word, &wanted);
    int rc = file_read_all(d, path, job, threads, e);

    if (rc == 0 && (wanted == 0 || (wanted != ALL && wanted > SAMPLES_MOST)))
        rc = error_set(e, -EINVAL, "%s: samples of a file must be in [1, %u]", word, SAMPLES_MOST);
    else if (rc == 0 && wanted != ALL && d->samples > first)
        samples_take(d, first, wanted, job->options->seed);
    free(path);
    return rc;
}

// "a.jsonl", or "a.jsonl and 2 more".
static char *files_name(char *const *paths, size_t count)
{
    return count < 2 ? memory_string(count ? paths[0] : "no file")
                     : memory_format("%s and %zu more", paths[0], count - 1);
}

static int dataset_check(const struct dataset *d, const struct job *job, char *const *paths,
                         size_t path_count, struct fl_error *e)
{
    char *name;
    int rc = -EINVAL;

    if (d->samples)
        return 0;
    name = files_name(paths, path_count);
    if (d->records == 0)
        error_set(e, rc, "%s: no samples: the dataset is empty", name);
    else if (d->too_long == d->records)
        error_set(e, rc,
                  "%s: every sample is too long: %zu of %zu have more than max_length %zu tokens; "
                  "raise it to at least %zu",
                  name, d->too_long, d->records, job->max_length, job->shortest_too_long);
    else
        error_set(e, rc,
                  "%s: nothing to train on: of %zu samples %zu have no assistant answer to learn "
                  "and %zu are longer than max_length %zu",
                  name, d->records, d->no_target, d->too_long, job->max_length);
    free(name);
    return rc;
}

int dataset_load(char *const *paths, size_t path_count, const struct dataset_options *options,
                 struct dataset **out, struct fl_error *e)
{
    struct job job = {.options = options, .shortest_too_long = SIZE_MAX};
    struct dataset *d;
    int rc = 0;

    *out = NULL;
    if (options->max_length < 1)
        return error_set(e, -EINVAL, "max_length %d: must be at least 1", options->max_length);
    job.max_length = (size_t)options->max_length;
    d = memory_zeroed(1, sizeof *d);
    d->offsets = memory_zeroed(1, sizeof *d->offsets);
    for (size_t i = 0; i < path_count && rc == 0; i++)
        rc = file_load(d, paths[i], &job, e);
    if (rc == 0)
        rc = dataset_check(d, &job, paths, path_count, e);
    if (rc < 0)
        dataset_destroy(d);
    else
        *out = d;
    return rc;
}

void dataset_destroy(struct dataset *d)
{
    if (!d)
        return;
    free(d->offsets);
    free(d->ids);
    free(d->loss);
    free(d);
}
