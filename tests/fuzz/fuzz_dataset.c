// SPDX-License-Identifier: Apache-2.0
// libFuzzer: hostile dataset files are cut into records, and records into messages, or refused.
// make CC=clang tests/fuzz/fuzz_dataset
#include "data/formats.h"
#include "data/records.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct message_list list = {0};
    struct record *records;
    size_t count, line;
    struct fl_error e;

    if (records_find((const char *)data, bytes, &records, &count, &line, &e) < 0)
        return 0;
    for (size_t i = 0; i < count; i++) {
        json_t *json;
        if (records[i].text < (const char *)data ||
            records[i].text + records[i].bytes > (const char *)data + bytes)
            abort();
        json =
            json_loadb(records[i].text, records[i].bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (json)
            format_messages(json, &list, &e);
        json_decref(json);
    }
    free(records);
    message_list_clear(&list);
    return 0;
}
