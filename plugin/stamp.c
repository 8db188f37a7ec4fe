// SPDX-License-Identifier: Apache-2.0
// The mark by which a node knows that the srun of this very step carried the option.
#include "stamp.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

void stamp_format(const struct stamp *stamp, char text[STAMP_MAX])
{
    snprintf(text, STAMP_MAX, "%u.%u.%u.%u.%u", stamp->job, stamp->step, stamp->ep, stamp->dp,
             stamp->flags);
}

int stamp_parse(const char *text, struct stamp *stamp)
{
    uint32_t numbers[5];

    for (int i = 0; i < 5; i++) {
        unsigned long value;
        char *rest;
        if (!isdigit((unsigned char)*text))
            return -EINVAL;
        value = strtoul(text, &rest, 10);
        if (value > UINT32_MAX || *rest != (i < 4 ? '.' : 0))
            return -EINVAL;
        numbers[i] = (uint32_t)value;
        text = rest + (i < 4);
    }
    *stamp = (struct stamp){numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
    return 0;
}
