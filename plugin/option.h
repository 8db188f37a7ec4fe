// SPDX-License-Identifier: Apache-2.0
// --fp8-lora and --fp8-lora-show-placement, registered in every context.
#ifndef FL_PLUGIN_OPTION_H
#define FL_PLUGIN_OPTION_H

#include <slurm/spank.h>
#include <stdbool.h>

#define OPTION_NAME "fp8-lora"
#define OPTION_SHOW "fp8-lora-show-placement"

// Called from slurm_spank_init.
int option_register(spank_t spank);

// Whether this client was given the option; on a node: whether the step carries it, inherited or
// not.
bool option_given(void);

// Whether a client found the second option, its own or inherited.
bool option_show_seen(void);

// What stood behind "=", or NULL.
char *option_argument(void);

#endif
