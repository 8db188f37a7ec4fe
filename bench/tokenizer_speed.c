// SPDX-License-Identifier: Apache-2.0
// How many megabytes of text a second one thread turns into token ids:
// tokenizer_speed TOKENIZER.json FILE...
#include "base/file.h"
#include "base/log.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FILE_LIMIT (256u << 20)

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct encoder *encoder = NULL;
    struct token_list tokens = {0};
    struct fl_error e;
    size_t total = 0, count = 0;
    double start = seconds(), loaded, busy = 0;
    int rc;

    log_name("tokenizer_speed");
    if (argc < 3) {
        log_error("usage: tokenizer_speed TOKENIZER.json FILE...");
        return 2;
    }
    rc = tokenizer_load(argv[1], &t, &e);
    if (rc < 0)
        goto out;
    loaded = seconds() - start;
    encoder = encoder_create(t);
    for (int i = 2; i < argc; i++) {
        char *text;
        size_t bytes;

        rc = file_read(argv[i], FILE_LIMIT, &text, &bytes, &e);
        if (rc < 0)
            goto out;
        tokens.count = 0;
        start = seconds();
        rc = encoder_append(encoder, text, bytes, &tokens, &e);
        busy += seconds() - start;
        free(text);
        if (rc < 0) {
            error_prefix(&e, "%s", argv[i]);
            goto out;
        }
        total += bytes;
        count += tokens.count;
    }
    printf("loaded in %.2f s; %zu bytes, %zu tokens in %.3f s: %.1f MB/s\n", loaded, total, count,
           busy, (double)total * 1e-6 / busy);
out:
    if (rc < 0)
        log_error("%s", e.text);
    encoder_destroy(encoder);
    tokenizer_destroy(t);
    free(tokens.ids);
    return rc < 0;
}
