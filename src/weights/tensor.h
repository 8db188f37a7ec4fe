// SPDX-License-Identifier: Apache-2.0
// A tensor of a safetensors file: name, element type, shape and place.
#ifndef FL_WEIGHTS_TENSOR_H
#define FL_WEIGHTS_TENSOR_H

#include <stdint.h>

#define TENSOR_DIMS 8

enum tensor_type {
    TENSOR_BOOL,
    TENSOR_U8,
    TENSOR_I8,
    TENSOR_F8_E4M3,
    TENSOR_F8_E5M2,
    TENSOR_F8_E8M0,
    TENSOR_U16,
    TENSOR_I16,
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_U32,
    TENSOR_I32,
    TENSOR_F32,
    TENSOR_U64,
    TENSOR_I64,
    TENSOR_F64,
    TENSOR_TYPES
};

struct tensor {
    const char *name;
    enum tensor_type type;
    int dims;
    int64_t shape[TENSOR_DIMS];
    uint64_t offset, bytes; // of the data, from the start of the file
};

// "F8_E4M3", ...: the format's own words.
const char *tensor_type_name(enum tensor_type type);
// TENSOR_TYPES when unknown.
enum tensor_type tensor_type_find(const char *name);
int tensor_type_bytes(enum tensor_type type);

// Bytes of the shape. A negative dimension: -EINVAL; more than 2^63 - 1 bytes: -EOVERFLOW.
int tensor_bytes(const struct tensor *tensor, uint64_t *bytes);

// "[4096, 256]" into text; returns text.
#define TENSOR_SHAPE_TEXT (TENSOR_DIMS * 22 + 3)
char *tensor_shape_text(const struct tensor *tensor, char text[TENSOR_SHAPE_TEXT]);

#endif
