/* The progress of a job as text: which steps to show, how long it will take, one line. Pure: time
 * comes in. */
#ifndef SHD_CLIENT_PROGRESS_H
#define SHD_CLIENT_PROGRESS_H

#include <stdint.h>

#include "client/buf.h"
#include "client/term.h"
#include "proto/shard.pb-c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- which steps get a line where lines cannot be redrawn ---- */

typedef struct shc_rhythm {
    int any;
    uint64_t step; /* shown last */
    double at;     /* when, seconds */
} shc_rhythm;

/* Whether this step is to be shown: the first, every one of at most 50, else when a second passed
 * or another percent of total (0: unknown) is reached. Notes it when so. */
int shc_rhythm_due(shc_rhythm *rhythm, uint64_t step, uint64_t total, double now);

/* ---- time left ---- */

enum { SHC_RATE_POINTS = 64 };

/* When the latest steps arrived. Steps that arrive faster than they were computed (history) do not
 * count as speed: the slower of arrival and step_ms is believed. */
typedef struct shc_rate {
    struct {
        double at;
        uint64_t step;
    } points[SHC_RATE_POINTS];
    unsigned next, n;
    double step_s; /* smoothed step_ms */
} shc_rate;

void shc_rate_add(shc_rate *rate, uint64_t step, double step_ms, double now);
/* Seconds until step `total`; -1 when not known. */
double shc_rate_eta(const shc_rate *rate, uint64_t total);

/* ---- lines, without newline ---- */

/* "step 12/300  loss 2.1234  grad norm 0.512  lr 3.00e-04  12.3k tokens/s  ETA 0:01:23" */
void shc_progress_plain(shc_buf *out, const Shard__V1__StepResult *step, uint64_t total,
                        double eta_s);
/* The same with a bar, at most term->width - 1 columns wide: what matters least is left out first.
 */
void shc_progress_bar(shc_buf *out, const Shard__V1__StepResult *step, uint64_t total, double eta_s,
                      const shc_term *term);
/* "tokenizing 12.5 MiB of 40.0 MiB (31%)": work before the first step. */
void shc_preparing_plain(shc_buf *out, const Shard__V1__Progress *progress);
/* The same with a bar, at most term->width - 1 columns wide. */
void shc_preparing_bar(shc_buf *out, const Shard__V1__Progress *progress, const shc_term *term);
/* Its share done, 0..1. */
double shc_preparing_share(const Shard__V1__Progress *progress);
/* A bar of `cells` columns, filled by share (0..1). */
void shc_bar(shc_buf *out, double share, size_t cells, const shc_term *term);

#ifdef __cplusplus
}
#endif
#endif
