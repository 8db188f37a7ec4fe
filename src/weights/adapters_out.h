// SPDX-License-Identifier: Apache-2.0
// Trained adapters as PEFT reads them: adapter_model.safetensors and adapter_config.json.
#ifndef FL_WEIGHTS_ADAPTERS_OUT_H
#define FL_WEIGHTS_ADAPTERS_OUT_H

#include "comm/comm.h"
#include "net/adapters.h"

// All ranks of world call it together; rank 0 writes both files into folder, which exists. The
// experts come from the first expert-parallel group, one rank's share of one layer at a time, so
// that rank 0 never holds more than that. Values are stored as F32, exactly as they are trained:
// what is read back continues the same run.
// The files appear together and whole; on failure a folder without adapters stays without. Every
// rank returns rank 0's error.
int adapters_write(const char *folder, const struct spec *spec, const struct model *model,
                   const struct layout *layout, const struct adapters *adapters, struct comm *world,
                   struct fl_error *e);

#endif
