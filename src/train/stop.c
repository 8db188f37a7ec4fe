// SPDX-License-Identifier: Apache-2.0
// The wish that the job end early.
#include "train/stop.h"

#include <signal.h>

static volatile sig_atomic_t noted; // a signal handler has nowhere else to write

static void note(int number)
{
    noted = number;
}

void stop_install(void)
{
    struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESETHAND | SA_RESTART};

    noted = 0;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

int stop_signal(void)
{
    return noted;
}
