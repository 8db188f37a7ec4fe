// SPDX-License-Identifier: Apache-2.0
// A job's ranks as one text in its admin_comment, which steps, nodes and other programs share.
//
// "fp8-lora v1 step 0: 4 ranks, peak 0.21 GiB (rank 3), done {...}": a readable head, then JSON, on
// one line. Text around it belongs to others and is kept. The JSON:
//   {"steps": {"JOB.STEP.RESTART": {
//      "tasks": ranks of the step,
//      "failed": {"rank", "at" (Unix time, ms), "cause"},    the first failure, when there was one
//      "nodes": [[node, ranks, done, peak bytes, its rank], ...],
//      "watch": [[node, what held the cap, how processes were known], ...],   where there was one
//      "ranks": [{"rank", "node", "gpu", "state", "planned", "peak", "by" (peak by category),
//                 "measured" (by the watch, where it did),
//                 "rss", "cap", "tps" (tokens a second), "loss", "exit" (wait status; null: told by
//                 another node's rank), "cause"}, ...]}}}
#ifndef FL_REPORT_COMMENT_H
#define FL_REPORT_COMMENT_H

#include "base/error.h"
#include "report/record.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define COMMENT_LIMIT 8192u // bytes; it travels with every query of the job

struct comment_key {
    uint32_t job, step, restart;
};

// What one node adds about a step.
struct comment_node {
    struct comment_key key;
    uint32_t node, tasks; // number of the node in the job, ranks of the whole step
    int64_t failed_ms;    // Unix time of the node's first failure; 0: none
};

// The entry for one step from the slots that were written. json_decref() it.
json_t *comment_entry(const struct comment_node *node, const struct record *record);

// Merges an entry into old (NULL or "": none) and returns the whole text in *out (free() it), at
// most limit bytes: of what does not fit, ranks' categories go first, then earlier steps' ranks,
// then the ranks with the smallest peaks. A peak is what was measured, else what the rank reported.
// "nodes", and with it the totals, stays.
int comment_merge(const char *old, const struct comment_key *key, const json_t *entry, size_t limit,
                  char **out, struct fl_error *e);

// Whether a text (may be NULL) holds what entry's node says.
int comment_has(const char *text, const struct comment_key *key, const json_t *entry);

// The "steps" object of a text; NULL with an error when it holds none. json_decref() it.
json_t *comment_parse(const char *text, struct fl_error *e);

#endif
