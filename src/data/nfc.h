// SPDX-License-Identifier: Apache-2.0
// UTF-8 and Unicode's normalisation form C (UAX #15).
#ifndef FL_DATA_NFC_H
#define FL_DATA_NFC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Looks through text once. Returns its length when it is UTF-8, else the offset of the first byte
// that is not. *normal: every part of it is surely in form C (false means "perhaps not").
size_t utf8_scan(const char *text, size_t bytes, bool *normal);

// Text (valid UTF-8) in form C; the result is the caller's to free(). Returns its length in bytes,
// or a negative errno when it is too long for the library.
int64_t nfc_normalize(const char *text, size_t bytes, char **out);

#endif
