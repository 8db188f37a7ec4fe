// SPDX-License-Identifier: Apache-2.0
// What an administrator says behind the plugin's path in plugstack.conf.
#ifndef FL_PLUGIN_SETTINGS_H
#define FL_PLUGIN_SETTINGS_H

#include "base/error.h"
#include "watch.h"

#include <stdbool.h>

#define SETTINGS_GRACE_MS 5000 // without grace=

struct settings {
    const char *core;    // the trainer, run as the job's user
    const char *account; // the accounting helper, run as root
    const char *watch;   // the watch over device memory, run as root
    const char *policy;  // the administrator's file; NULL: none
    const char *nvml;    // the file of libnvidia-ml.so.1, for the watch; NULL: the system's

    uint64_t max_device_memory; // bytes of a rank on a device; 0: no cap
    enum watch_action action;
    enum watch_failure on_failure; // beside a policy: of steps that an unreadable one may govern
    uint32_t grace_ms;
};

// Arguments core=/PATH, account=/PATH, watch=/PATH and nvml=/PATH replace the compiled-in ones. The
// strings stay the caller's. policy=/PATH names the policy. max_device_memory=SIZE caps what a rank
// holds on a device, with action=refuse|kill|warn, on_failure=continue|end and grace=SECONDS. Those
// are of sites without a policy; beside one on_failure=continue lets steps without the option run
// where the policy cannot be read, which otherwise do not. An unknown argument is an error.
int settings_parse(int argc, char *const *argv, struct settings *settings, struct fl_error *e);

// Whether the arguments, right or wrong, want a policy to be read before any step runs.
bool settings_need_policy(int argc, char *const *argv);

// The program is a regular executable file of root's that nobody else may write, nor replace by way
// of a folder above it.
int settings_trusted(const char *path, struct fl_error *e);
// The same of a file that need not be executable.
int settings_trusted_file(const char *path, struct fl_error *e);

#endif
