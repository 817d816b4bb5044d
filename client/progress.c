#include "client/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/units.h"

enum { FEW_STEPS = 50 };

int shc_rhythm_due(shc_rhythm *rhythm, uint64_t step, uint64_t total, double now)
{
    const int percent =
        total && step <= total &&
        (double)step * 100 / (double)total >= floor((double)rhythm->step * 100 / (double)total) + 1;

    if (rhythm->any && !(total && total <= FEW_STEPS) && !percent && now - rhythm->at < 1)
        return 0;
    *rhythm = (shc_rhythm){.any = 1, .step = step, .at = now};
    return 1;
}

void shc_rate_add(shc_rate *rate, uint64_t step, double step_ms, double now)
{
    if (step_ms > 0)
        rate->step_s =
            rate->step_s > 0 ? 0.9 * rate->step_s + 0.1 * step_ms / 1000 : step_ms / 1000;
    rate->points[rate->next].at = now;
    rate->points[rate->next].step = step;
    rate->next = (rate->next + 1) % SHC_RATE_POINTS;
    if (rate->n < SHC_RATE_POINTS)
        rate->n++;
}

double shc_rate_eta(const shc_rate *rate, uint64_t total)
{
    if (!rate->n)
        return -1;
    const unsigned last = (rate->next + SHC_RATE_POINTS - 1) % SHC_RATE_POINTS;
    const unsigned first = (rate->next + SHC_RATE_POINTS - rate->n) % SHC_RATE_POINTS;
    const uint64_t step = rate->points[last].step;
    double per_step = rate->step_s;

    if (rate->n > 1 && step > rate->points[first].step) {
        const double arrival = (rate->points[last].at - rate->points[first].at) /
                               (double)(step - rate->points[first].step);
        per_step = arrival > per_step ? arrival : per_step;
    }
    if (!(per_step > 0) || total < step)
        return -1;
    return (double)(total - step) * per_step;
}

static const char *rate_text(char out[SHC_UNIT_LEN], double tokens_per_s)
{
    return shc_format_count(out, tokens_per_s);
}

void shc_progress_plain(shc_buf *out, const Shard__V1__StepResult *step, uint64_t total,
                        double eta_s)
{
    char text[SHC_UNIT_LEN];

    shc_buf_printf(out, "step %" PRIu64, step->step);
    if (total)
        shc_buf_printf(out, "/%" PRIu64, total);
    shc_buf_printf(out, "  loss %.4f  grad norm %.3f  lr %.2e  %s tokens/s", step->loss,
                   step->grad_norm, step->lr, rate_text(text, step->tokens_per_s));
    if (eta_s >= 0)
        shc_buf_printf(out, "  ETA %s", shc_format_hms(text, eta_s));
    if (step->loss_scale > 0)
        shc_buf_printf(out, "  scale %.7g", step->loss_scale);
    if (step->skipped)
        shc_buf_puts(out, "  skipped: gradient not finite");
}

void shc_bar(shc_buf *out, double share, size_t cells, const shc_term *term)
{
    /* Eighths of a block, empty to full. */
    static const char *const blocks[] = {" ",
                                         "\xE2\x96\x8F",
                                         "\xE2\x96\x8E",
                                         "\xE2\x96\x8D",
                                         "\xE2\x96\x8C",
                                         "\xE2\x96\x8B",
                                         "\xE2\x96\x8A",
                                         "\xE2\x96\x89",
                                         "\xE2\x96\x88"};

    if (!(share > 0))
        share = 0;
    if (share > 1)
        share = 1;
    const size_t eighths = (size_t)(share * (double)cells * 8 + 0.5);
    shc_buf_puts(out, term->utf8 ? "\xE2\x96\x95" : "[");
    for (size_t i = 0; i < cells; i++) {
        const size_t fill = eighths > i * 8 ? eighths - i * 8 : 0;
        if (term->utf8)
            shc_buf_puts(out, blocks[fill > 8 ? 8 : fill]);
        else
            shc_buf_puts(out, fill >= 4 ? "#" : ".");
    }
    shc_buf_puts(out, term->utf8 ? "\xE2\x96\x8F" : "]");
}

double shc_preparing_share(const Shard__V1__Progress *progress)
{
    if (!progress->total)
        return 0;
    const double share = (double)progress->done / (double)progress->total;
    return share < 1 ? share : 1;
}

/* "12.5 MiB", or "12 windows" without the unit. */
static void amount(char out[SHC_UNIT_LEN], const Shard__V1__Progress *progress, uint64_t value)
{
    if (*progress->unit) {
        snprintf(out, SHC_UNIT_LEN, "%" PRIu64, value);
        return;
    }
    shc_format_bytes(out, value);
    out[strcspn(out, "B") + 1] = '\0'; /* the unit is padded to three columns */
}

void shc_preparing_plain(shc_buf *out, const Shard__V1__Progress *progress)
{
    char done[SHC_UNIT_LEN], total[SHC_UNIT_LEN];

    shc_text_clean(out, *progress->what ? progress->what : "preparing");
    if (!progress->total && *progress->unit)
        return;
    amount(done, progress, progress->done);
    amount(total, progress, progress->total);
    shc_buf_printf(out, " %s", done);
    if (progress->total)
        shc_buf_printf(out, " of %s", total);
    if (*progress->unit) {
        shc_buf_puts(out, " ");
        shc_text_clean(out, progress->unit);
    }
    if (progress->total)
        shc_buf_printf(out, " (%.0f%%)", floor(shc_preparing_share(progress) * 100));
}

void shc_preparing_bar(shc_buf *out, const Shard__V1__Progress *progress, const shc_term *term)
{
    enum { MIN_BAR = 8, MAX_BAR = 30 };
    shc_buf text = {0};

    shc_preparing_plain(&text, progress);
    const size_t used = shc_text_width(shc_buf_str(&text)) + 5;
    const size_t width = term->width > 1 ? (size_t)term->width : 200;
    if (progress->total && used + MIN_BAR <= width) {
        const size_t left = width - used;
        shc_bar(out, shc_preparing_share(progress), left > MAX_BAR ? MAX_BAR : left, term);
        shc_buf_puts(out, "  ");
    }
    shc_buf_puts(out, shc_buf_str(&text));
    shc_buf_fini(&text);
}

/* Appends a field if the line stays short enough; the caller tries in order of importance. */
static int field_fits(size_t *left, const char *text)
{
    const size_t width = shc_text_width(text);

    if (width > *left)
        return 0;
    *left -= width;
    return 1;
}

void shc_progress_bar(shc_buf *out, const Shard__V1__StepResult *step, uint64_t total, double eta_s,
                      const shc_term *term)
{
    enum { STEP, LOSS, ETA, RATE, NORM, LR, SCALE, NFIELDS, MIN_BAR = 8, MAX_BAR = 30 };
    /* Where fields stand on the line; the enum's order is that of importance. */
    static const int order[NFIELDS] = {STEP, LOSS, NORM, LR, SCALE, RATE, ETA};
    char fields[NFIELDS][64] = {{0}}, text[SHC_UNIT_LEN];
    int shown[NFIELDS] = {0};
    size_t left = term->width > 1 ? (size_t)term->width - 1 : 200;

    if (total)
        snprintf(fields[STEP], sizeof *fields, "step %" PRIu64 "/%" PRIu64, step->step, total);
    else
        snprintf(fields[STEP], sizeof *fields, "step %" PRIu64, step->step);
    snprintf(fields[LOSS], sizeof *fields, "  loss %.4f", step->loss);
    if (eta_s >= 0)
        snprintf(fields[ETA], sizeof *fields, "  ETA %s", shc_format_hms(text, eta_s));
    snprintf(fields[RATE], sizeof *fields, "  %s tokens/s", rate_text(text, step->tokens_per_s));
    snprintf(fields[NORM], sizeof *fields, "  norm %.3f", step->grad_norm);
    snprintf(fields[LR], sizeof *fields, "  lr %.2e", step->lr);
    if (step->loss_scale > 0)
        snprintf(fields[SCALE], sizeof *fields, "  scale %.7g", step->loss_scale);
    for (int f = 0; f < NFIELDS; f++) {
        shown[f] = field_fits(&left, fields[f]);
        if (!shown[f])
            break;
    }
    if (total && left >= MIN_BAR + 4) {
        const size_t cells = left - 4 > MAX_BAR ? MAX_BAR : left - 4;
        shc_bar(out, (double)step->step / (double)total, cells, term);
        shc_buf_puts(out, "  ");
    }
    for (int i = 0; i < NFIELDS; i++)
        if (shown[order[i]])
            shc_buf_puts(out, fields[order[i]]);
}
