// SPDX-License-Identifier: Apache-2.0
// Element types and sizes of tensors.
#include "weights/tensor.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int bytes;
} types[TENSOR_TYPES] = {
    [TENSOR_BOOL] = {"BOOL", 1},       [TENSOR_U8] = {"U8", 1},
    [TENSOR_I8] = {"I8", 1},           [TENSOR_F8_E4M3] = {"F8_E4M3", 1},
    [TENSOR_F8_E5M2] = {"F8_E5M2", 1}, [TENSOR_F8_E8M0] = {"F8_E8M0", 1},
    [TENSOR_U16] = {"U16", 2},         [TENSOR_I16] = {"I16", 2},
    [TENSOR_F16] = {"F16", 2},         [TENSOR_BF16] = {"BF16", 2},
    [TENSOR_U32] = {"U32", 4},         [TENSOR_I32] = {"I32", 4},
    [TENSOR_F32] = {"F32", 4},         [TENSOR_U64] = {"U64", 8},
    [TENSOR_I64] = {"I64", 8},         [TENSOR_F64] = {"F64", 8},
};

const char *tensor_type_name(enum tensor_type type)
{
    return types[type].name;
}

enum tensor_type tensor_type_find(const char *name)
{
    int type = 0;

    while (type < TENSOR_TYPES && strcmp(types[type].name, name))
        type++;
    return (enum tensor_type)type;
}

int tensor_type_bytes(enum tensor_type type)
{
    return types[type].bytes;
}

int tensor_bytes(const struct tensor *tensor, uint64_t *bytes)
{
    int64_t total = types[tensor->type].bytes;

    for (int i = 0; i < tensor->dims; i++) {
        if (tensor->shape[i] < 0)
            return -EINVAL;
        if (__builtin_mul_overflow(total, tensor->shape[i], &total))
            return -EOVERFLOW;
    }
    *bytes = (uint64_t)total;
    return 0;
}

char *tensor_shape_text(const struct tensor *tensor, char text[TENSOR_SHAPE_TEXT])
{
    char *p = text;

    *p++ = '[';
    for (int i = 0; i < tensor->dims; i++)
        p += sprintf(p, "%s%" PRId64, i ? ", " : "", tensor->shape[i]);
    strcpy(p, "]");
    return text;
}
