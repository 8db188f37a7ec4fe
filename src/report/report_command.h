// SPDX-License-Identifier: Apache-2.0
// `fp8-lora report`: what a job's ranks used, from Slurm's accounting.
#ifndef FL_REPORT_REPORT_COMMAND_H
#define FL_REPORT_REPORT_COMMAND_H

// argv[0] is the subcommand's name. Returns the exit status: 0, 1 for a job that is unknown or left
// no record, 2 for wrong usage.
int report_command(int argc, char **argv);

#endif
