// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any bytes as a policy. What is taken must decide, for a job known and unknown.
// Needs clang; best configured with --enable-sanitizers.
#include "job/policy.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct policy_decision decision;
    struct policy *policy;
    struct fl_error e = {0};

    if (policy_parse((const char *)data, bytes, "p.yaml", &policy, &e) < 0) {
        if (policy || strncmp(e.text, "p.yaml", 6) != 0)
            abort();
        return 0;
    }
    policy_decide(policy, &(struct policy_facts){0}, &decision);
    policy_decide(policy, &(struct policy_facts){"NVIDIA H200", "a", "b", "c"}, &decision);
    if (decision.watch_interval_ms < 1 || decision.watch_interval_ms > 1000)
        abort();
    if (decision.model_root_count > POLICY_SECTIONS || decision.output_root_count > POLICY_SECTIONS)
        abort();
    policy_destroy(policy);
    return 0;
}
