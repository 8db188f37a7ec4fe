// SPDX-License-Identifier: Apache-2.0
// Whole iterations and evaluations: their gradients, losses and learning rates beside the same sums
// over micro-batches made by hand.
#include "train/stage.h"

#include "base/file.h"
#include "base/philox.h"
#include "data/loader.h"
#include "train/evaluate.h"
#include "train/trainer.h"

#include <jansson.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

enum { RECORDS = 12, ITERATIONS = 4, ROUNDS = 3 };

#define LR 1e-30 // no parameter sees it, so that the sums by hand need no optimizer

struct scene {
    struct stage *stage;
    struct dataset *data;
    struct loader *loader;
    struct batch *batch;
};

// Code of very unequal lengths, so that no two micro-batches have as many targets.
static struct dataset *data_read(struct fl_error *e)
{
    char path[] = "/tmp/fl-trainer-XXXXXX", *paths[] = {path};
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w");
    struct tokenizer *tokenizer;
    struct dataset *data;

    assert_non_null(file);
    for (int i = 0; i < RECORDS; i++) {
        fprintf(file, "{\"instruction\": \"Return %d\", \"output\": \"def f():", i);
        for (int line = 0; line < i * 5 % 7; line++)
            fprintf(file, "\\n    x = x + %d", line);
        fprintf(file, "\\n    return %d\"}\n", i);
    }
    assert_int_equal(fclose(file), 0);
    check_ok(tokenizer_load(TINY "/tokenizer.json", &tokenizer, e), e);
    check_ok(dataset_load(paths, 1,
                          &(struct dataset_options){.tokenizer = tokenizer, .max_length = 128},
                          &data, e),
             e);
    assert_int_equal(data->samples, RECORDS);
    tokenizer_destroy(tokenizer);
    unlink(path);
    return data;
}

static void scene_open(struct scene *scene, struct stage *s, bool validation, int micro_batch)
{
    const struct loader_options options = {.validation = validation,
                                           .seed = 1,
                                           .micro_batch_size = micro_batch,
                                           .global_batch_size = ROUNDS * micro_batch,
                                           .dp_size = 1,
                                           .max_length = 128};

    scene->stage = s;
    scene->data = data_read(&s->e);
    check_ok(loader_create(scene->data, &options, &scene->loader, &s->e), &s->e);
    scene->batch = loader_batch_create(scene->loader);
}

static void scene_close(struct scene *scene)
{
    batch_destroy(scene->batch);
    loader_destroy(scene->loader);
    dataset_destroy(scene->data);
}

// B is zero at the start of a training: then A would have no gradient.
static void params_fill(struct stage *s)
{
    for (size_t i = 0; i < params_count(s); i++) {
        const uint32_t counter[4] = {(uint32_t)i}, key[2] = {8, 9};
        uint32_t random[4];
        philox4x32(counter, key, random);
        s->adapters->params[i] = 0.02f * philox_uniform(random[0]) - 0.01f;
    }
}

static int nothing_saved(void *context, struct fl_error *e)
{
    (void)context;
    (void)e;
    return 0;
}

// Trains in a folder of its own; returns the text of metrics.jsonl.
static char *train(struct scene *scene)
{
    struct stage *s = scene->stage;
    char folder[] = "/tmp/fl-trainer-XXXXXX", path[64], *text, *kept = s->spec->output_dir;
    struct plan plan = {.layout = s->layout};
    struct trainer_end end;
    struct slot *slot;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    s->spec->output_dir = folder;
    check_ok(slot_create(&plan, 0, 0, &slot, &s->e), &s->e);
    const struct trainer_config config = {.spec = s->spec,
                                          .model = &s->model,
                                          .plan = &plan,
                                          .arena = s->arena,
                                          .ops = s->ops,
                                          .net = s->net,
                                          .adapters = s->adapters,
                                          .world = s->world,
                                          .replicas = s->world,
                                          .train = scene->loader,
                                          .slot = slot,
                                          .save = nothing_saved};
    check_ok(trainer_run(&config, &end, &s->e), &s->e);
    assert_int_equal(end.iterations, ITERATIONS);
    s->spec->output_dir = kept;
    check_ok(file_read(path, 1 << 20, &text, NULL, &s->e), &s->e);
    slot_destroy(slot);
    unlink(path);
    rmdir(folder);
    return text;
}

// What an iteration is by its definition, from plain sums over its micro-batches.
static struct net_loss iteration_by_hand(struct scene *scene, int64_t iteration)
{
    struct stage *s = scene->stage;
    struct net_loss sum = {0}, loss;

    memset(s->adapters->grads, 0, params_count(s) * sizeof(real));
    for (int round = 0; round < ROUNDS; round++) {
        loader_fill(scene->loader, iteration, round, scene->batch);
        sum.targets += scene->batch->target_count;
    }
    for (int round = 0; round < ROUNDS; round++) {
        loader_fill(scene->loader, iteration, round, scene->batch);
        check_ok(net_train(s->net, scene->batch, (uint64_t)iteration, 1.0 / (double)sum.targets,
                           1.0 / ROUNDS, &loss, &s->e),
                 &s->e);
        sum.loss_sum += loss.loss_sum;
        sum.aux_loss += loss.aux_loss / ROUNDS;
    }
    return sum;
}

static double distance(const real *ours, const real *theirs, size_t count)
{
    double difference = 0, norm = 0;

    for (size_t i = 0; i < count; i++) {
        difference += pow((double)ours[i] - (double)theirs[i], 2);
        norm += pow((double)theirs[i], 2);
    }
    return sqrt(difference / norm);
}

static void reported(const char *line, const char *key, double expected)
{
    json_t *o = json_loads(line, 0, NULL);
    double value;

    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(o, "event")), "train");
    value = json_number_value(json_object_get(o, key));
    if (!(fabs(value - expected) <= 1e-6 * fabs(expected)))
        fail_msg("%s is %.9g, not %.9g", key, value, expected);
    json_decref(o);
}

// Half the iterations warm up, then the rate falls to zero in a line.
static void iterations_are_sums(void **state)
{
    static const double rates[ITERATIONS] = {0.5 * LR, LR, 0.5 * LR, 0};
    struct stage *s = *state;
    real *trained = memory_zeroed(params_count(s), sizeof *trained);
    struct scene scene;
    char *text, *line, *rest;

    s->spec->train_iters = ITERATIONS;
    s->spec->global_batch_size = ROUNDS;
    s->spec->log_interval = 1;
    s->spec->lr = LR;
    s->spec->min_lr = 0;
    s->spec->lr_warmup_fraction = 0.5;
    s->spec->lr_decay = DECAY_LINEAR;
    s->spec->aux_loss_coeff = 0.5;
    scene_open(&scene, s, false, 1);
    params_fill(s);
    text = train(&scene);
    memcpy(trained, s->adapters->grads, params_count(s) * sizeof *trained);
    line = strtok_r(text, "\n", &rest); // of the start
    for (int64_t i = 0; i < ITERATIONS; i++) {
        struct net_loss loss = iteration_by_hand(&scene, i);
        line = strtok_r(NULL, "\n", &rest);
        assert_non_null(line);
        reported(line, "lm_loss", loss.loss_sum / (double)loss.targets);
        reported(line, "load_balancing_loss", loss.aux_loss);
        reported(line, "learning_rate", rates[i]);
    }
    assert_true(distance(trained, s->adapters->grads, params_count(s)) < 1e-6);
    free(text);
    free(trained);
    scene_close(&scene);
}

static double loss_by_hand(struct scene *scene)
{
    struct stage *s = scene->stage;
    struct net_loss loss;
    double sum = 0, targets = 0;

    for (int64_t i = 0; i < RECORDS / ROUNDS; i++)
        for (int round = 0; round < ROUNDS; round++) {
            loader_fill(scene->loader, i, round, scene->batch);
            check_ok(net_evaluate(s->net, scene->batch, &loss, &s->e), &s->e);
            sum += loss.loss_sum;
            targets += (double)loss.targets;
        }
    return sum / targets;
}

static void evaluation_is_per_token(void **state)
{
    struct stage *s = *state;
    struct evaluation result;
    struct scene scene;

    scene_open(&scene, s, true, 1);
    params_fill(s);
    check_ok(evaluate(s->net, scene.loader, 0, s->world, &result, &s->e), &s->e);
    assert_int_equal(result.targets, scene.data->targets);
    assert_float_equal(result.loss, loss_by_hand(&scene), 1e-9);
    scene_close(&scene);
}

// The limits of a training change its loss, and leave that of an evaluation alone.
static void evaluation_drops_nothing(void **state)
{
    struct stage *s = *state;
    struct net_loss trained, evaluated, loss;

    params_fill(s);
    check_ok(net_evaluate(s->net, s->batch, &evaluated, &s->e), &s->e);
    check_ok(net_train(s->net, s->batch, 0, 1, 0, &trained, &s->e), &s->e);
    assert_true(trained.loss_sum == evaluated.loss_sum);
    for (int i = 0; i < 2; i++) {
        s->spec->capacity_factor = i ? 0.25 : 0;
        s->adapters->dropout = i ? 0 : 0.5;
        check_ok(net_evaluate(s->net, s->batch, &loss, &s->e), &s->e);
        assert_true(loss.loss_sum == evaluated.loss_sum);
        check_ok(net_train(s->net, s->batch, 0, 1, 0, &loss, &s->e), &s->e);
        assert_true(loss.loss_sum != trained.loss_sum);
    }
    s->spec->capacity_factor = 0;
    s->adapters->dropout = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(iterations_are_sums),
        cmocka_unit_test(evaluation_is_per_token),
        cmocka_unit_test(evaluation_drops_nothing),
    };
    return cmocka_run_group_tests_name("trainer", tests, stage_setup, stage_teardown);
}
