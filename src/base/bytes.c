// SPDX-License-Identifier: Apache-2.0
// Amounts of memory as people write them.
#include "base/bytes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char letters[] = "KMGT";

// 1024 or 1000 to the power of the unit, 0 when unknown.
static double unit_factor(const char *unit)
{
    const char *letter;
    double base = 1024, factor = 1;

    if (!*unit || !strcasecmp(unit, "B"))
        return 1;
    letter = strchr(letters, *unit >= 'a' ? *unit - 'a' + 'A' : *unit);
    if (!letter)
        return 0;
    if (!strcasecmp(unit + 1, "B"))
        base = 1000;
    else if (unit[1] && strcasecmp(unit + 1, "iB"))
        return 0;
    for (const char *l = letters; l <= letter; l++)
        factor *= base;
    return factor;
}

int bytes_parse(const char *text, uint64_t *bytes, struct fl_error *e)
{
    size_t digits = strspn(text, "0123456789"), point = text[digits] == '.';
    size_t decimals = point ? strspn(text + digits + 1, "0123456789") : 0;
    const char *unit = text + digits + point + decimals;
    double value = 0, factor = unit_factor(unit + strspn(unit, " ")), place = 1;

    for (size_t i = 0; i < digits; i++)
        value = value * 10 + (text[i] - '0');
    for (size_t i = 0; i < decimals; i++)
        value += (text[digits + 1 + i] - '0') * (place /= 10);
    if (!digits || (point && !decimals) || factor == 0)
        return error_set(e, -EINVAL, "'%.40s' is not an amount of memory: write it as 80GiB", text);
    value *= factor;
    if (value >= 0x1p63)
        return error_set(e, -ERANGE, "'%.40s' is more memory than there is", text);
    *bytes = (uint64_t)value;
    return 0;
}

char *bytes_format(uint64_t bytes, char text[BYTES_TEXT])
{
    double value = (double)bytes;
    int unit = -1;

    while (value >= 1024 && unit < 3) {
        value /= 1024;
        unit++;
    }
    if (unit < 0)
        snprintf(text, BYTES_TEXT, "%d B", (int)bytes);
    else
        snprintf(text, BYTES_TEXT, "%.2f %ciB", value, letters[unit]);
    return text;
}
