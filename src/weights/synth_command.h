// SPDX-License-Identifier: Apache-2.0
// `fp8-lora synth`: a checkpoint of any shape without a download.
#ifndef FL_WEIGHTS_SYNTH_COMMAND_H
#define FL_WEIGHTS_SYNTH_COMMAND_H

// argv[0] is the command's name; returns the exit status.
int synth_command(int argc, char **argv);

#endif
