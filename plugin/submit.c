// SPDX-License-Identifier: Apache-2.0
// In the client, as its user: refuse before the queue, then stamp the step.
#include "submit.h"

#include "base/bytes.h"
#include "job/runnable.h"
#include "option.h"
#include "refuse.h"
#include "report/record.h"
#include "rules.h"
#include "stamp.h"
#include "train/planned.h"
#include "values.h"
#include "words.h"

#include <errno.h>
#include <limits.h>
#include <slurm/slurm.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// What an allocation's option looks like to the clients that run inside it.
#define INHERITED_ENV "SLURM_SPANK__SLURM_SPANK_OPTION_fp8_lora_fp8_lora"

static struct words client_words(void)
{
    struct words words;
    struct fl_error e;

    if (words_read(&words, &e))
        refuse_client(&e);
    return words;
}

static bool test_exec_configured(void)
{
    slurm_conf_t *conf = NULL;
    bool found;

    if (slurm_load_ctl_conf((time_t)0, &conf))
        return false; // without a controller srun says so itself
    found = conf->launch_params && strstr(conf->launch_params, "test_exec");
    slurm_free_ctl_conf(conf);
    return found;
}

// Ways to start a program that leave no room for the core. Looked for among all options of srun,
// those behind this one too, because srun itself ends on some before it calls the plugin again.
static int form_check(const struct words *words, const char *own, struct fl_error *e)
{
    if (strchr(own, '='))
        return error_set(e, -EINVAL, "srun takes the job as its command: srun --fp8-lora %s",
                         strchr(own, '=') + 1);
    if (words_option(words, INT_MAX, "multi-prog"))
        return error_set(e, -EINVAL,
                         "--multi-prog: every rank runs the same trainer; start srun "
                         "without it");
    if (words_option(words, INT_MAX, "bcast") || getenv("SLURM_BCAST"))
        return error_set(e, -EINVAL,
                         "--bcast: the trainer is installed on the nodes and job.yaml is "
                         "no program to copy; start srun without it (and without "
                         "SLURM_BCAST)");
    if (words_option(words, INT_MAX, "het-group") || words_option(words, INT_MAX, "pack-group"))
        return error_set(e, -EINVAL,
                         "--het-group: ranks of a heterogeneous job are not supported; "
                         "use one component");
    for (int i = 1; i < words->argc && strcmp(words->argv[i], "--"); i++)
        if (!strcmp(words->argv[i], ":"))
            return error_set(e, -EINVAL,
                             "':': a step of several components is not supported; use "
                             "one");
    if (getenv("SLURM_TEST_EXEC"))
        return error_set(e, -EINVAL,
                         "SLURM_TEST_EXEC: srun would look for a program named like the "
                         "job; unset it");
    if (test_exec_configured())
        return error_set(e, -EINVAL,
                         "LaunchParameters=test_exec: srun looks for a program named like "
                         "the job; ask the administrator to remove it from slurm.conf");
    return 0;
}

// The shortest abbreviation getopt takes for this option alone.
static bool show_given(const struct words *words)
{
    for (int i = 1; i < optind && i < words->argc && strcmp(words->argv[i], "--"); i++)
        if (!strncmp(words->argv[i], "--" OPTION_NAME "-s", sizeof "--" OPTION_NAME "-s" - 1))
            return true;
    return false;
}

static uint32_t stamp_flags(const struct words *words)
{
    const char *given = words_value(words, optind, "cpu-bind", sizeof "cpu-b" - 1, 0);
    uint32_t flags = 0;

    if (!given)
        given = words_value(words, optind, "cpu_bind", sizeof "cpu_" - 1, 0);
    if (!given)
        given = getenv("SLURM_CPU_BIND");
    if (given && values_binds(given))
        flags |= STAMP_CPU_BIND;
    if (show_given(words))
        flags |= STAMP_SHOW_PLACEMENT;
    return flags;
}

bool submit_accepts(const char *argument)
{
    struct words words = client_words();
    const char *own = words_option(&words, optind, OPTION_NAME); // getopt stands behind the option
    const char *inherited = getenv(INHERITED_ENV);
    bool accepts = own;
    struct fl_error e;

    if (spank_context() == S_CTX_LOCAL) {
        if (own && form_check(&words, own, &e))
            refuse_client(&e);
    } else if (!argument || !*argument) {
        error_set(&e, -EINVAL,
                  "sbatch and salloc take --fp8-lora=job.yaml, which checks the job; "
                  "srun --fp8-lora job.yaml runs it");
        refuse_client(&e);
    } else if (!own) { // a line of the batch script, or inherited
        accepts = !inherited || strcmp(inherited, argument);
    }
    words_free(&words);
    return accepts;
}

static int smallest_world(const struct spec *spec)
{
    int a = spec->expert_parallel > 0 ? spec->expert_parallel : 1;
    int b = spec->tensor_parallel > 0 ? spec->tensor_parallel : 1;
    int world = a;

    while (world % b && world <= RECORD_RANKS_MAX)
        world += a;
    return world;
}

// What an option says, else the allocation that the client runs in; NULL: neither.
static const char *said(const struct words *words, const char *name, char letter,
                        const char *inherited)
{
    const char *value = words_value(words, optind, name, 3, letter);

    return value ? value : getenv(inherited);
}

// The policy as far as the client can read it and knows the job. It helps the user to an early
// answer; the node holds the policy whatever is seen here.
static void rules_look(const struct words *words, int argc, char **argv, struct rules *rules)
{
    struct settings settings;
    struct fl_error unseen;

    *rules = (struct rules){0};
    if (settings_parse(argc, argv, &settings, &unseen) || rules_load(&settings, rules, &unseen))
        return;
    rules_decide_client(rules, said(words, "partition", 'p', "SLURM_JOB_PARTITION"),
                        said(words, "account", 'A', "SLURM_JOB_ACCOUNT"),
                        said(words, "qos", 'q', "SLURM_JOB_QOS"));
}

// What only the node can hold against the job.
static void node_only_tell(const struct rules *rules)
{
    if (rules->node_only[0])
        slurm_spank_log("fp8-lora: the policy's sections that only the node applies: %s",
                        rules->node_only);
}

static int host_check(const struct policy_decision *decision, const struct plan *plan,
                      struct fl_error *e)
{
    char need[BYTES_TEXT], cap[BYTES_TEXT];

    if (decision->host_memory.value && plan->host_bytes > decision->host_memory.value)
        return error_set(
            e, -ENOSPC, "the plan of %s of host memory a rank is above max_host_memory %s (%s)",
            bytes_format(plan->host_bytes, need), bytes_format(decision->host_memory.value, cap),
            decision->host_memory.source);
    return 0;
}

static int limits_check(const struct policy_decision *decision, int tasks, const struct plan *plan,
                        struct fl_error *e)
{
    if (decision->ranks.value && (uint64_t)tasks > decision->ranks.value)
        return error_set(e, -EPERM,
                         "%d ranks are more than the %llu of max_ranks (%s): start fewer", tasks,
                         (unsigned long long)decision->ranks.value, decision->ranks.source);
    return host_check(decision, plan, e);
}

// Under warn, before the queue; srun's ranks say so themselves.
static void warnings_tell(const struct policy_decision *decision, const struct spec *spec,
                          const struct plan *plan)
{
    struct fl_error why;

    if (spank_context() != S_CTX_ALLOCATOR)
        return;
    if (plan_cap_check(spec, plan, decision->device_memory.value, &why))
        slurm_spank_log("fp8-lora: warning: %s: %s", decision->device_memory.source, why.text);
    if (host_check(decision, plan, &why))
        slurm_spank_log("fp8-lora: warning: %s", why.text);
}

// tasks 0: unknown yet; then only what any number of tasks would fail on is refused.
static int job_plan(int argc, char *const *argv, int tasks, const struct rules *rules,
                    struct plan *plan, struct fl_error *e)
{
    const struct policy_limit *cap = &rules->decision.device_memory;
    bool capped = rules->decision.action != POLICY_WARN;
    struct spec *spec = NULL;
    struct model model;
    int code, world = 0;

    code = spec_load(argc, argv, &spec, e);
    if (!code) {
        world = tasks ? tasks : smallest_world(spec);
        code = runnable_check(spec, world, e);
    }
    if (!code)
        spec->backend = runnable_backend(spec); // what runs is planned
    if (!code)
        code = model_load(spec->model, &model, e);
    if (!code)
        code = planned_make(spec, &model, world, 1, capped ? cap->value : 0, plan, e);
    if (!code)
        code = runnable_shapes(spec, &model, &plan->layout, e);
    if (code == -ENOSPC)
        error_prefix(e, "%s", cap->source);
    if (!code && capped && tasks)
        code = limits_check(&rules->decision, tasks, plan, e);
    if (!code && !capped)
        warnings_tell(&rules->decision, spec, plan);
    spec_destroy(spec);
    return code;
}

// The one thing the second option can do is to show what the first one's step does.
static void show_check(void)
{
    struct words words;
    struct fl_error e;
    bool given;

    if (!option_show_seen())
        return;
    words = client_words();
    given = show_given(&words);
    words_free(&words);
    if (!given || (option_given() && spank_context() == S_CTX_LOCAL))
        return;
    error_set(&e, -EINVAL,
              "--" OPTION_SHOW " shows a step's ranks: use srun --fp8-lora --" OPTION_SHOW
              " job.yaml");
    refuse_client(&e);
}

void submit_check(int argc, char **argv)
{
    struct rules rules;
    struct plan plan;
    struct fl_error e;

    show_check();
    if (!option_given())
        return;
    if (spank_context() == S_CTX_ALLOCATOR) {
        char *word = option_argument();
        struct words words = client_words();
        rules_look(&words, argc, argv, &rules);
        if (job_plan(1, &word, 0, &rules, &plan, &e))
            refuse_client(&e);
        words_free(&words);
    } else {
        struct words words = client_words();
        if (optind >= words.argc) {
            error_set(&e, -EINVAL,
                      "no job: use srun --fp8-lora job.yaml or srun --fp8-lora -- FLAGS");
            refuse_client(&e);
        }
        rules_look(&words, argc, argv, &rules);
        if (job_plan(words.argc - optind, words.argv + optind, words_tasks(&words, optind), &rules,
                     &plan, &e))
            refuse_client(&e);
        words_free(&words);
    }
    node_only_tell(&rules);
    rules_clear(&rules);
}

void submit_stamp(spank_t spank, int argc, char **argv)
{
    struct rules rules;
    struct words words;
    struct plan plan;
    struct stamp stamp;
    struct fl_error e;
    char text[STAMP_MAX];
    uint32_t tasks;

    if (!option_given() || spank_context() != S_CTX_LOCAL)
        return;
    if (spank_get_item(spank, S_JOB_ID, &stamp.job) ||
        spank_get_item(spank, S_JOB_STEPID, &stamp.step) ||
        spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &tasks)) {
        error_set(&e, -EINVAL, "srun does not tell the step's number and tasks");
        refuse_client(&e);
    }
    words = client_words();
    rules_look(&words, argc, argv, &rules);
    if (job_plan(words.argc - optind, words.argv + optind, (int)tasks, &rules, &plan, &e))
        refuse_client(&e);
    stamp.flags = stamp_flags(&words);
    rules_clear(&rules);
    words_free(&words);
    stamp.ep = (uint32_t)plan.layout.ep;
    stamp.dp = (uint32_t)plan.layout.dp;
    stamp_format(&stamp, text);
    setenv(STAMP_ENV, text, 1);
    slurm_spank_log("fp8-lora: %u rank%s, expert parallel %d, %.2f GiB a rank planned", tasks,
                    tasks == 1 ? "" : "s", plan.layout.ep,
                    (double)plan.total_bytes / (double)(UINT64_C(1) << 30));
}
