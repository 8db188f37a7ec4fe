// SPDX-License-Identifier: Apache-2.0
// Which of the node's processes are the step's, and which rank each belongs to.
//
// Where Slurm keeps the step in a cgroup, its processes are those of that cgroup, whose path is
// learned from slurmstepd and its children, never from a name alone: setsid() and double forks do
// not leave a cgroup. Without one (proctrack/linuxproc) they are slurmstepd's descendants,
// processes that were seen to be that once and still live, and, of the job's user alone, those of a
// session that one of these is or was in and those whose environment names the step: what a user
// can forge adds processes of his own. What forks twice, opens a session and clears its environment
// between two looks is not found: only a cgroup holds that. A process is its pid and its start
// time: a pid that the kernel gave to another process is another process.
#ifndef FL_PLUGIN_FAMILY_H
#define FL_PLUGIN_FAMILY_H

#include "base/error.h"
#include "report/record.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define FAMILY_NO_RANK (-1)
#define FAMILY_KNOWN   4096 // processes remembered; of more, those still attached are found anew
#define FAMILY_RANKS   256  // local ranks

struct process {
    pid_t pid, parent, session;
    uint64_t start; // clock ticks after boot
};

// Flat, so that it can lie in memory shared by two processes, of which one at a time uses it.
struct family {
    int proc; // descriptor of /proc, or of a test's tree
    uint32_t job, step, node;
    uid_t uid; // the job's user
    struct process stepd;
    pid_t foreign;     // session that slurmstepd shares with processes that are none of its own
    char cgroup[1024]; // of the step; "": none was found
    pid_t spared[2];
    uint32_t ranks, known;
    struct {
        struct process process;
        int32_t rank;
    } rank[FAMILY_RANKS], member[FAMILY_KNOWN];
};

// Reads one process. -ENOENT: there is none; -EBADMSG: what /proc says cannot be understood.
int process_read(int proc, pid_t pid, struct process *out);

// The family of a step, on its node-th node, whose slurmstepd lives. proc stays the caller's, open
// as long as the family.
int family_init(struct family *family, int proc, uint32_t job, uint32_t step, uint32_t node,
                uid_t uid, pid_t stepd, struct fl_error *e);
// The process that is this rank.
void family_rank(struct family *family, pid_t pid, uint32_t rank);

// The folder that a rank (the index-th told) has to itself in cgroup v2, as /proc names it.
// -ENOENT: none, or none yet.
int family_rank_cgroup(const struct family *family, uint32_t index, char *path, size_t size);

// By what the step's processes are known. Looks for the cgroup until there is one.
enum watch_members family_members(struct family *family);

// Whether the process is the step's, and in *rank (may be NULL) whose: FAMILY_NO_RANK if that is
// not known. slurmstepd, what is spared and, in a user's step, root's processes are not the step's.
bool family_has(struct family *family, pid_t pid, int32_t *rank);
// family_has for every process of the node, so that those that leave later are remembered.
void family_scan(struct family *family);

// Sends signal to every process of the step. Returns how many got it.
int family_signal(struct family *family, int signal);

#endif
