// SPDX-License-Identifier: Apache-2.0
// What all backends share.
#include "ops/ops.h"

void ops_destroy(struct ops *ops)
{
    if (ops)
        ops->destroy(ops);
}
