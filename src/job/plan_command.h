// SPDX-License-Identifier: Apache-2.0
// `fp8-lora plan`: a job's parameters and bytes, without a GPU and without weights.
#ifndef FL_JOB_PLAN_COMMAND_H
#define FL_JOB_PLAN_COMMAND_H

// argv[0] is the subcommand's name. Returns the exit status: 0, 1 for a job that is refused or
// above the cap, 2 for wrong usage.
int plan_command(int argc, char **argv);

#endif
