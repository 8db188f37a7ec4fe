// SPDX-License-Identifier: Apache-2.0
// libFuzzer: a hostile tokenizer.json is refused or encodes what it decodes; nothing else.
// make CC=clang tests/fuzz/fuzz_tokenizer_json; start it with a folder that holds a small
// tokenizer.json.
#include "data/tokenizer.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char text[] = "don't  \n\xc3\xa9\xcc\x81 <|im_end|> 12";
    struct tokenizer *t;
    struct token_list tokens = {0};
    struct encoder *encoder;
    struct fl_error e;
    char *decoded;
    size_t decoded_bytes;

    if (tokenizer_parse((const char *)data, bytes, "tokenizer.json", &t, &e) < 0)
        return 0;
    encoder = encoder_create(t);
    if (encoder_append(encoder, text, sizeof text - 1, &tokens, &e) == 0) {
        if (tokenizer_decode(t, tokens.ids, tokens.count, &decoded, &decoded_bytes, &e) < 0)
            abort();
        free(decoded);
    }
    free(tokens.ids);
    encoder_destroy(encoder);
    tokenizer_destroy(t);
    return 0;
}
