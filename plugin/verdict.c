// SPDX-License-Identifier: Apache-2.0
// What samples of a step's device memory mean under its cap.
#include "verdict.h"

#include "family.h"

// Of one rank on one device.
static struct use_sum sum_of(const struct use *uses, size_t count, int32_t rank, uint32_t device)
{
    struct use_sum sum = {.rank = rank, .device = device};

    for (size_t i = 0; i < count; i++) {
        if (uses[i].rank != rank || uses[i].device != device)
            continue;
        sum.bytes = sum.bytes + uses[i].bytes < sum.bytes ? UINT64_MAX : sum.bytes + uses[i].bytes;
        if (uses[i].bytes >= sum.largest_bytes) {
            sum.largest = uses[i].pid;
            sum.largest_bytes = uses[i].bytes;
        }
    }
    return sum;
}

bool uses_sum(const struct use *uses, size_t count, int32_t rank, struct use_sum *sum)
{
    bool found = false;

    for (size_t i = 0; i < count; i++) {
        if (uses[i].rank != rank)
            continue;
        struct use_sum here = sum_of(uses, count, rank, uses[i].device);
        if (!found || here.bytes > sum->bytes)
            *sum = here;
        found = true;
    }
    return found;
}

static enum verdict_call end_step(struct verdict *verdict, int64_t now_ms)
{
    if (!verdict->ended) {
        verdict->ended = true;
        verdict->ended_ms = now_ms;
        return CALL_TERM;
    }
    return now_ms - verdict->ended_ms >= VERDICT_TERM_MS ? CALL_KILL : CALL_NOTHING;
}

enum verdict_call verdict_sample(struct verdict *verdict, const struct use *uses, size_t count,
                                 int64_t now_ms, struct use_sum *worst)
{
    bool over;

    *worst = (struct use_sum){.rank = FAMILY_NO_RANK};
    for (size_t i = 0; i < count; i++) {
        struct use_sum sum = sum_of(uses, count, uses[i].rank, uses[i].device);
        if (sum.bytes > worst->bytes)
            *worst = sum;
    }
    over = verdict->cap_bytes && worst->bytes > verdict->cap_bytes;
    if (over && verdict->over)
        verdict->over_ms += now_ms - verdict->sample_ms;
    verdict->over = over;
    verdict->sample_ms = now_ms;
    verdict->failures = 0;
    verdict->blind = false;
    if (verdict->ended)
        return end_step(verdict, now_ms);
    if (!over)
        return CALL_NOTHING;
    if (verdict->action == WATCH_WARN || verdict->over_ms < verdict->grace_ms) {
        enum verdict_call call = verdict->told ? CALL_NOTHING : CALL_TELL;
        verdict->told = true;
        return call;
    }
    return end_step(verdict, now_ms);
}

enum verdict_call verdict_failure(struct verdict *verdict, bool final, int64_t now_ms)
{
    verdict->over = false;
    verdict->failures++;
    if (verdict->ended)
        return end_step(verdict, now_ms);
    if (!final && verdict->failures < VERDICT_FAILURES)
        return CALL_NOTHING;
    if (verdict->on_failure == WATCH_END)
        return end_step(verdict, now_ms);
    if (verdict->blind)
        return CALL_NOTHING;
    verdict->blind = true;
    return CALL_BLIND;
}
