// SPDX-License-Identifier: Apache-2.0
// `fp8-lora placement`: where ranks would run on this machine, or on one in an XML file.
#ifndef FL_PLACE_PLACEMENT_COMMAND_H
#define FL_PLACE_PLACEMENT_COMMAND_H

// argv[0] is the command's name; returns the exit status.
int placement_command(int argc, char **argv);

#endif
