// SPDX-License-Identifier: Apache-2.0
// Which of the node's processes are the step's, and which rank each belongs to.
#include "family.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEPTH_MAX   64           // ancestors looked at
#define ENVIRON_MAX (256 * 1024) // bytes of an environment looked at

// The beginning of /proc/PID/NAME, terminated; bytes read or a negative errno.
static ssize_t proc_text(int proc, pid_t pid, const char *name, char *text, size_t size)
{
    char path[64];
    size_t used = 0;
    ssize_t got;
    int fd, code = 0;

    snprintf(path, sizeof path, "%d/%s", pid, name);
    fd = openat(proc, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -errno;
    while (used + 1 < size && (got = read(fd, text + used, size - 1 - used))) {
        if (got < 0) {
            code = -errno; // -ESRCH: it ended meanwhile
            break;
        }
        used += (size_t)got;
    }
    close(fd);
    text[used] = 0;
    return code ? code : (ssize_t)used;
}

int process_read(int proc, pid_t pid, struct process *out)
{
    unsigned long long start;
    char text[1024], state;
    const char *rest;
    ssize_t got = proc_text(proc, pid, "stat", text, sizeof text);
    int parent, session;

    if (got < 0)
        return got == -ESRCH ? -ENOENT : (int)got;
    rest = strrchr(text, ')'); // the command's name may hold anything, ")" too
    if (!rest || atoi(text) != pid ||
        sscanf(rest + 1,
               " %c %d %*d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &state, &parent, &session, &start) != 4 ||
        parent < 0)
        return -EBADMSG;
    *out = (struct process){.pid = pid, .parent = parent, .session = session, .start = start};
    return 0;
}

static bool same(const struct process *a, const struct process *b)
{
    return a->pid == b->pid && a->start == b->start;
}

int family_init(struct family *family, int proc, uint32_t job, uint32_t step, uint32_t node,
                uid_t uid, pid_t stepd, struct fl_error *e)
{
    struct process other;
    pid_t leader;
    int code;

    memset(family, 0, sizeof *family);
    family->proc = proc;
    family->job = job;
    family->step = step;
    family->node = node;
    family->uid = uid;
    code = process_read(proc, stepd, &family->stepd);
    if (code)
        return error_set(e, code, "slurmstepd %d: %s", stepd, strerror(-code));
    // slurmd gives every slurmstepd a session, whose leader has ended; by hand it may be a shell's.
    leader = family->stepd.session;
    if (leader != stepd && process_read(proc, leader, &other) != -ENOENT)
        family->foreign = leader;
    return 0;
}

void family_rank(struct family *family, pid_t pid, uint32_t rank)
{
    struct process process;

    if (family->ranks == FAMILY_RANKS || process_read(family->proc, pid, &process))
        return;
    family->rank[family->ranks].process = process;
    family->rank[family->ranks++].rank = (int32_t)rank;
}

// ---- by cgroup

// The step's folder in a line of /proc/PID/cgroup, "ID:CONTROLLERS:PATH": from the first "/" up to
// and with job_J/step_S. Its length in *length; NULL: the line has none.
static const char *line_step(const struct family *family, char *line, size_t *length)
{
    char name[48], *path = strchr(line, ':'), *found;
    size_t named;

    path = path ? strchr(path + 1, ':') : NULL;
    if (!path || path[1] != '/')
        return NULL;
    path++;
    named = (size_t)snprintf(name, sizeof name, "/job_%u/step_%u", family->job, family->step);
    for (found = path; (found = strstr(found, name)); found++) {
        if (found[named] && found[named] != '/')
            continue;
        *length = (size_t)(found - path) + named;
        return path;
    }
    return NULL;
}

// Whether a line of the process's cgroups lies in the step's. learn: any line that names the step
// is the step's, while none is known.
static bool cgroup_has(struct family *family, pid_t pid, bool learn)
{
    char text[8192], *rest = text, *line;
    size_t length;

    if (proc_text(family->proc, pid, "cgroup", text, sizeof text) < 0)
        return false;
    while ((line = strsep(&rest, "\n"))) {
        const char *path = line_step(family, line, &length);
        if (!path || length >= sizeof family->cgroup)
            continue;
        if (!learn && !strcmp(path + length, "/slurm")) // version 2: slurmstepd and its helpers
            continue;
        if (learn && !family->cgroup[0])
            memcpy(family->cgroup, path, length); // the rest is zero
        if (strlen(family->cgroup) == length && !memcmp(path, family->cgroup, length))
            return true;
    }
    return false;
}

enum watch_members family_members(struct family *family)
{
    if (!family->cgroup[0])
        (void)cgroup_has(family, family->stepd.pid, true);
    for (uint32_t i = 0; i < family->ranks && !family->cgroup[0]; i++) {
        struct process now;
        if (!process_read(family->proc, family->rank[i].process.pid, &now) &&
            same(&now, &family->rank[i].process))
            (void)cgroup_has(family, now.pid, true);
    }
    return family->cgroup[0] ? MEMBERS_CGROUP : MEMBERS_FAMILY;
}

// The folder of cgroup v2 that a process shares with one task of the step alone.
static int task_cgroup(const struct family *family, pid_t pid, char *path, size_t size)
{
    char text[8192], *rest = text, *line;
    size_t length;

    if (proc_text(family->proc, pid, "cgroup", text, sizeof text) < 0)
        return -ENOENT;
    while ((line = strsep(&rest, "\n"))) {
        const char *found = strncmp(line, "0::", 3) ? NULL : line_step(family, line, &length);
        if (found && !strncmp(found + length, "/user/task_", 11) && strlen(found) < size) {
            memcpy(path, found, strlen(found) + 1);
            return 0;
        }
    }
    return -ENOENT;
}

int family_rank_cgroup(const struct family *family, uint32_t index, char *path, size_t size)
{
    const struct process *rank = &family->rank[index].process;
    struct process now;

    if (process_read(family->proc, rank->pid, &now) || !same(&now, rank))
        return -ENOENT;
    return task_cgroup(family, rank->pid, path, size);
}

// The rank whose folder the process is in.
static int32_t cgroup_rank(const struct family *family, pid_t pid)
{
    char own[1024], rank[1024];

    if (task_cgroup(family, pid, own, sizeof own))
        return FAMILY_NO_RANK;
    for (uint32_t i = 0; i < family->ranks; i++)
        if (!family_rank_cgroup(family, i, rank, sizeof rank) && !strcmp(own, rank))
            return family->rank[i].rank;
    return FAMILY_NO_RANK;
}

// ---- by descent and environment

static int64_t status_uid(const struct family *family, pid_t pid)
{
    char text[4096];
    const char *line;

    if (proc_text(family->proc, pid, "status", text, sizeof text) < 0)
        return -1;
    line = strstr(text, "\nUid:\t"); // the real one: a program cannot choose it
    return line && isdigit((unsigned char)line[6]) ? strtoll(line + 6, NULL, 10) : -1;
}

static const char *environ_value(const char *text, size_t size, const char *name)
{
    size_t length = strlen(name);

    for (size_t at = 0; at < size; at += strlen(text + at) + 1)
        if (!strncmp(text + at, name, length) && text[at + length] == '=')
            return text + at + length + 1;
    return NULL;
}

static bool value_is(const char *value, uint32_t number)
{
    char *rest;

    return value && isdigit((unsigned char)*value) && strtoull(value, &rest, 10) == number &&
           !*rest;
}

// Whether the environment names the step on this node; *rank: that it names.
static bool environ_names(const struct family *family, pid_t pid, int32_t *rank)
{
    static char text[ENVIRON_MAX];
    ssize_t size = proc_text(family->proc, pid, "environ", text, sizeof text);
    const char *value;

    if (size <= 0 || !value_is(environ_value(text, (size_t)size, "SLURM_JOB_ID"), family->job) ||
        !value_is(environ_value(text, (size_t)size, "SLURM_STEP_ID"), family->step) ||
        !value_is(environ_value(text, (size_t)size, "SLURM_NODEID"), family->node))
        return false;
    value = environ_value(text, (size_t)size, "SLURM_PROCID");
    for (uint32_t i = 0; i < family->ranks; i++)
        if (value_is(value, (uint32_t)family->rank[i].rank))
            *rank = family->rank[i].rank;
    return true;
}

static int32_t rank_of(const struct family *family, const struct process *process)
{
    for (uint32_t i = 0; i < family->ranks; i++)
        if (same(&family->rank[i].process, process))
            return family->rank[i].rank;
    return FAMILY_NO_RANK;
}

// The index of a remembered process; its number of members when it is none.
static uint32_t member_find(const struct family *family, const struct process *process)
{
    uint32_t i = 0;

    while (i < family->known && !same(&family->member[i].process, process))
        i++;
    return i;
}

static void member_add(struct family *family, const struct process *process, int32_t rank)
{
    uint32_t i = member_find(family, process), oldest = 0;
    struct process now;

    if (i == family->known && family->known < FAMILY_KNOWN)
        family->known++;
    else if (i == FAMILY_KNOWN) { // full: in the place of one that has ended, if there is one
        while (oldest < FAMILY_KNOWN &&
               !process_read(family->proc, family->member[oldest].process.pid, &now) &&
               same(&now, &family->member[oldest].process))
            oldest++;
        if (oldest == FAMILY_KNOWN)
            return;
        i = oldest;
    }
    family->member[i].process = *process;
    family->member[i].rank = rank;
}

// Walks up to slurmstepd, a rank or a remembered process.
static bool descends(struct family *family, struct process process, int32_t *rank)
{
    for (int depth = 0; depth < DEPTH_MAX; depth++) {
        struct process parent;
        uint32_t known = member_find(family, &process);
        int32_t own = rank_of(family, &process);
        if (own != FAMILY_NO_RANK || known < family->known) {
            *rank = own != FAMILY_NO_RANK ? own : family->member[known].rank;
            return true;
        }
        if (process.parent <= 1 || process_read(family->proc, process.parent, &parent) ||
            parent.start > process.start) // a pid that was given anew
            return false;
        if (same(&parent, &family->stepd))
            return true;
        process = parent;
    }
    return false;
}

// Whether a process of the family is or was in the session. A session keeps its number from being
// given to others until its last process has ended.
static bool session_has(const struct family *family, pid_t session, int32_t *rank)
{
    if (session <= 0 || session == family->foreign)
        return false;
    if (session == family->stepd.session)
        return true;
    for (uint32_t i = 0; i < family->known; i++)
        if (family->member[i].process.session == session) {
            *rank = family->member[i].rank;
            return true;
        }
    return false;
}

bool family_has(struct family *family, pid_t pid, int32_t *rank)
{
    struct process process;
    int32_t whose = FAMILY_NO_RANK, told = FAMILY_NO_RANK;
    int64_t uid;

    if (pid == family->spared[0] || pid == family->spared[1] ||
        process_read(family->proc, pid, &process) || same(&process, &family->stepd))
        return false;
    uid = status_uid(family, pid);
    if (!uid && family->uid && rank_of(family, &process) == FAMILY_NO_RANK)
        return false; // a helper of slurmstepd's
    if (!descends(family, process, &whose) &&
        !(family->cgroup[0]
              ? cgroup_has(family, pid, false)
              : uid == (int64_t)family->uid && (session_has(family, process.session, &whose) ||
                                                environ_names(family, pid, &whose))))
        return false;
    if (whose == FAMILY_NO_RANK)
        whose = cgroup_rank(family, pid);
    if (whose == FAMILY_NO_RANK && environ_names(family, pid, &told))
        whose = told;
    member_add(family, &process, whose);
    if (rank)
        *rank = whose;
    return true;
}

static void each_process(struct family *family, void (*visit)(struct family *, pid_t, void *),
                         void *context)
{
    int fd = openat(family->proc, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;

    if (!folder) {
        if (fd >= 0)
            close(fd);
        return;
    }
    while ((entry = readdir(folder)))
        if (isdigit((unsigned char)entry->d_name[0]))
            visit(family, (pid_t)atoi(entry->d_name), context);
    closedir(folder);
}

static void visit_scan(struct family *family, pid_t pid, void *context)
{
    (void)context;
    (void)family_has(family, pid, NULL);
}

void family_scan(struct family *family)
{
    each_process(family, visit_scan, NULL);
}

struct signalling {
    int signal, sent;
};

// The descriptor holds the process, so that what is checked is what gets the signal.
static void visit_signal(struct family *family, pid_t pid, void *context)
{
    struct signalling *signalling = context;
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);

    if (fd < 0)
        return;
    if (family_has(family, pid, NULL) &&
        !syscall(SYS_pidfd_send_signal, fd, signalling->signal, NULL, 0))
        signalling->sent++;
    close(fd);
}

int family_signal(struct family *family, int signal)
{
    struct signalling signalling = {.signal = signal};

    family_scan(family); // before the first one's end gives its children away
    each_process(family, visit_signal, &signalling);
    return signalling.sent;
}
