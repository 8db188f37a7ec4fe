// SPDX-License-Identifier: Apache-2.0
// In slurmstepd: starts, feeds and stops fp8-lora-watch, which measures the step's device memory.
//
// The watch is a root program of its own, outside slurmstepd's family, with an empty environment
// and numbers as its arguments. A socket joins the two: the watch ends when slurmstepd's end
// closes, and slurmstepd sees in its task_exit hook whether the watch still lives. What the watch
// measures goes into a record that only slurmstepd and the watch map: no task ever holds its
// descriptor, so what stands there is measured, where the step's own record holds what the ranks
// report.
#ifndef FL_PLUGIN_WATCH_H
#define FL_PLUGIN_WATCH_H

#include "base/error.h"
#include "report/record.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define WATCH_INTERVAL_MAX_MS 1000
#define WATCH_GRACE_MAX_MS    3600000
#define WATCH_SOURCE          96 // bytes of source

// What happens to a step over its cap. What was refused before it ran and came to run anyway, by a
// client of the user's own making, is ended as under kill.
enum watch_action { WATCH_REFUSE, WATCH_KILL, WATCH_WARN, WATCH_ACTIONS };

// What happens to a step that cannot be measured (any more).
enum watch_failure { WATCH_CONTINUE, WATCH_END, WATCH_FAILURES };

struct watch_request {
    const char *program; // fp8-lora-watch; settings_trusted() is asked by watch_start
    const char *nvml;    // libnvidia-ml.so.1's own file, or NULL for where the system has it
    uint32_t job, step;
    uint32_t node;  // of the step, as SLURM_NODEID counts
    uint32_t ranks; // of the whole step
    uid_t uid;      // the job's user
    pid_t stepd;
    uint64_t cap_bytes;   // of a rank on a device; 0: measure alone
    uint32_t interval_ms; // 1 to WATCH_INTERVAL_MAX_MS, between two samples
    uint32_t grace_ms;    // over the cap in total, before the step is ended
    enum watch_action action;
    enum watch_failure on_failure;
    const char *source; // of the cap, for messages: "plugstack.conf"; printable ASCII, cut to
                        // WATCH_SOURCE - 1 bytes
};

struct watch;

// slurm_spank_init_post_opt, as root. The request and its strings are needed no longer afterwards.
// Returns before the first sample: what came of it stands in the record. Errors: a number out of
// range, a program or library that others than root could replace, no process.
int watch_start(const struct watch_request *request, struct watch **out, struct fl_error *e);

// slurm_spank_task_post_fork: the process that is, or becomes, a rank.
void watch_task(struct watch *watch, pid_t pid, uint32_t rank);

// What was measured of a rank of this node, into values: measured, watch, members, and gpu, cap and
// cause where the watch knows them. false: nothing.
bool watch_rank(const struct watch *watch, uint32_t rank, struct record_rank *values);

// Whether a watch (NULL: none) ends the step, and in *rank the one in whose slot it says why.
bool watch_ends(const struct watch *watch, uint32_t *rank);

// Never blocks. The watch is gone although it was not stopped; from then on its record says so.
bool watch_lost(struct watch *watch);
// Whether a lost watch means the end of the step.
bool watch_must_end(const struct watch *watch);

// slurm_spank_exit: ends the watch and waits for it, for a second at most. NULL-safe.
void watch_stop(struct watch *watch);

#endif
