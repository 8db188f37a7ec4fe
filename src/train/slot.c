// SPDX-License-Identifier: Apache-2.0
// What this rank tells about itself, and what the record tells about the others.
#include "train/slot.h"

#include "base/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define EXPLAIN_TRIES 30 // of 100 ms

struct slot {
    struct record *record; // NULL: unrecorded
    struct record_rank mine;
    struct record_rank *all; // [world], as of the last share
    int world;
};

static void mine_write(struct slot *slot)
{
    if (slot->record)
        (void)record_write(slot->record, &slot->mine);
}

static int record_find(struct slot *slot, struct fl_error *e)
{
    const char *text = getenv(RECORD_FD_ENV);
    int rc;

    if (!text)
        return 0;
    rc = record_open(atoi(text), &slot->record, e);
    if (rc == 0 && record_ranks(slot->record) != (uint32_t)slot->world)
        rc = error_set(e, -EINVAL, "record: made for %u ranks, the job has %d",
                       record_ranks(slot->record), slot->world);
    return rc;
}

int slot_create(const struct plan *plan, int local_rank, uint64_t cap, struct slot **out,
                struct fl_error *e)
{
    struct slot *slot = memory_zeroed(1, sizeof *slot);
    struct record_rank *mine = &slot->mine;
    const char *node = getenv("SLURMD_NODENAME");
    int rc;

    *out = NULL;
    slot->world = plan->layout.world;
    slot->all = memory_zeroed((size_t)slot->world, sizeof *slot->all);
    rc = record_find(slot, e);
    if (rc < 0) {
        slot_destroy(slot);
        return rc;
    }
    mine->rank = (uint32_t)plan->layout.rank;
    mine->local_rank = (uint32_t)local_rank;
    mine->ep_rank = (uint32_t)plan->layout.ep_rank;
    mine->dp_rank = (uint32_t)plan->layout.dp_rank;
    mine->pid = getpid();
    mine->exit_code = RECORD_EXIT_UNKNOWN;
    if (node) // several of a test cluster may be on one host
        snprintf(mine->node, sizeof mine->node, "%s", node);
    else
        gethostname(mine->node, sizeof mine->node - 1);
    snprintf(mine->gpu, sizeof mine->gpu, "cpu");
    memcpy(mine->planned, plan->bytes, sizeof mine->planned);
    mine->planned_total = plan->total_bytes;
    mine->cap = cap;
    slot_state(slot, RANK_LOADING, NULL);
    *out = slot;
    return 0;
}

void slot_destroy(struct slot *slot)
{
    if (!slot)
        return;
    record_close(slot->record);
    free(slot->all);
    free(slot);
}

void slot_state(struct slot *slot, enum rank_state state, const char *cause)
{
    slot->mine.state = state;
    snprintf(slot->mine.cause, sizeof slot->mine.cause, "%s", cause ? cause : "");
    mine_write(slot);
}

void slot_gpu(struct slot *slot, const char *gpu)
{
    snprintf(slot->mine.gpu, sizeof slot->mine.gpu, "%s", gpu);
}

void slot_memory(struct slot *slot, const struct arena *arena)
{
    struct arena_stats stats;
    struct rusage usage;

    arena_stats_get(arena, &stats);
    memcpy(slot->mine.peak, stats.peak, sizeof slot->mine.peak);
    slot->mine.peak_total = stats.peak_total;
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        slot->mine.rss_peak = (uint64_t)usage.ru_maxrss * 1024;
    mine_write(slot);
}

void slot_progress(struct slot *slot, int64_t iterations, int64_t tokens, double tokens_per_second,
                   double loss)
{
    slot->mine.iterations = (uint64_t)iterations;
    slot->mine.tokens = (uint64_t)tokens;
    slot->mine.tokens_per_second = tokens_per_second;
    slot->mine.loss = loss;
    mine_write(slot);
}

int slot_share(struct slot *slot, struct comm *world, struct fl_error *e)
{
    int rc = comm_all_gather(world, &slot->mine, slot->all, sizeof slot->mine, e);

    if (rc < 0 || !slot->record || slot->mine.local_rank != 0)
        return rc;
    for (int i = 0; i < slot->world; i++)
        if (strcmp(slot->all[i].node, slot->mine.node) != 0)
            (void)record_write(slot->record, &slot->all[i]);
    return 0;
}

uint64_t slot_peak_most(const struct slot *slot)
{
    uint64_t most = 0;

    for (int i = 0; i < slot->world; i++)
        if (slot->all[i].peak_total > most)
            most = slot->all[i].peak_total;
    return most;
}

void slot_peaks(const struct slot *slot, uint64_t peaks[MEMORY_CATEGORIES])
{
    memset(peaks, 0, MEMORY_CATEGORIES * sizeof *peaks);
    for (int i = 0; i < slot->world; i++)
        for (int c = 0; c < MEMORY_CATEGORIES; c++)
            if (slot->all[i].peak[c] > peaks[c])
                peaks[c] = slot->all[i].peak[c];
}

int slot_watch(void *context, struct fl_error *e)
{
    struct slot *slot = context;
    struct record_rank dead = {0};
    const char *cause;
    uint32_t rank;
    int status;

    if (!slot->record || !record_aborted(slot->record, &rank, &status))
        return 0;
    if (record_read(slot->record, rank, &dead) < 0)
        snprintf(dead.node, sizeof dead.node, "state unknown");
    cause = dead.cause[0] ? dead.cause : "stopping";
    if (slot->mine.local_rank != (dead.local_rank == 0 ? 1 : 0))
        return error_set(e, -ECONNABORTED, "%s", "");
    if (WIFSIGNALED(status))
        return error_set(e, -ECONNABORTED, "rank %u (%s) died by signal %d: %s", rank, dead.node,
                         WTERMSIG(status), cause);
    return error_set(e, -ECONNABORTED, "rank %u (%s) exited with code %d: %s", rank, dead.node,
                     WEXITSTATUS(status), cause);
}

void slot_explain(struct slot *slot, struct fl_error *e)
{
    struct fl_error told;

    for (int i = 0; slot->record && i < EXPLAIN_TRIES; i++) {
        if (slot_watch(slot, &told) < 0) {
            *e = told;
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}
