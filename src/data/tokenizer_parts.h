// SPDX-License-Identifier: Apache-2.0
// What a tokenizer is made of; for tokenizer.c and tokenizer_load.c alone.
#ifndef FL_DATA_TOKENIZER_PARTS_H
#define FL_DATA_TOKENIZER_PARTS_H

#include "data/added.h"
#include "data/bpe.h"
#include "data/split.h"
#include "data/vocab.h"

#include <stdbool.h>

struct tokenizer {
    struct vocab *vocab;       // the model's strings, in the byte alphabet
    struct vocab *added_texts; // the added tokens' strings, as they are
    struct added *raw;         // found in the text as given
    struct added *normalized;  // found in the text in form C
    struct split *split;
    struct bpe *bpe;
    bool nfc;
    bool ignore_merges; // a pretoken that is a token needs no merges
};

#endif
