// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any bytes as a safetensors file. Every tensor it then claims must be readable.
// Needs clang; best configured with --enable-sanitizers.
#include "weights/safetensors.h"

#include "base/memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    struct safetensors *file;
    struct fl_error e;
    char path[64];

    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (safetensors_open(path, &file, &e) == 0) {
        for (size_t i = 0; i < safetensors_count(file); i++) {
            const struct tensor *t = safetensors_at(file, i);
            char *values = memory_zeroed(t->bytes, 1);
            if (safetensors_read(file, t, 0, values, t->bytes, &e) < 0)
                abort();
            free(values);
        }
        safetensors_close(file);
    }
    close(fd);
    return 0;
}
