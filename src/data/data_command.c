// SPDX-License-Identifier: Apache-2.0
// `fp8-lora data`: what a job will train on, as its tokens see it.
#include "data/data_command.h"

#include "base/log.h"
#include "data/job_data.h"

#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHOW_MOST 1000000
#define BAR       40 // columns of the longest
#define BUCKETS   32

struct request {
    long show;
    bool colour;
};

static void usage(FILE *out)
{
    fputs(
        "usage: fp8-lora data [--show N] [--color] JOB.yaml\n"
        "       fp8-lora data [--show N] [--color] -- sft --FLAG VALUE ...\n"
        "\n"
        "Reads a job's datasets as its trainer will: samples, what is dropped and why, lengths in\n"
        "tokens.\n"
        "\n"
        "  --show N  print the first N samples of each; what counts in the loss is green, or in\n"
        "            [[ ]] where the output is no terminal\n"
        "  --color   colours whatever the output is\n",
        out);
}

// 1: the answer was printed.
static int options_read(int argc, char **argv, struct request *request, struct fl_error *e)
{
    enum { SHOW = 1, COLOUR };
    static const struct option options[] = {
        {"show", required_argument, NULL, SHOW},
        {"color", no_argument, NULL, COLOUR},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int option;

    opterr = 0;
    request->colour = isatty(STDOUT_FILENO);
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        char *end;
        switch (option) {
        case SHOW:
            request->show = strtol(optarg, &end, 10);
            if (end == optarg || *end || request->show < 0 || request->show > SHOW_MOST)
                return error_set(e, -EINVAL, "--show: '%.40s' is not in [0, %d]", optarg,
                                 SHOW_MOST);
            break;
        case COLOUR:
            request->colour = true;
            break;
        case 'h':
            usage(stdout);
            return 1;
        case ':':
            return error_set(e, -EINVAL, "%s has no value", argv[optind - 1]);
        default:
            return error_set(e, -EINVAL,
                             "unknown option '%.80s': a job's own flags stand behind `--`",
                             argv[optind - 1]);
        }
    }
    if (optind == argc)
        return error_set(e, -EINVAL, "give a job file, or the job's flags behind `--`");
    return 0;
}

// Samples of up to 2, 4, 8, ... tokens.
static void histogram_print(const struct dataset *d)
{
    size_t counts[BUCKETS] = {0}, most = 1;
    int first = BUCKETS, last = 0;

    for (size_t i = 0; i < d->samples; i++) {
        size_t tokens = d->offsets[i + 1] - d->offsets[i];
        int bucket = tokens < 2 ? 0 : 63 - __builtin_clzll(tokens - 1);
        counts[bucket]++;
        most = counts[bucket] > most ? counts[bucket] : most;
        first = bucket < first ? bucket : first;
        last = bucket > last ? bucket : last;
    }
    for (int b = first; b <= last; b++) {
        printf("  %8llu to %8llu tokens %9zu ", b ? (1ull << b) + 1 : 1, 2ull << b, counts[b]);
        for (size_t bar = (counts[b] * BAR + most - 1) / most; bar; bar--)
            putchar('#');
        putchar('\n');
    }
}

// A run of tokens that count alike.
static int run_print(const struct tokenizer *tokenizer, const int32_t *ids, size_t count,
                     bool counted, bool colour, struct fl_error *e)
{
    char *text;
    size_t bytes;
    int rc;

    if (!tokenizer) { // made samples have no text
        for (size_t i = 0; i < count; i++)
            printf(counted ? "[[%d]] " : "%d ", (int)ids[i]);
        return 0;
    }
    rc = tokenizer_decode(tokenizer, ids, count, &text, &bytes, e);
    if (rc < 0)
        return rc;
    fputs(!counted ? "" : colour ? "\033[32m" : "[[", stdout);
    fwrite(text, 1, bytes, stdout);
    fputs(!counted ? "" : colour ? "\033[0m" : "]]", stdout);
    free(text);
    return 0;
}

static int samples_print(const struct request *request, const struct job_data *data,
                         const struct dataset *d, struct fl_error *e)
{
    int rc = 0;

    for (size_t i = 0; i < d->samples && i < (size_t)request->show && rc == 0; i++) {
        size_t start = d->offsets[i], end = d->offsets[i + 1];
        printf("---- sample %zu, %zu tokens\n", i + 1, end - start);
        for (size_t at = start, next; at < end && rc == 0; at = next) {
            for (next = at + 1; next < end && d->loss[next] == d->loss[at];)
                next++;
            rc =
                run_print(data->tokenizer, d->ids + at, next - at, d->loss[at], request->colour, e);
        }
        putchar('\n');
    }
    return rc;
}

static int dataset_print(const struct request *request, const struct spec *spec,
                         const struct job_data *data, const struct dataset *d, const char *name,
                         struct fl_error *e)
{
    size_t tokens = d->offsets[d->samples];

    printf("%s: %zu samples of %zu records, %zu tokens, %lld count in the loss (%.1f %%)\n", name,
           d->samples, d->records, tokens, (long long)d->targets,
           tokens ? 100.0 * (double)d->targets / (double)tokens : 0);
    printf("  dropped: %zu longer than %d tokens, %zu without an answer; longest kept %zu\n",
           d->too_long, spec->max_length, d->no_target, d->longest);
    histogram_print(d);
    return samples_print(request, data, d, e);
}

int data_command(int argc, char **argv)
{
    static const char *const templates[] = {"qwen3_coder", "qwen3"};
    struct request request = {0};
    struct spec *spec = NULL;
    struct job_data data = {0};
    struct model model;
    struct fl_error e;
    int rc = options_read(argc, argv, &request, &e), status = 2;

    if (rc > 0)
        return 0;
    if (rc < 0)
        goto out;
    status = 1;
    if (spec_load(argc - optind, argv + optind, &spec, &e) || model_load(spec->model, &model, &e) ||
        job_data_read(spec, &model, &data, &e))
        goto out;
    if (data.tokenizer)
        printf("template %s\n", templates[data.template]);
    rc = dataset_print(&request, spec, &data, data.train, "training", &e);
    if (rc == 0 && data.validation)
        rc = dataset_print(&request, spec, &data, data.validation, "validation", &e);
    status = rc < 0;
out:
    if (status) {
        fflush(stdout);
        log_error("%s", e.text);
    }
    job_data_clear(&data);
    spec_destroy(spec);
    return status;
}
