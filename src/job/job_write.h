// SPDX-License-Identifier: Apache-2.0
// A job.yaml with some keys changed.
#ifndef FL_JOB_JOB_WRITE_H
#define FL_JOB_JOB_WRITE_H

#include "job/spec.h"

// What the job's user wrote, with the keys in which changed differs from spec replaced where they
// stand, or added at the end. text: of the job.yaml that spec was read from, name its name; NULL
// for a job of flags, which becomes a whole file of the keys that are not at their presets. free()
// *out.
int job_write(const struct spec *spec, const struct spec *changed, const char *text,
              const char *name, char **out, struct fl_error *e);

#endif
