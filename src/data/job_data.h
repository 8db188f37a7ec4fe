// SPDX-License-Identifier: Apache-2.0
// A job's tokenizer and datasets, from its spec.
#ifndef FL_DATA_JOB_DATA_H
#define FL_DATA_JOB_DATA_H

#include "data/dataset.h"
#include "job/model.h"
#include "job/spec.h"

struct job_data {
    struct tokenizer *tokenizer; // NULL: every sample is made
    enum template_kind template;
    struct dataset *train, *validation; // validation NULL: none
};

// Reads tokenizer, template and all samples that spec names. Whatever is returned, job_data_clear()
// it.
int job_data_read(const struct spec *spec, const struct model *model, struct job_data *data,
                  struct fl_error *e);
void job_data_clear(struct job_data *data);

#endif
