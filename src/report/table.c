// SPDX-License-Identifier: Apache-2.0
// A step's ranks as a table for people.
#include "report/table.h"

#include "base/bytes.h"
#include "base/category.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS   12
#define CELL_MAX  48
#define CAUSE_MAX 256

struct row {
    char cells[COLUMNS][CELL_MAX];
    char cause[CAUSE_MAX];
};

static const char *const titles[COLUMNS] = {"rank",    "node",     "GPU",      "state",
                                            "planned", "peak",     "measured", "cap",
                                            "host",    "tokens/s", "loss",     "exit"};
static const bool left[COLUMNS] = {[1] = true, [2] = true, [3] = true};

static void text_copy(char *out, size_t size, const json_t *value)
{
    const char *text = json_is_string(value) ? json_string_value(value) : "-";
    size_t i;

    for (i = 0; text[i] && i + 1 < size; i++)
        out[i] = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
    out[i] = 0;
}

static uint64_t bytes_of(const json_t *value)
{
    json_int_t bytes = json_integer_value(value);

    return bytes > 0 ? (uint64_t)bytes : 0;
}

static void bytes_cell(char cell[CELL_MAX], const json_t *value)
{
    char text[BYTES_TEXT];

    snprintf(cell, CELL_MAX, "%s", bytes_of(value) ? bytes_format(bytes_of(value), text) : "-");
}

static void number_cell(char cell[CELL_MAX], const json_t *value, const char *format, int digits)
{
    if (json_is_number(value))
        snprintf(cell, CELL_MAX, "%.*f", digits, json_number_value(value));
    else
        snprintf(cell, CELL_MAX, "%s", format);
}

// As a shell would number it: 128 and the signal for a process that was killed.
static void exit_cell(char cell[CELL_MAX], const json_t *value)
{
    json_int_t status = json_integer_value(value);
    int signal = (int)(status & 0x7f);

    if (json_is_integer(value))
        snprintf(cell, CELL_MAX, "%d", signal ? 128 + signal : (int)(status >> 8 & 0xff));
    else
        snprintf(cell, CELL_MAX, "-");
}

static void row_fill(struct row *row, const json_t *rank)
{
    number_cell(row->cells[0], json_object_get(rank, "rank"), "-", 0);
    text_copy(row->cells[1], CELL_MAX, json_object_get(rank, "node"));
    text_copy(row->cells[2], sizeof "GPU-01234567", json_object_get(rank, "gpu"));
    text_copy(row->cells[3], CELL_MAX, json_object_get(rank, "state"));
    bytes_cell(row->cells[4], json_object_get(rank, "planned"));
    bytes_cell(row->cells[5], json_object_get(rank, "peak"));
    bytes_cell(row->cells[6], json_object_get(rank, "measured"));
    bytes_cell(row->cells[7], json_object_get(rank, "cap"));
    bytes_cell(row->cells[8], json_object_get(rank, "rss"));
    number_cell(row->cells[9], json_object_get(rank, "tps"), "-", 1);
    number_cell(row->cells[10], json_object_get(rank, "loss"), "-", 4);
    exit_cell(row->cells[11], json_object_get(rank, "exit"));
    if (json_is_string(json_object_get(rank, "cause")))
        text_copy(row->cause, sizeof row->cause, json_object_get(rank, "cause"));
}

static void line_print(FILE *out, const struct row *row, const int width[COLUMNS])
{
    for (int c = 0; c < COLUMNS; c++)
        fprintf(out, left[c] ? "%s%-*s" : "%s%*s", c ? "  " : "", width[c], row->cells[c]);
    fprintf(out, "%s%s\n", row->cause[0] ? "  " : "", row->cause);
}

static void total_fill(struct row *total, const json_t *ranks)
{
    uint64_t planned = 0, peak = 0, measured = 0, host = 0;
    double tokens = 0;
    json_t *rank;
    size_t i;
    char text[BYTES_TEXT];

    json_array_foreach(ranks, i, rank)
    {
        planned += bytes_of(json_object_get(rank, "planned"));
        peak += bytes_of(json_object_get(rank, "peak"));
        measured += bytes_of(json_object_get(rank, "measured"));
        host += bytes_of(json_object_get(rank, "rss"));
        tokens += json_number_value(json_object_get(rank, "tps"));
    }
    snprintf(total->cells[0], CELL_MAX, "all");
    snprintf(total->cells[4], CELL_MAX, "%s", bytes_format(planned, text));
    snprintf(total->cells[5], CELL_MAX, "%s", bytes_format(peak, text));
    snprintf(total->cells[6], CELL_MAX, "%s", measured ? bytes_format(measured, text) : "-");
    snprintf(total->cells[8], CELL_MAX, "%s", bytes_format(host, text));
    snprintf(total->cells[9], CELL_MAX, "%.1f", tokens);
}

// Where the highest peak went.
static void categories_print(FILE *out, const json_t *ranks)
{
    json_t *rank, *highest = NULL, *by;
    char text[BYTES_TEXT];
    size_t i;

    json_array_foreach(ranks, i,
                       rank) if (json_object_get(rank, "by") &&
                                 (!highest || bytes_of(json_object_get(rank, "peak")) >
                                                  bytes_of(json_object_get(highest, "peak"))))
        highest = rank;
    by = json_object_get(highest, "by");
    if (!json_array_size(by))
        return;
    fprintf(out, "highest peak, rank %lld:",
            (long long)json_integer_value(json_object_get(highest, "rank")));
    for (int c = 0; c < MEMORY_CATEGORIES; c++)
        if (bytes_of(json_array_get(by, (size_t)c)))
            fprintf(out, " %s %s", memory_category_name((enum memory_category)c),
                    bytes_format(bytes_of(json_array_get(by, (size_t)c)), text));
    fputc('\n', out);
}

// What held the cap on each node.
static void watch_print(FILE *out, const json_t *nodes)
{
    static const char *const states[][2] = {
        {"starting", "cap not in force: the step ended before the first sample"},
        {"measures", "no cap, measured"},
        {"watch", "cap in force: sampled"},
        {"limit", "cap in force: the driver's limit, and sampled"},
        {"blind", "cap not in force: it could not be measured"},
        {"lost", "cap not in force: the watch died"},
    };
    json_t *node;
    size_t i;

    json_array_foreach(nodes, i, node)
    {
        const char *state = json_string_value(json_array_get(node, 1)),
                   *members = json_string_value(json_array_get(node, 2)), *words = "unknown";
        for (size_t s = 0; state && s < sizeof states / sizeof *states; s++)
            if (!strcmp(state, states[s][0]))
                words = states[s][1];
        fprintf(out, "device memory of node %lld: %s%s\n",
                (long long)json_integer_value(json_array_get(node, 0)), words,
                !members                     ? ""
                : !strcmp(members, "cgroup") ? " (processes of the step's cgroup)"
                : !strcmp(members, "family") ? " (slurmstepd's descendants)"
                                             : "");
    }
}

void table_print(FILE *out, json_t *step)
{
    json_t *ranks = json_object_get(step, "ranks"), *failed = json_object_get(step, "failed");
    json_int_t tasks = json_integer_value(json_object_get(step, "tasks"));
    size_t count = json_array_size(ranks);
    struct row *rows = calloc(count + 2, sizeof *rows);
    char cause[CAUSE_MAX];
    int width[COLUMNS];

    if (!rows)
        return;
    for (int c = 0; c < COLUMNS; c++)
        snprintf(rows[0].cells[c], CELL_MAX, "%s", titles[c]);
    for (size_t i = 0; i < count; i++)
        row_fill(&rows[1 + i], json_array_get(ranks, i));
    total_fill(&rows[1 + count], ranks);
    for (int c = 0; c < COLUMNS; c++) {
        width[c] = 0;
        for (size_t i = 0; i < count + 2; i++)
            if ((int)strlen(rows[i].cells[c]) > width[c])
                width[c] = (int)strlen(rows[i].cells[c]);
    }
    for (size_t i = 0; i < count + (count ? 2 : 0); i++)
        line_print(out, &rows[i], width);
    categories_print(out, ranks);
    watch_print(out, json_object_get(step, "watch"));
    if ((json_int_t)count < tasks)
        fprintf(out, "%zu of %lld ranks: the others left nothing, or there was no room for them\n",
                count, (long long)tasks);
    if (json_is_object(failed)) {
        text_copy(cause, sizeof cause, json_object_get(failed, "cause"));
        fprintf(out, "first failure: rank %lld, %s\n",
                (long long)json_integer_value(json_object_get(failed, "rank")), cause);
    }
    free(rows);
}
