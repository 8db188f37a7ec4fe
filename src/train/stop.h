// SPDX-License-Identifier: Apache-2.0
// The wish of the person or the scheduler that the job end early: SIGTERM or SIGINT.
#ifndef FL_TRAIN_STOP_H
#define FL_TRAIN_STOP_H

// From here on the first of the two is noted; another one of its kind ends the process.
void stop_install(void);
// The signal noted, or 0.
int stop_signal(void);

#endif
