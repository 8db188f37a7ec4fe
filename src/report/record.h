// SPDX-License-Identifier: Apache-2.0
// What a step's ranks leave behind: a fixed layout in one sealed memfd, a slot for every rank.
//
// slurmstepd creates it, the ranks inherit it across exec and write their own slot; the daemon and
// the accounting helper read it as hostile input. A slot is guarded by a sequence lock and a
// checksum.
#ifndef FL_REPORT_RECORD_H
#define FL_REPORT_RECORD_H

#include "base/category.h"
#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

#define RECORD_VERSION   2
#define RECORD_RANKS_MAX 65536
#define RECORD_NODE      64
#define RECORD_GPU       64
#define RECORD_CAUSE     256

// In exit_code, until the daemon of the rank's node has seen it end; no wait status.
#define RECORD_EXIT_UNKNOWN 0xffff

// The environment that leads a rank to its record.
#define RECORD_FD_ENV "FP8_LORA_RECORD_FD"

enum rank_state { RANK_EMPTY, RANK_LOADING, RANK_TRAINING, RANK_DONE, RANK_FAILED, RANK_STATES };

// What held the step's device memory under its cap, beside the ranks' own arenas.
enum watch_state {
    WATCH_NONE,     // nobody asked for it
    WATCH_STARTING, // not in force: no sample yet
    WATCH_MEASURES, // without a cap
    WATCH_WATCHES,  // in force: samples, and the action over the cap
    WATCH_LIMITS,   // in force: the driver's limit on every rank's cgroup, and samples
    WATCH_BLIND,    // not in force: it cannot measure
    WATCH_LOST,     // not in force: the watch died
    WATCH_STATES,
};

// By what the watch knows the step's processes.
enum watch_members {
    MEMBERS_UNKNOWN,
    MEMBERS_CGROUP, // the step's cgroup, which nobody leaves
    MEMBERS_FAMILY, // descendants of slurmstepd, once seen, and what SLURM_JOB_ID and
                    // SLURM_STEP_ID of the job's user add
    MEMBERS_KINDS,
};

struct record_rank {
    uint32_t rank, local_rank, ep_rank, dp_rank, state;
    uint32_t watch, members;                 // enum watch_state, enum watch_members
    int32_t pid, exit_code;                  // exit_code: as wait() gives it, written by the daemon
    char node[RECORD_NODE], gpu[RECORD_GPU]; // gpu: UUID or "cpu"
    uint64_t planned[MEMORY_CATEGORIES], planned_total; // bytes
    uint64_t peak[MEMORY_CATEGORIES], peak_total;       // bytes, reported by the rank's arena
    uint64_t measured;           // bytes, most that the rank's processes held on one device
    uint64_t cap;                // bytes, 0 none
    uint64_t rss_peak;           // bytes of host memory
    uint64_t iterations, tokens; // tokens: of this rank
    double tokens_per_second, loss;
    char cause[RECORD_CAUSE]; // why it failed, one line
};

struct record;

// Daemon: creates, sizes, maps and seals a memfd for ranks slots. The descriptor is *fd.
int record_create(uint32_t ranks, struct record **out, int *fd, struct fl_error *e);
// Rank: maps the inherited descriptor after checking size, seals and header.
int record_open(int fd, struct record **out, struct fl_error *e);
void record_close(struct record *record); // unmaps; NULL-safe
uint32_t record_ranks(const struct record *record);

// Writes a whole slot under its sequence lock.
int record_write(struct record *record, const struct record_rank *values);
// watch, members and measured count only in a record that no rank maps.
// A consistent copy; every string is terminated, every number bounded. -EAGAIN: torn after retries;
// -ENOENT: empty; -EINVAL: checksum or content wrong.
int record_read(const struct record *record, uint32_t rank, struct record_rank *values);

// The step is over for everyone: set by the daemon when a local task died, polled by the ranks.
void record_abort(struct record *record, uint32_t rank, int wait_status);
// 1 when aborted, with the rank that died and its wait status.
int record_aborted(const struct record *record, uint32_t *rank, int *wait_status);

#endif
