// SPDX-License-Identifier: Apache-2.0
// `fp8-lora data`: what a job will train on, as its tokens see it.
#ifndef FL_DATA_DATA_COMMAND_H
#define FL_DATA_DATA_COMMAND_H

// argv[0] is the command's name; returns the exit status.
int data_command(int argc, char **argv);

#endif
