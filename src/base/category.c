// SPDX-License-Identifier: Apache-2.0
// What memory is for.
#include "base/category.h"

const char *memory_category_name(enum memory_category category)
{
    static const char *const names[MEMORY_CATEGORIES] = {
        "weights",     "adapters",  "gradients",     "optimizer",
        "activations", "workspace", "communication",
    };
    return category >= 0 && category < MEMORY_CATEGORIES ? names[category] : "unknown";
}
