// SPDX-License-Identifier: Apache-2.0
// What a step's ranks leave behind: a header and a slot for every rank in one sealed memfd.
#include "report/record.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define RECORD_MAGIC  UINT64_C(0x6670386c6f726101)
#define RECORD_SEALS  (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define READ_TRIES    64
#define RANK_WORDS    ((sizeof(struct record_rank) + 7) / 8)
#define ABORTED       (UINT64_C(1) << 63)
#define BYTES_MAX     (UINT64_C(1) << 56)
#define COUNT_MAX     (UINT64_C(1) << 62)
#define VALUE_MAX     1e30
#define EXIT_CODE_MAX 0xffff

// Everything shared is copied word by word with atomic operations: a writer that never stops, or
// one that was killed in the middle of a slot, costs a reader some tries and nothing else.
struct header {
    _Atomic uint64_t magic, version, ranks;
    _Atomic uint64_t aborted; // ABORTED | rank << 32 | wait status
};

struct slot {
    _Atomic uint64_t sequence; // odd while it is being written; 0: never written
    _Atomic uint64_t checksum;
    _Atomic uint64_t words[RANK_WORDS];
};

struct record {
    struct header *header;
    struct slot *slots;
    size_t bytes;
    uint32_t ranks; // from the sealed size, never from the mapping
};

static size_t record_bytes(uint32_t ranks)
{
    return sizeof(struct header) + ranks * sizeof(struct slot);
}

static int record_map(int fd, uint32_t ranks, struct record **out, struct fl_error *e)
{
    struct record *record = malloc(sizeof *record);
    void *base;

    if (!record)
        return error_set(e, -ENOMEM, "record: no memory");
    record->bytes = record_bytes(ranks);
    record->ranks = ranks;
    base = mmap(NULL, record->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        int code = -errno;
        free(record);
        return error_set(e, code, "record: cannot map %zu bytes: %s", record_bytes(ranks),
                         strerror(-code));
    }
    record->header = base;
    record->slots = (struct slot *)(record->header + 1);
    *out = record;
    return 0;
}

int record_create(uint32_t ranks, struct record **out, int *fd, struct fl_error *e)
{
    int file, code;

    if (!ranks || ranks > RECORD_RANKS_MAX)
        return error_set(e, -EINVAL, "record: %u ranks, expected 1 to %u", ranks, RECORD_RANKS_MAX);
    file = memfd_create("fp8-lora", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0)
        return error_set(e, -errno, "record: memfd_create: %s", strerror(errno));
    if (ftruncate(file, (off_t)record_bytes(ranks)) || fcntl(file, F_ADD_SEALS, RECORD_SEALS)) {
        code = error_set(e, -errno, "record: cannot size and seal %zu bytes: %s",
                         record_bytes(ranks), strerror(errno));
        goto out;
    }
    code = record_map(file, ranks, out, e);
    if (code)
        goto out;
    atomic_store(&(*out)->header->version, RECORD_VERSION);
    atomic_store(&(*out)->header->ranks, ranks);
    atomic_store(&(*out)->header->magic, RECORD_MAGIC);
    *fd = file;
    return 0;
out:
    close(file);
    return code;
}

int record_open(int fd, struct record **out, struct fl_error *e)
{
    struct stat s;
    uint64_t ranks;
    int seals, code;

    if (fstat(fd, &s))
        return error_set(e, -errno, "record: descriptor %d: %s", fd, strerror(errno));
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & RECORD_SEALS) != RECORD_SEALS)
        return error_set(e, -EINVAL, "record: descriptor %d is not a sealed record", fd);
    ranks = (uint64_t)s.st_size < record_bytes(1)
                ? 0
                : ((uint64_t)s.st_size - sizeof(struct header)) / sizeof(struct slot);
    if (!ranks || ranks > RECORD_RANKS_MAX || record_bytes((uint32_t)ranks) != (size_t)s.st_size)
        return error_set(e, -EINVAL, "record: descriptor %d has %lld bytes, which no record has",
                         fd, (long long)s.st_size);
    code = record_map(fd, (uint32_t)ranks, out, e);
    if (code)
        return code;
    if (atomic_load(&(*out)->header->magic) != RECORD_MAGIC ||
        atomic_load(&(*out)->header->version) != RECORD_VERSION ||
        atomic_load(&(*out)->header->ranks) != ranks) {
        record_close(*out);
        *out = NULL;
        return error_set(e, -EINVAL, "record: header of descriptor %d is not version %d's", fd,
                         RECORD_VERSION);
    }
    return 0;
}

void record_close(struct record *record)
{
    if (!record)
        return;
    munmap(record->header, record->bytes);
    free(record);
}

uint32_t record_ranks(const struct record *record)
{
    return record->ranks;
}

// FNV-1a over words; catches torn and foreign writes, not forgery.
static uint64_t words_checksum(const uint64_t *words)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < RANK_WORDS; i++)
        hash = (hash ^ words[i]) * UINT64_C(0x100000001b3);
    return hash;
}

int record_write(struct record *record, const struct record_rank *values)
{
    uint64_t words[RANK_WORDS] = {0}, sequence;
    struct slot *slot;

    if (values->rank >= record->ranks)
        return -EINVAL;
    slot = &record->slots[values->rank];
    memcpy(words, values, sizeof *values);
    sequence = atomic_load_explicit(&slot->sequence, memory_order_relaxed) | 1;
    atomic_store_explicit(&slot->sequence, sequence, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (size_t i = 0; i < RANK_WORDS; i++)
        atomic_store_explicit(&slot->words[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&slot->checksum, words_checksum(words), memory_order_relaxed);
    atomic_store_explicit(&slot->sequence, sequence + 1, memory_order_release);
    return 0;
}

// 0 and a copy nobody wrote meanwhile; -ENOENT or -EAGAIN.
static int slot_copy(const struct slot *slot, uint64_t *words, uint64_t *checksum)
{
    for (int i = 0; i < READ_TRIES; i++) {
        uint64_t before = atomic_load_explicit(&slot->sequence, memory_order_acquire);
        if (!before)
            return -ENOENT;
        if (before & 1)
            continue;
        for (size_t w = 0; w < RANK_WORDS; w++)
            words[w] = atomic_load_explicit(&slot->words[w], memory_order_relaxed);
        *checksum = atomic_load_explicit(&slot->checksum, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&slot->sequence, memory_order_relaxed) == before)
            return 0;
    }
    return -EAGAIN;
}

// Terminates the string, clears what is behind its end, and leaves only printable ASCII in it.
static void string_clean(char *text, size_t size)
{
    size_t used;

    text[size - 1] = 0;
    used = strlen(text);
    memset(text + used, 0, size - used);
    for (size_t i = 0; i < used; i++)
        if (text[i] < 0x20 || text[i] > 0x7e)
            text[i] = '?';
}

static bool bytes_valid(const uint64_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] > BYTES_MAX)
            return false;
    return true;
}

static double value_clean(double value)
{
    if (isnan(value))
        return NAN; // one bit pattern
    return value > VALUE_MAX ? VALUE_MAX : value < -VALUE_MAX ? -VALUE_MAX : value;
}

int record_read(const struct record *record, uint32_t rank, struct record_rank *values)
{
    uint64_t words[RANK_WORDS], checksum = 0;
    int code;

    if (rank >= record->ranks)
        return -EINVAL;
    code = slot_copy(&record->slots[rank], words, &checksum);
    if (code)
        return code;
    if (checksum != words_checksum(words))
        return -EINVAL;
    memcpy(values, words, sizeof *values);
    if (values->rank != rank || values->local_rank >= RECORD_RANKS_MAX ||
        values->ep_rank >= RECORD_RANKS_MAX || values->dp_rank >= RECORD_RANKS_MAX ||
        values->state >= RANK_STATES || values->watch >= WATCH_STATES ||
        values->members >= MEMBERS_KINDS || values->pid < 0 || values->exit_code < 0 ||
        values->exit_code > EXIT_CODE_MAX || !bytes_valid(values->planned, MEMORY_CATEGORIES) ||
        !bytes_valid(values->peak, MEMORY_CATEGORIES) || !bytes_valid(&values->planned_total, 1) ||
        !bytes_valid(&values->peak_total, 1) || !bytes_valid(&values->cap, 1) ||
        !bytes_valid(&values->measured, 1) || !bytes_valid(&values->rss_peak, 1) ||
        values->iterations > COUNT_MAX || values->tokens > COUNT_MAX)
        return -EINVAL;
    string_clean(values->node, sizeof values->node);
    string_clean(values->gpu, sizeof values->gpu);
    string_clean(values->cause, sizeof values->cause);
    values->tokens_per_second = value_clean(values->tokens_per_second);
    values->loss = value_clean(values->loss);
    return 0;
}

void record_abort(struct record *record, uint32_t rank, int wait_status)
{
    uint64_t none = 0, value = ABORTED | (uint64_t)(rank & 0xffffff) << 32 | (uint32_t)wait_status;

    atomic_compare_exchange_strong(&record->header->aborted, &none, value);
}

int record_aborted(const struct record *record, uint32_t *rank, int *wait_status)
{
    uint64_t value = atomic_load(&record->header->aborted);

    if (!(value & ABORTED))
        return 0;
    if (rank)
        *rank = (uint32_t)(value >> 32) & 0xffffff;
    if (wait_status)
        *wait_status = (int)(uint32_t)value;
    return 1;
}
