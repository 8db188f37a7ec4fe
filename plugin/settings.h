// SPDX-License-Identifier: Apache-2.0
// What an administrator says behind the plugin's path in plugstack.conf.
#ifndef FL_PLUGIN_SETTINGS_H
#define FL_PLUGIN_SETTINGS_H

#include "base/error.h"

struct settings {
    const char *core;    // the trainer, run as the job's user
    const char *account; // the accounting helper, run as root
};

// Arguments core=/PATH and account=/PATH replace the compiled-in programs. The strings stay the
// caller's. An unknown argument, or a program others than root could replace, is an error.
int settings_parse(int argc, char *const *argv, struct settings *settings, struct fl_error *e);

// The program is a regular executable file of root's that nobody else may write, nor replace by way
// of a folder above it.
int settings_trusted(const char *path, struct fl_error *e);

#endif
