// SPDX-License-Identifier: Apache-2.0
// Values of environment variables, worked out from texts and numbers alone.
#include "values.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define EXPANDABLE "expandable_segments"

// Whether a comma-separated list of key:value has the key.
static int settings_have(const char *settings, const char *key)
{
    size_t length = strlen(key);

    while (*settings) {
        settings += strspn(settings, ", ");
        if (!strncmp(settings, key, length) && settings[length] == ':')
            return 1;
        settings += strcspn(settings, ",");
    }
    return 0;
}

int values_allocator(const char *settings, char *out, size_t size)
{
    const char *add = settings_have(settings, EXPANDABLE) ? "" : EXPANDABLE ":True";
    const char *comma = *settings && *add ? "," : "";

    return (size_t)snprintf(out, size, "%s%s%s", settings, comma, add) < size ? 0 : -ENAMETOOLONG;
}

bool values_binds(const char *cpu_bind)
{
    static const char *const shown[] = {"verbose", "v", "quiet", "q"};

    while (*cpu_bind) {
        size_t length = strcspn(cpu_bind, ",");
        bool chooses = length > 0;
        for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
            if (length == strlen(shown[i]) && !strncasecmp(cpu_bind, shown[i], length))
                chooses = false;
        if (chooses)
            return true;
        cpu_bind += length + (cpu_bind[length] == ',');
    }
    return false;
}

int values_port(uint32_t job, uint32_t step)
{
    // 61 is coprime to the number of ports: steps of neighbouring jobs do not meet for a while.
    return VALUES_PORT_FIRST + (int)(((uint64_t)job * 61 + step) % VALUES_PORT_COUNT);
}

int values_threads(uint32_t cpus_per_task, int cores_bound, int cpus_allowed)
{
    int threads = cores_bound > 0 ? cores_bound : cpus_per_task < 4096 ? (int)cpus_per_task : 1;

    if (cpus_allowed > 0 && threads > cpus_allowed)
        threads = cpus_allowed;
    return threads > 0 ? threads : 1;
}
