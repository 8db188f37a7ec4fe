// SPDX-License-Identifier: Apache-2.0
// report/: sacct's answer taken apart, and the table of a step, from good and from hostile text.
#include "unit/check.h"

#include "report/comment.h"
#include "report/sacct.h"
#include "report/table.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static char *table_of(const char *json)
{
    json_t *step = json_loads(json, 0, NULL);
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    assert_non_null(step);
    table_print(out, step);
    fclose(out);
    json_decref(step);
    return text;
}

static void golden_table(void **state)
{
    static const char golden[] =
        "rank  node  GPU           state    planned      peak  measured        cap      host  "
        "tokens/s    loss  exit\n"
        "   0  n0    GPU-01234567  done    4.00 GiB  4.50 GiB  5.00 GiB  79.00 GiB  2.00 GiB    "
        "1000.5  1.2500     0\n"
        "   1  n1    cpu           failed  4.00 GiB  1.00 GiB         -          -  1.00 GiB       "
        "  "
        "-       -   137  killed by signal 9 (Killed)\n"
        " all                              8.00 GiB  5.50 GiB  5.00 GiB             3.00 GiB    "
        "1000.5              \n"
        "highest peak, rank 0: weights 4.00 GiB activations 512.00 MiB\n"
        "device memory of node 0: cap in force: sampled (processes of the step's cgroup)\n"
        "device memory of node 1: cap not in force: the watch died (slurmstepd's descendants)\n"
        "2 of 4 ranks: the others left nothing, or there was no room for them\n"
        "first failure: rank 1, killed by signal 9 (Killed)\n";
    char *text = table_of(
        "{\"tasks\":4,\"failed\":{\"rank\":1,\"at\":5,\"cause\":\"killed by signal 9 (Killed)\"},"
        "\"watch\":[[0,\"watch\",\"cgroup\"],[1,\"lost\",\"family\"]],"
        "\"ranks\":[{\"rank\":0,\"node\":\"n0\",\"gpu\":\"GPU-01234567-89ab\",\"state\":\"done\","
        "\"planned\":4294967296,\"peak\":4831838208,\"measured\":5368709120,\"by\":[4294967296,0,0,"
        "0,536870912,0,0],"
        "\"rss\":2147483648,\"cap\":84825604096,\"tps\":1000.5,\"loss\":1.25,\"exit\":0},"
        "{\"rank\":1,\"node\":\"n1\",\"gpu\":\"cpu\",\"state\":\"failed\",\"planned\":4294967296,"
        "\"peak\":1073741824,\"rss\":1073741824,\"cap\":0,\"tps\":null,\"loss\":null,\"exit\":9,"
        "\"cause\":\"killed by signal 9 (Killed)\"}]}");
    (void)state;
    assert_string_equal(text, golden);
    free(text);
}

static void hostile_tables(void **state)
{
    static const char *const steps[] = {
        "{}",
        "[]",
        "{\"ranks\":7,\"failed\":{}}",
        "{\"ranks\":[],\"watch\":7}",
        "{\"ranks\":[],\"watch\":[7,[],[\"x\"],[0,7,{}],[1,\"nonsense\",\"cgroup\"],[2,\"limit\","
        "\"\\u001b\"]]}",
        "{\"ranks\":[1,null,[],{}]}",
        "{\"tasks\":-5,\"ranks\":[{\"rank\":\"x\",\"node\":7,\"peak\":-1,\"by\":[-1,\"a\",{}]}]}",
        "{\"ranks\":[{\"rank\":1e300,\"tps\":1e308,\"loss\":-1e308,\"exit\":9e18,\"peak\":"
        "9223372036854775807,\"by\":[9223372036854775807]}]}",
        "{\"failed\":{\"rank\":1,\"cause\":\"\\u001b[31mred\\n\"},\"ranks\":[{\"node\":\"\\u001b]0;"
        "x\\u0007\"}]}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char *text = table_of(steps[i]);
        for (char *c = text; *c; c++)
            assert_true(*c == '\n' || (*c >= 0x20 && *c < 0x7f));
        free(text);
    }
}

static void sacct_answers(void **state)
{
    struct sacct_job job;
    struct fl_error e;
    (void)state;
    check_ok(sacct_parse(strdup("77|COMPLETED|0:0|a|b {x}\n"), "77", &job, &e), &e);
    assert_string_equal(job.id, "77");
    assert_string_equal(job.state, "COMPLETED");
    assert_string_equal(job.exit_code, "0:0");
    assert_string_equal(job.admin_comment, "a|b {x}");
    sacct_free(&job);
    check_ok(sacct_parse(strdup("77|CANCELLED by 0|0:9|\n"), "77", &job, &e), &e);
    assert_string_equal(job.admin_comment, "");
    sacct_free(&job);
    check_error(sacct_parse(strdup("\n"), "77", &job, &e), &e,
                "job 77: sacct shows no such job of yours");
    check_error(sacct_parse(strdup("77|x"), "77", &job, &e), &e, "not the four fields");
    check_ok(sacct_parse(strdup("77_1|COMPLETED|0:0|"), "77_1", &job, &e), &e);
    sacct_free(&job);
    check_ok(sacct_parse(strdup("77_1|COMPLETED|0:0|"), "78", &job, &e), &e);
    sacct_free(&job);
    check_error(sacct_parse(strdup("77_0|COMPLETED|0:0|\n77_1|FAILED|1:0|\n"), "77", &job, &e), &e,
                "job 77 is an array: name one of its jobs, such as 77_0");
    check_error(sacct_load("7; rm", &job, &e), &e, "'7; rm' is no job number");
    check_error(sacct_load("", &job, &e), &e, "no job number");
    check_error(sacct_load("1_", &job, &e), &e, "no job number");
    check_error(sacct_load("--help", &job, &e), &e, "no job number");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_table),
        cmocka_unit_test(hostile_tables),
        cmocka_unit_test(sacct_answers),
    };
    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
