// SPDX-License-Identifier: Apache-2.0
// What a person sees of the training.
#include "train/console.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH 30

struct console {
    bool terminal, bar_shown;
};

void console_duration(double seconds, char *text, size_t bytes)
{
    long long s = seconds > 0 && seconds < 1e12 ? (long long)seconds : 0;
    long long days = s / 86400, hours = s / 3600 % 24, minutes = s / 60 % 60;

    s %= 60;
    if (days)
        snprintf(text, bytes, "%lldd %lldh %lldm %llds", days, hours, minutes, s);
    else if (hours)
        snprintf(text, bytes, "%lldh %lldm %llds", hours, minutes, s);
    else if (minutes)
        snprintf(text, bytes, "%lldm %llds", minutes, s);
    else
        snprintf(text, bytes, "%llds", s);
}

static void time_text(time_t now, char *text, size_t bytes)
{
    struct tm tm;

    localtime_r(&now, &tm);
    strftime(text, bytes, "%Y-%m-%d %H:%M:%S", &tm);
}

// Two decimals without a last zero, at least one: 12.5, 0.03, 4.0.
static void gib_text(double gib, char *text, size_t bytes)
{
    size_t length;

    snprintf(text, bytes, "%.2f", gib);
    length = strlen(text);
    if (length && text[length - 1] == '0')
        text[length - 1] = 0;
}

void console_iteration_line(const struct progress *p, char *text, size_t bytes)
{
    char now[32], memory[32], elapsed[48], remaining[48];

    time_text(p->now, now, sizeof now);
    gib_text(p->memory_gib, memory, sizeof memory);
    console_duration(p->elapsed_s, elapsed, sizeof elapsed);
    console_duration(p->remaining_s, remaining, sizeof remaining);
    snprintf(text, bytes,
             "[%s] iteration %lld/ %lld | consumed samples: %lld | elapsed time per iteration "
             "(ms): %.1f | memory(GiB): %s | elapsed time: %s | remaining time: %s | learning "
             "rate: %.6E | global batch size: %d | lm loss: %.6E | load_balancing_loss: %.6E | "
             "loss scale: 1.0 | grad norm: %.3f | number of skipped iterations: %lld | number of "
             "nan iterations: %lld |",
             now, (long long)p->iteration, (long long)p->iterations, (long long)p->consumed_samples,
             p->iteration_ms, memory, elapsed, remaining, p->lr, p->global_batch_size, p->loss,
             p->load_balancing_loss, p->grad_norm, (long long)p->skipped, (long long)p->nan);
}

void console_validation_line(const struct validation *v, char *text, size_t bytes)
{
    char now[32], elapsed[48];

    time_text(v->now, now, sizeof now);
    console_duration(v->elapsed_s, elapsed, sizeof elapsed);
    snprintf(text, bytes,
             "[%s] validation loss at iteration %lld/ %lld | lm loss value: %.6E | lm loss PPL: "
             "%.6E | tokens: %lld | elapsed time: %s |",
             now, (long long)v->iteration, (long long)v->iterations, v->loss, exp(v->loss),
             (long long)v->targets, elapsed);
}

struct console *console_create(void)
{
    struct console *console = memory_zeroed(1, sizeof *console);

    console->terminal = isatty(STDERR_FILENO);
    return console;
}

static void bar_clear(struct console *console)
{
    if (console->bar_shown)
        fputs("\r\033[K", stderr);
    console->bar_shown = false;
}

void console_destroy(struct console *console)
{
    if (!console)
        return;
    bar_clear(console);
    free(console);
}

void console_print(struct console *console, const char *line)
{
    bar_clear(console);
    puts(line);
    fflush(stdout);
}

void console_bar(struct console *console, int64_t iteration, int64_t iterations, double remaining_s,
                 double loss)
{
    char remaining[48], bar[BAR_WIDTH + 1];
    int filled = (int)(iteration * BAR_WIDTH / iterations);

    if (!console->terminal)
        return;
    for (int i = 0; i < BAR_WIDTH; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[BAR_WIDTH] = 0;
    console_duration(remaining_s, remaining, sizeof remaining);
    fprintf(stderr, "\r\033[K[%s] %lld/%lld %3lld%% loss %.4f ETA %s", bar, (long long)iteration,
            (long long)iterations, (long long)(iteration * 100 / iterations), loss, remaining);
    fflush(stderr);
    console->bar_shown = true;
}
