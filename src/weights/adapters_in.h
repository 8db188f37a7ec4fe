// SPDX-License-Identifier: Apache-2.0
// Reads adapter_model.safetensors and adapter_config.json back into a rank's adapters.
#ifndef FL_WEIGHTS_ADAPTERS_IN_H
#define FL_WEIGHTS_ADAPTERS_IN_H

#include "net/adapters.h"

// Every rank reads its own part, F32, F16 or BF16. Errors name file and tensor: one that is
// missing, that the job's targets do not have, of another shape, or an A that differs between the
// projections of a fused module; also another rank or alpha than the job's. After an error the
// parameters are undefined.
int adapters_read(const char *folder, const struct spec *spec, const struct model *model,
                  struct adapters *adapters, struct fl_error *e);

#endif
