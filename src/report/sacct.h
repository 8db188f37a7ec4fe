// SPDX-License-Identifier: Apache-2.0
// One job's accounting record, asked of sacct as the person who runs the tool.
#ifndef FL_REPORT_SACCT_H
#define FL_REPORT_SACCT_H

#include "base/error.h"

#include <stddef.h>

struct sacct_job {
    char *text; // what the others point into
    char *id, *state, *exit_code, *admin_comment;
};

// job: digits, for an array task with _digits behind them. Errors: no sacct, an unknown job.
int sacct_load(const char *job, struct sacct_job *out, struct fl_error *e);
void sacct_free(struct sacct_job *job);

// Takes sacct's own line apart; takes ownership of text, also on failure.
int sacct_parse(char *text, const char *job, struct sacct_job *out, struct fl_error *e);

#endif
