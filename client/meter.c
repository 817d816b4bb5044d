#include "client/meter.h"

#include <stdio.h>
#include <string.h>

#include "client/progress.h"

void shc_meter_clear(shc_meter *meter)
{
    if (meter->drawn) {
        fputs("\r\033[K", stdout);
        fflush(stdout);
    }
    meter->drawn = 0;
}

static void show_json(const Shard__V1__Progress *progress)
{
    shc_json json = {0};

    shc_json_open(&json, NULL, '{');
    shc_json_str(&json, "progress", progress->what);
    shc_json_u64(&json, "done", progress->done);
    shc_json_u64(&json, "total", progress->total);
    if (*progress->unit)
        shc_json_str(&json, "unit", progress->unit);
    shc_json_close(&json, '}');
    shc_json_line(&json, stdout);
    shc_json_fini(&json);
}

void shc_meter_show(shc_meter *meter, const Shard__V1__Progress *progress)
{
    const int tenth = (int)(shc_preparing_share(progress) * 10) + 1;
    shc_buf line = {0};

    if (strncmp(meter->what, progress->what, sizeof meter->what - 1)) {
        snprintf(meter->what, sizeof meter->what, "%s", progress->what);
        meter->tenth = 0;
    }
    if (meter->env->term.tty && !meter->env->json) {
        const shc_term fresh = shc_term_of(stdout);
        shc_buf_puts(&line, "\r");
        shc_preparing_bar(&line, progress, &fresh);
        shc_buf_puts(&line, "\033[K");
        shc_buf_flush(&line, stdout);
        meter->drawn = 1;
    } else if (meter->env->json) {
        if (!meter->tenth || progress->done != meter->done)
            show_json(progress);
    } else if (tenth != meter->tenth) {
        shc_preparing_plain(&line, progress);
        shc_buf_puts(&line, "\n");
        shc_buf_flush(&line, stdout);
    }
    meter->tenth = tenth;
    meter->done = progress->done;
    shc_buf_fini(&line);
}
