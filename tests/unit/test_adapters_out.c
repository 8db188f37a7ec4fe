// SPDX-License-Identifier: Apache-2.0
// weights/adapters_out and adapters_in: PEFT's names, shapes and values, an exact round trip, and
// every refusal by its message. Several ranks: tests/weights/0001-adapters.t.
#include "unit/check.h"

#include "base/file.h"
#include "base/floats.h"
#include "base/memory.h"
#include "unit/adapter_fixture.h"
#include "unit/fixture.h"
#include "weights/adapters_in.h"
#include "weights/adapters_out.h"
#include "weights/safetensors.h"
#include "weights/safetensors_writer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "base_model.model.model.layers."

struct job {
    struct spec spec;
    struct layout layout;
    struct arena *arena;
    struct adapters *adapters;
};

static void job_open(struct job *job, unsigned targets, int ep, int rank)
{
    struct fl_error e;

    job->spec = adapter_spec(targets);
    job->layout = fixture_layout(&adapter_model, ep, rank);
    check_ok(arena_create_host(0, &job->arena, &e), &e);
    check_ok(
        adapters_create(&job->spec, &adapter_model, &job->layout, job->arena, &job->adapters, &e),
        &e);
}

static void job_close(struct job *job)
{
    adapters_destroy(job->adapters);
    arena_destroy(job->arena);
}

static int job_write(struct job *job, const char *folder, struct fl_error *e)
{
    struct comm *self;
    int rc;

    check_ok(comm_self_create(&self, e), e);
    rc = adapters_write(folder, &job->spec, &adapter_model, &job->layout, job->adapters, self, e);
    comm_destroy(self);
    return rc;
}

// A folder with the adapters of targets.
static char *written(unsigned targets)
{
    char *folder = folder_make();
    struct fl_error e;
    struct job job;

    job_open(&job, targets, 1, 0);
    adapters_fill(job.adapters);
    check_ok(job_write(&job, folder, &e), &e);
    job_close(&job);
    return folder;
}

static void check_tensor(const struct safetensors *file, const char *name, int layer,
                         enum lora_target target, int expert, int is_b, int first_row, int rows,
                         int cols)
{
    const struct tensor *t = safetensors_find(file, name);
    float values[256];
    struct fl_error e;

    if (!t)
        fail_msg("no tensor %s", name);
    assert_int_equal(t->type, TENSOR_F32);
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->shape[0], rows);
    assert_int_equal(t->shape[1], cols);
    check_ok(safetensors_read(file, t, 0, values, t->bytes, &e), &e);
    for (int i = 0; i < rows * cols; i++)
        assert_true(values[i] ==
                    adapter_value(layer, target, expert, is_b, (size_t)(first_row * cols + i)));
}

static struct safetensors *weights_open(const char *folder)
{
    char *path = memory_format("%s/adapter_model.safetensors", folder);
    struct safetensors *file;
    struct fl_error e;

    check_ok(safetensors_open(path, &file, &e), &e);
    free(path);
    return file;
}

// Heads 3 x 4, kv 1 x 4, hidden 10, width 6, rank 3.
static void names_and_values(void **state)
{
    char *folder = written(LORA_ALL_LINEAR);
    struct safetensors *file = weights_open(folder);
    (void)state;

    assert_int_equal(safetensors_count(file), 2 * 2 * (4 + 8 * 3));
#define Q(layer, m, ab) PREFIX #layer ".self_attn." m ".lora_" #ab ".weight"
    check_tensor(file, Q(1, "q_proj", A), 1, LORA_QKV, -1, 0, 0, 3, 10);
    check_tensor(file, Q(1, "k_proj", A), 1, LORA_QKV, -1, 0, 0, 3, 10);
    check_tensor(file, Q(1, "v_proj", A), 1, LORA_QKV, -1, 0, 0, 3, 10);
    check_tensor(file, Q(1, "q_proj", B), 1, LORA_QKV, -1, 1, 0, 12, 3);
    check_tensor(file, Q(1, "k_proj", B), 1, LORA_QKV, -1, 1, 12, 4, 3);
    check_tensor(file, Q(0, "v_proj", B), 0, LORA_QKV, -1, 1, 16, 4, 3);
    check_tensor(file, Q(0, "o_proj", A), 0, LORA_PROJ, -1, 0, 0, 3, 12);
    check_tensor(file, Q(0, "o_proj", B), 0, LORA_PROJ, -1, 1, 0, 10, 3);
#undef Q
#define X(layer, expert, m, ab) PREFIX #layer ".mlp.experts." #expert "." m ".lora_" #ab ".weight"
    check_tensor(file, X(0, 0, "gate_proj", A), 0, LORA_FC1, 0, 0, 0, 3, 10);
    check_tensor(file, X(1, 7, "up_proj", A), 1, LORA_FC1, 7, 0, 0, 3, 10);
    check_tensor(file, X(1, 7, "gate_proj", B), 1, LORA_FC1, 7, 1, 0, 6, 3);
    check_tensor(file, X(1, 5, "up_proj", B), 1, LORA_FC1, 5, 1, 6, 6, 3);
    check_tensor(file, X(0, 3, "down_proj", A), 0, LORA_FC2, 3, 0, 0, 3, 6);
    check_tensor(file, X(1, 7, "down_proj", B), 1, LORA_FC2, 7, 1, 0, 10, 3);
#undef X
    safetensors_close(file);
    folder_remove(folder);
}

static void configuration(void **state)
{
    char *folder = written(LORA_Q | LORA_V | LORA_FC2);
    char *path = memory_format("%s/adapter_config.json", folder);
    json_t *root = json_load_file(path, 0, NULL), *expected, *value;
    const char *key;
    (void)state;

    assert_non_null(root);
    expected = json_pack("{s:s, s:s, s:s, s:i, s:f, s:f, s:s, s:[s, s, s], s:b, s:b, s:b}",
                         "peft_type", "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path",
                         "/models/Qwen3", "r", 3, "lora_alpha", 6.5, "lora_dropout", 0.05, "bias",
                         "none", "target_modules", "q_proj", "v_proj", "down_proj",
                         "fan_in_fan_out", 0, "inference_mode", 1, "use_rslora", 0);
    json_object_foreach(expected, key, value)
    {
        if (!json_equal(json_object_get(root, key), value))
            fail_msg("adapter_config.json: %s is wrong", key);
    }
    json_decref(expected);
    json_decref(root);
    free(path);
    folder_remove(folder);
}

static void round_trips(void **state)
{
    static const unsigned targets[] = {LORA_ALL_LINEAR, LORA_Q | LORA_K | LORA_V | LORA_PROJ,
                                       LORA_FC1, LORA_FC2 | LORA_Q};
    struct fl_error e;
    (void)state;

    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        char *folder = written(targets[i]);
        for (int ep = 1; ep <= 4; ep *= 2)
            for (int rank = 0; rank < ep; rank++) {
                struct job want, got;
                job_open(&want, targets[i], ep, rank);
                job_open(&got, targets[i], ep, rank);
                adapters_fill(want.adapters);
                check_ok(adapters_read(folder, &got.spec, &adapter_model, got.adapters, &e), &e);
                assert_memory_equal(got.adapters->params, want.adapters->params,
                                    (want.adapters->replicated + want.adapters->expert) *
                                        sizeof(real));
                job_close(&want);
                job_close(&got);
            }
        folder_remove(folder);
    }
}

static bool there(const char *folder, const char *name)
{
    char *path = memory_format("%s/%s", folder, name);
    bool is = access(path, F_OK) == 0;

    free(path);
    return is;
}

static void failures_leave_nothing(void **state)
{
    static const char *const names[] = {"adapter_model.safetensors", "adapter_config.json"};
    struct fl_error e;
    struct job job;
    (void)state;

    job_open(&job, LORA_ALL_LINEAR, 1, 0);
    check_error(job_write(&job, "/nonexistent", &e), &e, "/nonexistent/adapter_model.safetensors");
    for (int i = 0; i < 2; i++) { // a folder in the way of either file
        char *folder = folder_make(), *path = memory_format("%s/%s", folder, names[i]);
        assert_int_equal(mkdir(path, 0700), 0);
        check_error(job_write(&job, folder, &e), &e, names[i]);
        assert_false(there(folder, names[!i]));
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(rmdir(folder), 0); // no temporary file either
        assert_int_equal(mkdir(folder, 0700), 0);
        folder_remove(folder);
        free(path);
    }
    job_close(&job);
}

// A folder that has adapters keeps them when others cannot be written.
static void failures_keep_earlier_ones(void **state)
{
    char *folder = written(LORA_FC2), *text, *later;
    char *path = memory_format("%s/adapter_model.safetensors", folder);
    char *in_the_way = memory_format("%s/adapter_config.json.tmp-%ld", folder, (long)getpid());
    struct fl_error e;
    struct job job;
    size_t bytes, later_bytes;
    (void)state;

    check_ok(file_read(path, 1 << 20, &text, &bytes, &e), &e);
    assert_int_equal(mkdir(in_the_way, 0700), 0);
    job_open(&job, LORA_FC2, 1, 0);
    check_error(job_write(&job, folder, &e), &e, "adapter_config.json: cannot create");
    check_ok(file_read(path, 1 << 20, &later, &later_bytes, &e), &e);
    assert_int_equal(bytes, later_bytes);
    assert_memory_equal(text, later, bytes);
    free(later);
    assert_int_equal(rmdir(in_the_way), 0);
    check_ok(job_write(&job, folder, &e), &e);
    check_ok(file_read(path, 1 << 20, &later, &later_bytes, &e), &e);
    assert_memory_not_equal(text, later, bytes);
    job_close(&job);
    free(later);
    free(text);
    free(in_the_way);
    free(path);
    folder_remove(folder);
}

// Writes the weights again with one tensor renamed, reshaped or with a value changed.
struct edit {
    const char *name, *new_name;
    enum tensor_type type;
    int64_t rows;
    float first;
};

static void edit_weights(const char *folder, const struct edit *edit)
{
    char *path = memory_format("%s/adapter_model.safetensors", folder);
    struct safetensors *file = weights_open(folder);
    size_t count = safetensors_count(file), n = 0;
    struct tensor *list = memory_zeroed(count, sizeof *list);
    struct safetensors_writer *w;
    struct fl_error e;
    float values[256];

    for (size_t i = 0; i < count; i++) {
        list[n] = *safetensors_at(file, i);
        if (!strcmp(list[n].name, edit->name)) {
            if (!edit->new_name)
                continue;
            list[n].name = edit->new_name;
            list[n].type = edit->type;
            list[n].shape[0] = edit->rows;
        }
        n++;
    }
    check_ok(safetensors_writer_open(path, list, n, &w, &e), &e);
    for (size_t i = 0; i < count; i++) {
        const struct tensor *t = safetensors_at(file, i);
        size_t bytes = t->bytes;
        check_ok(safetensors_read(file, t, 0, values, bytes, &e), &e);
        if (!strcmp(t->name, edit->name)) {
            if (!edit->new_name)
                continue;
            values[0] = edit->first;
            bytes =
                (size_t)edit->rows * (size_t)t->shape[1] * (size_t)tensor_type_bytes(edit->type);
        }
        check_ok(safetensors_writer_append(w, values, bytes, &e), &e);
    }
    check_ok(safetensors_writer_commit(w, &e), &e);
    safetensors_close(file);
    free(list);
    free(path);
}

static int read_back(const char *folder, unsigned targets, struct fl_error *e)
{
    struct job job;
    int rc;

    job_open(&job, targets, 1, 0);
    rc = adapters_read(folder, &job.spec, &adapter_model, job.adapters, e);
    job_close(&job);
    return rc;
}

static void refused_weights(void **state)
{
#define K_A PREFIX "1.self_attn.k_proj.lora_A.weight"
#define UP  PREFIX "0.mlp.experts.4.up_proj.lora_B.weight"
    static const struct {
        struct edit edit;
        const char *words;
    } cases[] = {
        {{UP, NULL, TENSOR_F32, 6, 1}, "tensor '" UP "' is missing"},
        {{UP, "other", TENSOR_F32, 6, 1}, "tensor '" UP "' is missing"},
        {{UP, UP, TENSOR_F32, 5, 1}, "tensor '" UP "': shape [5, 3], expected [6, 3]"},
        {{UP, UP, TENSOR_I32, 6, 1}, "tensor '" UP "': dtype I32, expected F32, F16 or BF16"},
        {{UP, UP, TENSOR_F32, 6, __builtin_nanf("")}, "'" UP "': value [0, 0] is not finite"},
        {{K_A, K_A, TENSOR_F32, 3, 1}, "'" K_A "': differs from the same module's other lora_A"},
    };
    struct fl_error e;
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *folder = written(LORA_ALL_LINEAR);
        edit_weights(folder, &cases[i].edit);
        check_error(read_back(folder, LORA_ALL_LINEAR, &e), &e, cases[i].words);
        assert_non_null(strstr(e.text, "adapter_model.safetensors"));
        folder_remove(folder);
    }
#undef K_A
#undef UP
}

static void refused_others(void **state)
{
    char *folder = written(LORA_QKV | LORA_FC2);
    char *path = memory_format("%s/adapter_config.json", folder);
    static const struct {
        const char *config, *words;
    } cases[] = {
        {"[]", "adapter_config.json: not a JSON object"},
        {"{\"r\": 4, \"lora_alpha\": 6.5}", "adapter_config.json: r is 4, the job asks for 3"},
        {"{\"r\": 3}", "adapter_config.json: lora_alpha: missing or not a number"},
        {"{\"r\": 3, \"lora_alpha\": 7}", "lora_alpha is 7, the job asks for 6.5"},
        {"{\"r\": 3, \"lora_alpha\": 6.5, \"use_rslora\": true}", "use_rslora"},
    };
    struct fl_error e;
    (void)state;

    check_error(read_back(folder, LORA_QKV, &e), &e,
                "0.mlp.experts.0.down_proj.lora_A.weight': the job's target_modules have no such");
    check_error(read_back(folder, LORA_ALL_LINEAR, &e), &e,
                "0.self_attn.o_proj.lora_A.weight' is missing");
    check_ok(read_back(folder, LORA_QKV | LORA_FC2, &e), &e);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_ok(file_write(path, cases[i].config, strlen(cases[i].config), &e), &e);
        check_error(read_back(folder, LORA_QKV | LORA_FC2, &e), &e, cases[i].words);
    }
    assert_int_equal(remove(path), 0);
    check_error(read_back(folder, LORA_QKV | LORA_FC2, &e), &e, "adapter_config.json: cannot open");
    free(path);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_values),
        cmocka_unit_test(configuration),
        cmocka_unit_test(round_trips),
        cmocka_unit_test(failures_leave_nothing),
        cmocka_unit_test(failures_keep_earlier_ones),
        cmocka_unit_test(refused_weights),
        cmocka_unit_test(refused_others),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
