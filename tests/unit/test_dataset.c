// SPDX-License-Identifier: Apache-2.0
// Datasets: formats, files, what is dropped, what is refused and how it is named.
#include "unit/tokenizer_fixture.h"

#include "base/memory.h"
#include "data/dataset.h"
#include "data/template.h"

#include <errno.h>

#define ALPACA(question, answer)                                                                   \
    "{\"instruction\": \"" question "\", \"input\": \"\", \"output\": \"" answer "\"}"

static struct tokenizer *tokenizer;

static int tokenizer_setup(void **state)
{
    (void)state;
    tokenizer = tiny_tokenizer();
    return 0;
}

static int tokenizer_teardown(void **state)
{
    (void)state;
    tokenizer_destroy(tokenizer);
    return 0;
}

static struct dataset_options options_of(int max_length, int threads)
{
    return (struct dataset_options){
        .tokenizer = tokenizer, .max_length = max_length, .threads = threads, .seed = 7};
}

static struct dataset *load_text(const char *text, size_t bytes, int max_length, int threads)
{
    char *path = temporary_file(text, bytes);
    struct dataset_options options = options_of(max_length, threads);
    struct dataset *d;
    struct fl_error e;

    check_ok(dataset_load(&path, 1, &options, &d, &e), &e);
    temporary_remove(path);
    return d;
}

static struct dataset *load(const char *text)
{
    return load_text(text, strlen(text), 512, 1);
}

static void check_sample(const struct dataset *d, size_t i, const char *expected)
{
    char *text;
    size_t bytes, start = d->offsets[i];
    struct fl_error e;

    assert_true(i < d->samples);
    check_ok(
        tokenizer_decode(tokenizer, d->ids + start, d->offsets[i + 1] - start, &text, &bytes, &e),
        &e);
    assert_string_equal(text, expected);
    free(text);
}

static void alpaca(void **state)
{
    struct dataset *d =
        load("{\"instruction\": \"Add\", \"input\": \"1 2\", \"output\": \"3\"}\n"
             "\n"
             "{\"instruction\": \"Add\", \"input\": \"\", \"output\": \"\"}\r\n"
             "{\"instruction\": \"Add\", \"input\": null, \"output\": \"4\", \"id\": 7}\n"
             "{\"instruction\": \"\", \"input\": \"i\", \"output\": \"o\"}\n"
             "{\"system\": \"s\", \"instruction\": \"q\", \"output\": \"o\"}");

    (void)state;
    assert_int_equal(d->samples, 5);
    assert_int_equal(d->records, 5);
    check_sample(d, 0,
                 "<|im_start|>user\nAdd\n1 2<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n");
    check_sample(d, 1, "<|im_start|>user\nAdd<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n");
    check_sample(d, 2, "<|im_start|>user\nAdd<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n");
    check_sample(d, 3, "<|im_start|>user\ni<|im_end|>\n<|im_start|>assistant\no<|im_end|>\n");
    check_sample(d, 4,
                 "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
                 "<|im_start|>assistant\no<|im_end|>\n");
    assert_int_equal(d->targets, 3 + 2 + 3 + 3 + 3);
    dataset_destroy(d);
}

#define TURNS                                                                                      \
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]"
#define TURNS_TEXT "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"

static void messages(void **state)
{
    static const char *const files[] = {
        "{\"messages\": " TURNS "}\n{\"messages\": " TURNS "}\n", // JSONL of objects
        TURNS "\n" TURNS "\n",                                    // JSONL of lists
        "[" TURNS ",\n " TURNS "]",                               // an array of lists
        "\xef\xbb\xbf [\n{\"messages\": " TURNS "},\n{\"messages\": " TURNS "}\n]\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct dataset *d = load(files[i]);
        assert_int_equal(d->samples, 2);
        check_sample(d, 0, TURNS_TEXT);
        check_sample(d, 1, TURNS_TEXT);
        dataset_destroy(d);
    }
}

// Strings of an array that look like its structure.
static void array_of_tricky_strings(void **state)
{
    struct dataset *d = load("[" ALPACA("],[{\\\"", "a\\\\") ",\n" ALPACA("}", "\\\\\\\"],") "\n]");

    (void)state;
    assert_int_equal(d->samples, 2);
    check_sample(d, 0,
                 "<|im_start|>user\n],[{\"<|im_end|>\n<|im_start|>assistant\na\\<|im_end|>\n");
    check_sample(d, 1, "<|im_start|>user\n}<|im_end|>\n<|im_start|>assistant\n\\\"],<|im_end|>\n");
    dataset_destroy(d);
}

static void nul_in_content(void **state)
{
    struct dataset *d = load(ALPACA("a\\u0000b", "c"));
    char *text;
    size_t bytes;
    struct fl_error e;

    (void)state;
    check_ok(tokenizer_decode(tokenizer, d->ids, d->offsets[1], &text, &bytes, &e), &e);
    assert_memory_equal(text, "<|im_start|>user\na\0b<|im_end|>", 30);
    free(text);
    dataset_destroy(d);
}

static void dropped_and_counted(void **state)
{
    const char *text = ALPACA("q", "short") "\n" //
        ALPACA(
            "q",
            "long long long long long long long long long long long long") "\n" //
                                                                           "{\"messages\": "
                                                                           "[{\"role\": \"user\", "
                                                                           "\"content\": "
                                                                           "\"alone\"}]}\n"
                                                                           "{\"messages\": "
                                                                           "[{\"role\": \"user\", "
                                                                           "\"content\": \"q\"}, "
                                                                           "{\"role\": "
                                                                           "\"assistant\", "
                                                                           "\"content\": \"a\", "
                                                                           "\"loss\": "
                                                                           "false}]}\n" ALPACA("r",
                                                                                               "x");
    struct dataset *d = load_text(text, strlen(text), 18, 1);

    (void)state;
    assert_int_equal(d->records, 5);
    assert_int_equal(d->samples, 2);
    assert_int_equal(d->too_long, 1);
    assert_int_equal(d->no_target, 2);
    assert_true(d->longest <= 18);
    check_sample(d, 1, "<|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n");
    dataset_destroy(d);
}

// A sample of exactly max_length tokens stays.
static void max_length_is_inclusive(void **state)
{
    struct dataset *d = load(ALPACA("q", "a"));
    int length = (int)d->longest;

    (void)state;
    dataset_destroy(d);
    d = load_text(ALPACA("q", "a"), strlen(ALPACA("q", "a")), length, 1);
    assert_int_equal(d->samples, 1);
    dataset_destroy(d);
}

static char *many_samples(int count, size_t *bytes)
{
    const size_t capacity = 128 * (size_t)count;
    char *text = malloc(capacity);

    *bytes = 0;
    for (int i = 0; i < count; i++)
        *bytes += (size_t)snprintf(text + *bytes, capacity - *bytes,
                                   ALPACA("what is %d times %d", "%d") "\n", i, i % 7, i * (i % 7));
    return text;
}

static void threads_keep_the_order(void **state)
{
    size_t bytes;
    char *text = many_samples(1000, &bytes);
    struct dataset *one = load_text(text, bytes, 512, 1), *four = load_text(text, bytes, 512, 4);

    (void)state;
    assert_int_equal(one->samples, 1000);
    assert_int_equal(four->samples, 1000);
    assert_memory_equal(one->offsets, four->offsets, 1001 * sizeof *one->offsets);
    assert_memory_equal(one->ids, four->ids, one->offsets[1000] * sizeof *one->ids);
    assert_memory_equal(one->loss, four->loss, one->offsets[1000]);
    assert_int_equal(one->targets, four->targets);
    dataset_destroy(one);
    dataset_destroy(four);
    free(text);
}

static void several_files(void **state)
{
    char *paths[] = {temporary_file(ALPACA("1", "a"), strlen(ALPACA("1", "a"))),
                     temporary_file("", 0), temporary_file("[" TURNS "]", strlen("[" TURNS "]"))};
    struct dataset *d;
    struct fl_error e;

    (void)state;
    const struct dataset_options options = options_of(512, 2);
    check_ok(dataset_load(paths, 3, &options, &d, &e), &e);
    assert_int_equal(d->samples, 2);
    check_sample(d, 0, "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n");
    check_sample(d, 1, TURNS_TEXT);
    dataset_destroy(d);
    for (int i = 0; i < 3; i++)
        temporary_remove(paths[i]);
}

#define USER(text)   "<|im_start|>user\n" text "<|im_end|>\n"
#define ANSWER(text) "<|im_start|>assistant\n" text "<|im_end|>\n"
#define SYSTEM(text) "<|im_start|>system\n" text "<|im_end|>\n"

// Every other name and form in which a question and an answer come.
static void formats(void **state)
{
    static const char *const cases[][2] = {
        {"{\"query\": \"q\", \"response\": \"r\"}", USER("q") ANSWER("r")},
        {"{\"prompt\": \"q\", \"completion\": \"r\"}", USER("q") ANSWER("r")},
        {"{\"question\": \"q\", \"answer\": \"r\"}", USER("q") ANSWER("r")},
        {"{\"problem\": \"q\", \"content\": \"r\"}", USER("q") ANSWER("r")},
        {"{\"input\": \"q\", \"text\": \"r\"}", USER("q") ANSWER("r")},
        {"{\"input\": \"i\", \"query\": \"q\", \"output\": \"r\"}", USER("q") ANSWER("r")},
        {"{\"instruction\": \"q\", \"input\": \"i\", \"response\": \"r\", \"system\": \"s\"}",
         SYSTEM("s") USER("q\ni") ANSWER("r")},
        {"{\"query\": \"q\", \"response\": \"r\", \"history\": [[\"a\", \"b\"], [\"c\", \"d\"]]}",
         USER("a") ANSWER("b") USER("c") ANSWER("d") USER("q") ANSWER("r")},
        {"{\"query\": \"q\", \"response\": \"r\", \"history\": null, \"tools\": \"\", "
         "\"system\": \"\"}",
         USER("q") ANSWER("r")},
        {"{\"conversations\": [{\"from\": \"system\", \"value\": \"s\"}, {\"from\": \"human\", "
         "\"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"r\"}]}",
         SYSTEM("s") USER("q") ANSWER("r")},
        {"{\"conversations\": [{\"role\": \"user\", \"content\": \"q\"}, {\"from\": \"bot\", "
         "\"value\": \"r\"}], \"system\": \"s\", \"tools\": []}",
         SYSTEM("s") USER("q") ANSWER("r")},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dataset *d = load(cases[i][0]);
        check_sample(d, 0, cases[i][1]);
        dataset_destroy(d);
    }
}

// FILE#N: whole copies and a drawn rest, in order; the same for a seed, others for another.
static void some_of_a_file(void **state)
{
    size_t bytes;
    char *text = many_samples(10, &bytes), *path = temporary_file(text, bytes);
    struct dataset_options options = options_of(512, 2);
    struct dataset *all, *some[3];
    struct fl_error e;

    (void)state;
    check_ok(dataset_load(&path, 1, &options, &all, &e), &e);
    for (int i = 0; i < 3; i++) {
        char *paths[2], *word = memory_format("%s#%d", path, i < 2 ? 24 : 4);
        paths[0] = path;
        paths[1] = word;
        options.seed = i == 1 ? 8 : 7;
        check_ok(dataset_load(paths, 2, &options, &some[i], &e), &e);
        assert_int_equal(some[i]->samples, 10 + (i < 2 ? 24 : 4));
        free(word);
    }
    for (size_t s = 0; s < 30; s++) // the file, and two copies
        for (size_t k = all->offsets[s % 10]; k < all->offsets[s % 10 + 1]; k++)
            assert_int_equal(all->ids[k],
                             some[0]->ids[some[0]->offsets[s] + k - all->offsets[s % 10]]);
    // Four of ten: what is left of 24 and what 4 takes are the same draw.
    assert_memory_equal(some[0]->ids + some[0]->offsets[30], some[2]->ids + some[2]->offsets[10],
                        (some[2]->offsets[14] - some[2]->offsets[10]) * sizeof(int32_t));
    assert_true(some[0]->offsets[34] != some[1]->offsets[34] ||
                memcmp(some[0]->ids, some[1]->ids, some[0]->offsets[34] * sizeof(int32_t)) != 0);
    dataset_destroy(some[0]);
    dataset_destroy(some[1]);
    for (int i = 0; i < 2; i++) {
        char *word = memory_format("%s#%s", path, i ? "99999999999999999999999" : "0");
        check_error(dataset_load(&word, 1, &options, &some[i], &e), &e,
                    "samples of a file must be in [1, ");
        free(word);
    }
    dataset_destroy(some[2]);
    dataset_destroy(all);
    temporary_remove(path);
    free(text);
}

// Every sample is on one side, in order; a share that leaves nothing is refused.
static void split(void **state)
{
    size_t bytes, from[2] = {0, 0};
    char *text = many_samples(50, &bytes);
    struct dataset *all = load_text(text, bytes, 512, 1), *d = load_text(text, bytes, 512, 1), *v;
    struct fl_error e;

    (void)state;
    check_ok(dataset_split(d, 0.2, 3, &v, &e), &e);
    assert_true(d->samples == 40 && v->samples == 10 && d->records == 50);
    assert_int_equal(d->targets + v->targets, all->targets);
    for (size_t s = 0; s < 50; s++) {
        size_t length = all->offsets[s + 1] - all->offsets[s];
        int side;
        for (side = 0; side < 2; side++) {
            const struct dataset *part = side ? v : d;
            size_t at = from[side];
            if (at < part->samples && part->offsets[at + 1] - part->offsets[at] == length &&
                !memcmp(part->ids + part->offsets[at], all->ids + all->offsets[s],
                        length * sizeof(int32_t)))
                break;
        }
        assert_true(side < 2);
        from[side]++;
    }
    dataset_destroy(v);
    check_error(dataset_split(d, 0.999, 3, &v, &e), &e,
                "split_dataset_ratio 0.999 of 40 samples leaves none to train on");
    dataset_destroy(d);
    dataset_destroy(all);
    free(text);
}

// The error of loading text; `place` is what must follow the file's name.
static void check_refused(const char *text, int threads, const char *place, const char *words)
{
    char *path = temporary_file(text, strlen(text)), expected[128];
    const struct dataset_options options = options_of(24, threads);
    struct dataset *d;
    struct fl_error e;

    snprintf(expected, sizeof expected, "%s%s", path, place);
    check_error(dataset_load(&path, 1, &options, &d, &e), &e, words);
    assert_null(d);
    if (strncmp(e.text, expected, strlen(expected)) != 0)
        fail_msg("'%s' does not start with '%s'", e.text, expected);
    temporary_remove(path);
}

static void bad_files(void **state)
{
    static const struct {
        const char *text, *place, *words;
    } cases[] = {
        {ALPACA("q", "a") "\n{\"instruction\": \"x\",\n", ":2: ", "not JSON (column "},
        {"\n\nhello\n", ":3: ", "write UTF-8, one object a line or one array"},
        {ALPACA("q", "a") " " ALPACA("q", "a"), ":1: ", "not JSON"},
        {"{\"output\": \"a\", \"output\": \"b\"}", ":1: ", "not JSON"},
        {"{\"instruction\": \"\xff\", \"output\": \"b\"}", ":1: ", "unable to decode byte 0xff"},
        {"[" ALPACA("q", "a") ",\n\n{\"instruction\": 3,\n\"output\": \"b\"}]",
         ":3: ", "\"instruction\" is a number: it must be a string"},
        {"[" ALPACA("q", "a") ",\n{\"instruction\": \"b\",\n\"output\": b}]", ":3: ", "not JSON"},
        {"[" ALPACA("q", "a"), ":1: ", "the JSON array is not closed: is the file cut?"},
        {"[" ALPACA("q", "a") "\n}", ":2: ", "'}' where"},
        {"[" ALPACA("q", "a") "]\n\nx", ":3: ", "text after the end of the JSON array"},
        {"[" ALPACA("q", "a") ",]", ":1: ", "not JSON"},
        {"17\n", ":1: ", "a sample is a number: it must be a JSON object"},
        {"{\"question\": \"a\"}", ":1: ", "\"output\" is missing"},
        {"{\"ask\": \"a\"}", ":1: ", "unknown format: write {\"instruction\""},
        {"{\"conversations\": 1}", ":1: ", "\"conversations\" is a number: it must be a list"},
        {"{\"conversations\": [{\"from\": \"human\"}]}", ":1: ", "message 1: \"value\" is missing"},
        {"{\"conversations\": [{\"from\": \"gtp\", \"value\": \"x\"}]}",
         ":1: ", "message 1: unknown role \"gtp\": write gpt"},
        {"{\"query\": \"a\", \"response\": \"b\", \"history\": [[\"q\"]]}",
         ":1: ", "turn 1 of \"history\": write [question, answer]"},
        {"{\"query\": \"a\", \"response\": \"b\", \"history\": {}}",
         ":1: ", "\"history\" is an object: it must be a list"},
        {"{\"query\": \"a\", \"response\": \"b\", \"tools\": {}}",
         ":1: ", "\"tools\" is an object: it must be a list"},
        {"{\"query\": \"a\", \"response\": \"b\", \"tools\": \"[\"}",
         ":1: ", "\"tools\" is text that is not JSON"},
        {"{\"query\": \"a\", \"response\": \"b\", \"tools\": [1]}",
         ":1: ", "tools: this version has no text for them in this model's template"},
        {"{\"query\": \"a\", \"response\": \"b\", \"system\": 1}",
         ":1: ", "\"system\" is a number: it must be a string"},
        {"{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": {\"a\": 1}}]}",
         ":1: ", "message 1: \"tool_calls\" is an object: it must be a list"},
        {"{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\"}]}]}",
         ":1: ", "message 1: tool call 1: write {\"name\": ..., \"arguments\": ...}"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"tool_calls\": [{\"name\": "
         "\"f\", \"arguments\": {}}]}]}",
         ":1: ", "\"tool_calls\" in a message of role user: only an assistant calls"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", "
         "\"reasoning_content\": 1}]}",
         ":1: ", "\"reasoning_content\" is a number: it must be a string"},
        {"{}", ":1: ", "unknown format"},
        {"[[1]]", ":1: ", "message 1: is a number"},
        {"{\"instruction\": \"a\"}", ":1: ", "\"output\" is missing"},
        {"{\"output\": \"a\"}", ":1: ", "\"instruction\" is missing"},
        {"{\"instruction\": \"a\", \"output\": null}", ":1: ", "\"output\" is null"},
        {"{\"instruction\": \"a\", \"output\": \"b\", \"input\": []}",
         ":1: ", "\"input\" is a list"},
        {"{\"messages\": {}}", ":1: ", "\"messages\" is an object: it must be a list"},
        {"{\"messages\": []}", ":1: ", "no messages"},
        {"{\"messages\": [3]}", ":1: ", "message 1: is a number"},
        {"{\"messages\": [{\"role\": \"user\"}]}", ":1: ", "message 1: \"content\" is missing"},
        {"{\"messages\": [{\"content\": \"x\"}]}", ":1: ", "message 1: \"role\" is missing"},
        {"{\"messages\": [{\"role\": \"asistant\", \"content\": \"x\"}]}",
         ":1: ", "message 1: unknown role \"asistant\": write assistant"},
        {"{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}",
         ":1: ", "tools: this version has no text for them in this model's template"},
        {"{\"messages\": [{\"role\": \"xyzzy\", \"content\": \"x\"}]}",
         ":1: ", "unknown role \"xyzzy\": write system, user, assistant or tool"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"loss\": 1}]}",
         ":1: ", "\"loss\" is a number: it must be true or false"},
        {"", ": ", "no samples: the dataset is empty"},
        {" \n\n", ": ", "the dataset is empty"},
        {"[]", ": ", "the dataset is empty"},
        {ALPACA("one two three four five six seven eight nine ten", "a"), ": ",
         "1 of 1 have more than max_length 24 tokens; raise it to at least 3"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", ": ",
         "of 1 samples 1 have no assistant answer to learn and 0 are longer"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int threads = 1; threads <= 3; threads += 2)
            check_refused(cases[i].text, threads, cases[i].place, cases[i].words);
}

// Of two bad records the first is told, though another thread sees the second while the first is
// still behind a long one.
static void first_error_wins(void **state)
{
    const size_t long_bytes = 4 << 20;
    size_t bytes;
    char *text = many_samples(600, &bytes), *all = malloc(long_bytes + bytes + 64), *at = all;
    char *first = strstr(text, "\"what is 7 "), *second = strstr(text, "\"what is 40 ");

    (void)state;
    *first = *second = '!'; // not the start of a string
    at = stpcpy(at, "{\"instruction\": \"x\", \"output\": \"");
    memset(at, 'a', long_bytes);
    strcpy(stpcpy(at + long_bytes, "\"}\n"), text);
    for (int round = 0; round < 3; round++)
        check_refused(all, 4, ":9: ", "not JSON");
    free(all);
    free(text);
}

static void unreadable_files(void **state)
{
    char *missing = (char *)"/nonexistent/train.jsonl", *folder = (char *)"/tmp";
    struct dataset_options options = options_of(24, 2);
    struct dataset *d;
    struct fl_error e;

    (void)state;
    check_error(dataset_load(&missing, 1, &options, &d, &e), &e,
                "/nonexistent/train.jsonl: cannot open");
    check_error(dataset_load(&folder, 1, &options, &d, &e), &e, "/tmp: not a regular file");
    check_error(dataset_load(&folder, 0, &options, &d, &e), &e, "no file: no samples");
    options.max_length = 0;
    check_error(dataset_load(&folder, 1, &options, &d, &e), &e, "max_length 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alpaca),
        cmocka_unit_test(messages),
        cmocka_unit_test(array_of_tricky_strings),
        cmocka_unit_test(nul_in_content),
        cmocka_unit_test(dropped_and_counted),
        cmocka_unit_test(max_length_is_inclusive),
        cmocka_unit_test(threads_keep_the_order),
        cmocka_unit_test(several_files),
        cmocka_unit_test(formats),
        cmocka_unit_test(some_of_a_file),
        cmocka_unit_test(split),
        cmocka_unit_test(bad_files),
        cmocka_unit_test(first_error_wins),
        cmocka_unit_test(unreadable_files),
    };
    return cmocka_run_group_tests_name("dataset", tests, tokenizer_setup, tokenizer_teardown);
}
