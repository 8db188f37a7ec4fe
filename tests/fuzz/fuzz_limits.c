// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any bytes as limits. What is taken must come back the same when it is written
// again. Needs clang; best configured with --enable-sanitizers.
#include "job/limits.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct limits limits;
    struct fl_error e = {0};
    void *again;
    size_t size;

    if (limits_decode(data, bytes, &limits, &e) < 0) {
        if (limits.memory || e.code != -EINVAL)
            abort();
        return 0;
    }
    if (limits_encode(&limits, &again, &size, &e) < 0 || size != bytes ||
        memcmp(again, data, bytes) != 0)
        abort();
    free(again);
    limits_clear(&limits);
    return 0;
}
