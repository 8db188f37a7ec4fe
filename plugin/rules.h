// SPDX-License-Identifier: Apache-2.0
// The administrator's policy as it applies to the job at hand.
#ifndef FL_PLUGIN_RULES_H
#define FL_PLUGIN_RULES_H

#include "job/policy.h"
#include "settings.h"

struct rules {
    struct policy *policy; // NULL: none, and the decision is all zero
    struct policy_decision decision;
    struct fl_error unknown; // why the job is judged by the strictest of all; code 0: it is not
    char node_only[256];     // in the client: the sections it left aside, in words; "": none
};

// Reads the policy that settings name, by trusted_open(). rules_clear() it, also after an error.
int rules_load(const struct settings *settings, struct rules *rules, struct fl_error *e);
void rules_clear(struct rules *rules);

// On the node, as root: partition, account and QOS are those of slurmctld's job record, never of
// the environment; the GPU's model is the driver's. What cannot be had in time is taken to be any.
void rules_decide_node(struct rules *rules, const struct settings *settings, uint32_t job);

// Whether the policy has any job's steps watched that are not fp8-lora's: asked before slurmctld
// is.
bool rules_govern(const struct rules *rules);

// In the client, as its user: what it knows, sections about anything else left aside and named in
// node_only. The node decides again.
void rules_decide_client(struct rules *rules, const char *partition, const char *account,
                         const char *qos);

#endif
