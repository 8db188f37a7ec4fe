// SPDX-License-Identifier: Apache-2.0
// cmocka with its includes, and checks that show our error's text.
#ifndef FL_TESTS_UNIT_CHECK_H
#define FL_TESTS_UNIT_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/error.h"

// The call succeeded; else its error is the failure's text.
#define check_ok(call, e)                                                                          \
    do {                                                                                           \
        if ((call) != 0)                                                                           \
            fail_msg("%s: %s", #call, (e)->text);                                                  \
    } while (0)

// The call failed with a negative code, and its one line holds the words.
#define check_error(call, e, words)                                                                \
    do {                                                                                           \
        (e)->text[0] = 0;                                                                          \
        if ((call) >= 0)                                                                           \
            fail_msg("%s: succeeded, expected an error with '%s'", #call, words);                  \
        if (!strstr((e)->text, words))                                                             \
            fail_msg("%s: '%s' does not hold '%s'", #call, (e)->text, words);                      \
    } while (0)

#endif
