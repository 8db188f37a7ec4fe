// SPDX-License-Identifier: Apache-2.0
// `fp8-lora synth`: a checkpoint of any shape without a download.
#include "weights/synth_command.h"

#include "base/bytes.h"
#include "base/log.h"
#include "base/memory.h"
#include "job/source.h"
#include "weights/synth_checkpoint.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHARD_BYTES ((uint64_t)4 << 30)

static void usage(FILE *out)
{
    fputs(
        "usage: fp8-lora synth [--seed N] [--shard SIZE] CONFIG FOLDER\n"
        "\n"
        "Makes the weights of a config.json (or of the folder that holds it), distributed like\n"
        "trained ones, and writes them to FOLDER as an FP8 checkpoint. A job has the same without\n"
        "a disk by `model: synth://CONFIG?seed=N`.\n"
        "\n"
        "  --seed N      other weights for every N (default: 0)\n"
        "  --shard SIZE  largest file (default: 4GiB)\n",
        out);
}

// 1: the answer was printed.
static int options_read(int argc, char **argv, uint64_t *seed, uint64_t *shard, struct fl_error *e)
{
    enum { SEED = 1, SHARD };
    static const struct option options[] = {
        {"seed", required_argument, NULL, SEED},
        {"shard", required_argument, NULL, SHARD},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int option;

    opterr = 0;
    while ((option = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
        char *end;
        switch (option) {
        case SEED:
            errno = 0;
            *seed = strtoull(optarg, &end, 10);
            if (*optarg < '0' || *optarg > '9' || *end || errno)
                return error_set(e, -EINVAL, "--seed: '%.40s' is not a whole number", optarg);
            break;
        case SHARD:
            if (bytes_parse(optarg, shard, e))
                return error_prefix(e, "--shard");
            break;
        case 'h':
            usage(stdout);
            return 1;
        case ':':
            return error_set(e, -EINVAL, "%s has no value", argv[optind - 1]);
        default:
            return error_set(e, -EINVAL, "unknown option '%.80s'; see fp8-lora synth --help",
                             argv[optind - 1]);
        }
    }
    if (argc - optind != 2)
        return error_set(e, -EINVAL, "give a config.json and a new folder");
    return 0;
}

int synth_command(int argc, char **argv)
{
    struct synth_written written;
    struct fl_error e;
    uint64_t seed = 0, shard = SHARD_BYTES;
    int rc = options_read(argc, argv, &seed, &shard, &e), status = 2;
    char text[BYTES_TEXT];

    if (rc > 0)
        return 0;
    if (rc == 0) {
        char *source = memory_format(SOURCE_SYNTH "%s", argv[optind]);
        rc = synth_checkpoint_write(source, seed, argv[optind + 1], shard, &written, &e);
        free(source);
        status = 1;
    }
    if (rc < 0) {
        log_error("%s", e.text);
        return status;
    }
    printf("%s: %s in %zu file%s\n", argv[optind + 1], bytes_format(written.bytes, text),
           written.shards, written.shards == 1 ? "" : "s");
    return 0;
}
