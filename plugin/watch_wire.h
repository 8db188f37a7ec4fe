// SPDX-License-Identifier: Apache-2.0
// What passes between slurmstepd and fp8-lora-watch when it starts and afterwards.
//
// The watch's arguments are numbers: JOB STEP NODE UID SLURMSTEPD CAP_BYTES INTERVAL_MS GRACE_MS
// ACTION ON_FAILURE. Its descriptors: below. Messages go one way, from slurmstepd.
#ifndef FL_PLUGIN_WATCH_WIRE_H
#define FL_PLUGIN_WATCH_WIRE_H

#include "helper.h"
#include "watch.h"

#include <stdint.h>

enum {
    WIRE_SOCKET = HELPER_FD, // SOCK_SEQPACKET, a message each
    WIRE_RECORD,             // the watch's own record
    WIRE_LIBRARY,            // libnvidia-ml.so.1's own file, where the administrator names one
};

#define WIRE_NUMBERS 10

// kind WIRE_TELLS_SOURCE: text. WIRE_TELLS_RANK: process pid is this rank.
enum { WIRE_TELLS_SOURCE, WIRE_TELLS_RANK };

struct wire_message {
    uint32_t kind, rank;
    int32_t pid;
    char text[WATCH_SOURCE];
};

#endif
