// SPDX-License-Identifier: Apache-2.0
// A placement as a table for a person.
#include "place/gpu.h"
#include "place/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 8
#define CELL    128

static const char *const titles[COLUMNS] = {"rank", "PCI", "GPU",      "CPUs",
                                            "NUMA", "NIC", "EP group", "why"};

static void or_dash(char cell[CELL], const char *text)
{
    snprintf(cell, CELL, "%s", *text ? text : "-");
}

static void set_print(char cell[CELL], hwloc_const_bitmap_t set)
{
    if (!set || hwloc_bitmap_iszero(set))
        snprintf(cell, CELL, "-");
    else
        hwloc_bitmap_list_snprintf(cell, CELL, set);
}

static void row_fill(const struct place_rank *rank, char cells[COLUMNS][CELL])
{
    snprintf(cells[0], CELL, "%u", rank->global);
    or_dash(cells[1], rank->gpu == GPU_HIDDEN ? "hidden" : rank->pci);
    or_dash(cells[2], rank->uuid);
    set_print(cells[3], rank->cpus);
    set_print(cells[4], rank->memory);
    or_dash(cells[5], rank->nic);
    or_dash(cells[6], rank->group);
    or_dash(cells[7], rank->reason);
}

static void row_print(FILE *out, char cells[COLUMNS][CELL], const int *widths)
{
    for (int c = 0; c < COLUMNS - 1; c++)
        fprintf(out, "%-*s  ", widths[c], cells[c]);
    fprintf(out, "%s\n", cells[COLUMNS - 1]);
}

char *placement_table(const struct placement *placement)
{
    char cells[COLUMNS][CELL], *text = NULL;
    int widths[COLUMNS];
    size_t size;
    FILE *out = open_memstream(&text, &size);

    if (!out)
        return NULL;
    for (int c = 0; c < COLUMNS; c++)
        widths[c] = (int)strlen(titles[c]);
    for (int i = 0; i < placement->ranks; i++) {
        row_fill(&placement->rank[i], cells);
        for (int c = 0; c < COLUMNS; c++)
            if ((int)strlen(cells[c]) > widths[c])
                widths[c] = (int)strlen(cells[c]);
    }
    for (int c = 0; c < COLUMNS; c++)
        snprintf(cells[c], CELL, "%s", titles[c]);
    row_print(out, cells, widths);
    for (int i = 0; i < placement->ranks; i++) {
        row_fill(&placement->rank[i], cells);
        row_print(out, cells, widths);
    }
    for (int i = 0; i < placement->warnings; i++)
        fprintf(out, "warning: %s\n", placement->warning[i]);
    if (fclose(out)) {
        free(text);
        return NULL;
    }
    return text;
}
