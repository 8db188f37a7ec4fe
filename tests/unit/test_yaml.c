// SPDX-License-Identifier: Apache-2.0
// job/yaml: what a job file may hold, and the line of everything it may not.
#include "unit/check.h"

#include "job/yaml.h"

#include <stdio.h>
#include <stdlib.h>

static void flat_mapping(void **state)
{
    static const char text[] = "# a job\n"
                               "model: /a b\n"
                               "\n"
                               "dataset:\n"
                               "  - one.jsonl\n"
                               "  - 'two: #2'\n"
                               "target_modules: [linear_qkv, linear_proj]\n"
                               "lr: 1e-5  # small\n"
                               "name: \"caf\xc3\xa9\"\n";
    struct yaml_map *map;
    struct fl_error e;
    (void)state;
    check_ok(yaml_map_parse(text, sizeof text - 1, "job.yaml", &map, &e), &e);
    assert_int_equal(map->count, 5);
    assert_string_equal(map->entries[0].key, "model");
    assert_int_equal(map->entries[0].line, 2);
    assert_string_equal(map->entries[0].values[0], "/a b");
    assert_int_equal(map->entries[1].line, 4);
    assert_int_equal(map->entries[1].count, 2);
    assert_string_equal(map->entries[1].values[1], "two: #2");
    assert_int_equal(map->entries[2].count, 2);
    assert_string_equal(map->entries[2].values[0], "linear_qkv");
    assert_string_equal(map->entries[3].values[0], "1e-5");
    assert_string_equal(map->entries[4].values[0], "caf\xc3\xa9");
    yaml_map_destroy(map);
    yaml_map_destroy(NULL);
}

static void refusals(void **state)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "job.yaml:1: the file is empty: give at least model and dataset"},
        {"# nothing\n", "the file is empty"},
        {"word\n", "job.yaml:1: expected lines of the form `key: value`"},
        {"- a\n", "job.yaml:1: expected lines of the form `key: value`"},
        {"a: 1\nb:\n  c: 2\n", "job.yaml:3: nested values are not supported"},
        {"a: 1\nb: [1, [2]]\n", "job.yaml:2: nested values are not supported"},
        {"a: [1, {b: 2}]\n", "job.yaml:1: nested values are not supported"},
        {"? [a]\n: 1\n", "job.yaml:1: nested values are not supported"},
        {"a: &x 1\n", "job.yaml:1: anchors are not supported"},
        {"a: &x [1]\n", "job.yaml:1: anchors are not supported"},
        {"&x a: 1\n", "job.yaml:1: anchors are not supported"},
        {"--- &x\na: 1\n", "job.yaml:1: anchors are not supported"},
        {"a: *x\n", "job.yaml:1: aliases are not supported"},
        {"a: 1\n*x : 2\n", "job.yaml:2: aliases are not supported"},
        {"a: !!int 1\n", "job.yaml:1: tags are not supported"},
        {"a: !own [1]\n", "job.yaml:1: tags are not supported"},
        {"--- !own\na: 1\n", "job.yaml:1: tags are not supported"},
        {"a: 1\nb: 2\na: 3\n", "job.yaml:3: 'a' is already set on line 1"},
        {"a: 1\n---\nb: 2\n", "job.yaml:2: a second document: keep one job a file"},
        {"a: 1\nb:\nc: 2\n", "job.yaml:2: a value is missing: give one or remove the line"},
        {"a: ~\n", "job.yaml:1: a value is missing"},
        {"a: null\n", "job.yaml:1: a value is missing"},
        {"~: 1\n", "job.yaml:1: a value is missing"},
        {"a: \"x\\0y\"\n", "job.yaml:1: a NUL character is not supported"},
        {"a: 1\n  b: 2\n", "job.yaml:2: not valid YAML: "},
        {"a: [1, 2\n", "not valid YAML: "},
        {"a: 1\n\tb: 2\n", "job.yaml:2: not valid YAML: "},
        {"a: 1\nb: 2\nc: \xff\n", "job.yaml:3: not valid YAML: invalid leading UTF-8 octet"},
        {"a: 1\nb: \xc3(\n", "job.yaml:2: not valid YAML: invalid trailing UTF-8 octet"},
        {"a: \x01\n", "job.yaml:1: not valid YAML: control characters are not allowed"},
        {"\xff\xfe"
         "a\0:\0",
         "job.yaml:1: not valid YAML: invalid leading UTF-8 octet"},
    };
    struct yaml_map *map;
    struct fl_error e;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text;
        check_error(yaml_map_parse(text, strlen(text), "job.yaml", &map, &e), &e, cases[i].words);
        assert_null(map);
    }
}

static void limits(void **state)
{
    size_t bytes = YAML_BYTES_MAX + 1, used = 0;
    char *text = malloc(bytes);
    struct yaml_map *map;
    struct fl_error e;
    (void)state;
    assert_non_null(text);
    memset(text, '#', bytes);
    check_error(yaml_map_parse(text, bytes, "job.yaml", &map, &e), &e,
                "job.yaml: 1048577 bytes, more than the 1048576 of a job file");
    for (int i = 0; i <= YAML_KEYS_MAX; i++)
        used += (size_t)snprintf(text + used, bytes - used, "k%d: 1\n", i);
    check_error(yaml_map_parse(text, used, "job.yaml", &map, &e), &e,
                "job.yaml:1001: more than 1000 keys");
    free(text);
}

// Every prefix of a job, and every byte of it replaced: an answer, no crash, a message with a
// place.
static void damaged_text(void **state)
{
    static const char text[] = "model: 'm'\ndataset: [a, \"b\"]\nlora_rank: 4\n";
    char damaged[sizeof text];
    struct fl_error e;
    int refused = 0;
    (void)state;
    for (size_t i = 0; i < sizeof text - 1; i++)
        for (int byte = 0; byte < 256; byte += 5) {
            struct yaml_map *map;
            memcpy(damaged, text, sizeof text);
            damaged[i] = (char)byte;
            if (yaml_map_parse(damaged, byte % 2 ? i : sizeof text - 1, "job.yaml", &map, &e)) {
                refused++;
                assert_memory_equal(e.text, "job.yaml:", 9);
            } else {
                assert_true(map->count > 0);
                yaml_map_destroy(map);
            }
        }
    assert_true(refused > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flat_mapping),
        cmocka_unit_test(refusals),
        cmocka_unit_test(limits),
        cmocka_unit_test(damaged_text),
    };
    return cmocka_run_group_tests_name("yaml", tests, NULL, NULL);
}
