// SPDX-License-Identifier: Apache-2.0
// weights/synth and data/made: the same whatever ranks, shards and disks are between; distributed
// as promised; bad sources refused by name.
#include "unit/check.h"

#include "base/floats.h"
#include "base/memory.h"
#include "data/dataset.h"
#include "job/source.h"
#include "unit/fixture.h"
#include "weights/synth.h"
#include "weights/synth_checkpoint.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TINY FL_SOURCE_DIR "/tests/data/tiny-qwen3-moe-fp8"

static void bytes_equal(const void *a, const void *b, size_t bytes)
{
    assert_memory_equal(a, b, bytes);
}

static void matrices_equal(const struct fp8_matrix *all, const struct fp8_matrix *part, int first)
{
    size_t codes = (size_t)all->rows * (size_t)all->cols;
    size_t scales = (size_t)all->scale_rows * (size_t)all->scale_cols;

    bytes_equal(all->data + (size_t)first * codes, part->data, (size_t)part->count * codes);
    bytes_equal(all->scale + (size_t)first * scales, part->scale,
                (size_t)part->count * scales * sizeof(float));
}

static void weights_equal(const struct loaded *all, const struct loaded *part)
{
    const struct model *m = &all->model;
    size_t hidden = (size_t)m->hidden, table = (size_t)m->vocab * hidden;
    int first = part->layout.expert_first;

    bytes_equal(all->weights->embed, part->weights->embed, table * sizeof(uint16_t));
    bytes_equal(all->weights->head, part->weights->head, table * sizeof(uint16_t));
    bytes_equal(all->weights->final_norm, part->weights->final_norm, hidden * sizeof(float));
    for (int l = 0; l < m->layers; l++) {
        const struct layer_weights *a = &all->weights->layers[l], *b = &part->weights->layers[l];
        bytes_equal(a->input_norm, b->input_norm, hidden * sizeof(float));
        bytes_equal(a->post_norm, b->post_norm, hidden * sizeof(float));
        bytes_equal(a->q_norm, b->q_norm, (size_t)m->head_dim * sizeof(float));
        bytes_equal(a->k_norm, b->k_norm, (size_t)m->head_dim * sizeof(float));
        bytes_equal(a->router, b->router, (size_t)m->experts * hidden * sizeof(float));
        matrices_equal(&a->qkv, &b->qkv, 0);
        matrices_equal(&a->proj, &b->proj, 0);
        matrices_equal(&a->fc1, &b->fc1, first);
        matrices_equal(&a->fc2, &b->fc2, first);
    }
}

static void load(struct loaded *l, const char *source, int ep, int rank, int threads)
{
    struct model model;
    struct fl_error e;

    check_ok(model_load(source, &model, &e), &e);
    check_ok(fixture_load(l, source, &model, ep, rank, threads, &e), &e);
}

// In memory on one rank or several, and by way of a checkpoint in many shards.
static void same_everywhere(void **state)
{
    static const char *const source = SOURCE_SYNTH TINY "?seed=5";
    char *folder = folder_make(), *path = memory_format("%s/made", folder);
    struct synth_written written;
    struct loaded all, part;
    struct fl_error e;
    (void)state;

    load(&all, source, 1, 0, 3);
    assert_true(all.stats.made);
    for (int rank = 0; rank < 4; rank++) {
        load(&part, source, 4, rank, 1);
        weights_equal(&all, &part);
        fixture_unload(&part);
    }
    check_ok(synth_checkpoint_write(TINY, 5, path, 1 << 20, &written, &e), &e);
    assert_true(written.shards > 3);
    load(&part, path, 2, 1, 2);
    assert_false(part.stats.made);
    weights_equal(&all, &part);
    fixture_unload(&part);
    fixture_unload(&all);
    folder_remove(path);
    folder_remove(folder);
}

// The bits of one tensor, so that no machine and no later version makes others.
static void same_for_ever(void **state)
{
    struct synth s = synth_open(7, "model.layers.3.self_attn.q_proj.weight", 256, 192);
    uint8_t codes[256 * 192];
    uint16_t values[192];
    uint32_t sum = 0, value_sum = 0;
    float scales[4];
    (void)state;

    synth_codes(&s, 0, 256, codes, scales);
    for (size_t i = 0; i < sizeof codes; i++)
        sum = sum * 31 + codes[i];
    s = synth_open(7, "model.norm.weight", 1, 192);
    synth_bf16(&s, 0, 1, values);
    for (size_t i = 0; i < 192; i++)
        value_sum = value_sum * 31 + values[i];
    assert_int_equal(sum, 0x438337c6);
    assert_int_equal(value_sum, 0x1973d69);
}

struct moments {
    double sum, squares, fourth;
    size_t count;
};

static void add(struct moments *m, double x)
{
    m->sum += x;
    m->squares += x * x;
    m->fourth += x * x * x * x;
    m->count++;
}

static double deviation(const struct moments *m)
{
    return sqrt(m->squares / (double)m->count);
}

// Every block reaches 448 and no further; columns are Gaussian, and one in 200 six times wider.
static void distributed_like_trained(void **state)
{
    enum { ROWS = 512, COLS = 4096 };
    struct synth s = synth_open(1, "model.layers.0.mlp.experts.9.up_proj.weight", ROWS, COLS);
    uint8_t *codes = memory_zeroed(ROWS * COLS, 1);
    float scales[ROWS / 128 * COLS / 128];
    struct moments quiet = {0};
    size_t outliers = 0;
    (void)state;

    synth_codes(&s, 0, ROWS, codes, scales);
    for (size_t b = 0; b < ROWS / 128 * COLS / 128; b++) {
        size_t row = b / (COLS / 128) * 128, col = b % (COLS / 128) * 128, largest = 0;
        for (size_t i = 0; i < 128 * 128; i++) {
            uint8_t code = codes[(row + i / 128) * COLS + col + i % 128] & 0x7f;
            largest = code > largest ? code : largest;
        }
        assert_int_equal(largest, 0x7e);
        assert_true(scales[b] == bf16_round(scales[b]) && scales[b] > 0);
    }
    for (size_t c = 0; c < COLS; c++) {
        struct moments column = {0};
        for (size_t r = 0; r < ROWS; r++)
            add(&column, (double)e4m3_values[codes[r * COLS + c]] *
                             (double)scales[r / 128 * (COLS / 128) + c / 128]);
        if (deviation(&column) > 2.5 * s.sigma) {
            assert_float_equal(deviation(&column) / s.sigma, SYNTH_OUTLIER, 0.15 * SYNTH_OUTLIER);
            outliers++;
            continue;
        }
        for (size_t r = 0; r < ROWS; r++)
            add(&quiet, (double)e4m3_values[codes[r * COLS + c]] *
                            (double)scales[r / 128 * (COLS / 128) + c / 128]);
    }
    assert_in_range(outliers, COLS / 400, COLS / 100);
    assert_float_equal(deviation(&quiet) / s.sigma, 1, 0.03);
    assert_float_equal(quiet.sum / (double)quiet.count / s.sigma, 0, 0.01);
    assert_float_equal(quiet.fourth / (double)quiet.count / pow(deviation(&quiet), 4), 3, 0.3);
    free(codes);
}

static void names_and_seeds_differ(void **state)
{
    struct synth a = synth_open(1, "model.layers.0.mlp.gate.weight", 8, 64);
    struct synth b = synth_open(1, "model.layers.1.mlp.gate.weight", 8, 64);
    struct synth c = synth_open(2, "model.layers.0.mlp.gate.weight", 8, 64);
    uint16_t x[512], y[512], z[512], half[256];
    (void)state;

    synth_bf16(&a, 0, 8, x);
    synth_bf16(&b, 0, 8, y);
    synth_bf16(&c, 0, 8, z);
    synth_bf16(&a, 4, 4, half);
    assert_memory_not_equal(x, y, sizeof x);
    assert_memory_not_equal(x, z, sizeof x);
    assert_memory_equal(x + 256, half, sizeof half);
}

static void sources(void **state)
{
    static const char *const refused[][2] = {
        {"synth://", "give a folder with a config.json, or such a file"},
        {"synth://?seed=1", "give a folder"},
        {"synth://a?seed=", "must be seed= and a whole number"},
        {"synth://a?seed=-1", "must be seed= and a whole number"},
        {"synth://a?seed=1x", "must be seed= and a whole number"},
        {"synth://a?sed=1", "must be seed= and a whole number"},
        {"synth://a?seed=99999999999999999999", "must be seed= and a whole number"},
        {"", "give a folder"},
    };
    struct source s;
    struct fl_error e;
    (void)state;

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        check_error(source_parse(refused[i][0], &s, &e), &e, refused[i][1]);
        source_clear(&s);
    }
    check_ok(source_parse("synth:///models/config.json?seed=12", &s, &e), &e);
    assert_string_equal(s.config, "/models/config.json");
    assert_string_equal(s.folder, "/models");
    assert_true(s.synth && s.seed == 12);
    source_clear(&s);
    check_ok(source_parse("what?seed=1", &s, &e), &e); // a folder of that name
    assert_string_equal(s.config, "what?seed=1/config.json");
    assert_false(s.synth);
    source_clear(&s);
}

static void datasets(void **state)
{
    static const char *const refused[] = {"synth://?sample=3", "synth://?samples=", "synth://x",
                                          "synth://?samples=3;seed=1"};
    struct dataset *a, *b;
    struct fl_error e;
    size_t follow = 0;
    (void)state;

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        check_error(dataset_make(refused[i], 512, 64, &a, &e), &e,
                    "write synth://?samples=N&seed=N");
    check_error(dataset_make("synth://?samples=0", 512, 64, &a, &e), &e, "samples must be in [1,");
    check_error(dataset_make("synth://", 512, 1, &a, &e), &e, "max_length 1: must be at least 2");
    check_ok(dataset_make("synth://?samples=40&seed=3", 500, 64, &a, &e), &e);
    check_ok(dataset_make("synth://?seed=3&samples=50", 500, 64, &b, &e), &e);
    assert_true(a->samples == 40 && a->longest == 64 && a->targets == 40 * 48);
    assert_int_equal(a->offsets[40], 40 * 64);
    assert_memory_equal(a->ids, b->ids, 40 * 64 * sizeof *a->ids);
    for (size_t i = 0; i < 40 * 64; i++) {
        assert_in_range(a->ids[i], 0, 499);
        follow += i % 64 && a->ids[i] == (a->ids[i - 1] + 7919) % 500;
    }
    assert_in_range(follow, 40 * 63 * 0.45, 40 * 63 * 0.55);
    dataset_destroy(a);
    dataset_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_everywhere),
        cmocka_unit_test(same_for_ever),
        cmocka_unit_test(distributed_like_trained),
        cmocka_unit_test(names_and_seeds_differ),
        cmocka_unit_test(sources),
        cmocka_unit_test(datasets),
    };

    return cmocka_run_group_tests_name("synth", tests, NULL, NULL);
}
