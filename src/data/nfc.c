// SPDX-License-Identifier: Apache-2.0
// UTF-8 and Unicode's normalisation form C, by utf8proc.
#include "data/nfc.h"

#include <errno.h>
#include <string.h>

#include <utf8proc.h>

// Characters that are their own form C and never combine with the one before (combining class 0 and
// NFC_Quick_Check=Yes), of widely used scripts. Ordered; others are left to the library.
static const struct {
    utf8proc_int32_t first, last;
} settled[] = {
    {0, 0x2ff},       {0x388, 0x482},   {0x48a, 0x52f},     // Latin, Greek, Cyrillic
    {0x5d0, 0x5ea},   {0x620, 0x64a},   {0xe01, 0xe37},     // Hebrew, Arabic, Thai
    {0x1e00, 0x1eff}, {0x2010, 0x2064}, {0x2190, 0x2328},   // Latin, punctuation, symbols
    {0x2500, 0x27bf}, {0x3000, 0x3029}, {0x3041, 0x3096},   // symbols, Hiragana
    {0x309b, 0x30ff}, {0x3400, 0x4dbf}, {0x4e00, 0x9fff},   // Katakana, ideographs
    {0xac00, 0xd7a3}, {0xff01, 0xffdc}, {0x1f300, 0x1faff}, // Hangul, wide forms, emoji
};

static bool character_settled(utf8proc_int32_t c)
{
    for (size_t i = 0; i < sizeof settled / sizeof *settled && c >= settled[i].first; i++)
        if (c <= settled[i].last)
            return true;
    return false;
}

size_t utf8_scan(const char *text, size_t bytes, bool *normal)
{
    size_t i = 0;

    *normal = true;
    while (i < bytes) {
        uint64_t eight;
        utf8proc_int32_t c;
        utf8proc_ssize_t n;

        if (bytes - i >= sizeof eight) {
            memcpy(&eight, text + i, sizeof eight);
            if (!(eight & 0x8080808080808080)) {
                i += sizeof eight;
                continue;
            }
        }
        n = utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(bytes - i), &c);
        if (n <= 0)
            return i;
        *normal = *normal && character_settled(c);
        i += (size_t)n;
    }
    return bytes;
}

int64_t nfc_normalize(const char *text, size_t bytes, char **out)
{
    utf8proc_uint8_t *normal = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes,
                                      &normal, UTF8PROC_STABLE | UTF8PROC_COMPOSE);

    *out = (char *)normal;
    if (n >= 0)
        return n;
    return n == UTF8PROC_ERROR_NOMEM ? -ENOMEM : -EINVAL;
}
