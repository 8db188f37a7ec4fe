// SPDX-License-Identifier: Apache-2.0
// The administrator's policy as it applies to the job at hand.
#include "rules.h"

#include "helper.h"
#include "trusted.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define JOB_DEADLINE_MS 2000
#define DRIVER_GPUS     "/proc/driver/nvidia/gpus"
#define MODEL           "Model:"
#define NAME_MAX_BYTES  128
// What no GPU, partition, account or QOS is called.
#define NOBODY "\n"

static int file_load(const char *path, char *text, size_t size, size_t *bytes, struct fl_error *e)
{
    int fd, code = trusted_open(path, &fd, e);

    if (code)
        return code;
    for (*bytes = 0; *bytes < size;) {
        ssize_t got = read(fd, text + *bytes, size - *bytes);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            code = error_set(e, -errno, "%s: %s", path, strerror(errno));
        if (got <= 0)
            break;
        *bytes += (size_t)got;
    }
    close(fd);
    return code;
}

int rules_load(const struct settings *settings, struct rules *rules, struct fl_error *e)
{
    char *text;
    size_t bytes = 0;
    int code;

    *rules = (struct rules){.decision = {.wrap = true}};
    if (!settings->policy) {
        static const enum policy_action actions[] = {
            [WATCH_REFUSE] = POLICY_REFUSE, [WATCH_KILL] = POLICY_KILL, [WATCH_WARN] = POLICY_WARN};
        if (settings->max_device_memory)
            rules->policy =
                policy_of_cap(settings->max_device_memory, actions[settings->action],
                              settings->on_failure == WATCH_END ? FAILURE_END : FAILURE_CONTINUE,
                              (int)settings->grace_ms, "plugstack.conf");
        return 0;
    }
    text = malloc(POLICY_BYTES_MAX + 1);
    if (!text)
        return error_set(e, -ENOMEM, "%s: no memory", settings->policy);
    code = file_load(settings->policy, text, POLICY_BYTES_MAX + 1, &bytes, e);
    if (!code)
        code = policy_parse(text, bytes, settings->policy, &rules->policy, e);
    free(text);
    return code;
}

void rules_clear(struct rules *rules)
{
    policy_destroy(rules->policy);
    rules->policy = NULL;
}

// The model in a GPU's file of the driver: "Model: \t\t NVIDIA H100 80GB HBM3".
static bool model_read(const char *gpu, char model[NAME_MAX_BYTES])
{
    char path[512], text[1024], *at, *end;
    int fd;
    ssize_t got;

    snprintf(path, sizeof path, DRIVER_GPUS "/%.64s/information", gpu);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    got = read(fd, text, sizeof text - 1);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    at = strstr(text, MODEL);
    if (!at)
        return false;
    at += strlen(MODEL) + strspn(at + strlen(MODEL), " \t");
    end = at + strcspn(at, "\n");
    *end = 0;
    snprintf(model, NAME_MAX_BYTES, "%s", at);
    return true;
}

// The model of all GPUs of the node; false: it has none, or not one alone.
static bool node_model(char model[NAME_MAX_BYTES])
{
    DIR *folder = opendir(DRIVER_GPUS);
    char other[NAME_MAX_BYTES];
    bool known = false, mixed = false;

    for (const struct dirent *d; folder && (d = readdir(folder));) {
        if (d->d_name[0] == '.' || !model_read(d->d_name, other))
            continue;
        mixed |= known && strcmp(model, other);
        memcpy(model, other, sizeof other);
        known = true;
    }
    if (folder)
        closedir(folder);
    return known && !mixed;
}

// Splits "partition\taccount\tqos".
static int job_ask(const struct settings *settings, uint32_t job, char answer[512],
                   struct policy_facts *facts, struct fl_error *e)
{
    char number[16], *argv[] = {(char *)"fp8-lora-account", (char *)"job", number, NULL};
    char *account, *qos;
    int code = settings_trusted(settings->account, e);

    snprintf(number, sizeof number, "%u", job);
    if (!code)
        code = helper_ask(settings->account, argv, JOB_DEADLINE_MS, answer, 512, e);
    if (code)
        return code;
    account = strchr(answer, '\t');
    qos = account ? strchr(account + 1, '\t') : NULL;
    if (!qos)
        return error_set(e, -EINVAL, "%s: an answer of another version", settings->account);
    *account++ = *qos++ = 0;
    facts->partition = answer;
    facts->account = account;
    facts->qos = qos;
    return 0;
}

static void source_mark(char source[POLICY_SOURCE])
{
    size_t used = strlen(source);

    if (used)
        snprintf(source + used, POLICY_SOURCE - used, " (the job is not known)");
}

// Whoever is held by a limit that may not be meant for the job learns why.
static void sources_mark(struct policy_decision *decision)
{
    source_mark(decision->device_memory.source);
    source_mark(decision->host_memory.source);
    source_mark(decision->ranks.source);
    for (int i = 0; i < decision->model_root_count; i++)
        source_mark(decision->model_roots[i].source);
    for (int i = 0; i < decision->output_root_count; i++)
        source_mark(decision->output_roots[i].source);
}

void rules_decide_node(struct rules *rules, const struct settings *settings, uint32_t job)
{
    struct policy_facts facts = {0};
    char model[NAME_MAX_BYTES], answer[512];

    if (!rules->policy)
        return;
    if (policy_asks_gpu(rules->policy) && node_model(model))
        facts.gpu = model;
    if (policy_asks_job(rules->policy) && job_ask(settings, job, answer, &facts, &rules->unknown))
        error_prefix(&rules->unknown,
                     "partition, account and QOS are not known, so the strictest of "
                     "the policy's limits apply");
    policy_decide(rules->policy, &facts, &rules->decision);
    if (rules->unknown.code)
        sources_mark(&rules->decision);
}

bool rules_govern(const struct rules *rules)
{
    struct policy_decision strictest;

    policy_decide(rules->policy, &(struct policy_facts){0}, &strictest);
    return strictest.enforce != ENFORCE_OPTION;
}

// Of several partitions a job gets one, and the client does not know which.
static const char *one_of(const char *partition)
{
    return partition && !strchr(partition, ',') ? partition : NULL;
}

void rules_decide_client(struct rules *rules, const char *partition, const char *account,
                         const char *qos)
{
    const struct policy_facts known = {
        .partition = one_of(partition), .account = account, .qos = qos};
    const struct policy_facts facts = {
        .gpu = NOBODY,
        .partition = known.partition ? known.partition : NOBODY,
        .account = account ? account : NOBODY,
        .qos = qos ? qos : NOBODY,
    };

    if (!rules->policy)
        return;
    policy_decide(rules->policy, &facts, &rules->decision);
    policy_unknown(rules->policy, &known, rules->node_only, sizeof rules->node_only);
}
