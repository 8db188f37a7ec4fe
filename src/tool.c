// SPDX-License-Identifier: Apache-2.0
// fp8-lora: what a person asks on a login node; one subcommand a question.
#include "base/log.h"
#include "base/nearest.h"
#include "data/data_command.h"
#include "job/plan_command.h"
#include "place/placement_command.h"
#include "report/report_command.h"
#include "weights/synth_command.h"

#include "config.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv); // argv[0] is the name; returns the exit status
} commands[] = {
    {"plan", "parameters and bytes of a job, rank by rank, before it runs", plan_command},
    {"placement", "GPU, CPUs and NIC of every rank on this machine or another", placement_command},
    {"report", "what every rank of a job planned and used, from accounting", report_command},
    {"data", "what a job will train on: samples, lengths, the loss mask", data_command},
    {"synth", "a checkpoint of any shape, made without a download", synth_command},
};

#define COMMANDS (sizeof commands / sizeof *commands)

static void usage(FILE *out)
{
    fputs("usage: fp8-lora COMMAND ...\n\n", out);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
    fputs("\n`fp8-lora COMMAND --help` tells more; --version prints the version.\n", out);
}

static int unknown(const char *word)
{
    const char *names[COMMANDS], *nearest;

    for (size_t i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    nearest = nearest_name(word, names, COMMANDS);
    if (nearest)
        log_error("unknown command '%s', did you mean '%s'?", word, nearest);
    else
        log_error("unknown command '%s': `fp8-lora --help` lists all", word);
    return 2;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version")) {
        puts(PACKAGE_STRING);
        return 0;
    }
    for (size_t i = 0; i < COMMANDS; i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    return unknown(argv[1]);
}
