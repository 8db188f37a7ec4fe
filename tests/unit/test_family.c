// SPDX-License-Identifier: Apache-2.0
// plugin/verdict and plugin/family: what samples mean under a cap, and which processes are the
// step's.
#include "unit/watch_tree.h"

#include "plugin/family.h"
#include "plugin/verdict.h"

#include <errno.h>
#include <fcntl.h>
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
    };
    return cmocka_run_group_tests_name("family", tests, tree_make, tree_remove);
}
