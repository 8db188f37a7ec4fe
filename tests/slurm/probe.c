// SPDX-License-Identifier: Apache-2.0
// Runs in the core's place, so that tests see what a task gets: prints its words, environment,
// limits, CPUs and descriptors, fills its slot of the record, and then ends as PROBE tells:
// "" at once; "wait" until the step is aborted; "hang" for a minute; "die RANK" as wait, but that
// rank kills itself; "exit RANK" as wait, but that rank exits with code 7; "hang RANK" as hang, but
// that rank kills itself; "leave RANK" as wait, but that rank leaves a grandchild in a session of
// its own, called probe-leaf, without an environment and with the step's standard streams closed;
// "sleep" as wait, for three seconds.
#include "report/record.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static void limits_print(void)
{
    static const struct {
        const char *name;
        int number;
    } limits[] = {{"nofile", RLIMIT_NOFILE}, {"core", RLIMIT_CORE}, {"stack", RLIMIT_STACK}};
    struct rlimit limit;

    for (int i = 0; i < 3; i++)
        if (!getrlimit((__rlimit_resource_t)limits[i].number, &limit))
            printf("limit %s %lld\n", limits[i].name, (long long)limit.rlim_cur);
}

static void cpus_print(void)
{
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");

    while (status && fgets(line, sizeof line, status))
        if (!strncmp(line, "Cpus_allowed_list:\t", 19))
            printf("cpus %s", line + 19);
    if (status)
        fclose(status);
}

static void descriptors_print(void)
{
    char path[32], name[256];

    for (int fd = 0; fd < 64; fd++) {
        ssize_t length;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        length = readlink(path, name, sizeof name - 1);
        if (length >= 0)
            printf("fd %d %.*s\n", fd, (int)length, name);
    }
}

static struct record_rank slot_fill(uint32_t rank)
{
    struct record_rank slot = {
        .rank = rank,
        .local_rank = (uint32_t)atoi(getenv("FP8_LORA_LOCAL_RANK")),
        .state = RANK_TRAINING,
        .pid = getpid(),
        .gpu = "cpu",
        .planned_total = UINT64_C(100) << 20,
        .peak_total = (UINT64_C(101) + rank) << 20,
        .rss_peak = UINT64_C(300) << 20,
        .iterations = 20,
        .tokens = 4000,
        .tokens_per_second = 1250.5,
        .loss = 1.5,
    };

    slot.peak[MEMORY_WEIGHTS] = slot.peak_total;
    return slot;
}

static void wait_for_end(struct record *record, int seconds, int heed)
{
    struct timespec moment = {.tv_nsec = 50000000};

    for (int i = 0; i < seconds * 20; i++) {
        if (heed && record_aborted(record, NULL, NULL))
            exit(3);
        nanosleep(&moment, NULL);
    }
}

static void leaf_leave(void)
{
    struct timespec seen = {.tv_sec = 2}; // a sample of the family

    if (fork())
        return;
    setsid();
    nanosleep(&seen, NULL);
    if (fork())
        _exit(0);
    for (int fd = 0; fd < 3; fd++)
        close(fd);
    execle("/proc/self/exe", "probe-leaf", (char *)NULL, (char *const[]){NULL});
    _exit(1);
}

int main(int argc, char **argv)
{
    const char *what = getenv("PROBE"), *text = getenv(RECORD_FD_ENV);
    uint32_t rank;
    struct record *record;
    struct record_rank slot;
    struct fl_error e;
    char word[16] = "";
    unsigned chosen = UINT32_MAX;

    if (!strcmp(argv[0], "probe-leaf")) {
        prctl(PR_SET_NAME, "probe-leaf");
        sleep(60);
        return 0;
    }
    rank = (uint32_t)atoi(getenv("FP8_LORA_RANK"));
    if (record_open(text ? atoi(text) : -1, &record, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    printf("uid %u euid %u\n", getuid(), geteuid());
    printf("argv0 %s\n", getenv("FP8_LORA_ARGV0"));
    for (int i = 0; i < argc; i++)
        printf("word %d %s\n", i, argv[i]);
    for (char **v = environ; *v; v++)
        printf("env %s\n", *v);
    limits_print();
    cpus_print();
    descriptors_print();
    printf("ftruncate %d\n", ftruncate(atoi(text), 0));
    fflush(stdout);
    slot = slot_fill(rank);
    record_write(record, &slot);
    if (what && sscanf(what, "%15s %u", word, &chosen) > 0) {
        if (!strcmp(word, "leave")) {
            if (chosen == rank)
                leaf_leave();
        } else if (chosen == rank) {
            struct timespec moment = {.tv_nsec = 300000000}; // the others have begun
            nanosleep(&moment, NULL);
            if (!strcmp(word, "exit"))
                return 7;
            raise(SIGKILL);
        }
        wait_for_end(record, strcmp(word, "sleep") ? 60 : 3, strcmp(word, "hang"));
    }
    slot.state = RANK_DONE;
    record_write(record, &slot);
    record_close(record);
    return 0;
}
