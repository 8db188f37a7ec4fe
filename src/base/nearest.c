// SPDX-License-Identifier: Apache-2.0
// The nearest known name to a misspelt one: Damerau-Levenshtein distance over adjacent swaps.
#include "base/nearest.h"

#include <string.h>

#define LONGEST 64

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t distance(const char *a, size_t n, const char *b, size_t m)
{
    size_t d[LONGEST + 1][LONGEST + 1];

    for (size_t i = 0; i <= n; i++)
        d[i][0] = i;
    for (size_t j = 0; j <= m; j++)
        d[0][j] = j;
    for (size_t i = 1; i <= n; i++)
        for (size_t j = 1; j <= m; j++) {
            size_t best = smaller(d[i - 1][j], d[i][j - 1]) + 1;
            best = smaller(best, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = smaller(best, d[i - 2][j - 2] + 1);
            d[i][j] = best;
        }
    return d[n][m];
}

const char *nearest_name(const char *word, const char *const *names, size_t count)
{
    const char *best = NULL;
    size_t n = strlen(word), limit = n / 3 < 2 ? 2 : n / 3;

    if (n > LONGEST)
        return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t m = strlen(names[i]), d;
        if (m > LONGEST)
            continue;
        d = distance(word, n, names[i], m);
        if (d <= limit && d < n) {
            if (d == 0)
                return names[i];
            limit = d - 1;
            best = names[i];
        }
    }
    return best;
}
