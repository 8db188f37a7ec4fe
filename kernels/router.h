// SPDX-License-Identifier: Apache-2.0
// The router: logits, probabilities, chosen experts and their weights, capacity, load balancing,
// and the gradient of all that.
//
// T tokens, H hidden, E experts, K top_k. Every result is the same in every run: no sum depends on
// the order in which blocks finish.
#ifndef FL_KERNELS_ROUTER_H
#define FL_KERNELS_ROUTER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ROUTER_EXPERTS_MOST              512
#define ROUTER_TOP_K_MOST                64
#define ROUTER_TOKENS_A_PART             32 // tokens whose probabilities one block sums
#define ROUTER_GRADIENT_COLUMNS(experts) (((experts) + 63) / 64 * 64)

// Sums of 32 tokens that the load balancing loss is made of, and the number of such sums: the
// blocks come in pairs.
#define ROUTER_PARTS(tokens) (((tokens) + 63) / 64 * 2)

struct router {
    const uint16_t *h;     // [T, H] bf16, rows h_pitch elements apart, 16-byte aligned
    const float *weight;   // [E, H]
    int32_t *ids;          // [T, K]; read instead of written with replay
    uint8_t *kept;         // [T, K]; 1 everywhere, untouched with replay
    float *logits, *probs; // [T, E]
    float *weights;        // [T, K] probabilities of ids, divided by their sum with normalise
    double *mass;          // [ROUTER_PARTS(T), E] sums of probs
    int32_t *slots;        // [ROUTER_PARTS(T), E] slots that chose the expert
    size_t h_pitch;
    int tokens, hidden, experts, top_k, normalise, replay;
};

// logits = h weight^T with the accuracy of fp32; probs = softmax; the K most probable experts, ties
// to the lower number. All launchers: queued on stream (a cudaStream_t), 0 or a cudaError_t.
int sm90_router_forward(const struct router *router, void *stream);

// aux[0] = E / (K T^2) sum over experts of mass * slots, from the parts above.
int router_load_balance(const double *mass, const int32_t *slots, int tokens, int experts,
                        int top_k, double *aux, void *stream);

// kept [slots] = 1 for the capacity greatest weights [slots] >= 0 of every expert, ties to the
// lower slot, else 0.
int router_capacity(const int32_t *ids, const float *weights, int slots, int experts,
                    int64_t capacity, uint8_t *kept, void *stream);

// counts [E] of each expert in ids [slots].
int router_count(const int32_t *ids, int slots, int experts, int32_t *counts, void *stream);

struct router_gradient {
    const float *weight;    // [E, H]
    const float *probs;     // [T, E]
    const int32_t *ids;     // [T, K]
    const float *dweights;  // [T, K]
    const int32_t *counts;  // [E] slots of each expert, or NULL where load is 0
    double load;            // d loss / d probs[t, i] = load * counts[i]
    uint16_t *dlogits_high; // [T, ROUTER_GRADIENT_COLUMNS(E)] bf16 scratch
    uint16_t *dlogits_low;  // likewise: what bf16 rounded away, in bf16
    uint16_t *dh;           // [T, H] bf16, rows dh_pitch elements apart; added to
    size_t dh_pitch;
    int tokens, hidden, experts, top_k, normalise;
};

// dh += dlogits weight, rounded once. The product drops terms below 2^-16 of the greatest: half a
// percent of one unit of the bf16 result.
int router_backward(const struct router_gradient *gradient, void *stream);

#ifdef __cplusplus
}
#endif

#endif
