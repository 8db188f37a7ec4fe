// SPDX-License-Identifier: Apache-2.0
// The watch: verdicts over injected samples and clocks, families in made /proc trees, the driver's
// library with injected values, and the real program over a real process.
#include "unit/check.h"

#include "plugin/family.h"
#include "plugin/nvml.h"
#include "plugin/settings.h"
#include "plugin/verdict.h"
#include "plugin/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GIB (UINT64_C(1) << 30)

// ---- verdicts

static struct verdict verdict_of(enum watch_action action, enum watch_failure on_failure,
                                 uint32_t grace_ms)
{
    return (struct verdict){
        .cap_bytes = GIB, .grace_ms = grace_ms, .action = action, .on_failure = on_failure};
}

// One process of rank 0 with so many bytes.
static enum verdict_call one(struct verdict *verdict, uint64_t bytes, int64_t now_ms)
{
    struct use use = {.pid = 7, .rank = 0, .bytes = bytes};
    struct use_sum worst;

    return verdict_sample(verdict, &use, 1, now_ms, &worst);
}

static void grace_is_counted(void **state)
{
    struct verdict v = verdict_of(WATCH_KILL, WATCH_CONTINUE, 2000);
    (void)state;
    assert_int_equal(one(&v, GIB, 0), CALL_NOTHING); // at the cap is not over it
    assert_int_equal(one(&v, GIB + 1, 1000), CALL_TELL);
    assert_int_equal(one(&v, GIB + 1, 2000), CALL_NOTHING);
    assert_int_equal(one(&v, GIB + 1, 2999), CALL_NOTHING);
    assert_int_equal(one(&v, GIB + 1, 3000), CALL_TERM);
    assert_int_equal(one(&v, GIB + 1, 4000), CALL_NOTHING);
    assert_int_equal(one(&v, 0, 4999), CALL_NOTHING);
    assert_int_equal(one(&v, 0, 5000), CALL_KILL); // whatever it gave back meanwhile
    assert_int_equal(one(&v, 0, 6000), CALL_KILL);
}

static void grace_is_not_won_again(void **state)
{
    struct verdict v = verdict_of(WATCH_KILL, WATCH_CONTINUE, 2000);
    (void)state;
    assert_int_equal(one(&v, 2 * GIB, 0), CALL_TELL);
    assert_int_equal(one(&v, 2 * GIB, 1500), CALL_NOTHING);
    assert_int_equal(one(&v, 0, 2000), CALL_NOTHING);
    assert_int_equal(one(&v, 0, 100000), CALL_NOTHING); // time under the cap costs nothing
    assert_int_equal(one(&v, 2 * GIB, 100500), CALL_NOTHING);
    assert_int_equal(one(&v, 2 * GIB, 101000), CALL_TERM);
}

static void actions(void **state)
{
    struct verdict warn = verdict_of(WATCH_WARN, WATCH_CONTINUE, 0),
                   none = verdict_of(WATCH_KILL, WATCH_CONTINUE, 0),
                   refuse = verdict_of(WATCH_REFUSE, WATCH_CONTINUE, 0);
    (void)state;
    assert_int_equal(one(&warn, 2 * GIB, 0), CALL_TELL);
    for (int64_t t = 1000; t < 10000; t += 1000)
        assert_int_equal(one(&warn, 2 * GIB, t), CALL_NOTHING);
    assert_int_equal(one(&refuse, 2 * GIB, 0), CALL_TERM); // no grace
    none.cap_bytes = 0;
    assert_int_equal(one(&none, UINT64_MAX, 0), CALL_NOTHING);
}

static void failures(void **state)
{
    struct verdict go = verdict_of(WATCH_KILL, WATCH_CONTINUE, 2000),
                   end = verdict_of(WATCH_KILL, WATCH_END, 2000);
    (void)state;
    assert_int_equal(verdict_failure(&go, false, 0), CALL_NOTHING);
    assert_int_equal(verdict_failure(&go, false, 1000), CALL_NOTHING);
    assert_int_equal(one(&go, 0, 1500), CALL_NOTHING); // a good one between: none in a row
    assert_int_equal(verdict_failure(&go, false, 2000), CALL_NOTHING);
    assert_int_equal(verdict_failure(&go, false, 3000), CALL_NOTHING);
    assert_int_equal(verdict_failure(&go, false, 4000), CALL_BLIND);
    assert_int_equal(verdict_failure(&go, false, 5000), CALL_NOTHING); // told once
    assert_int_equal(one(&go, 2 * GIB, 6000), CALL_TELL);              // it sees again
    assert_int_equal(verdict_failure(&go, true, 7000), CALL_BLIND);

    assert_int_equal(verdict_failure(&end, false, 0), CALL_NOTHING);
    assert_int_equal(verdict_failure(&end, false, 1000), CALL_NOTHING);
    assert_int_equal(verdict_failure(&end, false, 2000), CALL_TERM);
    assert_int_equal(verdict_failure(&end, false, 3000), CALL_NOTHING);
    assert_int_equal(verdict_failure(&end, false, 4000), CALL_KILL);
    end = verdict_of(WATCH_WARN, WATCH_END, 0);
    assert_int_equal(verdict_failure(&end, true, 0), CALL_TERM);

    go = verdict_of(WATCH_KILL, WATCH_CONTINUE, 2000); // time that nobody saw is not counted
    assert_int_equal(one(&go, 2 * GIB, 0), CALL_TELL);
    assert_int_equal(verdict_failure(&go, false, 1000), CALL_NOTHING);
    assert_int_equal(one(&go, 2 * GIB, 60000), CALL_NOTHING);
    assert_int_equal(one(&go, 2 * GIB, 62000), CALL_TERM);
}

// A rank's processes count together, device by device; those of no known rank as one more rank.
static void sums(void **state)
{
    const struct use uses[] = {{0, 10, 0, 600},
                               {0, 11, 0, 500},
                               {1, 10, 0, 900},
                               {0, 12, 1, 1000},
                               {0, 20, FAMILY_NO_RANK, 700},
                               {0, 21, FAMILY_NO_RANK, 700},
                               {1, 12, 1, 1200}};
    const struct use huge[] = {{0, 1, 0, UINT64_MAX - 1}, {0, 2, 0, UINT64_MAX - 1}};
    struct verdict v = verdict_of(WATCH_KILL, WATCH_CONTINUE, 0);
    struct use_sum sum;
    (void)state;
    assert_true(uses_sum(uses, 7, 0, &sum));
    assert_int_equal(sum.bytes, 1100);
    assert_int_equal(sum.device, 0);
    assert_int_equal(sum.largest, 10);
    assert_int_equal(sum.largest_bytes, 600);
    assert_true(uses_sum(uses, 7, 1, &sum));
    assert_int_equal(sum.bytes, 1200);
    assert_int_equal(sum.device, 1);
    assert_false(uses_sum(uses, 7, 2, &sum));
    v.cap_bytes = 1399;
    assert_int_equal(verdict_sample(&v, uses, 7, 0, &sum), CALL_TERM);
    assert_int_equal(sum.rank, FAMILY_NO_RANK);
    assert_int_equal(sum.bytes, 1400);
    v = verdict_of(WATCH_KILL, WATCH_CONTINUE, 0);
    v.cap_bytes = 1400;
    assert_int_equal(verdict_sample(&v, uses, 7, 0, &sum), CALL_NOTHING);
    assert_int_equal(verdict_sample(&v, NULL, 0, 1, &sum), CALL_NOTHING);
    assert_int_equal(sum.bytes, 0);
    assert_int_equal(verdict_sample(&v, huge, 2, 2, &sum), CALL_TERM); // no sum wraps
    assert_true(sum.bytes == UINT64_MAX);
}

// ---- families

static char tree[] = "/tmp/fl-watch-XXXXXX";

static void text_put(const char *path, const char *text, size_t size)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static void file_put(int pid, const char *name, const char *text, size_t size)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%d", tree, pid);
    (void)mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/%d/%s", tree, pid, name);
    text_put(path, text, size);
}

struct made {
    int pid, parent, session, start, uid;
    const char *cgroup, *environ; // words behind one another, separated by newlines
};

static void process_put(struct made made)
{
    char text[512];
    size_t size;

    snprintf(text, sizeof text,
             "%d (a b) R 9 (c)) S %d %d %d 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 %d 9 9\n",
             made.pid, made.parent, made.pid, made.session, made.start);
    file_put(made.pid, "stat", text, strlen(text));
    snprintf(text, sizeof text, "Name:\ta\nUmask:\t0022\nUid:\t%d\t%d\t%d\t%d\n", made.uid,
             made.uid, made.uid, made.uid);
    file_put(made.pid, "status", text, strlen(text));
    file_put(made.pid, "cgroup", made.cgroup ? made.cgroup : "0::/\n",
             strlen(made.cgroup ? made.cgroup : "0::/\n"));
    snprintf(text, sizeof text, "%s", made.environ ? made.environ : "");
    size = strlen(text) + (made.environ != NULL);
    for (size_t i = 0; i < size; i++)
        if (text[i] == '\n')
            text[i] = 0;
    file_put(made.pid, "environ", text, size);
}

static int entry_remove(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
    (void)s;
    (void)type;
    return ftw->level ? remove(path) : 0;
}

static void tree_clear(void)
{
    assert_int_equal(nftw(tree, entry_remove, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static void process_end(int pid)
{
    char path[128];

    snprintf(path, sizeof path, "%s/%d", tree, pid);
    assert_int_equal(nftw(path, entry_remove, 8, FTW_DEPTH | FTW_PHYS), 0);
    assert_int_equal(rmdir(path), 0);
}

#define USER 1000
static struct family family;

// slurmstepd 100 of step 77.2 with ranks 3 (pid 110) and 4 (pid 111).
static void family_begin(const char *stepd_cgroup, const char *rank_cgroup)
{
    static int proc = -1;
    struct fl_error e;

    tree_clear();
    process_put((struct made){100, 1, 99, 1000, 0, stepd_cgroup, NULL});
    process_put((struct made){110, 100, 99, 1010, USER, rank_cgroup, "SLURM_PROCID=3"});
    process_put((struct made){111, 100, 99, 1010, USER, rank_cgroup, "SLURM_PROCID=4"});
    if (proc >= 0)
        close(proc);
    proc = open(tree, O_RDONLY | O_DIRECTORY);
    assert_true(proc >= 0);
    check_ok(family_init(&family, proc, 77, 2, 5, USER, 100, &e), &e);
    family_rank(&family, 110, 3);
    family_rank(&family, 111, 4);
}

static void has(int pid, int32_t wanted)
{
    int32_t rank = 99;

    if (!family_has(&family, pid, &rank))
        fail_msg("process %d is not of the family", pid);
    if (rank != wanted)
        fail_msg("process %d is of rank %d, wanted %d", pid, rank, wanted);
}

static void has_not(int pid)
{
    if (family_has(&family, pid, NULL))
        fail_msg("process %d is of the family", pid);
}

static void processes_are_read(void **state)
{
    static const char *const broken[] = {
        "",
        "120",
        "120 (a",
        "120 (a) S",
        "120 (a) S 100 1 1",
        "120 (a) S x 1 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 5 9 9",
        "120 (a) S -1 1 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 5 9 9",
        "121 (a) S 1 1 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 5 9 9", // another's
        "\xff\xfe\n\n",
    };
    struct process p;
    (void)state;
    family_begin(NULL, NULL);
    assert_int_equal(process_read(family.proc, 110, &p), 0); // its name is "a b) R 9 (c)"
    assert_int_equal(p.parent, 100);
    assert_int_equal(p.session, 99);
    assert_int_equal(p.start, 1010);
    assert_int_equal(process_read(family.proc, 119, &p), -ENOENT);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        file_put(120, "stat", broken[i], strlen(broken[i]));
        assert_int_equal(process_read(family.proc, 120, &p), -EBADMSG);
        has_not(120);
    }
    family_scan(&family); // goes on behind it
    has(111, 4);
}

static void cgroups(void **state)
{
    static const char *const layouts[][2] = {
        // slurmstepd's, a task's
        {"5:memory:/slurm_n0/uid_1000/job_77/step_2\n4:freezer:/\n0::/x\n",
         "5:memory:/slurm_n0/uid_1000/job_77/step_2/task_0\n4:freezer:/slurm_n0/uid_1000/job_77/"
         "step_2\n"},
        {"4:freezer:/\n", "5:memory:/\n4:freezer:/slurm_n0/uid_1000/job_77/step_2\n"},
        {"0::/system.slice/slurmstepd.scope/job_77/step_2/slurm\n",
         "0::/system.slice/slurmstepd.scope/job_77/step_2/user/task_0\n"},
        {"0::/system.slice/n0_slurmstepd.scope/job_77/step_2/slurm\n",
         "0::/system.slice/n0_slurmstepd.scope/job_77/step_2/user/task_1\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const char *task = layouts[i][1];
        family_begin(layouts[i][0], task);
        assert_int_equal(family_members(&family), MEMBERS_CGROUP);
        has_not(100);
        has(110, 3);
        // setsid(), two forks, no environment
        process_put((struct made){130, 1, 130, 2000, USER, task, NULL});
        has(130, strstr(task, "/user/") ? 3 : FAMILY_NO_RANK); // a folder of both ranks here
        // the same with an environment, which tells the rank alone
        process_put(
            (struct made){131, 1, 131, 2000, USER, task,
                          "A=b\nSLURM_JOB_ID=77\nSLURM_STEP_ID=2\nSLURM_NODEID=5\nSLURM_PROCID=4"});
        has(131, strstr(task, "/user/") ? 3 : 4);
        // other users' ids inside, as a container's
        process_put((struct made){132, 1, 132, 2000, 100999, task, NULL});
        has(132, strstr(task, "/user/") ? 3 : FAMILY_NO_RANK);
        // slurmstepd's helpers
        process_put((struct made){133, 1, 133, 2000, 0, task, NULL});
        has_not(133);
        process_put((struct made){134, 100, 134, 2000, 0, layouts[i][0], NULL});
        has_not(134);
        family.uid = 0; // root's job
        process_put((struct made){135, 1, 135, 2000, 0, task, NULL});
        assert_true(family_has(&family, 135, NULL));
        process_put((struct made){136, 1, 136, 2000, 0,
                                  "0::/system.slice/slurmstepd.scope/job_77/step_2/slurm\n"
                                  "0::/system.slice/n0_slurmstepd.scope/job_77/step_2/slurm\n",
                                  NULL});
        has_not(136);
        family.uid = USER;
        // another step, another job, and a user's own folder of the step's name
        process_put((struct made){140, 1, 140, 2000, USER,
                                  "4:freezer:/slurm_n0/uid_1000/job_77/step_22\n"
                                  "0::/system.slice/slurmstepd.scope/job_77/step_22/user/task_0\n",
                                  NULL});
        has_not(140);
        process_put((struct made){141, 1, 141, 2000, USER,
                                  "4:freezer:/slurm_n0/uid_1000/job_177/step_2\n", NULL});
        has_not(141);
        process_put((struct made){142, 1, 142, 2000, USER,
                                  "0::/user.slice/user-1000.slice/job_77/step_2\n", NULL});
        has_not(142);
        // an environment alone adds nothing where a cgroup decides
        process_put(
            (struct made){143, 1, 143, 2000, USER, "0::/user.slice\n",
                          "SLURM_JOB_ID=77\nSLURM_STEP_ID=2\nSLURM_NODEID=5\nSLURM_PROCID=4"});
        has_not(143);
        // what cannot be understood
        process_put((struct made){144, 1, 144, 2000, USER, "\nfoo\n::\n:\n0::\n1:x\n", NULL});
        has_not(144);
    }
}

static void rank_cgroups(void **state)
{
    char path[256], little[16];
    (void)state;
    family_begin("0::/s/job_77/step_2/slurm\n", "0::/s/job_77/step_2/user/task_0\n");
    process_put((struct made){111, 100, 99, 1010, USER, "0::/s/job_77/step_2/user/task_1\n", NULL});
    process_put((struct made){130, 1, 130, 2000, USER, "0::/s/job_77/step_2/user/task_1\n", NULL});
    assert_int_equal(family_members(&family), MEMBERS_CGROUP);
    has(130, 4); // by its folder
    family_begin("0::/s/job_77/step_2/slurm\n", "0::/s/job_77/step_2/user/task_1\n");
    assert_int_equal(family_rank_cgroup(&family, 1, path, sizeof path), 0);
    assert_string_equal(path, "/s/job_77/step_2/user/task_1");
    assert_int_equal(family_rank_cgroup(&family, 1, little, sizeof little), -ENOENT);
    process_put((struct made){111, 100, 99, 1010, USER, "0::/s/job_77/step_2/user\n", NULL});
    assert_int_equal(family_rank_cgroup(&family, 1, path, sizeof path), -ENOENT);
    process_put((struct made){111, 100, 99, 1011, USER, "0::/s/job_77/step_2/user/task_1\n", NULL});
    assert_int_equal(family_rank_cgroup(&family, 1, path, sizeof path), -ENOENT); // another process
    family_begin(NULL, "5:memory:/slurm/uid_1/job_77/step_2/task_1\n");           // version 1
    assert_int_equal(family_rank_cgroup(&family, 0, path, sizeof path), -ENOENT);
}

static void descendants(void **state)
{
    (void)state;
    family_begin(NULL, NULL);
    assert_int_equal(family_members(&family), MEMBERS_FAMILY);
    process_put((struct made){120, 110, 120, 2000, USER, NULL, NULL}); // setsid() in a child
    process_put((struct made){121, 120, 120, 2001, USER, NULL, NULL});
    process_put((struct made){122, 111, 99, 2001, USER, NULL, NULL});
    process_put((struct made){123, 100, 99, 2001, USER, NULL, NULL}); // a child, but no rank
    process_put((struct made){150, 1, 150, 500, USER, NULL, NULL});
    process_put((struct made){151, 150, 150, 501, USER, NULL, NULL});
    family_scan(&family);
    has(121, 3);
    has(122, 4);
    has(123, FAMILY_NO_RANK);
    has_not(100);
    has_not(150);
    has_not(151);
    process_end(120); // its child is seen to have been ours
    process_put((struct made){121, 1, 121, 2001, USER, NULL, NULL});
    has(121, 3);
    process_put((struct made){124, 1, 120, 2002, USER, NULL, NULL}); // in a session of ours
    has(124, 3);
    process_put((struct made){125, 1, 120, 2002, USER + 1, NULL, NULL}); // somebody else
    has_not(125);
    process_put((struct made){126, 1, 99, 2002, USER, NULL, NULL}); // in slurmstepd's
    has(126, FAMILY_NO_RANK);
    process_put((struct made){121, 1, 160, 9000, USER, NULL, NULL}); // the pid is another's now
    has_not(121);
    process_put((struct made){127, 110, 170, 1005, USER, NULL, NULL}); // older than its parent
    has_not(127);
    process_put((struct made){128, 128, 128, 2002, USER, NULL, NULL}); // its own parent
    has_not(128);
}

// A slurmstepd started by hand has its shell's session, which is nobody's to be ended.
static void foreign_sessions(void **state)
{
    struct fl_error e;
    (void)state;
    family_begin(NULL, NULL);
    process_put((struct made){99, 1, 99, 900, USER, NULL, NULL});
    process_put((struct made){98, 99, 99, 2000, USER, NULL, NULL});
    check_ok(family_init(&family, family.proc, 77, 2, 5, USER, 100, &e), &e);
    family_rank(&family, 110, 3);
    family_scan(&family);
    has(110, 3);
    has_not(98);
    has_not(99);
}

static void environments_add_only(void **state)
{
    static const char *const others[] = {
        "SLURM_JOB_ID=77\nSLURM_STEP_ID=3\nSLURM_NODEID=5",
        "SLURM_JOB_ID=78\nSLURM_STEP_ID=2\nSLURM_NODEID=5",
        "SLURM_JOB_ID=77",
        "SLURM_JOB_ID=77x\nSLURM_STEP_ID=2\nSLURM_NODEID=5",
        "XSLURM_JOB_ID=77\nSLURM_STEP_ID=2\nSLURM_NODEID=5",
        "SLURM_JOB_ID=77\nSLURM_STEP_ID=2\nSLURM_NODEID=4",
        "SLURM_JOB_ID=77\nSLURM_STEP_ID=2",
        "SLURM_JOB_ID=\nSLURM_STEP_ID=2\nSLURM_NODEID=5",
        "SLURM_JOB_ID=-77\nSLURM_STEP_ID=2\nSLURM_NODEID=5",
        "",
    };
    const char *named = "HOME=/\nSLURM_JOB_ID=77\nSLURM_STEP_ID=2\nSLURM_NODEID=5\nSLURM_PROCID=3";
    (void)state;
    family_begin(NULL, NULL);
    process_put((struct made){130, 1, 130, 2000, USER, NULL, named});
    has(130, 3);
    process_put((struct made){131, 1, 131, 2000, USER + 1, NULL, named}); // of another user
    has_not(131);
    process_put((struct made){132, 1, 132, 2000, 0, NULL, named});
    has_not(132);
    process_put((struct made){133, 1, 133, 2000, USER, NULL,
                              "SLURM_JOB_ID=77\nSLURM_STEP_ID=2\nSLURM_NODEID=5\nSLURM_PROCID=9"});
    has(133, FAMILY_NO_RANK); // no rank of this node's
    process_put((struct made){110, 100, 99, 1010, USER, NULL, "SLURM_JOB_ID=5"});
    has(110, 3); // and it takes nobody out
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        process_put((struct made){134, 1, 134, 2000, USER, NULL, others[i]});
        has_not(134);
    }
    family.spared[1] = 130;
    has_not(130);
}

// More processes than are remembered: those that have ended make room.
static void many_processes(void **state)
{
    (void)state;
    family_begin(NULL, NULL);
    for (int i = 0; i < FAMILY_KNOWN + 10; i++) {
        process_put((struct made){1000 + i, 110, 99, 2000, USER, NULL, NULL});
        has(1000 + i, 3);
        process_end(1000 + i);
    }
    assert_int_equal(family.known, FAMILY_KNOWN);
    has(110, 3);
}

// Older versions of valgrind know no pidfd, without which there is no watch.
static bool pidfds_missing(void)
{
    int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    if (fd >= 0)
        close(fd);
    return fd < 0;
}

static void signals(void **state)
{
    int proc = open("/proc", O_RDONLY | O_DIRECTORY), status, ready[2];
    struct fl_error e;
    pid_t child, other;
    char byte;
    (void)state;
    if (pidfds_missing())
        skip();
    assert_int_equal(pipe(ready), 0);
    child = fork();
    if (!child) { // a rank, whose child has a session of its own
        if (!fork())
            setsid();
        assert_int_equal(write(ready[1], "", 1), 1);
        alarm(60);
        pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    other = fork();
    if (!other) {
        alarm(60);
        pause();
        _exit(0);
    }
    // The rank stands in slurmstepd's place: what is not below it is spared.
    check_ok(family_init(&family, proc, 1, 0, 0, getuid(), child, &e), &e);
    if (getsid(0) != child) // nothing of the session that the tests run in
        assert_int_equal(family.foreign, getsid(0));
    assert_int_equal(family_signal(&family, 0), 1);
    check_ok(family_init(&family, proc, 1, 0, 0, getuid(), getpid(), &e), &e);
    family.spared[0] = other;
    family_rank(&family, child, 0);
    assert_int_equal(family_signal(&family, SIGTERM), 2);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_int_equal(waitpid(other, &status, WNOHANG), 0);
    kill(other, SIGKILL);
    waitpid(other, &status, 0);
    check_error(family_init(&family, proc, 1, 0, 0, getuid(), child, &e), &e, "slurmstepd ");
    close(ready[0]);
    close(ready[1]);
    close(proc);
}

// ---- the driver's library

static void values_put(const char *text)
{
    char path[128];

    snprintf(path, sizeof path, "%s/nvml.values", tree);
    text_put(path, text, strlen(text));
}

// Copies the library that this build made beside its values; a descriptor of it, by which it finds
// them: to be closed behind nvml_close.
static int library_open(const char *name)
{
    char from[PATH_MAX], to[128], bytes[65536];
    int in, out;
    ssize_t got;

    tree_clear();
    snprintf(from, sizeof from, "%s/tests/slurm/.libs/%s.so", getenv("FL_BUILD_DIR"), name);
    snprintf(to, sizeof to, "%s/libnvidia-ml.so.1", tree);
    in = open(from, O_RDONLY);
    out = open(to, O_WRONLY | O_CREAT, 0755);
    assert_true(in >= 0 && out >= 0);
    while ((got = read(in, bytes, sizeof bytes)) > 0)
        assert_int_equal(write(out, bytes, (size_t)got), got);
    close(in);
    close(out);
    in = open(to, O_RDONLY | O_CLOEXEC);
    assert_true(in >= 0);
    return in;
}

#define GPUS "gpu GPU-aaaa\ngpu GPU-bbbb\n"

static void library_samples(void **state)
{
    static const char *const names[] = {"nvml", "nvml_old"};
    struct nvml_use uses[8];
    struct nvml *nvml;
    struct fl_error e;
    size_t count;
    (void)state;
    for (int i = 0; i < 2; i++) {
        int fd = library_open(names[i]);
        values_put(GPUS "use 0 10 100\nuse 1 10 300\nuse 0 11 50\nuse 0 11 60\ndraw 0 10 120\n"
                        "draw 1 12 7\nuse 1 13 ?\n");
        check_ok(nvml_open(fd, &nvml, &e), &e);
        assert_string_equal(nvml_uuid(nvml, 1), "GPU-bbbb");
        assert_string_equal(nvml_uuid(nvml, 2), "");
        check_ok(nvml_sample(nvml, uses, 8, &count, &e), &e);
        assert_int_equal(count, 5);
        assert_int_equal(uses[0].pid, 10); // computes and draws: once, the larger number
        assert_int_equal(uses[0].bytes, 120);
        assert_int_equal(uses[1].pid, 11); // two instances of one device
        assert_int_equal(uses[1].bytes, 110);
        assert_int_equal(uses[2].device, 1);
        assert_int_equal(uses[2].bytes, 300);
        assert_true(uses[3].bytes == NVML_UNKNOWN);
        assert_int_equal(uses[4].pid, 12);
        check_error(nvml_sample(nvml, uses, 4, &count, &e), &e, "more than 4 processes");
        values_put(GPUS "fail compute 999\n");
        check_error(nvml_sample(nvml, uses, 8, &count, &e), &e, "NVML: GPU-aaaa: error 999");
        values_put(GPUS "fail compute 15\nfail graphics 15\n"); // lost: nothing is there
        check_ok(nvml_sample(nvml, uses, 8, &count, &e), &e);
        assert_int_equal(count, 0);
        values_put(GPUS "fail graphics 3\nuse 1 5 5\n"); // a device without graphics
        check_ok(nvml_sample(nvml, uses, 8, &count, &e), &e);
        assert_int_equal(count, 1);
        values_put(GPUS "share 0 14 40\n"); // of MPS, which the older library does not tell
        check_ok(nvml_sample(nvml, uses, 8, &count, &e), &e);
        assert_int_equal(count, i ? 0 : 1);
        values_put(GPUS "fail mps 3\nuse 1 5 5\n");
        check_ok(nvml_sample(nvml, uses, 8, &count, &e), &e);
        assert_int_equal(count, 1);
        values_put(GPUS "fail graphics 4\n");
        check_error(nvml_sample(nvml, uses, 8, &count, &e), &e, "NVML: GPU-aaaa: error 4");
        nvml_close(nvml);
        close(fd);
    }
    nvml_close(NULL);
}

static void library_refusals(void **state)
{
    int fd = library_open("nvml"), other;
    char path[128];
    struct nvml *nvml = NULL;
    struct fl_error e;
    (void)state;
    values_put(GPUS "driver 535.86.10\n");
    check_error(nvml_open(fd, &nvml, &e), &e, "driver 535.86.10 lays out its processes");
    values_put(GPUS "driver 535.98\n");
    check_ok(nvml_open(fd, &nvml, &e), &e);
    nvml_close(nvml);
    values_put(GPUS "fail nvmlInit_v2 9\n");
    check_error(nvml_open(fd, &nvml, &e), &e, "NVML: cannot start: error 9");
    values_put(GPUS "fail nvmlDeviceGetCount_v2 9\n");
    check_error(nvml_open(fd, &nvml, &e), &e, "NVML: the number of GPUs: error 9");
    values_put(GPUS "fail nvmlDeviceGetUUID 9\n");
    check_error(nvml_open(fd, &nvml, &e), &e, "NVML: a GPU: error 9");
    values_put(GPUS "fail nvmlSystemGetDriverVersion 9\n");
    check_error(nvml_open(fd, &nvml, &e), &e, "NVML: the driver's version: error 9");
    close(fd);
    snprintf(path, sizeof path, "%s/text", tree);
    text_put(path, "no library", 10);
    other = open(path, O_RDONLY);
    check_error(nvml_open(other, &nvml, &e), &e, "NVML: /proc/self/fd/");
    close(other);
    snprintf(path, sizeof path, "%s/tests/slurm/.libs/hooks.so", getenv("FL_BUILD_DIR"));
    other = open(path, O_RDONLY);
    assert_true(other >= 0);
    check_error(nvml_open(other, &nvml, &e), &e, "NVML: "); // it wants Slurm's symbols
    close(other);
}

static void library_limits(void **state)
{
    int fd = library_open("nvml");
    struct nvml *nvml;
    struct fl_error e;
    char path[128], line[256];
    FILE *f;
    (void)state;
    values_put(GPUS);
    check_ok(nvml_open(fd, &nvml, &e), &e);
    check_ok(nvml_limit(nvml, "/sys/fs/cgroup/a/user/task_0", 64 * GIB, &e), &e);
    snprintf(path, sizeof path, "%s/nvml.limits", tree);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "GPU-aaaa /sys/fs/cgroup/a/user/task_0 0 68719476736\n");
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "GPU-bbbb /sys/fs/cgroup/a/user/task_0 0 68719476736\n");
    assert_null(fgets(line, sizeof line, f));
    fclose(f);
    values_put(GPUS "fail nvmlDeviceSetMemoryLimits_v1 3\n");
    check_error(nvml_limit(nvml, "/sys/fs/cgroup/b", GIB, &e), &e, "/sys/fs/cgroup/b: error 3");
    values_put(GPUS "fail nvmlDeviceGetMemoryLimits_v1 3\n");
    check_error(nvml_limit(nvml, "/sys/fs/cgroup/b", GIB, &e), &e, "/sys/fs/cgroup/b: error 3");
    values_put("gpu GPU-a b\n"); // its own limits cannot be read back
    check_error(nvml_limit(nvml, "/sys/fs/cgroup/c", GIB, &e), &e, "was set, ");
    nvml_close(nvml);
    close(fd);
    fd = library_open("nvml_old");
    values_put(GPUS);
    check_ok(nvml_open(fd, &nvml, &e), &e);
    assert_int_equal(nvml_limit(nvml, "/sys/fs/cgroup/a", GIB, &e), -ENOSYS);
    nvml_close(nvml);
    close(fd);
}

// ---- the program

static char program[PATH_MAX], library[128];

static struct watch_request request_of(enum watch_action action, enum watch_failure on_failure)
{
    return (struct watch_request){.program = program,
                                  .nvml = library,
                                  .job = 77,
                                  .step = 2,
                                  .ranks = 4,
                                  .uid = getuid(),
                                  .stepd = getpid(),
                                  .cap_bytes = GIB,
                                  .interval_ms = 50,
                                  .grace_ms = 100,
                                  .action = action,
                                  .on_failure = on_failure,
                                  .source = "a test"};
}

static void requests(void **state)
{
    struct watch *watch = NULL;
    struct fl_error e;
    (void)state;
#define REFUSED(field, value, text)                                                                \
    do {                                                                                           \
        struct watch_request r = request_of(WATCH_KILL, WATCH_END);                                \
        r.field = value;                                                                           \
        check_error(watch_start(&r, &watch, &e), &e, text);                                        \
    } while (0)
    REFUSED(interval_ms, 0, "a sample every 0 ms, expected 1 to 1000");
    REFUSED(interval_ms, 1001, "a sample every 1001 ms");
    REFUSED(grace_ms, WATCH_GRACE_MAX_MS + 1, "a grace of 3600001 ms, expected at most 3600000");
    REFUSED(action, WATCH_ACTIONS, "action 3");
    REFUSED(on_failure, WATCH_FAILURES, "on failure 2");
    REFUSED(program, "/nonexistent/watch", "/nonexistent/watch: No such file");
    REFUSED(program, "/proc/self/status", "not an executable file");
    assert_null(watch);
    watch_stop(NULL);
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static void rank_until(const struct watch *watch, uint32_t rank, struct record_rank *slot,
                       enum watch_state wanted)
{
    for (int i = 0; i < 200; i++) {
        if (watch_rank(watch, rank, slot) && slot->watch == wanted)
            return;
        pause_ms(50);
    }
    fail_msg("rank %u is not under watch %d", rank, (int)wanted);
}

static pid_t rank_fork(void)
{
    pid_t child = fork();

    if (!child) {
        alarm(60);
        pause();
        _exit(0);
    }
    return child;
}

// In slurmstepd's place: this program. Its standard error gets what the step's would.
static void program_watches(void **state)
{
    struct watch_request request = request_of(WATCH_KILL, WATCH_CONTINUE);
    char text[256], told[1024] = "", path[] = "/tmp/fl-watch-told-XXXXXX";
    struct watch *watch = NULL;
    struct record_rank slot;
    struct fl_error e;
    uint32_t rank;
    int status, saved, file;
    pid_t child;
    (void)state;
    snprintf(program, sizeof program, "%s/fp8-lora-watch", getenv("FL_BUILD_DIR"));
    close(library_open("nvml"));
    snprintf(library, sizeof library, "%s/libnvidia-ml.so.1", tree);
    if (pidfds_missing() || geteuid() || settings_trusted(program, &e) ||
        settings_trusted_file(library, &e))
        skip();
    values_put(GPUS);
    check_ok(watch_start(&request, &watch, &e), &e);
    assert_false(watch_rank(watch, 2, &slot)); // no rank was told
    assert_false(watch_lost(watch));
    child = rank_fork();
    watch_task(watch, child, 2);
    rank_until(watch, 2, &slot, WATCH_WATCHES);
    assert_int_equal(slot.measured, 0);
    assert_int_equal(slot.cap, GIB);
    assert_int_equal(slot.pid, child);
    snprintf(text, sizeof text, GPUS "use 1 %d 1000\n", child);
    values_put(text);
    for (int i = 0; i < 100 && !slot.measured; i++) {
        pause_ms(20);
        assert_true(watch_rank(watch, 2, &slot));
    }
    assert_int_equal(slot.measured, 1000);
    assert_string_equal(slot.gpu, "GPU-bbbb");
    assert_false(watch_ends(watch, &rank));

    file = mkstemp(path);
    saved = dup(2);
    dup2(file, 2);
    snprintf(text, sizeof text, GPUS "use 1 %d 2147483648\n", child);
    values_put(text);
    assert_int_equal(waitpid(child, &status, 0), child);
    dup2(saved, 2);
    close(saved);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    assert_true(watch_ends(watch, &rank));
    assert_int_equal(rank, 2);
    assert_true(watch_rank(watch, 2, &slot));
    assert_int_equal(slot.measured, 2 * GIB);
    assert_non_null(strstr(slot.cause, "over the cap of 1.00 GiB (a test): process "));
    assert_true(pread(file, told, sizeof told - 1, 0) > 0);
    assert_non_null(strstr(told, "fp8-lora: rank 2 is over the cap of 1.00 GiB (a test): "));
    assert_non_null(strstr(told, "fp8-lora: the step is ended: rank 2: over the cap"));
    close(file);
    unlink(path);
    assert_false(watch_lost(watch));
    assert_false(watch_must_end(watch));
    watch_stop(watch);
}

static int folders_make(const char *top, char *inner)
{
    char path[256];

    snprintf(path, sizeof path, "%s%s", top, inner);
    for (char *slash = strchr(path + strlen(top) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0755))
            return -1;
        *slash = '/';
    }
    return mkdir(path, 0755);
}

static void folders_remove(const char *top, const char *inner)
{
    char path[256], *slash;

    snprintf(path, sizeof path, "%s%s", top, inner);
    while ((slash = strrchr(path, '/')) >= path + strlen(top)) {
        (void)rmdir(path);
        *slash = 0;
    }
}

// A rank in a cgroup of its own gets the driver's limit there. Where cgroup v2 is mounted beside
// version 1 it has no folder in /sys/fs/cgroup, so a plain one stands for it.
static void program_limits(void **state)
{
    static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
    struct watch_request request = request_of(WATCH_KILL, WATCH_CONTINUE);
    char inner[64], path[256], line[512], wanted[512];
    struct watch *watch = NULL;
    struct record_rank slot;
    struct fl_error e;
    int mount = -1;
    pid_t child;
    FILE *f;
    (void)state;
    for (int i = 0; i < 2 && mount < 0; i++) {
        snprintf(path, sizeof path, "%s/cgroup.controllers", mounts[i]);
        mount = access(path, F_OK) ? -1 : i;
    }
    snprintf(inner, sizeof inner, "/fl-watch-%d/job_77/step_2/user/task_0", getpid());
    if (pidfds_missing() || geteuid() || mount < 0 || settings_trusted(program, &e) ||
        settings_trusted_file(library, &e))
        skip();
    if (folders_make(mounts[mount], inner) || (mount && folders_make(mounts[0], inner))) {
        folders_remove(mounts[mount], inner);
        skip();
    }
    values_put(GPUS);
    child = rank_fork();
    snprintf(path, sizeof path, "%s%s/cgroup.procs", mounts[mount], inner);
    snprintf(line, sizeof line, "%d", child);
    text_put(path, line, strlen(line));
    check_ok(watch_start(&request, &watch, &e), &e);
    watch_task(watch, child, 0);
    rank_until(watch, 0, &slot, WATCH_LIMITS);
    assert_int_equal(slot.members, MEMBERS_CGROUP);
    watch_stop(watch);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    pause_ms(50); // the cgroup is empty a moment later
    folders_remove(mounts[mount], inner);
    if (mount)
        folders_remove(mounts[0], inner);
    snprintf(path, sizeof path, "%s/nvml.limits", tree);
    f = fopen(path, "r");
    assert_non_null(f);
    snprintf(wanted, sizeof wanted, "GPU-aaaa /sys/fs/cgroup%s 0 1073741824\n", inner);
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, wanted);
    fclose(f);
}

// Processes of the program that watch for this slurmstepd.
static int watchers(pid_t stepd)
{
    DIR *folder = opendir("/proc");
    struct dirent *entry;
    int found = 0;

    assert_non_null(folder);
    while ((entry = readdir(folder))) {
        char path[300], words[4096], number[16];
        size_t size;
        FILE *f;
        snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        f = *entry->d_name >= '0' && *entry->d_name <= '9' ? fopen(path, "r") : NULL;
        if (!f)
            continue;
        size = fread(words, 1, sizeof words, f); // valgrind's own words may stand before
        fclose(f);
        found +=
            memmem(words, size, "fp8-lora-watch", 14) &&
            memmem(words, size, number, (size_t)snprintf(number, sizeof number, "%d", stepd) + 1);
    }
    closedir(folder);
    return found;
}

// The watch and its guardian need not be told to stop: they go with slurmstepd.
static void program_ends_with_stepd(void **state)
{
    struct fl_error e;
    int status, started[2], end[2], seen = 0;
    pid_t stepd;
    char byte;
    (void)state;
    if (pidfds_missing() || geteuid() || settings_trusted(program, &e) ||
        settings_trusted_file(library, &e))
        skip();
    values_put(GPUS);
    assert_int_equal(pipe2(started, O_CLOEXEC), 0);
    assert_int_equal(pipe2(end, O_CLOEXEC), 0);
    stepd = fork();
    if (!stepd) {
        struct watch_request request = request_of(WATCH_KILL, WATCH_END);
        struct watch *watch = NULL;
        alarm(60);
        close(end[1]);
        if (watch_start(&request, &watch, &e) || write(started[1], "", 1) != 1 ||
            read(end[0], &byte, 1))
            _exit(1);
        _exit(0); // without watch_stop
    }
    close(started[1]);
    assert_int_equal(read(started[0], &byte, 1), 1);
    for (int i = 0; i < 200 && (seen = watchers(stepd)) != 2; i++)
        pause_ms(20);
    assert_int_equal(seen, 2);
    close(end[1]);
    assert_int_equal(waitpid(stepd, &status, 0), stepd);
    assert_int_equal(status, 0);
    for (int i = 0; i < 200 && (seen = watchers(stepd)); i++)
        pause_ms(20);
    assert_int_equal(seen, 0);
    close(started[0]);
    close(end[0]);
}

static int tree_make(void **state)
{
    (void)state;
    return mkdtemp(tree) ? 0 : -1;
}

static int tree_remove(void **state)
{
    (void)state;
    tree_clear();
    return rmdir(tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grace_is_counted),
        cmocka_unit_test(grace_is_not_won_again),
        cmocka_unit_test(actions),
        cmocka_unit_test(failures),
        cmocka_unit_test(sums),
        cmocka_unit_test(processes_are_read),
        cmocka_unit_test(cgroups),
        cmocka_unit_test(rank_cgroups),
        cmocka_unit_test(descendants),
        cmocka_unit_test(foreign_sessions),
        cmocka_unit_test(environments_add_only),
        cmocka_unit_test(many_processes),
        cmocka_unit_test(signals),
        cmocka_unit_test(library_samples),
        cmocka_unit_test(library_refusals),
        cmocka_unit_test(library_limits),
        cmocka_unit_test(requests),
        cmocka_unit_test(program_watches),
        cmocka_unit_test(program_limits),
        cmocka_unit_test(program_ends_with_stepd),
    };
    return cmocka_run_group_tests_name("watch", tests, tree_make, tree_remove);
}
