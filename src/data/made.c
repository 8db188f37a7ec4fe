// SPDX-License-Identifier: Apache-2.0
// Datasets made from nothing.
#include "data/dataset.h"

#include "base/memory.h"
#include "base/philox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SOURCE         "synth://"
#define SAMPLES        1024
#define SAMPLES_MOST   (1u << 24)
#define SUCCESSOR_STEP 7919 // of the token that follows from the one before

bool dataset_is_made(const char *source)
{
    return !strncmp(source, SOURCE, strlen(SOURCE));
}

// "KEY=NUMBER" at *text, and behind it '&' or the end.
static bool number_read(const char **text, const char *key, uint64_t *value)
{
    const char *at = *text + strlen(key);
    char *end;

    if (strncmp(*text, key, strlen(key)) != 0 || *at < '0' || *at > '9')
        return false;
    errno = 0;
    *value = strtoull(at, &end, 10);
    if (errno || (*end && *end != '&'))
        return false;
    *text = *end ? end + 1 : end;
    return true;
}

static int source_read(const char *source, uint64_t *samples, uint64_t *seed, struct fl_error *e)
{
    const char *at = source + strlen(SOURCE);

    *samples = SAMPLES;
    *seed = 0;
    at += *at == '?';
    while (*at)
        if (!number_read(&at, "samples=", samples) && !number_read(&at, "seed=", seed))
            return error_set(e, -EINVAL, "%s: write " SOURCE "?samples=N&seed=N", source);
    if (*samples < 1 || *samples > SAMPLES_MOST)
        return error_set(e, -EINVAL, "%s: samples must be in [1, %u]", source, SAMPLES_MOST);
    return 0;
}

// Every power of two below vocab is as likely as the next, and each number from it to the next.
static uint32_t rare(const uint32_t random[4], uint32_t vocab)
{
    uint32_t bits = 32 - (uint32_t)__builtin_clz(vocab), low = 1u << random[0] % bits;

    return (low - 1 + random[1] % low) % vocab;
}

static void sample_fill(uint64_t seed, uint64_t sample, uint32_t vocab, int tokens, int32_t *ids)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t last = 0, random[4];

    for (int t = 0; t < tokens; t++) {
        const uint32_t counter[4] = {(uint32_t)sample, (uint32_t)(sample >> 32), (uint32_t)t, 0};
        philox4x32(counter, key, random);
        last = random[2] & 1 ? (last + SUCCESSOR_STEP) % vocab : rare(random, vocab);
        ids[t] = (int32_t)last;
    }
}

int dataset_make(const char *source, int vocab, int max_length, struct dataset **out,
                 struct fl_error *e)
{
    uint64_t samples, seed;
    size_t length = (size_t)max_length, prompt = length / 4;
    struct dataset *d;
    int rc;

    *out = NULL;
    if (max_length < 2)
        return error_set(e, -EINVAL, "max_length %d: must be at least 2", max_length);
    if ((rc = source_read(source, &samples, &seed, e)) < 0)
        return rc;
    d = memory_zeroed(1, sizeof *d);
    d->samples = d->records = samples;
    d->longest = length;
    d->offsets = memory_zeroed(samples + 1, sizeof *d->offsets);
    d->ids = memory_zeroed(samples, length * sizeof *d->ids);
    d->loss = memory_zeroed(samples, length);
    for (size_t i = 0; i < samples; i++) {
        d->offsets[i + 1] = (i + 1) * length;
        sample_fill(seed, i, (uint32_t)vocab, max_length, d->ids + i * length);
        memset(d->loss + i * length + prompt, 1, length - prompt);
        d->targets += (int64_t)(length - (prompt ? prompt : 1));
    }
    *out = d;
    return 0;
}
