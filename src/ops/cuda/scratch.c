// SPDX-License-Identifier: Apache-2.0
// How much scratch the GPU backend's operations take.
#include "ops/cuda/scratch.h"

#include "attention.h"
#include "dispatch.h"
#include "lora.h"
#include "optimizer.h"
#include "router.h"

#define RANGE_BYTES ((size_t)192 << 20) // of transposed weights at once
#define RANGE_ROWS  16384               // of an fp32 gradient at once, unless one group has more

static struct cuda_scratch one(size_t bytes)
{
    return (struct cuda_scratch){1, {bytes}};
}

static void add(struct cuda_scratch *scratch, size_t bytes)
{
    scratch->bytes[scratch->count++] = bytes;
}

int attention_tile_count(const int32_t *starts, int samples)
{
    int count = 0;

    for (int s = 0; s < samples; s++)
        count += (starts[s + 1] - starts[s] + ATTENTION_TILE - 1) / ATTENTION_TILE;
    return count;
}

// Each sample is padded to a multiple of 4 rows.
int attention_stat_stride(const int32_t *starts, int samples)
{
    int rows = 0;

    for (int s = 0; s < samples; s++)
        rows += (starts[s + 1] - starts[s] + 3) / 4 * 4;
    return rows + ATTENTION_STAT_PAD;
}

// The tiles in two orders.
struct cuda_scratch cuda_attention_forward_scratch(const int32_t *starts, int samples)
{
    return one(2 * (size_t)attention_tile_count(starts, samples) * sizeof(struct attention_tile));
}

struct cuda_scratch cuda_attention_backward_scratch(const struct model *m, const int32_t *starts,
                                                    int samples)
{
    struct cuda_scratch scratch = cuda_attention_forward_scratch(starts, samples);

    add(&scratch,
        (size_t)m->heads * (size_t)attention_stat_stride(starts, samples) * 2 * sizeof(float));
    return scratch;
}

struct cuda_scratch cuda_router_forward_scratch(const struct model *m, int tokens)
{
    size_t sums = (size_t)ROUTER_PARTS(tokens) * (size_t)m->experts;
    struct cuda_scratch scratch = one(sums * sizeof(double));

    add(&scratch, sums * sizeof(int32_t));
    return scratch;
}

struct cuda_scratch cuda_router_backward_scratch(const struct model *m, int tokens)
{
    size_t dlogits = (size_t)tokens * ROUTER_GRADIENT_COLUMNS((size_t)m->experts) * 2;
    struct cuda_scratch scratch = one(dlogits);

    add(&scratch, dlogits);
    add(&scratch, (size_t)m->experts * sizeof(int32_t));
    return scratch;
}

struct cuda_scratch cuda_dispatch_plan_scratch(const struct model *m, int tokens)
{
    size_t experts = (size_t)m->experts;
    struct cuda_scratch scratch =
        one((size_t)DISPATCH_PARTS(tokens * m->top_k) * experts * sizeof(int32_t));

    add(&scratch, experts * sizeof(int32_t));
    add(&scratch, experts * sizeof(int64_t));
    return scratch;
}

struct cuda_scratch cuda_regroup_plan_scratch(int sources, int experts)
{
    return one(((size_t)sources * (size_t)experts + 1) * sizeof(struct dispatch_segment));
}

struct cuda_scratch cuda_head_forward_scratch(void)
{
    return one(CUDA_BLAS_BYTES);
}

struct cuda_scratch cuda_head_backward_scratch(const struct model *m, int rows)
{
    struct cuda_scratch scratch =
        one((size_t)rows * (((size_t)m->vocab + 7) / 8 * 8) * sizeof(uint16_t));

    add(&scratch, CUDA_BLAS_BYTES);
    return scratch;
}

struct cuda_scratch cuda_cross_entropy_scratch(int rows)
{
    return one((size_t)rows * sizeof(double));
}

struct cuda_scratch cuda_sum_squares_scratch(void)
{
    struct cuda_scratch scratch = one(SUM_SQUARES_PARTS * sizeof(double));

    add(&scratch, sizeof(double));
    return scratch;
}

size_t product_offsets_bytes(int groups)
{
    return ((size_t)groups + 1) * sizeof(int32_t);
}

int product_scale_stride(int rows)
{
    return (rows + 3) / 4 * 4;
}

size_t operand_scales_bytes(int rows, int cols)
{
    size_t blocks = ((size_t)cols + FP8_BLOCK - 1) / FP8_BLOCK;

    return blocks * (size_t)product_scale_stride(rows) * sizeof(float);
}

int gradient_operand_columns(const struct fp8_matrix *w)
{
    return w->scale_rows * FP8_BLOCK;
}

size_t gradient_codes_bytes(const struct fp8_matrix *w, int rows)
{
    return (size_t)rows * (size_t)gradient_operand_columns(w);
}

size_t gradient_scales_bytes(const struct fp8_matrix *w, int rows)
{
    return (size_t)w->scale_rows * (size_t)product_scale_stride(rows) * sizeof(float);
}

int lora_rank(const struct lora *lora)
{
    return lora->count ? (lora->rank + 15) / 16 * 16 : 0;
}

size_t lora_matrix_bytes(int groups, int rows, int cols)
{
    return (size_t)groups * (size_t)rows * (size_t)cols * sizeof(uint16_t);
}

size_t lora_rows_bytes(int rows, int columns)
{
    return (size_t)rows * (size_t)columns * sizeof(uint16_t);
}

int lora_term_columns(const struct fp8_matrix *w, const struct lora *lora)
{
    bool whole = lora->count && lora->part[0].row == 0 && lora->part[0].rows == w->rows;

    return lora_rank(lora) * (whole ? 1 : w->parts);
}

size_t lora_turns_bytes(int groups, int columns, int padded_rank)
{
    return lora_gradient_turns(groups, columns, padded_rank) * sizeof(int32_t);
}

bool product_finishes(const struct lora *lora, bool act)
{
    return act || (lora->count && lora->dropout != 0);
}

int gradient_columns(const struct fp8_matrix *w)
{
    int last = w->part_rows[w->parts - 1];

    return (w->scale_rows - (last + FP8_BLOCK - 1) / FP8_BLOCK) * FP8_BLOCK + last;
}

static size_t transposed_bytes(const struct fp8_matrix *w)
{
    return (size_t)gradient_columns(w) * (size_t)w->cols;
}

void product_range_next(const struct fp8_matrix *w, int groups, const int64_t *counts,
                        bool finishes, struct product_range *r)
{
    size_t group_bytes = transposed_bytes(w);

    r->row += r->rows;
    r->rows = 0;
    for (r->first = r->end; r->end < groups; r->end++) {
        int64_t rows = r->rows + counts[r->end];
        if (r->end > r->first && ((size_t)(r->end + 1 - r->first) * group_bytes > RANGE_BYTES ||
                                  (finishes && rows > RANGE_ROWS)))
            break;
        r->rows = (int)rows;
    }
}

struct cuda_scratch cuda_product_ranges_scratch(const struct fp8_matrix *w, int groups,
                                                const int64_t *counts, bool finishes)
{
    struct product_range r = {0};
    int groups_most = 0, rows_most = 0;
    struct cuda_scratch scratch;

    while (product_range_next(w, groups, counts, finishes, &r), r.first < groups) {
        groups_most = r.end - r.first > groups_most ? r.end - r.first : groups_most;
        rows_most = r.rows > rows_most ? r.rows : rows_most;
    }
    scratch = one((size_t)groups_most * transposed_bytes(w));
    add(&scratch,
        (size_t)groups_most * (size_t)w->scale_rows * (size_t)w->scale_cols * sizeof(float));
    add(&scratch, finishes ? (size_t)rows_most * (size_t)w->cols * sizeof(float) : 0);
    return scratch;
}
